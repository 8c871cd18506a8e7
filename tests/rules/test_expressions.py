"""What the expressions of the rules read, keep and promise."""

from __future__ import annotations

import re
from functools import cache
from typing import TypeVar

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.rules.files import (
    ALERT_RULES,
    ROOT,
    Rule,
    metrics,
    nodes,
    recorded,
    rules,
)

GOLDEN = ROOT / "tests" / "golden"

# Written by Prometheus itself, or set in the scrape configuration.
BY_PROMETHEUS = {"up"}
TARGET_LABELS = {"job", "instance", "host", "cluster"}

Node = TypeVar("Node", bound=promql_parser.Expr)

ALL = [*rules("record"), *rules("alert")]


def every(kind: type[Node]) -> list[tuple[Rule, Node]]:
    """Return every node of a kind in all expressions, with its rule."""
    found = [(rule, node) for rule in ALL for node in nodes(rule.expr) if isinstance(node, kind)]
    assert found
    return found


@cache
def published() -> dict[str, dict[str, set[str]]]:
    """Return sample name -> label -> values, from the golden pages of running code."""
    found: dict[str, dict[str, set[str]]] = {}
    for page in sorted(GOLDEN.glob("*.prom")):
        for family in text_string_to_metric_families(page.read_text(encoding="utf-8")):
            for sample in family.samples:
                labels = found.setdefault(sample.name, {})
                for label, value in sample.labels.items():
                    labels.setdefault(label, set()).add(value)
    return found


def queried_by_annotations(rule: Rule) -> list[str]:
    """Return the PromQL that an alert's annotations ask, with the placeholders filled."""
    asked = []
    for text in rule.body.get("annotations", {}).values():
        for query in re.findall(r'printf "((?:[^"\\]|\\.)*)" \$labels[^|]*\| query', text):
            asked.append(query.replace("%q", '"x"').replace('\\"', '"'))
    return asked


def test_the_golden_pages_are_there() -> None:
    names = {page.name for page in GOLDEN.glob("*.prom")}
    assert names >= {"service.prom", "host.prom", "threads.prom", "gpu.prom"}


def test_every_metric_is_published_or_recorded() -> None:
    known = {*published(), *recorded(), *BY_PROMETHEUS}
    asked = {
        (rule.name, metric)
        for rule in ALL
        for expr in (rule.expr, *queried_by_annotations(rule))
        for metric in metrics(expr)
    }
    assert {(name, metric) for name, metric in asked if metric not in known} == set()


def test_every_label_and_value_is_on_the_page() -> None:
    """An outcome or engine that nothing publishes would be silent for ever."""
    faults = []
    for rule, selector in every(promql_parser.VectorSelector):
        labels = published().get(selector.name, {})
        for matcher in selector.matchers.matchers:
            if selector.name not in published() or matcher.name in TARGET_LABELS:
                continue
            missing = set(matcher.value.split("|")) - labels.get(matcher.name, set())
            faults += [f"{rule.name}: no {matcher.name}={value}" for value in missing]
    assert faults == []


def test_annotations_query_the_causes_of_their_own_symptom() -> None:
    for rule in rules("alert"):
        if rule.labels["role"] != "symptom":
            continue
        (asked,) = [query for query in queried_by_annotations(rule) if "cause" in query]
        assert f'symptom="{rule.labels["symptom"]}"' in asked
        assert 'cluster="x"' in asked and 'service="x"' in asked


def test_cluster_and_service_survive_every_aggregation() -> None:
    """A rule that drops them merges services of two clusters and cannot be routed."""
    faults = []
    for rule, node in every(promql_parser.AggregateExpr):
        kept = set(node.modifier.labels) if node.modifier is not None else set()
        if "cluster" not in kept or not kept & {"service", "host", "uuid", "job"}:
            faults.append(f"{rule.name}: {node.prettify()}")
    assert faults == []


def test_joins_match_on_the_cluster() -> None:
    faults = []
    for rule, node in every(promql_parser.BinaryExpr):
        matching = node.modifier.matching if node.modifier is not None else None
        if matching is not None and "cluster" not in matching.labels:
            faults.append(f"{rule.name}: {node.prettify()}")
    assert faults == []


def test_quantiles_read_buckets_that_kept_le() -> None:
    """histogram_quantile over buckets without `le` is silently nothing."""
    read = {
        call.args[1].name
        for _, call in every(promql_parser.Call)
        if call.func.name == "histogram_quantile"
    }
    assert len(read) == 2
    for name in read:
        (rule,) = recorded()[name]
        (aggregation,) = (
            node for node in nodes(rule.expr) if isinstance(node, promql_parser.AggregateExpr)
        )
        assert "le" in aggregation.modifier.labels


