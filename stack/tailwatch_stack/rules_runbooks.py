"""The Mitigation lists of the runbook pages, made from alert_rules/remedies.yaml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import yaml

from tailwatch_stack.errors import TailwatchError

TIERS = (
    "configuration",
    "cache and batching",
    "graph and engine",
    "quantisation",
    "pruning, distillation, more machines",
)

_BLOCK = re.compile(r"(<!-- remedies: ([a-z-]+) -->\n).*?(<!-- end of remedies -->)", re.DOTALL)


class Remedy(NamedTuple):
    """Something that is known to help: one entry of remedies.yaml, `id` is its key."""

    id: str
    title: str
    symptoms: tuple[str, ...]
    classes: tuple[str, ...]
    tier: int
    when: str
    do: str
    typical: str
    risk: str
    verify: str


def load_remedies(path: Path) -> list[Remedy]:
    """Return the remedies in the file's order.

    Raises:
        TailwatchError: an entry lacks a field, has one too many, or names a tier that is none.
    """
    remedies = []
    for key, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        try:
            remedy = Remedy(
                id=key,
                symptoms=tuple(entry.pop("symptoms")),
                classes=tuple(entry.pop("class")),
                **entry,
            )
        except (KeyError, TypeError) as error:
            raise TailwatchError(f"{path}: {key}: {error}") from error
        if remedy.tier not in range(len(TIERS)):
            raise TailwatchError(
                f"{path}: {key} has tier {remedy.tier!r}, expected 0 to {len(TIERS) - 1}"
            )
        remedies.append(remedy)
    return remedies


def renew_page(page: str, remedies: list[Remedy]) -> str:
    """Return a runbook page with the list between its remedy markers made anew."""

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}{_list(match[2], remedies)}{match[3]}"

    return _BLOCK.sub(block, page)


def _list(symptom: str, remedies: list[Remedy]) -> str:
    chosen = [remedy for remedy in remedies if symptom in remedy.symptoms]
    if not chosen:
        raise TailwatchError(f"no remedy names the symptom {symptom}")
    chosen.sort(key=lambda remedy: remedy.tier)
    return "".join(_item(number, remedy) for number, remedy in enumerate(chosen, 1))


def _item(number: int, remedy: Remedy) -> str:
    return (
        f"{number}. **{remedy.title}** (`{remedy.id}`, class {' '.join(remedy.classes)},"
        f" tier {remedy.tier}: {TIERS[remedy.tier]})\n"
        f"    - When: {remedy.when}\n"
        f"    - Do: {remedy.do}\n"
        f"    - Typically: {remedy.typical}\n"
        f"    - Risk: {remedy.risk}\n"
        f"    - Verify: {remedy.verify}\n"
    )
