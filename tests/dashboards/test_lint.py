"""The lint finds what it says it finds, and nothing in a good dashboard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.dashboards import lint

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
GOOD_QUERY = 'sum(rate(inference_requests_total{service=~"$service"}[$__rate_interval]))'


def panel(**changes: Any) -> lint.Json:
    return {
        "id": 1,
        "type": "timeseries",
        "title": "Requests",
        "description": "Good: the usual.",
        "datasource": SOURCE,
        "gridPos": {"x": 0, "y": 0, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": "reqps"}},
        "targets": [{"refId": "A", "datasource": SOURCE, "expr": GOOD_QUERY}],
        **changes,
    }


def asking(expr: str) -> lint.Json:
    return panel(targets=[{"refId": "A", "datasource": SOURCE, "expr": expr}])


def board(*panels: lint.Json, **changes: Any) -> lint.Json:
    service = {
        "type": "query",
        "name": "service",
        "query": "label_values(inference_requests_in_flight, service)",
        "datasource": SOURCE,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".+",
    }
    return {
        "uid": "some-uid",
        "editable": False,
        "graphTooltip": 1,
        "templating": {"list": [{"type": "datasource", "name": "datasource"}, service]},
        "annotations": {"list": []},
        "panels": list(panels or [panel()]),
        **changes,
    }


def with_service_variable(**changes: Any) -> lint.Json:
    bad = board()
    bad["templating"]["list"][1].update(changes)
    return bad


def test_a_good_dashboard_has_no_problems() -> None:
    assert lint.problems(board()) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (board(uid=""), "no uid"),
        (board(id=7), "an id of somebody's Grafana"),
        (board(editable=True), "editable: changes in Grafana are lost at the next start"),
        (board(__inputs=[]), "__inputs: does not resolve when provisioned from a file"),
        (board(graphTooltip=0), "no shared crosshair"),
        (
            with_service_variable(type="datasource", name="other"),
            "data source variables ['datasource', 'other'], need one named datasource",
        ),
        (with_service_variable(name="unused"), "variable unused is never used"),
        (
            with_service_variable(refresh=1),
            "variable service is not refreshed with the time range",
        ),
        (
            with_service_variable(allValue=None),
            "variable service has no All that matches .+",
        ),
        (
            with_service_variable(query='label_values(up{instance=~"$instance"}, service)'),
            "variable service hangs on instance, which a restart changes",
        ),
        (
            with_service_variable(datasource={"uid": "P1809F7CD0C75ACF3"}),
            "service: data source 'P1809F7CD0C75ACF3' instead of the variable",
        ),
        (
            board(annotations={"list": [{"name": "Firing", "expr": 'ALERTS{host="$host"}'}]}),
            "Firing: $host is not a variable of this page",
        ),
        (
            board(annotations={"list": [{"name": "Deploys", "datasource": {"uid": "grafana"}}]}),
            "Deploys: data source 'grafana' instead of the variable",
        ),
    ],
)
def test_faults_of_the_page(bad: lint.Json, message: str) -> None:
    assert message in lint.problems(bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (panel(type="graph"), "Requests: panel type graph is not drawn by the viewer"),
        (panel(title=""), "panel 1 has no title"),
        (panel(description=""), "Requests: no description"),
        (
            panel(fieldConfig={"defaults": {"unit": "requests"}}),
            "Requests: unit 'requests' is not one of Grafana's",
        ),
        (panel(fieldConfig={}), "Requests: unit None is not one of Grafana's"),
        (panel(targets=[]), "Requests: no query"),
        (panel(targets=[{"datasource": SOURCE, "expr": GOOD_QUERY}]), "Requests: refIds [None]"),
        (
            panel(datasource={"uid": "prometheus"}),
            "Requests: data source 'prometheus' instead of the variable",
        ),
        (panel(id=0), "panel id 0 given 1 times"),
        (
            panel(gridPos={"x": 18, "y": 0, "w": 12, "h": 8}),
            "Requests: reaches column 30 of 24",
        ),
    ],
)
def test_faults_of_a_panel(bad: lint.Json, message: str) -> None:
    assert message in lint.problems(board(bad))


def test_faults_between_panels() -> None:
    second = panel(title="Errors", gridPos={"x": 11, "y": 7, "w": 12, "h": 8})
    found = lint.problems(board(panel(), second))
    assert found == ["panel id 1 given 2 times", "Errors: lies over Requests"]


def test_panels_in_a_closed_row_are_checked_too() -> None:
    row = {
        "id": 2,
        "type": "row",
        "title": "More",
        "collapsed": True,
        "gridPos": {"x": 0, "y": 8, "w": 24, "h": 1},
        "panels": [panel(id=3, description="", gridPos={"x": 0, "y": 9, "w": 12, "h": 8})],
    }
    assert lint.problems(board(panel(), row)) == ["Requests: no description"]


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        ("sum(rate(a_total[5m]))", "range of 0:05:00 instead of $__rate_interval"),
        ("sum(rate(a_total[$__range]))", "range of 2:12:07 instead of $__rate_interval"),
        ("max_over_time(a[1h])", "range of 1:00:00 instead of $__rate_interval"),
        ("inference_requests_total", "raw counter inference_requests_total"),
        ("max by (le) (a_bucket)", "raw counter a_bucket"),
        (
            "histogram_quantile(0.99, sum by (service) (rate(a_bucket[$__rate_interval])))",
            "histogram_quantile over buckets that lost le",
        ),
        (
            "histogram_quantile(0.99, rate(a_bucket[$__rate_interval]))",
            "histogram_quantile over buckets that are not aggregated",
        ),
        (
            "avg(histogram_quantile(0.99, sum by (le) (rate(a_bucket[$__rate_interval]))))",
            "average or sum of quantiles",
        ),
        (
            "avg(service:request_duration_seconds:p99_5m)",
            "average or sum of quantiles service:request_duration_seconds:p99_5m",
        ),
        ("sum(gpu_sm_active_ratio)", "sum of ratios gpu_sm_active_ratio"),
    ],
)
def test_faults_of_a_query(expr: str, message: str) -> None:
    expr = f'{expr} and on () up{{service=~"$service"}}'
    assert lint.problems(board(asking(expr))) == [f"Requests: {message}"]


def test_a_query_that_does_not_parse_is_named() -> None:
    (found,) = lint.problems(board(asking('sum(up{service=~"$service"}')))
    assert found.startswith("Requests: 'sum(up{service=~\"$service\"}' is no PromQL: ")


@pytest.mark.parametrize(
    "expr",
    [
        "count by (host) (host_cpu_seconds_total)",
        "max(service_route:request_duration_seconds:p99_5m)",
        "avg(gpu_sm_active_ratio)",
        "max_over_time(host_thread_cpu_max_ratio[$__range] @ end())",
        "histogram_quantile(0.5, sum by (route, le) (rate(a_bucket[$__rate_interval])))",
    ],
)
def test_queries_that_are_right(expr: str) -> None:
    assert lint.problems(board(asking(f'{expr} and on () up{{service=~"$service"}}'))) == []


def test_every_rule_has_a_bad_dashboard() -> None:
    """A rule that nothing here triggers would be dead."""

    def lines(rule: Callable[[lint.Json], Any], bad: lint.Json) -> int:
        return len(list(rule(bad)))

    worst = board(panel(id=0, type="graph", datasource={}), asking("a_total + $x"), uid="")
    worst["templating"]["list"][1]["refresh"] = 0
    assert all(lines(rule, worst) for rule in lint.RULES)