def test_ranges_hold_at_least_four_scrapes_and_long_ones_read_recorded_series() -> None:
    """15 s between scrapes, and Prometheus 3 leaves the left edge of a range out; raw buckets over
    30 minutes were 43 % of all evaluation time. `up` is a single series per target."""
    seen = 0
    for rule, node in every(promql_parser.MatrixSelector):
        seconds, name = node.range.total_seconds(), node.vector_selector.name
        assert seconds >= 4 * 15, rule.name
        assert seconds <= 300 or name in recorded() or name == "up", rule.name
        seen += 1
    assert seen > 20


def test_recorded_names_are_level_metric_operation() -> None:
    for name, group in recorded().items():
        assert re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", name) or name == (
            "service:queue_drain_seconds"
        ), name
        if name != "service:cause:active":
            assert len(group) == 1, f"{name} is recorded twice"


def test_the_promised_series_are_recorded() -> None:
    windows = {f"service:request_errors:ratio{window}" for window in ("5m", "30m", "1h", "6h")}
    assert set(recorded()) >= windows | {
        "service:requests:rate5m",
        "service_route:request_duration_seconds:p50_5m",
        "service_route:request_duration_seconds:p99_5m",
        "service_route:request_duration_seconds:tail_ratio5m",
        "service:request_duration_seconds:p50_5m",
        "service:request_duration_seconds:p99_5m",
        "service:requests_waiting:sum",
        "service:queue_drain_seconds",
        "service:gpu_sm_active:ratio5m",
        "service:gpu_utilization:ratio5m",
        "service:cause:active",
    }


@pytest.mark.parametrize("rule", rules("alert"), ids=lambda rule: rule.name)
def test_labels_and_annotations(rule: Rule) -> None:
    assert rule.labels["severity"] in ("critical", "warning", "info")
    assert rule.labels["role"] in ("symptom", "cause", "meta")
    assert rule.labels.get("class", "A") in "ABCDE"
    assert rule.labels["symptom"] == rule.group == rule.file.stem
    annotations = rule.body["annotations"]
    assert {"summary", "description", "runbook_url", "dashboard"} <= set(annotations)
    assert "$value" in annotations["description"] or rule.name in ("SignalMissing", "JobAbsent")
    assert annotations["runbook_url"] == f"http://127.0.0.1:12162/runbooks/{rule.name}"
    assert annotations["dashboard"].startswith("http://127.0.0.1:12162/d/tailwatch-")
    for text in annotations.values():
        assert "  " not in text and "\n" not in text


def test_a_new_stack_is_seen_to_watch_within_a_minute() -> None:
    """A group's first evaluation is within its interval, its third the first to write ALERTS."""
    (watchdog,) = (rule for rule in rules("alert") if rule.name == "Watchdog")
    (group,) = yaml.safe_load(watchdog.file.read_text(encoding="utf-8"))["groups"]
    assert 3 * int(group["interval"].removesuffix("s")) < 60


def test_only_symptoms_and_meta_alerts_page() -> None:
    paging = {rule.name for rule in rules("alert") if rule.labels["severity"] == "critical"}
    assert paging == {
        "GpuStarvedUnderLoad",
        "LatencyTailDivergence",
        "QueueBeyondTimeout",
        "ErrorBudgetFastBurn",
        "TargetDown",
        "JobAbsent",
    }
    causes = {rule.name for rule in rules("alert") if rule.labels["role"] == "cause"}
    assert not paging & causes


def test_dashboard_links_name_a_shipped_dashboard() -> None:
    for rule in rules("alert"):
        uid = re.search(r"/d/tailwatch-([a-z-]+)", rule.body["annotations"]["dashboard"])
        assert uid is not None
        assert (ROOT / "dashboards" / f"{uid[1]}.json").is_file(), rule.name


def test_group_and_rule_fields_are_known_to_prometheus_2_42() -> None:
    """`labels`, `limit` per group, `query_offset` and newer functions would refuse the file."""
    newer = r"\b(sort_by_label|limitk|limit_ratio|info|histogram_avg|mad_over_time|holt_winters)\("
    for rule in ALL:
        assert re.search(newer, rule.expr) is None, rule.name
    for path in ALERT_RULES.glob("templates/*/*.yaml"):
        text = path.read_text(encoding="utf-8")
        fields = set(re.findall(r"^ {4}(\w+):", text, re.MULTILINE))
        assert fields == {"interval", "rules"}, path
