"""Dashboards ask only for what is published: golden pages, recorded series, ALERTS.

The golden pages are recorded from running code, so a renamed metric, label or value fails here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboards import expressions, lint
from tests.dashboards.boards import NAMES, ROOT, load

GOLDEN = ROOT / "tests" / "golden"

# Written by the scrape, whatever the page says.
TARGET_LABELS = {"job", "instance", "host", "cluster"}
# Of ALERTS and of recorded series, which are on no page.
OUTSIDE_LABELS = {"alertname", "service", "route", "title", "symptom"}

Labels = dict[str, set[str]]


@cache
def published() -> dict[str, Labels]:
    """Return sample name -> label -> values, from every golden page."""
    found: dict[str, Labels] = defaultdict(lambda: defaultdict(set))
    for page in sorted(GOLDEN.glob("*.prom")):
        for family in text_string_to_metric_families(page.read_text(encoding="utf-8")):
            for sample in family.samples:
                labels = found[sample.name]  # also where a sample has none
                for label, value in sample.labels.items():
                    labels[label].add(value)
    return found


@cache
def cumulative() -> set[str]:
    """Return the sample names of counters and histograms, by the pages' TYPE lines."""
    return {
        sample.name
        for page in GOLDEN.glob("*.prom")
        for family in text_string_to_metric_families(page.read_text(encoding="utf-8"))
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }


@cache
def recorded() -> set[str]:
    """Return the names of the recorded series."""
    return {
        rule["record"]
        for path in sorted((ROOT / "alert_rules" / "recording").rglob("*.yaml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    }


def asked(name: str) -> Iterator[tuple[str, promql_parser.VectorSelector]]:
    """Return (place, selector) of everything that a dashboard asks for."""
    board = load(name)
    for panel, query in lint.queried(board):
        for selector, _ in expressions.selectors(expressions.parse(query["expr"])):
            yield panel["title"], selector
    for annotation in board["annotations"]["list"]:
        for selector, _ in expressions.selectors(expressions.parse(annotation["expr"])):
            yield annotation["name"], selector
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            (series,) = re.findall(r"label_values\((.*), \w+\)", variable["query"])
            for selector, _ in expressions.selectors(expressions.parse(series)):
                yield variable["name"], selector


def test_the_pages_are_there() -> None:
    """Without them everything below would pass on nothing."""
    assert {page.name for page in GOLDEN.glob("*.prom")} >= {
        "service.prom",
        "host.prom",
        "threads.prom",
        "gpu.prom",
    }
    assert "service:requests_waiting:sum" in recorded()


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_is_published_or_recorded(name: str) -> None:
    known = {*published(), *recorded(), "ALERTS"}
    names = {selector.name for _, selector in asked(name)}
    assert names
    assert names - known == set()


@pytest.mark.parametrize("name", NAMES)
def test_every_label_and_value_is_on_the_page(name: str) -> None:
    faults = []
    for place, selector in asked(name):
        labels = published().get(selector.name or "")
        if labels is None:
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name in TARGET_LABELS:
                continue
            if matcher.name not in labels:
                faults.append(f"{place}: {selector.name} has no label {matcher.name}")
            elif str(matcher.op) == "MatchOp.Equal" and matcher.name != "stage":
                if matcher.value not in labels[matcher.name]:
                    faults.append(
                        f'{place}: {selector.name} has no {matcher.name}="{matcher.value}"'
                    )
    assert faults == []


@pytest.mark.parametrize("name", NAMES)
def test_rates_are_of_counters_by_type_not_by_name(name: str) -> None:
    faults = []
    for panel, query in lint.queried(load(name)):
        for selector, node in expressions.selectors(expressions.parse(query["expr"])):
            readers = {expressions.called(above) for above in node.above}
            metric = selector.name or ""
            if metric in published() and readers & lint.COUNTER_READERS:
                if metric not in cumulative():
                    faults.append(f"{panel['title']}: rate of {metric}, which is a gauge")
            elif metric in cumulative() and not readers & lint.ONLY_EXISTENCE:
                faults.append(f"{panel['title']}: {metric}, a counter, without a rate")
    assert faults == []


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_lists_a_label_of_its_metric(name: str) -> None:
    for variable in load(name)["templating"]["list"]:
        if variable["type"] != "query":
            continue
        ((metric, label),) = re.findall(r"label_values\((\w+).*, (\w+)\)", variable["query"])
        assert label in {*published()[metric], *TARGET_LABELS}, variable["name"]


@pytest.mark.parametrize("name", NAMES)
def test_every_label_named_by_a_query_or_legend_is_in_its_series(name: str) -> None:
    """A misspelt `by (...)` or group_left drops a label without a word."""
    faults = []
    for panel, query in lint.queried(load(name)):
        tree = expressions.parse(query["expr"])
        known = {*TARGET_LABELS, *expressions.made_labels(tree)}
        for selector, _ in expressions.selectors(tree):
            known |= {*published().get(selector.name or "", OUTSIDE_LABELS)}
        legend = {*re.findall(r"\{\{(\w+)\}\}", query.get("legendFormat", ""))}
        for label in (expressions.named_labels(tree) | legend) - known:
            faults.append(f"{panel['title']}: {label}")
    assert faults == []
