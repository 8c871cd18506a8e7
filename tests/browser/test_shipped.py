"""Every shipped dashboard, drawn from an hour of the golden pages: what it shows is what
Prometheus answers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import expected
from tests.browser.watch import Watch, content, legend, open_dashboard, open_rows, rows, states

# Panels without data in that hour, each with the reason. A panel that has some is not to be here.
EMPTY: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="module", params=expected.uids())
def shown(
    request: pytest.FixtureRequest, browser: Browser, shipped_url: str
) -> Iterator[tuple[str, Page]]:
    """A dashboard with all its rows open; each is loaded once."""
    context = browser.new_context(viewport={"width": 1600, "height": 1000}, timezone_id="UTC")
    page = context.new_page()
    watch = Watch(page)
    open_dashboard(page, shipped_url, request.param)
    open_rows(page)
    yield request.param, page
    context.close()
    assert watch.problems == []


def test_every_panel_is_drawn(shown: tuple[str, Page]) -> None:
    uid, page = shown
    found = states(page)
    empty = {title for title, state in found.items() if state == "empty"}
    assert set(found) == set(expected.panels(uid))
    assert {title: state for title, state in found.items() if state not in ("done", "empty")} == {}
    assert empty == set(EMPTY.get(uid, {}))


def test_stats_show_the_values(shown: tuple[str, Page], prometheus_url: str) -> None:
    uid, page = shown
    compared = 0
    for title, panel in of_type(uid, "stat"):
        if panel["options"]["textMode"] == "name":
            names = list(expected.named_values(prometheus_url, panel))
            assert content(page, title).splitlines() == names
        elif panel["options"]["textMode"] == "value_and_name":
            assert_names_and_values(page, title, expected.named_values(prometheus_url, panel))
        else:
            (value,) = expected.values(prometheus_url, panel)
            assert_shown(content(page, title), value, title)
        compared += 1
    assert compared >= 3


def test_bar_gauges_show_the_values(shown: tuple[str, Page], prometheus_url: str) -> None:
    uid, page = shown
    for title, panel in of_type(uid, "bargauge"):
        assert_names_and_values(page, title, expected.named_values(prometheus_url, panel))


def test_graphs_show_every_series(shown: tuple[str, Page], prometheus_url: str) -> None:
    uid, page = shown
    compared = 0
    for title, panel in of_type(uid, "timeseries"):
        names = expected.series_names(prometheus_url, panel)
        if hidden := hidden_from_legend(panel):
            names = [name for name in names if not any(part in name for part in hidden)]
        assert sorted(legend(page, title)) == sorted(names), title
        compared += len(names)
    assert compared >= 10


def test_graphs_show_the_values(shown: tuple[str, Page], prometheus_url: str) -> None:
    """As a tooltip near the end of the hour has them."""
    uid, page = shown
    for title, panel in of_type(uid, "timeseries"):
        time, drawn = tooltip(page, title)
        values = expected.named_values(prometheus_url, panel, time)
        assert set(drawn) == set(values), title
        for name, value in values.items():
            assert_shown(drawn[name], value, f"{title}, {name}")


def test_tables_show_every_row(shown: tuple[str, Page], prometheus_url: str) -> None:
    uid, page = shown
    for title, panel in of_type(uid, "table"):
        header, *body = rows(page, title)
        organize = panel["transformations"][0]["options"]
        renamed = organize["renameByName"]
        wanted = sorted(
            [labels[name] for name in ("host", "index", "name", "driver")]
            for labels in expected.label_values(prometheus_url, panel)
        )
        assert len(wanted) == 3
        assert header[:4] == [
            renamed.get(name, name) for name in ("host", "index", "name", "driver")
        ]
        assert sorted(row[:4] for row in body) == wanted
        for row, value in zip(body, expected.values(prometheus_url, panel), strict=True):
            assert_shown(row[4], value, title)


def test_state_timelines_show_every_row(shown: tuple[str, Page], prometheus_url: str) -> None:
    uid, page = shown
    for title, panel in of_type(uid, "state-timeline"):
        lines = content(page, title).splitlines()
        for name in expected.series_names(prometheus_url, panel):
            assert name in lines


def test_heatmaps_draw_their_cells(shown: tuple[str, Page]) -> None:
    uid, page = shown
    for title, _panel in of_type(uid, "heatmap"):
        assert colours_drawn(page, title) > 2


def of_type(uid: str, kind: str) -> Iterator[tuple[str, Any]]:
    for title, panel in expected.panels(uid).items():
        if panel["type"] == kind and title not in EMPTY.get(uid, {}):
            yield title, panel


def tooltip(page: Page, title: str) -> tuple[float, dict[str, str]]:
    """Return the time, and series name -> value, that the tooltip over a graph has."""
    shown = page.locator("#grafana-portal-container")
    page.mouse.move(0, 0)
    expect(shown).to_have_text("")
    plot = page.locator(f'[data-panel="{title}"] .u-over')
    box = plot.bounding_box()
    assert box is not None
    for share in (0.89, 0.9):  # the first may scroll the page, which closes a tooltip
        plot.hover(position={"x": share * box["width"], "y": box["height"] / 2})
    expect(shown).to_contain_text("2025-12-31 23:5")
    moment, *lines = [line for line in shown.inner_text().splitlines() if line.strip()]
    time = datetime.fromisoformat(f"{moment}+00:00").timestamp()
    return time, dict(zip(lines[::2], lines[1::2], strict=True))


def hidden_from_legend(panel: Any) -> list[str]:
    """Return what the names of series have in common that an override hides from the legend."""
    return [
        override["matcher"]["options"].strip("/$^.*")
        for override in panel["fieldConfig"].get("overrides", [])
        for one in override["properties"]
        if one["id"] == "custom.hideFrom" and one["value"].get("legend")
    ]


def assert_names_and_values(page: Page, title: str, values: dict[str, float]) -> None:
    """A panel draws these, each name above its value, in this order."""
    lines = content(page, title).splitlines()
    drawn = dict(zip(lines[::2], lines[1::2], strict=True))
    assert list(drawn) == list(values)
    for name, value in values.items():
        assert_shown(drawn[name], value, f"{title}, {name}")


def assert_shown(text: str, value: float, where: str) -> None:
    shown, rounding = expected.read_value(text)
    assert shown == pytest.approx(value, abs=rounding), f"{where}: {text!r} for {value}"


def colours_drawn(page: Page, title: str) -> int:
    """Count the colours in a panel's canvas that are not shades of grey."""
    return int(
        page.locator(f'[data-panel="{title}"] canvas').evaluate(
            """canvas => {
              const { data } = canvas.getContext('2d').getImageData(
                0, 0, canvas.width, canvas.height);
              const found = new Set();
              for (let i = 0; i < data.length; i += 4) {
                const [r, g, b, a] = data.slice(i, i + 4);
                if (a > 250 && Math.max(r, g, b) - Math.min(r, g, b) > 40) {
                  found.add(`${r},${g},${b}`);
                }
              }
              return found.size;
            }"""
        )
    )
