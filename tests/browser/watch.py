"""What can go wrong on a page without being seen, and how to wait for it to be drawn."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage, Page, Request, Response

from tests.browser.openmetrics import END, START


class Watch:
    """Collects console errors, script errors and failed requests of a page."""

    def __init__(self, page: Page) -> None:
        self.problems: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"console: {message.text}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page itself gives up what it asks anew
            self.problems.append(f"{request.failure}: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")


def open_dashboard(page: Page, viewer: str, uid: str, parameters: str = "") -> None:
    """Show a dashboard over the whole hour and wait until every panel is drawn."""
    page.goto(f"{viewer}/d/{uid}?from={START}000&to={END}000{parameters}")
    settle(page)


def open_rows(page: Page) -> None:
    while (closed := page.locator("[data-row][aria-expanded=false]")).count():
        closed.first.click()
    settle(page)


def settle(page: Page) -> None:
    """Wait until no panel is loading; a refresh shows in its loading bar only."""
    page.wait_for_selector("[data-panel]")
    page.wait_for_function(
        "() => !document.querySelector('[data-panel][data-state=loading]')"
        " && !document.querySelector('[aria-label=\"Panel loading bar\"]')"
    )


def states(page: Page) -> dict[str, str]:
    """Return panel title -> loading, done, empty or error."""
    panels = page.locator("[data-panel]").all()
    return {
        str(panel.get_attribute("data-panel")): str(panel.get_attribute("data-state"))
        for panel in panels
    }


def content(page: Page, title: str) -> str:
    """Return the text inside of a panel, its title not among it."""
    panel = page.locator(f'[data-panel="{title}"]')
    return panel.locator('[data-testid="data-testid panel content"]').inner_text()


def legend(page: Page, title: str) -> list[str]:
    """Return the names in a panel's legend, a list or a table, in their order."""
    prefix = "data-testid VizLegend series "
    panel = page.locator(f'[data-panel="{title}"]')
    items = panel.locator(f'[data-testid^="{prefix}"]').all()
    names = [str(item.get_attribute("data-testid")).removeprefix(prefix) for item in items]
    return names or [str(one.get_attribute("title")) for one in panel.locator("td button").all()]


def rows(page: Page, title: str) -> list[list[str]]:
    """Return a table's rows of cells, the header first."""
    table = page.locator(f'[data-panel="{title}"]')
    return [
        # Not inner texts: the grid's cells have none while they are off the screen.
        row.locator("[role=gridcell], [role=columnheader]").all_text_contents()
        for row in table.locator("[role=row]").all()
    ]
