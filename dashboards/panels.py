"""Panels in the house style: one function per kind, the same manners for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dashboards import colors
from dashboards.sdk import (
    bargauge,
    common,
    common_model,
    dashboard,
    heatmap,
    heatmap_model,
    model,
    prometheus,
    prometheus_model,
    stat,
    statetimeline,
    table,
    timeseries,
    units,
)

AnyPanel = (
    timeseries.Panel
    | stat.Panel
    | bargauge.Panel
    | table.Panel
    | heatmap.Panel
    | statetimeline.Panel
)
PanelT = TypeVar(
    "PanelT",
    timeseries.Panel,
    stat.Panel,
    bargauge.Panel,
    table.Panel,
    heatmap.Panel,
    statetimeline.Panel,
)

# How far an axis reaches at least: a line of zeros would be drawn against 0 to 100.
SOFT_MAXIMUM = {
    units.PercentUnit: 0.05,
    units.RequestsPerSecond: 1,
    units.Short: 5,
    units.BytesPerSecondSI: 1000,
    units.CountsPerSecond: 1,
}

DATASOURCE = common_model.DataSourceRef(type_val="prometheus", uid="${datasource}")

Steps = Sequence[tuple[str, float | None]]


@dataclass(frozen=True)
class Help:
    """What a panel's (i) says.

    Args:
        good: what good looks like, and what an empty panel means where that is not obvious.
        runbook: name of the alert whose runbook belongs to this panel.
    """

    good: str
    runbook: str = ""

    def __str__(self) -> str:
        """Return the text as Markdown."""
        if not self.runbook:
            return self.good
        return f"{self.good}\n\n[Runbook: {self.runbook}](/runbooks/{self.runbook})"


@dataclass(frozen=True)
class Query:
    """One PromQL query of a panel, over the time range or, for what holds now, at its end."""

    expr: str
    legend: str = ""
    exemplars: bool = False
    now: bool = False

    def build(self) -> prometheus.Dataquery:
        """Return the SDK's query."""
        query = prometheus.Dataquery().datasource(DATASOURCE).expr(self.expr)
        query = query.instant() if self.now else query.range()
        if self.legend:
            query.legend_format(self.legend)
        if self.exemplars:
            query.exemplar(True)
        return query


@dataclass(frozen=True)
class Override:
    """How the series whose name matches the regular expression `names` differ from the rest.

    A dashed line is a reference for the others. `in_legend=False` suits one per series, where the
    panel's title says what it is.
    """

    names: str
    color: str = ""
    dashed: bool = False
    in_legend: bool = True
    right_axis_unit: str = ""

    def apply(self, panel: timeseries.Panel) -> None:
        """Add this override to the panel."""
        properties: list[tuple[str, object]] = []
        if self.color:
            properties.append(("color", {"mode": "fixed", "fixedColor": self.color}))
        if self.dashed:
            properties.append(("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}))
            properties.append(("custom.fillOpacity", 0))
        if not self.in_legend:
            properties.append(("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}))
        if self.right_axis_unit:
            properties.append(("custom.axisPlacement", "right"))
            properties.append(("unit", self.right_axis_unit))
            soft_maximum = SOFT_MAXIMUM.get(self.right_axis_unit, 0)
            properties.append(("custom.axisSoftMax", soft_maximum))
        panel.override_by_regexp(
            f"/{self.names}/", [model.DynamicConfigValue(name, value) for name, value in properties]
        )


def named(series: Mapping[str, str]) -> list[Override]:
    """Return one override per series name -> colour."""
    return [Override(f"^{name}$", color=color) for name, color in series.items()]


def thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    """Return (colour, from value) steps; the first value is None, for everything below."""
    return (
        dashboard.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=color) for color, value in steps])
    )


def link(title: str, url: str) -> dashboard.DashboardLink:
    """Return a data link of a series or value; the URL may use `${__field.labels.x}`."""
    return dashboard.DashboardLink(title).url(url)


def page_link(title: str, uid: str, variable: str) -> dashboard.DashboardLink:
    """Return a data link to a dashboard, for the same time and the series' own service or host.

    Args:
        title: of the link.
        uid: of the dashboard.
        variable: name of the variable there and of the label here.
    """
    chosen = f"var-{variable}=${{__field.labels.{variable}}}"
    return link(title, f"/d/{uid}?{chosen}&${{__url_time_range}}")


def value_texts(names: Mapping[int, tuple[str, str]]) -> list[model.ValueMapping]:
    """Return mappings value -> (text, colour)."""
    options = {
        str(value): model.ValueMappingResult(text=label, color=color, index=index)
        for index, (value, (label, color)) in enumerate(names.items())
    }
    return [model.ValueMap(options=options)]


def absent(text: str, color: str) -> list[model.ValueMapping]:
    """Return the mapping that shows text where there is no number."""
    result = model.ValueMappingResult(text=text, color=color)
    match = model.SpecialValueMatch.NULL_AND_NAN
    options = model.DashboardSpecialValueMapOptions(match=match, result=result)
    return [model.SpecialValueMap(options=options)]


def graph(
    title: str,
    unit: str,
    queries: Sequence[Query],
    about: Help,
    *,
    overrides: Sequence[Override] = (),
    stacked: bool = False,
    maximum: float | None = None,
    limits: Steps = (),
    legend_on_right: bool = False,
    links: Sequence[dashboard.DashboardLink] = (),
    when_empty: str = "",
) -> timeseries.Panel:
    """Return lines over time from 0 up; `limits` are drawn as dashed lines."""
    panel = timeseries.Panel().min(0).line_width(1.5).span_nulls(False)
    panel.show_points(common_model.VisibilityMode.NEVER)
    panel.fill_opacity(8).gradient_mode(common_model.GraphGradientMode.OPACITY)
    panel.color_scheme(_color(model.FieldColorModeId.PALETTE_CLASSIC))
    panel.tooltip(
        common.VizTooltipOptions()
        .mode(common_model.TooltipDisplayMode.MULTI)
        .sort(common_model.SortOrder.NONE if stacked else common_model.SortOrder.DESCENDING)
    )
    panel.legend(_legend(on_right=legend_on_right)).data_links(list(links))
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))
        # Areas without lines: a series of zeros would draw its line along the top of the stack.
        panel.line_width(0).fill_opacity(70).gradient_mode(common_model.GraphGradientMode.NONE)
    if maximum is not None:
        panel.max(maximum)
    elif unit in SOFT_MAXIMUM:
        panel.axis_soft_max(SOFT_MAXIMUM[unit])
    if when_empty:
        panel.no_value(when_empty)
    if limits:
        panel.thresholds(thresholds(limits))
        panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_model.GraphThresholdsStyleMode.DASHED)
        )
    _describe(panel, title, about, queries)
    panel.unit(unit)
    for override in overrides:
        override.apply(panel)
    return panel


