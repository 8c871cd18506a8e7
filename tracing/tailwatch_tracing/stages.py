"""Stages: what a request spends its time on.

A stage only notes when it opened and closed; its unit of work keeps the intervals in the order of
opening. When the unit ends, one sweep gives every instant to exactly one stage: the one opened last
among those open, or an implicit one when none is. So the shares of a request add up to its
duration, whatever overlaps whatever, and none is negative.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar, cast

from tailwatch_tracing import clock
from tailwatch_tracing.cells import FIRST_EDGE_NS, SUM_NS, Capped, CellStore
from tailwatch_tracing.families import EDGES_NS, STAGE_DURATION
from tailwatch_tracing.service import STAGE_LIMIT, Service, StageCells, default_service

INFERENCE = "inference"

_FOLD_AT = 1024

Function = TypeVar("Function", bound=Callable[..., Any])

Swept = tuple[int, int, int, int, bool]
"""How far a sweep has come, and what it met outside any stage, in nanoseconds: until, ingress
(before the first stage, -1 when there is none yet), between, tail (after the last inference stage,
or after ingress when there is none), and whether there was an inference stage."""


def sweep(
    intervals: Sequence[stage],
    until_ns: int,
    swept: Swept,
    table: Capped[StageCells],
    slow: int,
) -> Swept:
    """Credit stages with the time since `swept` until `until_ns`, and return where that leaves it.

    `intervals` come in order of opening; one that has no end yet is cut. Every interval's wall time
    is observed, and every instant is exclusive time of the interval opened last among those open.
    """
    mark_ns, ingress_ns, between_ns, tail_ns, saw_inference = swept
    outer: list[tuple[StageCells, int]] = []  # open below the top one, with their ends
    top: StageCells | None = None
    top_end_ns = 0
    for interval in intervals:
        start_ns = interval.start_ns
        until_ns = max(until_ns, start_ns)  # it may have opened in a thread since that was read
        while top is not None:
            if top_end_ns > start_ns:
                if start_ns > mark_ns:
                    top.exclusive.counts[slow] += start_ns - mark_ns
                    mark_ns = start_ns
                outer.append((top, top_end_ns))
                break
            if top_end_ns > mark_ns:
                top.exclusive.counts[slow] += top_end_ns - mark_ns
                mark_ns = top_end_ns
            top, top_end_ns = outer.pop() if outer else (None, 0)
        if ingress_ns < 0:
            ingress_ns = max(0, start_ns - mark_ns)
            mark_ns += ingress_ns
        elif start_ns > mark_ns:  # nothing was open
            tail_ns += start_ns - mark_ns
            mark_ns = start_ns
        if interval.name == INFERENCE:
            saw_inference = True
            between_ns += tail_ns
            tail_ns = 0
        top = table.get(interval.name)
        top_end_ns = interval.end_ns if 0 < interval.end_ns < until_ns else until_ns
        top.wall.observe(top_end_ns - start_ns)
    while top is not None:
        if top_end_ns > mark_ns:
            top.exclusive.counts[slow] += top_end_ns - mark_ns
            mark_ns = top_end_ns
        top, top_end_ns = outer.pop() if outer else (None, 0)
    return until_ns, ingress_ns, between_ns, tail_ns + until_ns - mark_ns, saw_inference


class Unit:
    """A piece of work that stages belong to: a request, or an outermost stage outside any.

    `log` holds its intervals in order of opening, None before the first one and after the end.
    """

    __slots__ = ("folded", "is_open", "log", "service", "start_ns")

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

    def fold(self) -> None:
        """Sum up the intervals so far, so that a unit of very many stages stays small."""
        with _folding:
            log = self.log
            if log is not None and len(log) >= _FOLD_AT:
                if self.folded is None:
                    self.folded = Folded(self.start_ns)
                try:
                    self.folded.add(log)
                except Exception:  # as of a stage whose name cannot be a key
                    self.service.note_error("stage")
                    log.clear()


_folding = threading.Lock()


def _renew_lock() -> None:
    """In a forked child: another thread may have held it at the fork."""
    global _folding
    _folding = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class Folded:
    """Sums of the intervals that a unit of very many stages no longer keeps one by one."""

    def __init__(self, start_ns: int) -> None:
        self.swept: Swept = (start_ns, -1, 0, 0, False)
        self.count = 0
        store = CellStore("")
        self._table: Capped[StageCells] = store.capped(
            STAGE_DURATION, STAGE_LIMIT, lambda name: StageCells(store, name)
        )

    def add(self, log: list[stage]) -> None:
        """Sweep a log up to now and leave in it only what is still open."""
        now_ns = clock.now_ns()
        # Copies, because stages go on closing in other threads.
        intervals = [interval.copy() for interval in log]
        still_open = [i for i, interval in enumerate(intervals) if interval.end_ns <= 0]
        self.swept = sweep(intervals, now_ns, self.swept, self._table, slow=0)
        for i in still_open:  # their wall time is observed once, at their end
            self._table.get(intervals[i].name).wall.forget(now_ns - intervals[i].start_ns)
        log[: len(intervals)] = [log[i] for i in still_open]
        self.count += len(intervals) - len(still_open)

    def credit(self, service: Service, slow: int) -> Swept:
        """Add the sums to a service's cells, and return where the sweep goes on."""
        for name, cells in self._table.cells.items():
            service.stages.get(name).add(cells, slow)
        return self.swept


