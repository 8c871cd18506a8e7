"""What is wrong with a dashboard, found without Grafana.

In the spirit of grafana/dashboard-linter, and from reports of dashboards that broke: queries that
sum ratios or average quantiles, data source uids of somebody else's Grafana, panels that overlap.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import promql_parser
from grafana_foundation_sdk.models import units

from tests.dashboards import expressions

Json = dict[str, Any]

# What the viewer draws; Grafana draws them, too.
PANEL_TYPES = {
    "timeseries",
    "stat",
    "gauge",
    "bargauge",
    "table",
    "heatmap",
    "state-timeline",
    "text",
    "row",
}
WITHOUT_QUERY = {"text", "row"}
UNITS = {value for name, value in vars(units).items() if name[0].isupper()}
COUNTER = re.compile(r"_(total|bucket|count|sum)$")
COUNTER_READERS = {"rate", "irate", "increase", "resets", "changes"}
ONLY_EXISTENCE = {"count", "absent", "group"}
QUANTILE_NAME = re.compile(r"(?<![a-z0-9])p\d\d")
RATIO_NAME = re.compile(r"[_:]ratio")


def panels(dashboard: Json) -> Iterator[Json]:
    """Return every panel, those inside closed rows included."""
    for panel in dashboard.get("panels", []):
        yield panel
        yield from panel.get("panels", [])


def queried(dashboard: Json) -> Iterator[tuple[Json, Json]]:
    """Return (panel, query) of every panel."""
    for panel in panels(dashboard):
        for query in panel.get("targets") or []:
            yield panel, query


def problems(dashboard: Json) -> list[str]:
    """Return one line per fault; a good dashboard has none."""
    return [line for rule in RULES for line in rule(dashboard)]


def the_page(dashboard: Json) -> Iterator[str]:
    """Stable uid, not editable, nothing that only an import resolves."""
    if not dashboard.get("uid"):
        yield "no uid"
    if dashboard.get("id") is not None:
        yield "an id of somebody's Grafana"
    if dashboard.get("editable", True):
        yield "editable: changes in Grafana are lost at the next start"
    if "__inputs" in dashboard:
        yield "__inputs: does not resolve when provisioned from a file"
    if dashboard.get("graphTooltip") != 1:
        yield "no shared crosshair"


def variables(dashboard: Json) -> Iterator[str]:
    """One data source variable; lists follow the time range and know All."""
    listed = dashboard.get("templating", {}).get("list", [])
    sources = [one["name"] for one in listed if one["type"] == "datasource"]
    if sources != ["datasource"]:
        yield f"data source variables {sources}, need one named datasource"
    text = json.dumps([dashboard.get("panels"), listed])
    for one in listed:
        if not re.search(rf"\$\{{?{one['name']}\b", text):
            yield f"variable {one['name']} is never used"
        if one["type"] != "query":
            continue
        if one.get("refresh") != 2:
            yield f"variable {one['name']} is not refreshed with the time range"
        if not one.get("includeAll") or one.get("allValue") != ".+":
            yield f"variable {one['name']} has no All that matches .+"
        if re.search(r"\binstance\b", one["query"]):
            yield f"variable {one['name']} hangs on instance, which a restart changes"


def undefined(dashboard: Json) -> Iterator[str]:
    """What a query takes from a variable is defined on the page: else `$x` is matched literally."""
    listed = dashboard.get("templating", {}).get("list", [])
    known = {one["name"] for one in listed} | {name.strip("$") for name in expressions.MACROS}
    queries = [(panel["title"], query.get("expr", "")) for panel, query in queried(dashboard)]
    annotations = dashboard.get("annotations", {}).get("list", [])
    queries += [(one["name"], one.get("expr", "")) for one in annotations]
    queries += [(one["name"], one["query"]) for one in listed if one["type"] == "query"]
    for place, text in queries:
        for name in re.findall(r"\$\{?(\w+)", text):
            if name not in known:
                yield f"{place}: ${name} is not a variable of this page"


def datasources(dashboard: Json) -> Iterator[str]:
    """Everything is asked of the data source variable."""
    asked = [*dashboard.get("annotations", {}).get("list", [])]
    asked += [one for one in dashboard["templating"]["list"] if one["type"] == "query"]
    for panel in panels(dashboard):
        if panel["type"] not in WITHOUT_QUERY:
            asked += [panel, *(panel.get("targets") or [])]
    for one in asked:
        uid = (one.get("datasource") or {}).get("uid")
        if uid != "${datasource}":
            name = one.get("title") or one.get("name") or one.get("refId")
            yield f"{name}: data source {uid!r} instead of the variable"


def panel_manners(dashboard: Json) -> Iterator[str]:
    """Supported type, title, description, known unit, at least one query with a refId."""
    for panel in panels(dashboard):
        name, kind = panel.get("title"), panel["type"]
        if kind not in PANEL_TYPES:
            yield f"{name}: panel type {kind} is not drawn by the viewer"
        if kind in WITHOUT_QUERY:
            continue
        if not name:
            yield f"panel {panel.get('id')} has no title"
        if not panel.get("description"):
            yield f"{name}: no description"
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
        if unit not in UNITS:
            yield f"{name}: unit {unit!r} is not one of Grafana's"
        references = [query.get("refId") for query in panel.get("targets") or []]
        if not references:
            yield f"{name}: no query"
        if None in references or len(set(references)) != len(references):
            yield f"{name}: refIds {references}"


def placement(dashboard: Json) -> Iterator[str]:
    """Ids are unique; panels stay within 24 columns and do not overlap."""
    identifiers = Counter(panel.get("id") for panel in panels(dashboard))
    for identifier, times in identifiers.items():
        if not identifier or times > 1:
            yield f"panel id {identifier} given {times} times"
    taken: dict[tuple[int, int], str] = {}
    for panel in panels(dashboard):
        grid = panel["gridPos"]
        if grid["x"] + grid["w"] > 24:
            yield f"{panel['title']}: reaches column {grid['x'] + grid['w']} of 24"
        cells = [
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        ]
        for other in sorted({taken[cell] for cell in cells if cell in taken}):
            yield f"{panel['title']}: lies over {other}"
        taken.update((cell, panel["title"]) for cell in cells)


def promql(dashboard: Json) -> Iterator[str]:
    """Every query parses, and reads counters, quantiles and ratios as what they are."""
    for panel, query in queried(dashboard):
        try:
            tree = expressions.parse(query["expr"])
        except ValueError as error:
            yield f"{panel['title']}: {query['expr']!r} is no PromQL: {error}"
            continue
        for rule in (ranges, counters, quantiles, averages):
            for line in rule(tree):
                yield f"{panel['title']}: {line}"


def ranges(tree: promql_parser.Expr) -> Iterator[str]:
    """Rates use Grafana's rate interval, which knows the scrape interval.

    What summarises the whole time range of the page (`..._over_time`) uses $__range.
    """
    for node in expressions.nodes(tree):
        if not isinstance(node.expr, promql_parser.MatrixSelector):
            continue
        reader = expressions.called(node.above[-1]) if node.above else ""
        if reader.endswith("_over_time") and node.expr.range == expressions.WHOLE_RANGE:
            continue
        if node.expr.range != expressions.RATE_INTERVAL:
            yield f"range of {node.expr.range} instead of $__rate_interval"


def counters(tree: promql_parser.Expr) -> Iterator[str]:
    """A counter's value means nothing: it is read through a rate, or only counted."""
    for selector, node in expressions.selectors(tree):
        readers = {expressions.called(above) for above in node.above}
        if COUNTER.search(selector.name or "") and ":" not in (selector.name or ""):
            if not readers & (COUNTER_READERS | ONLY_EXISTENCE):
                yield f"raw counter {selector.name}"


