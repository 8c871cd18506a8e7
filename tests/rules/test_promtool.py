"""alert_rules/tests/*.yaml: each alert fires, stays pending and stays silent, with its text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.rules.files import ALERT_RULES, rule_files, rules

SUITES = sorted((ALERT_RULES / "tests").glob("*.yaml"))


def promtool_answer(promtool: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [promtool, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_rule_files_pass_promtool(promtool: Path) -> None:
    answer = promtool_answer(promtool, "check", "rules", *rule_files())
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem)
def test_suite(promtool: Path, suite: Path) -> None:
    answer = promtool_answer(promtool, "test", "rules", suite)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_every_alert_has_its_text_asserted() -> None:
    """`exp_annotations` with every annotation of the rule: a lost label shows only there."""
    asserted = {
        (case["alertname"], tuple(sorted(alert["exp_annotations"])))
        for suite in SUITES
        for test in yaml.safe_load(suite.read_text(encoding="utf-8"))["tests"]
        for case in test.get("alert_rule_test", ())
        for alert in case["exp_alerts"]
    }
    assert {(rule.name, tuple(sorted(rule.body["annotations"]))) for rule in rules("alert")} == (
        asserted
    )


def test_every_alert_has_a_case_without_it() -> None:
    silent = {
        case["alertname"]
        for suite in SUITES
        for test in yaml.safe_load(suite.read_text(encoding="utf-8"))["tests"]
        for case in test.get("alert_rule_test", ())
        if not case["exp_alerts"]
    }
    assert {rule.name for rule in rules("alert")} - silent == {"Watchdog"}  # always fires