def credit_request(unit: Unit, end_ns: int, slow: int) -> int:
    """Credit a request's service with its stages and its time outside any; return its end.

    An implicit stage is one interval per request, the sum of its pieces. The end is later than
    `end_ns` when a stage in another thread closed after that was read.
    """
    service = unit.service
    log = unit.log
    if not log or unit.folded is not None:
        end_ns, ingress_ns, between_ns, tail_ns, saw_inference = unit.end(end_ns, slow)
    else:
        unit.log = None
        known = service.stages.cells
        inference = INFERENCE
        mark_ns = unit.start_ns
        ingress_ns = log[0].start_ns - mark_ns
        between_ns = 0
        tail_ns = -ingress_ns
        saw_inference = False
        # Most requests go through one stage after the other: nothing is to be sorted out then. The
        # differences are compared because CPython does that faster for integers of one digit.
        for interval in log:
            start_ns = interval.start_ns
            stop_ns = interval.end_ns
            gap_ns = start_ns - mark_ns
            wall_ns = stop_ns - start_ns
            if gap_ns < 0 or wall_ns < 0:  # it overlaps the one before, or is open
                swept = (mark_ns, ingress_ns, between_ns, tail_ns, saw_inference)
                rest, swept = _rewind(unit, log, interval, swept, slow)
                end_ns, ingress_ns, between_ns, tail_ns, saw_inference = sweep(
                    rest, end_ns, swept, service.stages, slow
                )
                break
            mark_ns = stop_ns
            tail_ns += gap_ns
            name = interval.name
            if name == inference:
                saw_inference = True
                between_ns += tail_ns
                tail_ns = 0
            try:
                cells = known[name]
            except KeyError:
                cells = service.stages.get(name)
            counts = cells.wall.counts
            counts[bisect_left(EDGES_NS, wall_ns) if wall_ns > FIRST_EDGE_NS else 0] += 1
            counts[SUM_NS] += wall_ns
            cells.exclusive.counts[slow] += wall_ns
        else:
            rest_ns = end_ns - mark_ns
            if rest_ns > 0:
                tail_ns += rest_ns
            else:
                end_ns = mark_ns
    if not saw_inference:
        between_ns += tail_ns
        tail_ns = 0
    for cells, wall_ns in (
        (service.ingress, ingress_ns),
        (service.unattributed, between_ns),
        (service.postprocess, tail_ns),
    ):
        if wall_ns > 0:
            counts = cells.wall.counts
            counts[bisect_left(EDGES_NS, wall_ns) if wall_ns > FIRST_EDGE_NS else 0] += 1
            counts[SUM_NS] += wall_ns
            cells.exclusive.counts[slow] += wall_ns
    return end_ns


def _rewind(
    unit: Unit, log: list[stage], interval: stage, swept: Swept, slow: int
) -> tuple[list[stage], Swept]:
    """Go back to the interval before this one, which may reach below it, to look at every piece."""
    position = log.index(interval)
    if position == 0:
        return log, (unit.start_ns, -1, 0, 0, False)
    before = log[position - 1]
    cells = unit.service.stages.get(before.name)
    cells.wall.forget(before.end_ns - before.start_ns)
    cells.exclusive.counts[slow] -= before.end_ns - before.start_ns
    return log[position - 1 :], (before.start_ns, *swept[1:])


