"""Stages: what a request spends its time on.

Every instant of a request belongs to exactly one stage: the one that was opened last among those
open, or an implicit one when none is. The timeline keeps that account as stages open and close, so
that the shares of a request add up to its duration whatever overlaps whatever.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar, cast

from tailwatch_tracing.cells import HistogramCell
from tailwatch_tracing.service import Service, StageCells, default_service

INGRESS = "ingress"
INFERENCE = "inference"
POSTPROCESS = "postprocess"
UNATTRIBUTED = "unattributed"

_FOLD_AT = 1024

Function = TypeVar("Function", bound=Callable[..., Any])


class Unit:
    """A piece of work that stages belong to: a request, or an outermost stage outside any."""

    __slots__ = ("is_open", "service", "start_ns", "timeline")

    def __init__(self, service: Service, start_ns: int) -> None:
        self.service = service
        self.start_ns = start_ns
        self.is_open = True
        self.timeline: Timeline | None = None

    def begin_timeline(self) -> Timeline:
        """Return the unit's timeline, made by the first of its stages."""
        timeline = Timeline(self.service.clock_ns, self.start_ns)
        # The first stages may open in two threads: there is no call between the test and the store.
        if self.timeline is None:
            self.timeline = timeline
        return self.timeline


current_unit: ContextVar[Unit | None] = ContextVar("tailwatch_unit", default=None)


class Folded:
    """Intervals of one stage name that a long request no longer keeps one by one."""

    __slots__ = ("exclusive_ns", "wall")

    def __init__(self) -> None:
        self.wall = HistogramCell()
        self.exclusive_ns = 0

    def add_interval(self, wall_ns: int, exclusive_ns: int) -> None:
        """Add one interval, in nanoseconds."""
        self.wall.observe(wall_ns)
        self.exclusive_ns += exclusive_ns

    def add(self, other: Folded) -> None:
        """Add another fold's intervals."""
        self.wall.add(other.wall)
        self.exclusive_ns += other.exclusive_ns


class Timeline:
    """The account of one unit's time. All of it is read and written under `lock`.

    `gaps_ns` are the times without an open stage, in order: the first lies before the first stage;
    those from `after_inference` on come after the last inference stage that has closed.
    """

    __slots__ = (
        "after_inference",
        "clock",
        "done",
        "folded",
        "folded_tail",
        "gaps_ns",
        "ingress_ns",
        "is_closed",
        "lock",
        "mark_ns",
        "opened",
        "saw_inference",
    )

    def __init__(self, clock: Callable[[], int], start_ns: int) -> None:
        self.lock = threading.Lock()
        self.clock = clock
        self.mark_ns = start_ns  # everything before it is accounted for
        self.opened: list[stage] = []  # in order of opening
        self.done: list[stage] = []
        self.gaps_ns: list[int] = []
        self.ingress_ns = -1
        self.after_inference = 0
        self.saw_inference = False
        self.is_closed = False
        self.folded: dict[str, Folded] = {}
        self.folded_tail = Folded()

    def close(self, end_ns: int) -> int:
        """Cut what is open at `end_ns` and return the end, at least that of the last stage."""
        with self.lock:
            end_ns = max(end_ns, self.mark_ns)
            rest_ns = end_ns - self.mark_ns
            if self.opened:
                self.opened[-1].exclusive_ns += rest_ns
                for interval in self.opened:
                    interval.end_ns = end_ns
                    self.done.append(interval)
                    if interval.name == INFERENCE:
                        self.settle()
            elif rest_ns:
                self.gaps_ns.append(rest_ns)
            self.mark_ns = end_ns
            self.is_closed = True
            return end_ns

    def settle(self) -> None:
        """Note that an inference stage has closed: the gaps so far are not behind the last one."""
        self.saw_inference = True
        self.after_inference = len(self.gaps_ns)

    def fold(self) -> None:
        """Sum up what is kept one by one, so that a request of many stages stays small."""
        for interval in self.done:
            self._folded(interval.name).add_interval(
                interval.end_ns - interval.start_ns, interval.exclusive_ns
            )
        self.done.clear()
        self._fold_gaps()

    def credit(self, service: Service, slow: bool, implicit: bool) -> None:
        """Add the closed timeline to a service's cells; `implicit` ones only for requests."""
        for interval in self.done:
            cells = service.stages.get(interval.name)
            cells.wall.observe(interval.end_ns - interval.start_ns)
            cells.exclusive_ns[slow] += interval.exclusive_ns
        if self.folded or self.folded_tail.exclusive_ns:
            self._credit_folded(service, slow)
        if implicit:
            self._credit_gaps(service, slow)

    def _credit_gaps(self, service: Service, slow: bool) -> None:
        if self.ingress_ns > 0:
            _credit(service.stages.get(INGRESS), self.ingress_ns, slow)
        if not self.gaps_ns:
            return
        split = self.after_inference
        for name, gaps_ns in (
            (UNATTRIBUTED, self.gaps_ns[:split]),
            (POSTPROCESS if self.saw_inference else UNATTRIBUTED, self.gaps_ns[split:]),
        ):
            if gaps_ns:
                cells = service.stages.get(name)
                for gap_ns in gaps_ns:
                    _credit(cells, gap_ns, slow)

    def _folded(self, name: str) -> Folded:
        return self.folded.setdefault(name, Folded())

    def _fold_gaps(self) -> None:
        if self.after_inference:
            unattributed = self._folded(UNATTRIBUTED)
            unattributed.add(self.folded_tail)
            self.folded_tail = Folded()
            for gap_ns in self.gaps_ns[: self.after_inference]:
                unattributed.add_interval(gap_ns, gap_ns)
        for gap_ns in self.gaps_ns[self.after_inference :]:
            self.folded_tail.add_interval(gap_ns, gap_ns)
        self.gaps_ns.clear()
        self.after_inference = 0

    def _credit_folded(self, service: Service, slow: bool) -> None:
        self._fold_gaps()
        tail = POSTPROCESS if self.saw_inference else UNATTRIBUTED
        self._folded(tail).add(self.folded_tail)
        for name, folded in self.folded.items():
            cells = service.stages.get(name)
            cells.wall.add(folded.wall)
            cells.exclusive_ns[slow] += folded.exclusive_ns


