"""docs/reference/alerts.md tells the alerts, causes and signals that the rules have."""

from __future__ import annotations

import re

import pytest
import yaml

from tailwatch_stack.rules_thresholds import load_thresholds
from tests.rules.files import ALERT_RULES, ROOT, Rule, raw_metrics, recorded, rules

PAGE = (ROOT / "docs" / "reference" / "alerts.md").read_text(encoding="utf-8")
FROM_OPTIONS = {"inference_slo_seconds", "inference_client_timeout_seconds"}


def table(header: str) -> list[list[str]]:
    """Return the cells of the table that begins with this header."""
    (rows,) = re.findall(rf"^\| {header} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]


def signals(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def behind(found: list[Rule]) -> set[str]:
    return set().union(*(raw_metrics(rule.expr) for rule in found))


def test_every_alert_with_its_severity_and_signals() -> None:
    told = {name: (severity, signals(cell)) for name, severity, cell, _ in table("alert")}
    assert told == {
        rule.name: (
            rule.labels["severity"],
            behind([other for other in rules("alert") if other.name == rule.name]),
        )
        for rule in rules("alert")
    }


def test_every_cause_with_its_signals() -> None:
    told = {(cause.strip("`"), symptom): signals(c) for cause, symptom, c, _ in table("cause")}
    actual: dict[tuple[str, str], list[Rule]] = {}
    for rule in recorded()["service:cause:active"]:
        key = (rule.labels["cause"], rule.labels["symptom"])
        actual.setdefault(key, []).append(rule)
    assert told == {key: behind(found) for key, found in actual.items()}


def test_what_two_lines_lack_is_told() -> None:
    """A signal that needs an option or an instrument makes its row say what is silent."""
    instruments = FROM_OPTIONS | {"inference_queue_wait_seconds_sum"}
    for name, _, cell, two_lines in [*table("alert"), *table("cause")]:
        if signals(cell) & instruments:
            assert "ilent" in two_lines, name


def test_label_values() -> None:
    told = {name.strip("`"): values for name, values in table("label")}
    for rule in rules("alert"):
        for label in ("severity", "role", "symptom", "class"):
            value = rule.labels.get(label)
            assert value is None or re.search(rf"\b{value}\b", told[label]), (rule.name, label)


def test_the_example_thresholds_are_accepted(tmp_path_factory: pytest.TempPathFactory) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    own = tmp_path_factory.mktemp("docs") / "my.yaml"
    own.write_text(example)
    thresholds = load_thresholds(ALERT_RULES / "thresholds.yaml", own)
    for group, keys in yaml.safe_load(example).items():
        for key, value in keys.items():
            assert thresholds[f"{group}.{key}"].value == value


def test_the_flags_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    from tailwatch_stack.cli import main

    with pytest.raises(SystemExit):
        main(["rules", "build", "--help"])
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert flags == {cell.strip("`").split()[0] for cell, *_ in table("flag")}
