"""A browser, a Prometheus with an hour of known data, and the viewer between them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser import backend, golden_hour, shops
from tests.browser.watch import Watch

FIXTURES = Path(__file__).parent / "fixtures" / "dashboards"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    if os.environ.get("CI"):
        pytest.fail("no Chromium on PATH, and in CI these tests are not skipped")
    pytest.skip("no Chromium on PATH: install chromium to run the browser tests")


@pytest.fixture(scope="session")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("prometheus") / "data"
    golden_hour.build(data, shops.shop_ramps())
    with backend.prometheus(data) as url:
        yield url


@pytest.fixture(scope="session")
def shipped_url(prometheus_url: str) -> Iterator[str]:
    """The viewer with the dashboards that are shipped."""
    with backend.viewer(prometheus_url) as url:
        yield url


@pytest.fixture(scope="session")
def fixture_url(prometheus_url: str) -> Iterator[str]:
    """The viewer with the dashboards of these tests."""
    with backend.viewer(prometheus_url, f"--dashboards={FIXTURES}") as url:
        yield url


# Not for the whole session: while it lives no other test of the process can run an event loop.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def any_page(browser: Browser) -> Iterator[Page]:
    """A page on which things may go wrong."""
    context = browser.new_context(viewport={"width": 1600, "height": 1000}, timezone_id="UTC")
    yield context.new_page()
    context.close()


@pytest.fixture
def page(any_page: Page) -> Iterator[Page]:
    """A page; the test fails on any console error, failed request or error of its script."""
    watch = Watch(any_page)
    yield any_page
    assert watch.problems == []
