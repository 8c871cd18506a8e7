"""Stages: what a request spends its time on.

A stage only notes when it opened and closed; its unit of work keeps the intervals in the order of
opening. When the unit ends, one sweep gives every instant to exactly one stage: the one opened last
among those open, or an implicit one when none is. So the shares of a request add up to its
duration, whatever overlaps whatever, and none is negative.
"""

from __future__ import annotations

import functools
import inspect
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar, cast

from tailwatch_tracing import clock
from tailwatch_tracing.cells import EDGES_NS, CappedTable
from tailwatch_tracing.service import STAGE_LIMIT, Service, StageCells, default_service

INGRESS = "ingress"
INFERENCE = "inference"
POSTPROCESS = "postprocess"
UNATTRIBUTED = "unattributed"

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
    table: CappedTable[StageCells],
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
    known = table.cells
    for interval in intervals:
        start_ns = interval.start_ns
        while top is not None:
            if top_end_ns > start_ns:
                if start_ns > mark_ns:
                    top.exclusive_ns[slow] += start_ns - mark_ns
                    mark_ns = start_ns
                outer.append((top, top_end_ns))
                break
            if top_end_ns > mark_ns:
                top.exclusive_ns[slow] += top_end_ns - mark_ns
                mark_ns = top_end_ns
            if not outer:
                top = None
                break
            top, top_end_ns = outer.pop()
        if start_ns > mark_ns:  # nothing was open
            if ingress_ns < 0:
                ingress_ns = start_ns - mark_ns
            else:
                tail_ns += start_ns - mark_ns
            mark_ns = start_ns
        elif ingress_ns < 0:
            ingress_ns = 0
        name = interval.name
        if name == INFERENCE:
            saw_inference = True
            between_ns += tail_ns
            tail_ns = 0
        top = known[name] if name in known else table.get(name)
        top_end_ns = interval.end_ns
        if top_end_ns == 0 or top_end_ns > until_ns:
            top_end_ns = until_ns
        wall_ns = top_end_ns - start_ns
        bucket = bisect_left(EDGES_NS, wall_ns)
        top.counts[bucket] += 1
        top.sum_ns += wall_ns
    while top is not None:
        if top_end_ns > mark_ns:
            top.exclusive_ns[slow] += top_end_ns - mark_ns
            mark_ns = top_end_ns
        if not outer:
            break
        top, top_end_ns = outer.pop()
    return until_ns, ingress_ns, between_ns, tail_ns + until_ns - mark_ns, saw_inference


class Unit:
    """A piece of work that stages belong to: a request, or an outermost stage outside any.

    `log` holds its intervals in order of opening, None before the first one and after the end.
    `outermost` is the stage whose end is the unit's, None for a request.
    """

    __slots__ = ("folded", "is_open", "log", "outermost", "service", "start_ns")

    def __init__(self, service: Service, start_ns: int, outermost: stage | None = None) -> None:
        self.service = service
        self.start_ns = start_ns
        self.outermost = outermost
        self.is_open = outermost is not None
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
                self.folded.add(log)


_folding = threading.Lock()


class Folded:
    """Sums of the intervals that a unit of very many stages no longer keeps one by one."""

    def __init__(self, start_ns: int) -> None:
        self.swept: Swept = (start_ns, -1, 0, 0, False)
        self.count = 0
        self._table: CappedTable[StageCells] = CappedTable(STAGE_LIMIT, StageCells)

    def add(self, log: list[stage]) -> None:
        """Sweep a log up to now and leave in it only what is still open."""
        now_ns = clock.now_ns()
        # Copies, because stages go on closing in other threads.
        intervals = [interval.copy() for interval in log]
        still_open = [i for i, interval in enumerate(intervals) if interval.end_ns == 0]
        self.swept = sweep(intervals, now_ns, self.swept, self._table, slow=0)
        for i in still_open:  # their wall time is observed once, at their end
            cells = self._table.get(intervals[i].name)
            wall_ns = now_ns - intervals[i].start_ns
            cells.counts[bisect_left(EDGES_NS, wall_ns)] -= 1
            cells.sum_ns -= wall_ns
        log[: len(intervals)] = [log[i] for i in still_open]
        self.count += len(intervals) - len(still_open)

    def credit(self, service: Service, slow: int) -> Swept:
        """Add the sums to a service's cells, and return where the sweep goes on."""
        for name, cells in self._table.cells.items():
            known = service.stages.get(name)
            known.add(cells)
            known.exclusive_ns[slow] += cells.exclusive_ns[0]
        return self.swept


