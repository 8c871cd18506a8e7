"""One runbook page per alert, with the same five headings, made for that alert."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailwatch_stack.cli import main
from tailwatch_stack.errors import TailwatchError
from tailwatch_stack.rules_runbooks import load_remedies, renew_page
from tailwatch_stack.rules_thresholds import load_thresholds
from tests.rules.files import ALERT_RULES, RUNBOOKS, metrics, recorded, rules
from tests.rules.test_expressions import BY_PROMETHEUS, published

HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "When this alert lies"]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(RUNBOOKS.glob("*.md"))}
REMEDIES = load_remedies(ALERT_RULES / "remedies.yaml")

# What other programs publish about themselves.
FOREIGN = re.compile(r"(prometheus|alertmanager|process|scrape)_\w+|ALERTS")


def section(page: str, heading: str) -> str:
    """Return the text below a heading."""
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return text


def queries(diagnosis: str) -> list[str]:
    """Return the PromQL in the second column of the table: what reads a metric and parses."""
    found = []
    for row in re.findall(r"^\| [^|]+ \|([^|]+)\|", diagnosis, re.MULTILINE):
        for text in re.findall(r"`([^`]+)`", row):
            try:
                if re.search(r"[:_({]", text) and metrics(text):
                    found.append(text)
            except ValueError:  # a shell command
                continue
    return found


def test_alerts_and_pages_are_pairs() -> None:
    assert set(PAGES) == {rule.name for rule in rules("alert")}


@pytest.mark.parametrize("alert", PAGES)
def test_headings(alert: str) -> None:
    page = PAGES[alert]
    assert page.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == HEADINGS
    for heading in HEADINGS:
        assert len(section(page, heading).split()) > 10, heading
    for word in ("Verify: ", "Roll back"):
        assert word in section(page, "Mitigation")


def test_no_two_pages_share_a_diagnosis() -> None:
    """Neither as a whole, nor most of its rows."""
    rows = {
        alert: {
            line
            for line in section(page, "Diagnosis").splitlines()
            if line.startswith("| ") and not line.startswith("| check |")
        }
        for alert, page in PAGES.items()
    }
    for alert, own in rows.items():
        assert len(own) >= 4, alert
        for other in set(rows) - {alert}:
            assert len(own & rows[other]) <= 1, (alert, other)


def test_diagnosis_queries_are_promql_over_what_exists() -> None:
    known = {*published(), *recorded(), *BY_PROMETHEUS}
    seen = 0
    for alert, page in PAGES.items():
        for query in queries(section(page, "Diagnosis")):
            for name in metrics(query):
                assert name in known or FOREIGN.fullmatch(name), f"{alert}: {query}"
                seen += 1
    assert seen > 40


@pytest.mark.parametrize(
    "alert", [rule.name for rule in rules("alert") if rule.labels["role"] == "symptom"]
)
def test_each_symptom_has_its_causes_in_diagnosis_and_mitigation(alert: str) -> None:
    (symptom,) = {rule.labels["symptom"] for rule in rules("alert") if rule.name == alert}
    causes = {
        rule.labels["cause"]
        for rule in recorded()["service:cause:active"]
        if rule.labels["symptom"] == symptom
    }
    assert causes
    for cause in causes:
        assert f"`{cause}`" in section(PAGES[alert], "Diagnosis"), cause
        assert f"(`{cause}`, class" in section(PAGES[alert], "Mitigation"), cause


def test_causes_are_remedies_of_their_symptom_and_class() -> None:
    by_id = {remedy.id: remedy for remedy in REMEDIES}
    for rule in recorded()["service:cause:active"]:
        assert set(rule.labels) == {"symptom", "class", "cause", "title"}
        remedy = by_id[rule.labels["cause"]]
        assert rule.labels["symptom"] in remedy.symptoms, remedy.id
        assert rule.labels["class"] in remedy.classes, remedy.id


def test_symptoms_of_remedies_are_alerts() -> None:
    symptoms = {rule.labels["symptom"] for rule in rules("alert")}
    for remedy in REMEDIES:
        assert remedy.symptoms and set(remedy.symptoms) <= symptoms, remedy.id


def test_mitigation_lists_are_what_remedies_make_of_them() -> None:
    """After a change: make rules."""
    assert sum("<!-- remedies: " in page for page in PAGES.values()) == 5
    for alert, page in PAGES.items():
        assert renew_page(page, REMEDIES) == page, alert


def test_remedies_are_listed_cheapest_first() -> None:
    for alert, page in PAGES.items():
        tiers = re.findall(r"^\d+\. .* tier (\d):", page, re.MULTILINE)
        assert tiers == sorted(tiers), alert


def test_pages_tell_the_shipped_thresholds() -> None:
    values = {
        name: threshold.value
        for name, threshold in load_thresholds(ALERT_RULES / "thresholds.yaml").items()
    }

    def percent(name: str) -> str:
        return f"{float(values[name]):.0%}".replace("%", " %")

    def minutes(name: str) -> str:
        return f"{str(values[name]).removesuffix('m')} minutes"

    told = {
        "GpuStarvedUnderLoad": [
            f"SM active is under {percent('gpu_starved.sm_active_max')}",
            f"under\n{percent('gpu_starved.utilization_max')} where",
            f"for {minutes('gpu_starved.for')}",
        ],
        "LatencyTailDivergence": [
            f"more than {values['latency_tail.ratio_min']} times TP50",
            f"above {values['latency_tail.p99_min_seconds']} s",
            f"within {values['latency_tail.baseline_margin']} times",
            f"under {values['latency_tail.baseline_cap']})",
            f"TP99/TP50 is above {values['latency_tail.drift_ratio_min']} ",
            f"holds for {minutes('latency_tail.for')}",
            f"at least {values['traffic.min_requests_5m']} requests",
        ],
        "QueueBeyondTimeout": [
            f"for {minutes('queue.for')}",
            f"at least {values['queue.depth_min']} requests",
        ],
        "ErrorBudgetFastBurn": [
            f"objective of\n{percent('slo.objective')}",
            f"{float(values['slo.fast_burn']):g} % failed requests",
            f"at least {values['slo.min_errors']}\nerrors",
        ],
        "ErrorBudgetSlowBurn": [f"more than {values['slo.slow_burn']} % over the last 6 hours"],
    }
    for alert, sentences in told.items():
        for sentence in sentences:
            meaning = " ".join(section(PAGES[alert], "Meaning").split())
            assert " ".join(sentence.split()) in meaning, (alert, sentence)


def test_runbooks_command_renews_pages_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "A.md").write_text(
        "before\n<!-- remedies: timeouts -->\nout of date\n<!-- end of remedies -->\nmine\n"
    )
    (tmp_path / "B.md").write_text("no list here\n")
    assert main(["rules", "runbooks", "--pages", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"renewed 1 of 2 pages in {tmp_path}\n"
    page = (tmp_path / "A.md").read_text()
    assert "out of date" not in page and page.startswith("before\n") and page.endswith("mine\n")
    assert (
        "1. **Restart the instance whose worker died** (`restart-worker`, class E, tier 0" in page
    )


def test_runbooks_command_without_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "runbooks", "--pages", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"tailwatch rules: --pages is {tmp_path}, expected a directory with *.md pages\n"
    )


def test_a_page_for_a_symptom_without_remedy_is_refused() -> None:
    page = "<!-- remedies: no-such -->\n<!-- end of remedies -->"
    with pytest.raises(TailwatchError, match="no remedy names the symptom no-such"):
        renew_page(page, REMEDIES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tier: 7", "x has tier 7, expected 0 to 4"),
        ("tier: 0\n  extra: 1", "x: .*unexpected keyword argument 'extra'"),
        ("", "x: .*missing 1 required positional argument: 'tier'"),
    ],
)
def test_malformed_remedies(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "remedies.yaml"
    path.write_text(
        "x:\n  title: y\n  symptoms: [a]\n  class: [A]\n"
        f"  when: y\n  do: y\n  typical: y\n  risk: y\n  verify: y\n  {change}\n"
    )
    with pytest.raises(TailwatchError, match=message):
        load_remedies(path)
