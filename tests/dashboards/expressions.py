"""PromQL of a dashboard as a syntax tree, and what rules ask of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import promql_parser

# Unlikely on purpose: a range of this length can only come from the macro.
RATE_INTERVAL = timedelta(seconds=7919)
WHOLE_RANGE = timedelta(seconds=7927)
MACROS = {
    "$__rate_interval": f"{int(RATE_INTERVAL.total_seconds())}s",
    "$__range": f"{int(WHOLE_RANGE.total_seconds())}s",
    "$__interval": "1m",
}


@dataclass(frozen=True)
class Node:
    """A node of the tree and those above it, the outermost first."""

    expr: promql_parser.Expr
    above: tuple[promql_parser.Expr, ...]


def parse(expr: str) -> promql_parser.Expr:
    """Return the tree of a Grafana expression.

    Raises:
        ValueError: not PromQL once Grafana's macros are replaced.
    """
    for macro, duration in MACROS.items():
        expr = re.sub(re.escape(macro) + r"\b", duration, expr)
    return promql_parser.parse(expr)


def nodes(tree: promql_parser.Expr) -> Iterator[Node]:
    """Return every node, the outer before the inner."""
    found: list[Node] = []
    stack: list[promql_parser.Expr] = []

    def enter(expr: promql_parser.Expr) -> None:
        found.append(Node(expr, tuple(stack)))
        stack.append(expr)

    def leave(_: promql_parser.Expr) -> None:
        stack.pop()

    promql_parser.walk(tree, enter, leave)
    return iter(found)


def selectors(tree: promql_parser.Expr) -> Iterator[tuple[promql_parser.VectorSelector, Node]]:
    """Return the selectors of the tree."""
    for node in nodes(tree):
        if isinstance(node.expr, promql_parser.VectorSelector):
            yield node.expr, node


def called(expr: promql_parser.Expr) -> str:
    """Return the name of the function or aggregation that this node is, or ''."""
    if isinstance(expr, promql_parser.Call):
        return expr.func.name
    if isinstance(expr, promql_parser.AggregateExpr):
        return str(expr.op)
    return ""


def named_labels(tree: promql_parser.Expr) -> set[str]:
    """Return the labels that aggregations keep and that joins match or copy."""
    found: set[str] = set()
    for node in nodes(tree):
        if isinstance(node.expr, promql_parser.AggregateExpr) and node.expr.modifier:
            found |= {*node.expr.modifier.labels}
        if isinstance(node.expr, promql_parser.BinaryExpr) and node.expr.modifier:
            if node.expr.modifier.matching:
                found |= {*node.expr.modifier.matching.labels}
            found |= {*(node.expr.modifier.group_labels or [])}
    return found


def made_labels(tree: promql_parser.Expr) -> set[str]:
    """Return the labels that label_replace writes."""
    return {
        node.expr.args[1].val
        for node in nodes(tree)
        if isinstance(node.expr, promql_parser.Call)
        and node.expr.func.name == "label_replace"
        and isinstance(node.expr.args[1], promql_parser.StringLiteral)
    }
