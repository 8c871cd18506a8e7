"""A batcher instrument: size, wait and padding of batches, whatever collects and runs them.

A batch runs outside its members' requests, in a thread or a task of its own. So a member notes
where it belongs when it joins, and while the batch runs every stage that opens in it opens in the
unit of work of each member, too. A member's stages add up to its request as if it had run alone,
while the CPU time of a batch, which was used once, is counted once.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar, cast, overload

from tailwatch_tracing import clock, families
from tailwatch_tracing.cells import Capped, HistogramCell
from tailwatch_tracing.decorators import is_async
from tailwatch_tracing.exemplars import note
from tailwatch_tracing.families import RATIO_UNIT
from tailwatch_tracing.instruments import Instrument
from tailwatch_tracing.page import Level
from tailwatch_tracing.service import Service
from tailwatch_tracing.stages import stage
from tailwatch_tracing.units import NO_UNIT, Unit, current_unit

Item = TypeVar("Item")
Result = TypeVar("Result")

_BATCH_WAIT = "batch_wait"
_BATCHER_LIMIT = 64


class BatcherCells:
    """One batcher: how large its batches are, how long members wait, what is padding."""

    __slots__ = ("_name", "_store", "service", "size", "wait")

    def __init__(self, service: Service, name: str) -> None:
        self.service = service
        self._store = store = service.store
        self._name = name
        self.size = store.histogram(families.BATCH_SIZE, name)
        self.wait = store.histogram(families.BATCH_WAIT, name)

    @property
    def padding(self) -> HistogramCell:
        """Share of padding; there is none before the first use, as 0 would say that none is."""
        return self._store.histogram(families.BATCH_PADDING, self._name)


class Batchers:
    """All batchers of one service."""

    def __init__(self, service: Service) -> None:
        self.cells: Capped[BatcherCells] = service.store.capped(
            families.BATCH_SIZE, _BATCHER_LIMIT, lambda name: BatcherCells(service, name)
        )
        self._configured: dict[str, RequestBatcher] = {}
        service.report(self._levels)

    def add(self, batcher: RequestBatcher) -> None:
        """Have its cells, and what it is configured to, if it is not beyond the cap."""
        name = batcher.name
        self.cells.get(name)
        if name in self.cells.cells:
            self._configured.setdefault(name, batcher)
            if batcher.max_size is not None or batcher.window_seconds is not None:
                self._configured[name] = batcher

    def _levels(self) -> Iterator[Level]:
        for name, batcher in list(self._configured.items()):
            if batcher.window_seconds is not None:
                yield Level(families.BATCH_WINDOW, (name,), batcher.window_seconds)
            if batcher.max_size is not None:
                yield Level(families.BATCH_MAX_SIZE, (name,), batcher.max_size)


class RequestBatcher(Instrument[BatcherCells]):
    """What collects requests into batches.

        encoder = RequestBatcher("encoder", max_size=32, window_seconds=0.010)

        place = encoder.join(text)      # in the request: its wait begins
        ...
        with encoder.run(places):       # where the batch runs, in any thread or task
            with stage("inference"):    # is every member's
                vectors = model([place.item for place in places])

    It only measures: who is in a batch, and when it runs, is the batcher's own. `wrap` is for one
    that is given a function.

    Args:
        name: The label `batcher`; at most 64 in a service.
        max_size: Most members of a batch, as configured; published for rules. It may be set anew,
            as `window_seconds` may.
        window_seconds: Longest time that a member waits for others, as configured.
        service: The service it belongs to. By default that of the first request to use it, or the
            process's only one.

    Raises:
        ValueError: an empty name, a size below 1, a window below 0.
    """

    def __init__(
        self,
        name: str,
        *,
        max_size: int | None = None,
        window_seconds: float | None = None,
        service: str | None = None,
    ) -> None:
        self.name = name
        self.max_size = max_size
        self.window_seconds = window_seconds
        super().__init__(name, service)

    @property
    def max_size(self) -> int | None:
        """Most members of a batch, as configured."""
        return self._max_size

    @max_size.setter
    def max_size(self, size: int | None) -> None:
        if size is not None and not (isinstance(size, numbers.Integral) and size >= 1):
            raise ValueError(f"batcher {self.name}: max_size={size!r}: expected 1 or more")
        self._max_size = None if size is None else int(size)

    @property
    def window_seconds(self) -> float | None:
        """Longest time that a member waits for others, as configured."""
        return self._window_seconds

    @window_seconds.setter
    def window_seconds(self, seconds: float | None) -> None:
        if seconds is not None and not (
            isinstance(seconds, numbers.Real) and 0 <= seconds < math.inf
        ):
            raise ValueError(
                f"batcher {self.name}: window_seconds={seconds!r}: expected seconds, 0 or more"
            )
        self._window_seconds = None if seconds is None else float(seconds)

    @overload
    def join(self) -> BatchPlace[None]: ...

    @overload
    def join(self, item: Item) -> BatchPlace[Item]: ...

    def join(self, item: Any = None) -> BatchPlace[Any]:
        """Begin to wait for a batch, in the request (or the stage outside any) that waits.

        Args:
            item: What the batch is to work on, carried as `place.item`.
        """
        return BatchPlace(self._cells, item)

    def run(self, places: Iterable[BatchPlace[Any]]) -> Batch:
        """Return a context manager, sync or async, in which the batch of these places runs.

        Their waits end where it is entered. Stages in it, also those in tasks that it starts and in
        `asyncio.to_thread`, are credited to every member whose request has not ended and who has
        not left. Without places it does nothing.

        Raises:
            TypeError: something else than places.
        """
        members = tuple(places)
        for place in members:
            if not isinstance(place, BatchPlace):
                raise TypeError(
                    f"batcher {self.name}: run() of a {type(place).__name__}, "
                    "expected places that join() has returned"
                )
        return Batch(self._cells, members)

    def wrap(
        self, function: Callable[[list[Item]], Result]
    ) -> Callable[[Sequence[BatchPlace[Item]]], Result]:
        """Return `function` for a dynamic batcher to call with places in place of items.

            batcher = AnyDynamicBatcher(encoder.wrap(encode))
            vector = await batcher.submit(encoder.join(text))

        Args:
            function: Takes the items of a batch, sync or async.
        """
        if is_async(function):
            call = cast("Callable[[list[Item]], Awaitable[Any]]", function)

            @functools.wraps(function)
            async def run_coroutine(places: Sequence[BatchPlace[Item]]) -> Any:
                with self.run(places):
                    return await call([place.item for place in places])

            return cast("Callable[[Sequence[BatchPlace[Item]]], Result]", run_coroutine)

        @functools.wraps(function)
        def run(places: Sequence[BatchPlace[Item]]) -> Result:
            with self.run(places):
                return function([place.item for place in places])

        return run

    def note_padding(self, *, used: int, total: int) -> None:
        """Observe what share of a batch is padding: 1 - used / total.

        Args:
            used: Elements of the batch that are input, as its tokens.
            total: All of its elements, padding included: rows times the longest row.
        """
        cells = self._cells
        try:
            used, total = int(used), int(total)
            if not 0 <= used <= total:
                raise ValueError(
                    f"batcher {self.name}: used={used!r} of total={total!r}: expected 0 to total"
                )
            if total:
                padding = round((1 - used / total) * RATIO_UNIT)
                cells.padding.observe(padding)
                unit = current_unit.get()
                if isinstance(unit, Batch):
                    unit.note(cells.padding, padding)
                else:
                    note(cells.padding, padding, unit)
        except Exception:
            cells.service.note_error("metrics")

    def _table_in(self, service: Service) -> Capped[BatcherCells]:
        batchers = service.part(Batchers)
        batchers.add(self)
        return batchers.cells


class BatchPlace(Generic[Item]):
    """One member of a batch, from `join` until the batch has run.

    A member that gives up says so by `leave()`, or by the end of a `with` block, sync or async. It
    is harmless after the batch, and for a request that ends without it.
    """

    __slots__ = ("_cells", "_own_unit", "_unit", "_waits", "item", "left_ns")

    def __init__(self, cells: BatcherCells, item: Item) -> None:
        self.item = item
        self.left_ns = 0  # not yet
        self._cells = cells
        wait = stage(_BATCH_WAIT)
        wait.start_ns = clock.now_ns()
        unit = current_unit.get()
        self._own_unit: Unit | None = None
        if not unit.is_open:  # outside any request: until the batch has run it is one of its own
            service = cells.service if unit is NO_UNIT else unit.service
            self._own_unit = unit = Unit(service, wait.start_ns)
            unit.is_open = True
        self._unit = unit
        self._waits = [wait]  # popped by who ends it: a batch, or the member in another thread
        unit.add(wait)

    def leave(self) -> None:
        """Give up: the wait ends now, and no later stage of the batch is this member's."""
        now_ns = clock.now_ns()
        if not self.left_ns:
            self.left_ns = now_ns
        self._begin_batch(now_ns)
        self._end_batch(now_ns)

    def __enter__(self) -> BatchPlace[Item]:
        """Stay within a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave."""
        self.leave()

    async def __aenter__(self) -> BatchPlace[Item]:
        """Stay within an async block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave."""
        self.leave()

    def _begin_batch(self, now_ns: int) -> None:
        """End the wait, once."""
        try:
            wait = self._waits.pop()
        except IndexError:
            return
        wait.end_ns = now_ns
        waited_ns = now_ns - wait.start_ns
        self._cells.wait.observe(waited_ns)
        note(self._cells.wait, waited_ns, self._unit)

    def _note(self, cell: HistogramCell, value: int) -> None:
        """Note for the member what was observed of its batch."""
        note(cell, value, self._unit)

    def _credit(self, interval: stage) -> None:
        """Let a stage of the batch open in the member's unit of work."""
        if not self.left_ns:
            self._unit.add(_Credited(interval, self))

    def _end_batch(self, now_ns: int) -> None:
        """End what began with this place."""
        unit, self._own_unit = self._own_unit, None
        if unit is not None:
            try:
                unit.end(now_ns, slow=0)
            except Exception:
                unit.service.note_error("stage")


