"""The rule files of the checkout, parsed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import yaml

ROOT = Path(__file__).resolve().parents[2]
ALERT_RULES = ROOT / "alert_rules"
RUNBOOKS = ROOT / "runbooks"


@dataclass(frozen=True)
class Rule:
    """One rule: `name` is the recorded series or the alert."""

    name: str
    file: Path
    group: str
    body: dict[str, Any]

    @property
    def expr(self) -> str:
        return self.body["expr"]

    @property
    def labels(self) -> dict[str, str]:
        return self.body.get("labels", {})


def rule_files() -> list[Path]:
    """Return the rendered files."""
    files = sorted([*ALERT_RULES.glob("recording/*.yaml"), *ALERT_RULES.glob("alerts/*.yaml")])
    assert len(files) > 10, "a glob that finds nothing must not pass"
    return files


@cache
def rules(kind: str) -> list[Rule]:
    """Return all rules of a kind: "record" or "alert"."""
    return [
        Rule(body[kind], path, group["name"], body)
        for path in rule_files()
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for body in group["rules"]
        if kind in body
    ]


@cache
def recorded() -> dict[str, list[Rule]]:
    """Return recorded series -> the rules that record it."""
    found: dict[str, list[Rule]] = {}
    for rule in rules("record"):
        found.setdefault(rule.name, []).append(rule)
    return found


def nodes(expr: str) -> Iterator[promql_parser.Expr]:
    """Return every node of a PromQL expression."""
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expr), found.append, lambda _: None)
    return iter(found)


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    """Return every series selector of a PromQL expression."""
    return [node for node in nodes(expr) if isinstance(node, promql_parser.VectorSelector)]


def metrics(expr: str) -> set[str]:
    """Return the names that a PromQL expression reads."""
    return {selector.name for selector in selectors(expr)}


def raw_metrics(expr: str) -> set[str]:
    """Return the published names behind an expression: recorded series are followed to them."""
    found: set[str] = set()
    todo, seen = list(metrics(expr)), set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        behind = recorded().get(name)
        if behind is None:
            found.add(name)
        else:
            todo += [metric for rule in behind for metric in metrics(rule.expr)]
    return found