def _credit(cells: StageCells, interval_ns: int, slow: bool) -> None:
    cells.wall.observe(interval_ns)
    cells.exclusive_ns[slow] += interval_ns


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

    __slots__ = (
        "_again",
        "_own_unit",
        "_previous",
        "_timeline",
        "end_ns",
        "exclusive_ns",
        "name",
        "start_ns",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.end_ns = 0
        self.exclusive_ns = 0
        self._timeline: Timeline | None = None
        self._own_unit: Unit | None = None
        self._again: list[stage] | None = None

    def __enter__(self) -> stage:
        """Open the interval."""
        if self._timeline is not None:
            return self._enter_again()
        unit = current_unit.get()
        if unit is None or not unit.is_open:
            unit = self._begin_unit(unit)
        timeline = unit.timeline
        if timeline is None:
            timeline = unit.begin_timeline()
        with timeline.lock:
            self.start_ns = now = timeline.clock()
            opened = timeline.opened
            if opened:
                opened[-1].exclusive_ns += now - timeline.mark_ns
            elif timeline.ingress_ns < 0:
                timeline.ingress_ns = now - timeline.mark_ns
            elif now != timeline.mark_ns:
                timeline.gaps_ns.append(now - timeline.mark_ns)
            timeline.mark_ns = now
            opened.append(self)
        self._timeline = timeline
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the interval."""
        if self._again and self._exit_again():
            return
        timeline = self._timeline
        if timeline is None:
            return
        with timeline.lock:
            if not timeline.is_closed:
                self.end_ns = now = timeline.clock()
                opened = timeline.opened
                opened[-1].exclusive_ns += now - timeline.mark_ns
                timeline.mark_ns = now
                if opened[-1] is self:
                    opened.pop()
                else:
                    opened.remove(self)
                timeline.done.append(self)
                if self.name == INFERENCE:
                    timeline.settle()
                if len(timeline.done) >= _FOLD_AT:
                    timeline.fold()
        if self._own_unit is not None:
            self._end_unit(self._own_unit, timeline)

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

    def _enter_again(self) -> stage:
        # One object is one interval; one that is shared stands for new ones.
        interval = stage(self.name)
        if self._again is None:
            self._again = []
        interval.__enter__()
        self._again.append(interval)
        return interval

    def _exit_again(self) -> bool:
        unit = current_unit.get()
        for interval in reversed(self._again or ()):
            if unit is not None and interval._timeline is unit.timeline and interval.end_ns == 0:
                interval.__exit__(None, None, None)
                if self._again is not None:
                    self._again.remove(interval)
                return True
        return False

    def _begin_unit(self, previous: Unit | None) -> Unit:
        service = default_service() if previous is None else previous.service
        unit = Unit(service, service.clock_ns())
        self._own_unit = unit
        self._previous = previous
        current_unit.set(unit)
        return unit

    def _end_unit(self, unit: Unit, timeline: Timeline) -> None:
        unit.is_open = False
        try:
            timeline.close(timeline.mark_ns)
            timeline.credit(unit.service, slow=False, implicit=False)
        except Exception:
            unit.service.note_error("stage")
        if current_unit.get() is unit:
            current_unit.set(self._previous)