def quantiles(tree: promql_parser.Expr) -> Iterator[str]:
    """Buckets are summed by le first, the quantile comes after."""
    for node in expressions.nodes(tree):
        if expressions.called(node.expr) != "histogram_quantile":
            continue
        assert isinstance(node.expr, promql_parser.Call)
        buckets = node.expr.args[1]
        if not isinstance(buckets, promql_parser.AggregateExpr):
            yield "histogram_quantile over buckets that are not aggregated"
        elif buckets.modifier is None or "le" not in buckets.modifier.labels:
            yield "histogram_quantile over buckets that lost le"


def averages(tree: promql_parser.Expr) -> Iterator[str]:
    """Quantiles are neither averaged nor summed; ratios are not summed."""
    for node in expressions.nodes(tree):
        outer = {expressions.called(above) for above in node.above}
        name = ""
        if isinstance(node.expr, promql_parser.VectorSelector):
            name = node.expr.name or ""
        is_quantile = expressions.called(node.expr) == "histogram_quantile" or QUANTILE_NAME.search(
            name
        )
        if is_quantile and outer & {"avg", "sum", "avg_over_time", "sum_over_time"}:
            yield f"average or sum of quantiles {name}".rstrip()
        if RATIO_NAME.search(name) and outer & {"sum", "sum_over_time"}:
            yield f"sum of ratios {name}"


RULES: tuple[Callable[[Json], Iterator[str]], ...] = (
    the_page,
    variables,
    undefined,
    datasources,
    panel_manners,
    placement,
    promql,
)