class stage:
    """Time one interval of a named stage, inside a request or outside any.

    Use it as a context manager, sync or async, or as a decorator of a sync or async function:

        with stage("preprocess"):
            ...

        @stage("inference")
        async def predict(batch): ...

    Known names are `ingress`, `preprocess`, `inference` and `postprocess`; others are allowed, up
    to 64 in a service. Stages may nest and overlap: each interval's wall time is observed, and
    every instant counts as exclusive time of the one opened last. A stage that is open when its
    request ends is cut there. Outside a request the outermost stage is the unit of work, and its
    service is the first one of the process.
    """

    __slots__ = ("_own_unit", "end_ns", "name", "start_ns")

    _own_unit: _OutermostUnit  # of an outermost one

    def __init__(self, name: str) -> None:
        self.name = name
        self.start_ns = 0  # not entered
        self.end_ns = 0  # not left

    def __enter__(self) -> stage:
        """Open the interval."""
        if self.start_ns:
            return self._enter_again()
        self.start_ns = -1  # taken: another thread that enters the same object comes again
        log = current_unit.get().log
        if log is None:
            log = self._join()
        elif len(log) >= _FOLD_AT:
            current_unit.get().fold()
        self.start_ns = clock.now_ns()
        log.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the interval."""
        if self.end_ns:
            self._exit_special()
        else:
            self.end_ns = clock.now_ns()

    async def __aenter__(self) -> stage:
        """Open the interval."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the interval."""
        self.__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Return `function` timed as this stage at every call.

        Raises:
            TypeError: a generator function, whose call does not run it.
        """
        name = self.name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"stage({name!r}) cannot decorate the generator function "
                f"{function.__qualname__}: use `with stage({name!r}):` inside it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed_coroutine(*args: Any, **kwargs: Any) -> Any:
                with stage(name):
                    return await function(*args, **kwargs)

            return cast("Function", timed_coroutine)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with stage(name):
                return function(*args, **kwargs)

        return cast("Function", timed)

    def copy(self) -> stage:
        """Return the interval as it is now."""
        copy = stage(self.name)
        copy.start_ns = self.start_ns
        copy.end_ns = self.end_ns
        return copy

    def _join(self) -> list[stage]:
        """Return the unit's first log; outside any, that of one that begins and ends with this."""
        unit = current_unit.get()
        if not unit.is_open:
            service = default_service() if unit is NO_UNIT else unit.service
            self._own_unit = unit = _OutermostUnit(service, unit)
            self.end_ns = _OUTERMOST
            current_unit.set(unit)
        new: list[stage] = []
        # The first stages may open in two threads: there is no call between the test and the store.
        if unit.log is None:
            unit.log = new
        log = unit.log
        return new if log is None else log

    def _exit_special(self) -> None:
        for interval in reversed(current_unit.get().log or ()):
            if isinstance(interval, _StandIn) and interval.of is self and interval.end_ns <= 0:
                interval.__exit__(None, None, None)
                return
        was = self.end_ns
        if was < 0:
            self.end_ns = clock.now_ns()
        if was == _OUTERMOST:
            self._own_unit.finish(self.end_ns)

    def _enter_again(self) -> stage:
        """Open a new interval for an object that has one: from now on it stands for others."""
        if self.end_ns == 0:
            self.end_ns = _SHARED
        _StandIn(self).__enter__()
        return self


# What `end_ns` is, below 0, while an interval is open that ends in a special way.
_OUTERMOST = -1  # its end is that of its unit
_SHARED = -2  # the object was entered again meanwhile: an exit may mean another interval


class _StandIn(stage):
    """An interval of a stage object that is entered more than once."""

    __slots__ = ("of",)

    def __init__(self, of: stage) -> None:
        super().__init__(of.name)
        self.of = of


class _OutermostUnit(Unit):
    """The unit of an outermost stage outside any request."""

    __slots__ = ("_previous",)

    def __init__(self, service: Service, previous: Unit) -> None:
        super().__init__(service, clock.now_ns())
        self.is_open = True
        # One that ended in another context was never taken back in this one: nothing leads to it.
        self._previous: Unit = (
            previous._previous if isinstance(previous, _OutermostUnit) else previous
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