def number(
    title: str,
    unit: str,
    expr: str,
    about: Help,
    *,
    steps: Steps = ((colors.CALM, None),),
    when_absent: str = "no data",
    absent_color: str = colors.MUTED,
    filled: bool = False,
    decimals: int | None = None,
    name: str | None = None,
) -> stat.Panel:
    """Return one large number; `filled` colours the tile, `name` is a legend shown with it.

    The number is of now. Over the time range, a tile would go on showing the last value that
    there was.
    """
    panel = stat.Panel().reduce_options(_last()).graph_mode(common_model.BigValueGraphMode.NONE)
    panel.color_mode(
        common_model.BigValueColorMode.BACKGROUND_SOLID
        if filled
        else common_model.BigValueColorMode.VALUE
    )
    text = common.VizTextDisplayOptions().value_size(28)  # "9.66 req/s" fits at 1280 px
    panel.thresholds(thresholds(steps)).color_scheme(_color(model.FieldColorModeId.THRESHOLDS))
    panel.mappings(absent(when_absent, absent_color)).no_value(when_absent)
    if decimals is not None:
        panel.decimals(decimals)
    if name is not None:
        panel.text_mode(common_model.BigValueTextMode.VALUE_AND_NAME)
        text.title_size(14)
    panel.text(text)
    _describe(panel, title, about, [Query(expr, name or "", now=True)])
    return panel.unit(unit)


def names(
    title: str,
    queries: Sequence[Query],
    about: Help,
    *,
    steps: Steps,
    links: Sequence[dashboard.DashboardLink] = (),
) -> stat.Panel:
    """Return one coloured tile per series, with its name; the queries are of now."""
    panel = stat.Panel().reduce_options(_last()).text_mode(common_model.BigValueTextMode.NAME)
    panel.color_mode(common_model.BigValueColorMode.BACKGROUND)
    panel.graph_mode(common_model.BigValueGraphMode.NONE)
    panel.orientation(common_model.VizOrientation.HORIZONTAL)
    panel.justify_mode(common_model.BigValueJustifyMode.CENTER)
    panel.text(common.VizTextDisplayOptions().value_size(14))  # the longest cause fits its tile
    panel.thresholds(thresholds(steps)).color_scheme(_color(model.FieldColorModeId.THRESHOLDS))
    panel.data_links(list(links))
    _describe(panel, title, about, queries)
    return panel.unit("none")