def credit_implicit(service: Service, swept: Swept, slow: int) -> None:
    """Credit a request's time outside any stage: one interval per implicit stage and request."""
    _, ingress_ns, between_ns, tail_ns, saw_inference = swept
    if ingress_ns > 0:
        _credit(service.stages.get(INGRESS), ingress_ns, slow)
    if not saw_inference:
        between_ns += tail_ns
    elif tail_ns > 0:
        _credit(service.stages.get(POSTPROCESS), tail_ns, slow)
    if between_ns > 0:
        _credit(service.unattributed, between_ns, slow)


def _credit(cells: StageCells, wall_ns: int, slow: int) -> None:
    bucket = bisect_left(EDGES_NS, wall_ns)
    cells.counts[bucket] += 1
    cells.sum_ns += wall_ns
    cells.exclusive_ns[slow] += wall_ns


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

    __slots__ = ("_unit", "end_ns", "name", "start_ns")

    def __init__(self, name: str) -> None:
        self.name = name
        self.end_ns = 0
        self._unit = NO_UNIT

    def __enter__(self) -> stage:
        """Open the interval."""
        if self._unit is not NO_UNIT:
            return self._enter_again()
        unit = current_unit.get()
        log = unit.log
        if log is None:
            unit, log = self._join(unit)
        elif len(log) >= _FOLD_AT:
            unit.fold()
        self._unit = unit
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
        self.end_ns = clock.now_ns()
        if self._unit.outermost is not None:
            self._exit_outside_request()

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
        copy._unit, copy.start_ns, copy.end_ns = self._unit, self.start_ns, self.end_ns
        return copy

    def _join(self, unit: Unit) -> tuple[Unit, list[stage]]:
        """Return the unit and its first log; outside any, a unit that begins and ends with this."""
        if not unit.is_open:
            service = default_service() if unit is NO_UNIT else unit.service
            unit = _Outermost(service, clock.now_ns(), self, unit)
            current_unit.set(unit)
        new: list[stage] = []
        # The first stages may open in two threads: there is no call between the test and the store.
        if unit.log is None:
            unit.log = new
        log = unit.log
        return unit, new if log is None else log

    def _exit_outside_request(self) -> None:
        unit = self._unit
        if unit is _SHARED:
            self._exit_again()
        elif unit.outermost is self and unit.is_open:
            try:
                unit.end(self.end_ns, slow=0)
            except Exception:
                unit.service.note_error("stage")
            if current_unit.get() is unit:
                current_unit.set(cast("_Outermost", unit).previous)

    def _enter_again(self) -> stage:
        """Open a new interval for an object that has had one: from now on it stands for others."""
        if self._unit is not _SHARED:
            _StandIn(self)._take_over()
        _StandIn(self).__enter__()
        return self

    def _exit_again(self) -> None:
        for interval in reversed(current_unit.get().log or ()):
            if isinstance(interval, _StandIn) and interval.of is self and interval.end_ns == 0:
                interval.__exit__(None, None, None)
                return


class _StandIn(stage):
    """An interval of a stage object that is entered more than once."""

    __slots__ = ("of",)

    def __init__(self, of: stage) -> None:
        super().__init__(of.name)
        self.of = of

    def _take_over(self) -> None:
        of, unit = self.of, self.of._unit
        self._unit, self.start_ns, self.end_ns = unit, of.start_ns, of.end_ns
        if unit.log is not None and of in unit.log:
            unit.log[unit.log.index(of)] = self
        if unit.outermost is of:
            unit.outermost = self
        of._unit = _SHARED


class _Outermost(Unit):
    """The unit of an outermost stage outside any request."""

    __slots__ = ("previous",)

    def __init__(self, service: Service, start_ns: int, outermost: stage, previous: Unit) -> None:
        super().__init__(service, start_ns, outermost)
        self.previous = previous


_NO_SERVICE = Service("unnamed")
NO_UNIT = Unit(_NO_SERVICE, 0)
"""Stands where there is no unit: never open, and without a log."""
_SHARED = Unit(_NO_SERVICE, 0, outermost=stage("shared"))
current_unit: ContextVar[Unit] = ContextVar("tailwatch_unit", default=NO_UNIT)