class _Credited(stage):
    """A batch's stage as one of a member's: without its CPU time, and cut where the member left."""

    __slots__ = ("_of", "_place")

    def __init__(self, of: stage, place: BatchPlace[Any]) -> None:
        self._of = of
        self._place = place
        self.name = of.name
        self.gpu = of.gpu
        self.start_ns = of.start_ns
        self.cpu_ns = 0
        self.cpu_clock = None

    def _get_end_ns(self) -> int:
        end_ns = self._of.end_ns
        left_ns = self._place.left_ns
        if left_ns and not 0 < end_ns < left_ns:
            return max(left_ns, self.start_ns)
        return end_ns

    end_ns = property(_get_end_ns)


class _BatchLog(list[stage]):
    """A batch's intervals; each opens in the members' units, too."""

    def __init__(self, places: Sequence[BatchPlace[Any]]) -> None:
        self._places = places

    def append(self, interval: stage) -> None:
        super().append(interval)
        for place in self._places:
            place._credit(interval)


class Batch(Unit):
    """One batch as it runs: the unit of work of the stages in it. See `RequestBatcher.run`."""

    __slots__ = ("_cells", "_places", "_previous")

    _previous: Unit  # while it is open

    def __init__(self, cells: BatcherCells, places: Sequence[BatchPlace[Any]]) -> None:
        super().__init__(cells.service, clock.now_ns())
        self._cells = cells
        self._places = places

    def __enter__(self) -> None:
        """End the members' waits, and be the unit of stages."""
        if not self._places:
            return
        try:
            now_ns = clock.now_ns()
            self._cells.size.observe(len(self._places))
            self.note(self._cells.size, len(self._places))
            for place in self._places:
                place._begin_batch(now_ns)
        except Exception:
            self.service.note_error("metrics")
        self._previous = current_unit.get()
        self.log = _BatchLog(self._places)
        self.is_open = True
        current_unit.set(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Count the CPU time, end what began with a member, and give the unit back."""
        if not self.is_open:
            return
        self.is_open = False
        if current_unit.get() is self:  # not so where another task ends it
            current_unit.set(self._previous)
        try:
            self.fold()
            self.log = None
            now_ns = clock.now_ns()
            for place in self._places:
                place._end_batch(now_ns)
        except Exception:
            self.service.note_error("metrics")

    async def __aenter__(self) -> None:
        """End the members' waits, and be the unit of stages."""
        self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Count the CPU time, end what began with a member, and give the unit back."""
        self.__exit__(kind, error, traceback)

    def note(self, cell: HistogramCell, value: int) -> None:
        """Note for every member what was observed of the batch."""
        for place in self._places:
            place._note(cell, value)

    def fold(self) -> None:
        """Count the CPU time of the intervals that have ended, and forget them."""
        log = self.log
        if log is None:
            return
        intervals = list(log)  # stages go on opening and closing in other threads
        still_open = []
        for interval in intervals:
            if interval.end_ns <= 0:
                still_open.append(interval)
            elif interval.cpu_ns > 0:
                self.service.stages.get(interval.name).add_cpu(interval.cpu_ns)
        log[: len(intervals)] = still_open
