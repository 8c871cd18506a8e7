"""Units of work: what stages belong to, a request or an outermost stage outside any."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

from tailwatch_tracing import clock
from tailwatch_tracing.service import Service, default_service
from tailwatch_tracing.shares import Folded, Swept, sweep

if TYPE_CHECKING:
    from tailwatch_tracing.calls import Call
    from tailwatch_tracing.stages import stage

FOLD_AT = 1024


class Unit:
    """A piece of work that stages belong to: a request, or an outermost stage outside any.

    `log` holds its intervals in order of opening, None before the first one and after the end.
    """

    __slots__ = ("calls", "folded", "is_open", "log", "service", "start_ns")

    is_request = False
    calls: list[Call]  # of a request with a span; there is none before the first has ended

    def __init__(self, service: Service, start_ns: int) -> None:
        self.service = service
        self.start_ns = start_ns
        self.is_open = False
        self.log: list[stage] | None = None
        self.folded: Folded | None = None

    def end(self, end_ns: int, slow: int) -> Swept:
        """Credit the service with the unit's stages and return the sweep's result."""
        log, self.log = self.log, None
        self.is_open = False
        if self.folded is None:
            swept = (self.start_ns, -1, 0, 0, False)
        else:
            swept = self.folded.credit(self.service, slow)
        return sweep(log or (), end_ns, swept, self.service.stages, slow)

    def add(self, interval: stage) -> None:
        """Take in an interval that opens elsewhere, as in a batch; not after the end."""
        if not self.is_open:
            return
        log = self.log
        if log is None:
            self.log = log = []
        elif len(log) >= FOLD_AT:
            self.fold()
        log.append(interval)

    def fold(self) -> None:
        """Sum up the intervals so far, so that a unit of very many stages stays small."""
        with _folding:
            log = self.log
            folded = self.folded
            due_at = FOLD_AT if folded is None else folded.due_at
            if log is None or len(log) < due_at:
                return
            if folded is None:
                self.folded = folded = Folded(self.start_ns)
            try:
                folded.add(log)
            except Exception:  # as of a stage whose name has no text
                self.service.note_error("stage")
                log.clear()
            # What is still open stays: to look at it again at every stage would take forever.
            folded.due_at = max(FOLD_AT, 2 * len(log))


_folding = threading.Lock()


def _begin_child() -> None:
    """In a forked child: a unit under way ends in the parent, and so may what holds the lock."""
    global _folding
    _folding = threading.Lock()
    unit = current_unit.get()
    unit.is_open = False
    unit.log = None
    unit.folded = None


os.register_at_fork(after_in_child=_begin_child)


class OutermostUnit(Unit):
    """The unit of an outermost stage outside any request."""

    __slots__ = ("_previous",)

    def __init__(self, service: Service, previous: Unit) -> None:
        super().__init__(service, clock.now_ns())
        self.is_open = True
        # One that ended in another context was never taken back in this one: nothing leads to it.
        self._previous: Unit = (
            previous._previous if isinstance(previous, OutermostUnit) else previous
        )

    def finish(self, end_ns: int) -> None:
        """End with the outermost stage."""
        try:
            self.end(end_ns, slow=0)
        except Exception:
            self.service.note_error("stage")
        if current_unit.get() is self:  # not so in a generator that another task closes
            current_unit.set(self._previous)


NO_UNIT = Unit(Service("unnamed"), 0)
"""Stands where there is no unit: never open, and without a log."""
current_unit: ContextVar[Unit] = ContextVar("tailwatch_unit", default=NO_UNIT)


def current_service() -> Service:
    """Return the service of the current unit; outside any, that of all else in the process."""
    unit = current_unit.get()
    return default_service() if unit is NO_UNIT else unit.service
