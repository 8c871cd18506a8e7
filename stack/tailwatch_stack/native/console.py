"""What the person sees: steps, lines, and one line of status per service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console as RichConsole
from rich.live import Live
from rich.table import Table
from rich.text import Text


class Status(NamedTuple):
    """A service's name and its state in a few words."""

    service: str
    state: str


class Console:
    """Prints on standard output: a table that is rewritten on a terminal, plain lines elsewhere.

    Off a terminal a service's status is printed when it changes.
    """

    def __init__(self) -> None:
        self._out = RichConsole(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._live: Live | None = None
        self._shown: dict[str, str] = {}

    def line(self, text: str = "") -> None:
        """Print a line; above the status table where there is one."""
        self._out.print(Text(text))

    def begin(self, text: str) -> None:
        """Print the start of a step; `finish` or a new line completes it."""
        self._out.print(Text(text), end=" ")

    def finish(self, text: str) -> None:
        """Complete the line that `begin` started."""
        self.line(text)

    def status(self, statuses: Sequence[Status]) -> None:
        """Show the current state of every service."""
        if self._out.is_terminal and not self._out.is_dumb_terminal:
            self._rewrite(statuses)
            return
        for service, state in statuses:
            if self._shown.get(service) != state:
                self._shown[service] = state
                self.line(f"{service}: {state}")

    def close(self) -> None:
        """Take the status table off the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _rewrite(self, statuses: Sequence[Status]) -> None:
        table = Table.grid(padding=(0, 2))
        for service, state in statuses:
            table.add_row(Text(service), Text(state, overflow="ellipsis", no_wrap=True))
        if self._live is None:
            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(table, refresh=True)
