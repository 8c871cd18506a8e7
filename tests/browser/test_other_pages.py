from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import backend, golden_hour
from tests.browser.openmetrics import END, START

RUNBOOKS = Path(__file__).parents[2] / "runbooks"


def test_the_index_lists_the_dashboards(page: Page, shipped_url: str) -> None:
    page.goto(shipped_url)
    expect(page.get_by_role("status")).to_contain_text("No symptom fires")
    titles = page.locator('main a[href^="/d/"]')
    expect(titles).to_have_text(["Overview", "GPU", "Host", "Request path"])
    page.get_by_role("link", name="Host").click()
    page.wait_for_url("**/d/tailwatch-host**")


def test_the_index_names_the_symptoms_that_fire(page: Page, shipped_url: str) -> None:
    page.clock.set_fixed_time("2026-01-01T00:00:00Z")  # openmetrics.END
    page.goto(shipped_url)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("One symptom fires")
    expect(alert).to_contain_text(f"{golden_hour.SYMPTOM['alertname']} on content-type")
    alert.get_by_role("link", name="runbook").click()
    page.wait_for_url("**/runbooks/GpuStarvedUnderLoad")
    expect(page.locator("main h2").first).to_have_text("Meaning")


@pytest.mark.parametrize("path", sorted(RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_a_runbook_is_shown(page: Page, shipped_url: str, path: Path) -> None:
    page.goto(f"{shipped_url}/runbooks/{path.stem}")
    headings = [line[3:] for line in path.read_text().splitlines() if line.startswith("## ")]
    assert len(headings) == 5
    expect(page.locator("main h2")).to_have_text(headings)
    too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert page.evaluate(too_wide) is False


def test_the_runbooks_are_listed(page: Page, shipped_url: str) -> None:
    page.goto(f"{shipped_url}/runbooks")
    names = sorted(path.stem for path in RUNBOOKS.glob("*.md"))
    expect(page.locator("main a")).to_have_text(names)


def test_a_symptom_links_to_its_runbook(page: Page, shipped_url: str) -> None:
    page.goto(f"{shipped_url}/d/tailwatch-overview?from={START}000&to={END}000")
    page.locator('[data-panel="Symptoms"] a[href$="/GpuStarvedUnderLoad"] rect').last.click()
    page.wait_for_url("**/runbooks/GpuStarvedUnderLoad")


def test_a_cause_links_to_the_request_path_of_its_service(page: Page, shipped_url: str) -> None:
    page.goto(f"{shipped_url}/d/tailwatch-overview?from={START}000&to={END}000")
    cause = page.locator('[data-panel="Likely causes"] a').first
    hour = f"from={START}000&to={END}000"
    path = f"/d/tailwatch-request-path?var-service=content-type&{hour}"
    expect(cause).to_have_attribute("href", path)


def test_nothing_is_loaded_from_elsewhere(page: Page, shipped_url: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{shipped_url}/d/tailwatch-overview?from={START}000&to={END}000")
    page.wait_for_selector("[data-panel][data-state=done]")
    foreign = [url for url in asked if not url.startswith((shipped_url, "data:", "blob:"))]
    assert asked and foreign == []


def test_prometheus_is_reached_through_the_viewer(shipped_url: str) -> None:
    answer = backend.ask(f"{shipped_url}/prom", "query", query="1 + 1", time=END)
    assert answer["result"][1] == "2"
