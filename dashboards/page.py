"""What every dashboard has around its panels: variables, links, annotations, time range."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dashboards.layout import Section, place
from dashboards.panels import DATASOURCE
from dashboards.promql import ALL_SYMPTOMS, SYMPTOMS
from dashboards.sdk import JSONEncoder, dashboard, model

PAGES = {  # uid -> title, in the order of the links
    "tailwatch-overview": "Overview",
    "tailwatch-request-path": "Request path",
    "tailwatch-gpu": "GPU",
    "tailwatch-host": "Host",
}

# Each list comes from a metric of tailwatch's own, so that a foreign exporter's labels never
# appear, and none hangs on `instance`, which a restart changes.
SERVICE_VARIABLE = ("service", "Service", "label_values(inference_requests_in_flight, service)")
HOST_VARIABLE = ("host", "Host", "label_values(host_load1, host)")
GPU_HOST_VARIABLE = ("host", "Host", "label_values(nvml_up, host)")
GPU_VARIABLE = ("gpu", "GPU", 'label_values(gpu_info{host=~"$host"}, index)')


def page(
    uid: str,
    description: str,
    variables: Sequence[tuple[str, str, str]],
    sections: Sequence[Section],
) -> str:
    """Return a dashboard as v1 JSON text.

    Args:
        uid: one of PAGES.
        description: what the page answers.
        variables: (name, label, label_values query), each may use those before it.
        sections: the panels, from top to bottom.
    """
    board = (
        dashboard.Dashboard(PAGES[uid])
        .uid(uid)
        .description(description)
        .tags(["tailwatch"])
        .readonly()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-30m", "now")
        .refresh("10s")
        .with_variable(_datasource_variable())
        .annotation(_symptoms_begin(SYMPTOMS if SERVICE_VARIABLE in variables else ALL_SYMPTOMS))
    )
    for name, label, query in variables:
        board.with_variable(_list_variable(name, label, query))
    for other, title in PAGES.items():
        if other != uid:
            board.link(_page_link(other, title))
    built = board.build()
    built.panels = place(sections)
    return json.dumps(_without_placement(_plain(built)), indent=2, ensure_ascii=False) + "\n"


def _datasource_variable() -> dashboard.DatasourceVariable:
    variable = dashboard.DatasourceVariable("datasource").label("Data source")
    return variable.type("prometheus")


def _list_variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(model.VariableOption(selected=True, text="All", value="$__all"))
    )


def _page_link(uid: str, title: str) -> dashboard.DashboardLink:
    link = dashboard.DashboardLink(title).type(model.DashboardLinkType.LINK)
    return link.url(f"/d/{uid}").icon("dashboard").keep_time(True).include_vars(True)


def _symptoms_begin(alerts: str) -> dashboard.AnnotationQuery:
    firing = f'ALERTS{{alertstate="firing",{alerts}}}'
    return (
        dashboard.AnnotationQuery()
        .name("Symptoms begin")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color("red")
        .expr(f"{firing} unless {firing} offset $__interval")
        .title_format("{{alertname}}")
        .text_format("{{service}}")
        .step("30s")
    )


def _plain(built: model.Dashboard) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(built, cls=JSONEncoder))
    return plain


def _without_placement(node: Any) -> Any:
    # 0.0.21 hard-wires placement "inControlsMenu" on links and annotations, which hides them in
    # a menu on newer Grafana. A legend's placement (bottom, right) is another thing and stays.
    if isinstance(node, dict):
        return {
            key: _without_placement(value)
            for key, value in node.items()
            if (key, value) != ("placement", "inControlsMenu")
        }
    if isinstance(node, list):
        return [_without_placement(item) for item in node]
    return node
