"""What cannot be shown says so, in its place and in words."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser import backend
from tests.browser.conftest import FIXTURES
from tests.browser.watch import content, open_dashboard, states


def test_unsupported_things_are_named_in_their_panel(any_page: Page, fixture_url: str) -> None:
    open_dashboard(any_page, fixture_url, "unsupported")
    assert states(any_page) == {
        "Unknown type": "error",
        "Unknown transformation": "error",
        "Broken query": "error",
        "Nothing there": "empty",
        "Heatmap of no buckets": "error",
    }
    assert 'Panel type "piechart" is not supported' in content(any_page, "Unknown type")
    assert 'Transformation "makeCoffee"' in content(any_page, "Unknown transformation")
    assert "parse error" in content(any_page, "Broken query")
    assert content(any_page, "Nothing there") == "No data"
    assert "one series per bucket" in content(any_page, "Heatmap of no buckets")


@pytest.fixture
def lonely_url() -> str:
    """The address of a Prometheus that is not there."""
    return f"http://127.0.0.1:{backend.free_port()}"


def test_a_prometheus_that_is_down_is_told(any_page: Page, lonely_url: str) -> None:
    expected = f"Prometheus at {lonely_url} cannot be reached"
    with backend.viewer(lonely_url, f"--dashboards={FIXTURES}") as viewer:
        any_page.goto(viewer)
        expect(any_page.get_by_role("alert")).to_contain_text(expected)
        any_page.goto(f"{viewer}/d/every-panel")  # its variables cannot be asked for
        expect(any_page.get_by_role("alert")).to_contain_text(expected)
        open_dashboard(any_page, viewer, "unsupported")
        assert expected in content(any_page, "Nothing there")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/d/nope", "There is no dashboard nope"),
        ("/runbooks/Nope", "There is no runbook for Nope"),
        ("/nowhere", "There is no page /nowhere"),
        ("/d/every-panel?from=soon", '"soon" is not a time'),
    ],
)
def test_an_address_that_cannot_be_shown_is_told(
    any_page: Page, fixture_url: str, path: str, expected: str
) -> None:
    any_page.goto(f"{fixture_url}{path}")
    expect(any_page.get_by_role("alert")).to_contain_text(expected)