def bars(
    title: str,
    unit: str,
    queries: Sequence[Query],
    about: Help,
    *,
    steps: Steps,
    maximum: float | None = None,
) -> bargauge.Panel:
    """Return each series as a horizontal bar from 0; the queries are of now."""
    panel = bargauge.Panel().reduce_options(_last()).min(0)
    panel.orientation(common_model.VizOrientation.HORIZONTAL)
    panel.display_mode(common_model.BarGaugeDisplayMode.GRADIENT)
    panel.text(common.VizTextDisplayOptions().title_size(12).value_size(14))
    panel.thresholds(thresholds(steps)).color_scheme(_color(model.FieldColorModeId.THRESHOLDS))
    if maximum is not None:
        panel.max(maximum)
    _describe(panel, title, about, queries)
    return panel.unit(unit)


def states(
    title: str,
    queries: Sequence[Query],
    about: Help,
    *,
    mappings: Mapping[int, tuple[str, str]],
    links: Sequence[dashboard.DashboardLink] = (),
) -> statetimeline.Panel:
    """Return one bar per series over time, coloured by value -> (text, colour)."""
    panel = statetimeline.Panel().mappings(value_texts(mappings)).merge_values(True)
    panel.row_height(0.8).fill_opacity(85).line_width(0)
    panel.show_value(common_model.VisibilityMode.NEVER)
    panel.color_scheme(_color(model.FieldColorModeId.THRESHOLDS))
    panel.thresholds(thresholds([(colors.MUTED, None)]))
    panel.legend(_legend(on_right=False))
    panel.data_links(list(links))
    _describe(panel, title, about, queries)
    return panel.unit("none")


def durations(title: str, histogram_rate: str, about: Help) -> heatmap.Panel:
    """Return a classic histogram in seconds over time; the query is summed by `le`."""
    panel = heatmap.Panel().calculate(False).cell_gap(1)
    panel.y_axis(heatmap.YAxisConfig().unit("s"))
    panel.color(
        heatmap.HeatmapColorOptions()
        .mode(heatmap_model.HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .exponent(0.5)
        .steps(64)
    )
    panel.tooltip(
        heatmap.HeatmapTooltip()
        .mode(common_model.TooltipDisplayMode.SINGLE)
        .y_histogram(False)
        .show_color_scale(True)
    )
    _describe(panel, title, about, [])
    panel.with_target(
        Query(histogram_rate, "{{le}}").build().format(prometheus_model.PromQueryFormat.HEATMAP)
    )
    return panel.unit("s")


def listing(
    title: str,
    expr: str,
    about: Help,
    *,
    columns: Mapping[str, tuple[str, int]],
    value_unit: str,
    value_steps: Steps,
) -> table.Panel:
    """Return one row per series of an instant query.

    Args:
        title: of the panel.
        expr: PromQL; its value is the column `Value`.
        about: the help text.
        columns: label (or `Value`) -> heading and width in pixels (0: what is left), in order.
        value_unit: unit of the value.
        value_steps: thresholds of the value, shown as text colour.
    """
    panel = table.Panel()
    _describe(panel, title, about, [])
    query = prometheus.Dataquery().datasource(DATASOURCE).expr(expr).instant()
    panel.with_target(query.format(prometheus_model.PromQueryFormat.TABLE))
    panel.with_transformation(
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": {name: index for index, name in enumerate(columns)},
                "renameByName": {name: heading for name, (heading, _) in columns.items()},
            },
        )
    )
    for heading, width in columns.values():
        if width:
            panel.override_by_name(heading, [model.DynamicConfigValue("custom.width", width)])
    panel.override_by_name(
        columns["Value"][0],
        [
            model.DynamicConfigValue("unit", value_unit),
            model.DynamicConfigValue("thresholds", thresholds(value_steps).build()),
            model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
        ],
    )
    return panel.unit("none")


def _describe(panel: PanelT, title: str, about: Help, queries: Sequence[Query]) -> None:
    panel.title(title).description(str(about)).datasource(DATASOURCE)
    for query in queries:
        panel.with_target(query.build())


def _color(mode: model.FieldColorModeId) -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(mode)


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _legend(*, on_right: bool) -> common.VizLegendOptions:
    legend = common.VizLegendOptions().show_legend(True)
    if not on_right:
        legend.display_mode(common_model.LegendDisplayMode.LIST)
        return legend.placement(common_model.LegendPlacement.BOTTOM)
    legend.display_mode(common_model.LegendDisplayMode.TABLE).calcs(["lastNotNull", "max"])
    return legend.placement(common_model.LegendPlacement.RIGHT)
