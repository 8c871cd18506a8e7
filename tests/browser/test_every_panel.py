"""A dashboard with a panel of every type over made-up shops, used as a person uses it."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.openmetrics import END, START
from tests.browser.watch import content, legend, open_dashboard, open_rows, rows, settle, states

UID = "every-panel"
HOUR = f"from={START}000&to={END}000"


@pytest.fixture
def dashboard(page: Page, fixture_url: str) -> Page:
    open_dashboard(page, fixture_url, UID)
    return page


def test_each_type_shows_its_data(dashboard: Page) -> None:
    """The figures are those of shops.py, worked out by hand."""
    open_rows(dashboard)
    assert set(states(dashboard).values()) == {"done"}
    assert content(dashboard, "Requests") == "17.5 req/s"  # 12 + 5 + 0.5
    assert content(dashboard, "Mapped state") == "CLOSED"
    assert content(dashboard, "Fill level").split() == "42% berlin 71% paris 93% rome".split()
    assert content(dashboard, "Stock").splitlines() == [
        *("berlin", "3.36 GiB"),  # 0.42 of 8 GiB
        *("paris", "5.68 GiB"),
        *("rome", "7.44 GiB"),
    ]
    assert content(dashboard, "Notes").splitlines()[0] == "Notes on All"
    assert "open" in content(dashboard, "Opening times")


def test_a_table_merges_renames_sorts_and_colours(dashboard: Page) -> None:
    assert rows(dashboard, "Stock table") == [
        ["shop", "Stock", "Fill"],
        ["rome", "7.44 GiB", "93%"],
        ["paris", "5.68 GiB", "71%"],
        ["berlin", "3.36 GiB", "42%"],
    ]
    dashboard.locator('[data-panel="Stock table"] [role=columnheader]').first.click()
    expect(dashboard.locator('[data-panel="Stock table"] [role=gridcell]').first).to_have_text(
        "berlin"
    )


def test_links_carry_values_variables_and_time(dashboard: Page) -> None:
    def href(panel: str, selector: str = "a") -> str | None:
        return dashboard.locator(f'[data-panel="{panel}"] {selector}').first.get_attribute("href")

    assert href("Stock table") == "/d/other?var-shop=rome"
    assert href("Requests") == "/runbooks/.+"
    assert href("Requests by service") == f"/d/other?var-service=%24__all&{HOUR}"
    other = dashboard.get_by_role("link", name="Other", exact=True)
    variables = "var-datasource=prometheus&var-service=$__all&var-shop=rome&var-window=5m"
    assert unquote(other.get_attribute("href") or "") == f"/d/other?{HOUR}&{variables}"


def test_a_tooltip_shows_every_series_at_that_time(dashboard: Page) -> None:
    dashboard.hover('[data-panel="Requests by service"] .u-over')
    tooltip = dashboard.locator("#grafana-portal-container")
    expect(tooltip).to_contain_text("2025-12-31 23:30:00")
    assert re.findall(r"(web|app|worker\.1)\s+([\d.]+ req/s)", tooltip.inner_text()) == [
        ("web", "12 req/s"),
        ("app", "5 req/s"),
        ("worker.1", "0.500 req/s"),
    ]


def test_a_click_pins_the_tooltip_with_the_links_of_the_point(dashboard: Page) -> None:
    plot = dashboard.locator('[data-panel="Latency quantiles"] .u-over')
    box = plot.bounding_box()
    assert box is not None
    plot.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    # p50 is 0.1 s, half of what its axis on the right has, so it is the nearest to the middle.
    link = dashboard.get_by_role("link", name="Requests of p50")
    at = (START + END) // 2 * 1000
    href = f"/d/other?quantile=p50&seconds=0.1&at={at}&{HOUR}"
    assert unquote(link.get_attribute("href") or "") == href


def test_a_heatmap_tells_the_count_of_a_bucket(dashboard: Page) -> None:
    """10 requests a second, of which 30 % lie between 0.1 s and 0.2 s."""
    plot = dashboard.locator('[data-panel="Latency"] .u-over')
    box = plot.bounding_box()
    assert box is not None
    third_of_six = box["height"] * (1 - 2.5 / 6)
    plot.hover(position={"x": box["width"] / 2, "y": third_of_six})
    tooltip = dashboard.locator("#grafana-portal-container")
    expect(tooltip).to_contain_text("100 ms \u2013 200 ms")
    expect(tooltip).to_contain_text(re.compile(r"Count\s*3(?!\d|\.)"))


def test_a_legend_shows_one_series_alone(dashboard: Page) -> None:
    graph = dashboard.locator('[data-panel="Latency quantiles"]')
    graph.get_by_text("p99", exact=True).click()
    graph.locator(".u-over").hover()
    tooltip = dashboard.locator("#grafana-portal-container")
    expect(tooltip).to_contain_text("p99")
    expect(tooltip).not_to_contain_text("p50")
    assert legend(dashboard, "Latency quantiles") == ["p99", "p50"]


def test_a_legend_table_shows_its_calculations(dashboard: Page) -> None:
    assert legend(dashboard, "Requests by service") == ["app", "web", "worker.1"]
    row = dashboard.locator('[data-panel="Requests by service"] tbody tr').nth(1)
    cells = [text.strip() for text in row.locator("td").all_inner_texts()]
    assert cells[1:] == ["web", "12 req/s", "12 req/s"]


def test_annotations_are_marked_and_can_be_switched_off_and_on(dashboard: Page) -> None:
    marks = dashboard.locator('[data-panel="Requests by service"] [data-annotation]')
    expect(marks).to_have_count(1)
    assert marks.first.get_attribute("data-annotation") == "Deploy 7"
    marks.first.hover()
    expect(dashboard.get_by_role("tooltip")).to_contain_text("23:20:00")
    dashboard.get_by_label("Deploys").click(force=True)
    expect(marks).to_have_count(0)
    dashboard.get_by_label("Deploys").click(force=True)
    expect(marks).to_have_count(1)


def test_a_variable_narrows_the_queries_and_the_address_keeps_it(dashboard: Page) -> None:
    dashboard.locator("[data-variable=service] input").click()
    dashboard.get_by_role("option", name="worker.1").click()
    dashboard.keyboard.press("Escape")
    expect(dashboard.locator('[data-panel="Requests"]')).to_contain_text("0.5 req/s")
    settle(dashboard)
    assert "var-service=worker.1" in dashboard.url
    assert dashboard.locator("[data-row]").first.inner_text() == "Details of worker.1"
    dashboard.go_back()
    expect(dashboard.locator('[data-panel="Requests"]')).to_contain_text("17.5 req/s")


def test_an_address_chooses_variables(page: Page, fixture_url: str) -> None:
    open_dashboard(page, fixture_url, UID, "&var-service=web&var-service=app&var-shop=paris")
    assert content(page, "Requests") == "17.0 req/s"
    assert page.locator("[data-variable=shop] input").input_value() == "paris"


def test_a_query_variable_filters_and_sorts_its_options(dashboard: Page) -> None:
    dashboard.locator("[data-variable=shop] input").click()
    assert dashboard.get_by_role("option").all_inner_texts() == ["rome", "paris", "berlin"]


def test_rows_open_and_close(dashboard: Page) -> None:
    row = dashboard.locator('[data-row="Details of All"]')
    row.click()
    assert "Stock table" not in states(dashboard)
    assert "(2 panels)" in row.inner_text()
    row.click()
    settle(dashboard)
    assert "Stock table" in states(dashboard)


def test_dragging_over_a_graph_zooms_every_panel(dashboard: Page) -> None:
    plot = dashboard.locator('[data-panel="Latency quantiles"] .u-over')
    box = plot.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    dashboard.mouse.move(box["x"] + box["width"] / 4, middle)
    dashboard.mouse.down()
    dashboard.mouse.move(box["x"] + box["width"] / 2, middle, steps=5)
    dashboard.mouse.up()
    dashboard.wait_for_url(lambda url: HOUR not in url)
    found = re.search(r"from=(\d+)&to=(\d+)", dashboard.url)
    assert found
    start, end = (int(text) / 1000 - START for text in found.groups())
    assert (start, end) == (pytest.approx(900, abs=15), pytest.approx(1800, abs=15))
    settle(dashboard)


def test_the_time_picker_sets_the_range(dashboard: Page) -> None:
    dashboard.get_by_test_id("data-testid TimePicker Open Button").click()
    dashboard.get_by_text("Last 15 minutes").click()
    dashboard.wait_for_url("**/d/every-panel?from=now-15m&to=now**")
    settle(dashboard)
    assert content(dashboard, "Requests") == "No data"  # the shops closed long ago


def test_refreshing_asks_again(dashboard: Page) -> None:
    with dashboard.expect_response("**/prom/api/v1/query_range"):
        dashboard.get_by_test_id("data-testid RefreshPicker run button").click()
    settle(dashboard)


def test_the_theme_can_be_changed_and_is_remembered(page: Page, fixture_url: str) -> None:
    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    open_dashboard(page, fixture_url, UID)
    dark = background()
    page.get_by_label("Switch to the light theme").click()
    light = background()
    assert light != dark
    open_dashboard(page, fixture_url, UID)
    assert background() == light
    open_dashboard(page, fixture_url, UID, "&theme=dark")
    assert background() == dark
