"""Thread pools: how many work, how many may, who waits for a thread and for how long.

Two kinds. A pool that is registered is exact: each call is known from its submission to its end.
Pools that are found by themselves, AnyIO's default limiter and asyncio's default executor, belong
to somebody else: nothing of theirs is touched, they are looked at fifty times a second, and their
waiting time is the number of those waiting, integrated over time.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import thread as futures_thread
from functools import partial
from types import CodeType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from tailwatch_tracing import clock, families
from tailwatch_tracing.cells import Cell, CellStore
from tailwatch_tracing.page import Level

POOL_LIMIT = 64
"""Pools kept apart in a process; the rest share the label `__other__`."""

Executor = TypeVar("Executor", bound=ThreadPoolExecutor)
Result = TypeVar("Result")
P = ParamSpec("P")


class PoolState(NamedTuple):
    """Calls that run (or how to count them), how many may, and calls that wait.

    A limit that is None or infinite is not known.
    """

    busy: int | Callable[[], int]
    limit: float | None
    waiting: int


class PoolCells(NamedTuple):
    """What a pool counts, and the label it does so under."""

    name: str
    waited: Cell


def pool_levels(name: str, state: PoolState) -> Iterator[Level]:
    """Yield the gauges of one pool."""
    busy = state.busy() if callable(state.busy) else state.busy
    yield Level(families.THREADPOOL_BUSY, (name,), busy)
    if state.limit is not None and math.isfinite(state.limit):
        yield Level(families.THREADPOOL_LIMIT, (name,), state.limit)
    yield Level(families.THREADPOOL_WAITING, (name,), state.waiting)


class SampledPool:
    """A pool that is looked at now and then, from its own event loop.

    Args:
        cells: Where its waiting time is counted.
        look: Returns its state, None once it is gone. What it raises ends the watch for good.
    """

    def __init__(self, cells: PoolCells, look: Callable[[], PoolState | None]) -> None:
        self._cells = cells
        self.look = look
        self._state: PoolState | None = None

    def sample(self, passed_ns: int, late_ns: int) -> None:
        """Look, and credit those waiting with the time since the last look.

        Within a regular interval the mean of its ends is taken. For the time that the look came
        late, the loop stood still and nobody came or went: it is the end's.
        """
        before = self._state
        try:
            self._state = now = self.look()
        except Exception:  # another version of what is looked at: better nothing than wrong
            self._state = None
            self.look = gone
            return
        if before is not None and now is not None:
            late_ns = max(0, late_ns)
            regular_ns = passed_ns - late_ns
            self._cells.waited.counts[0] += (
                before.waiting + now.waiting
            ) * regular_ns // 2 + now.waiting * late_ns

    def levels(self) -> Iterator[Level]:
        """Yield its gauges as of the last look."""
        if self._state is not None:
            yield from pool_levels(self._cells.name, self._state)


def gone() -> None:
    """Look at a pool that is not there."""


def anyio_limiter(limiter: Any) -> Callable[[], PoolState]:
    """Return how to look at an AnyIO CapacityLimiter; to be called on its event loop."""

    def look() -> PoolState:
        statistics = limiter.statistics()
        return PoolState(
            statistics.borrowed_tokens, statistics.total_tokens, statistics.tasks_waiting
        )

    return look


def unregistered_executor(executor: ThreadPoolExecutor) -> Callable[[], PoolState | None]:
    """Return how to look at a ThreadPoolExecutor that is somebody else's.

    There is no public way. Read are `_work_queue`, `_threads` and `_max_workers`, the same in
    CPython 3.9 to 3.14.
    """
    reference = weakref.ref(executor)

    def look() -> PoolState | None:
        pool: Any = reference()
        if pool is None:
            return None
        busy = partial(_count_busy, pool._threads, futures_thread._worker.__code__)
        return PoolState(busy, pool._max_workers, pool._work_queue.qsize())

    return look


def _count_busy(threads: Iterable[threading.Thread], waiting_for_work: CodeType) -> int:
    """Return how many of an executor's threads are within a call.

    The executor's own count of idle ones is wrong from its first backlog on: a thread that goes
    straight to the next call counts itself in, and nobody counts it out.
    """
    frames = sys._current_frames()
    of_pool = [frames.get(thread.ident or 0) for thread in list(threads)]
    return sum(1 for frame in of_pool if frame and frame.f_code is not waiting_for_work)


class PoolWatch:
    """Every call of one registered executor. Sets, because adding to one cannot be torn."""

    __slots__ = ("cells", "running", "waiting")

    def __init__(self, cells: PoolCells) -> None:
        self.cells = cells
        self.waiting: set[_Call] = set()
        self.running: set[_Call] = set()

    def credit(self, call: _Call, now_ns: int) -> None:
        """Count what the call has waited since this was last done."""
        # No call between the lines: neither a worker nor a scrape comes in between. One of them may
        # have read its clock before the other: the later one has counted all then.
        passed_ns = now_ns - call.since_ns
        if passed_ns > 0:
            call.since_ns = now_ns
            self.cells.waited.counts[0] += passed_ns

    def leave(self, call: _Call) -> None:
        """End a call's wait, if it has not ended."""
        now_ns = clock.now_ns()
        if call in self.waiting:
            self.credit(call, now_ns)
            self.waiting.discard(call)


class _Call:
    """A submitted function, which notes when it is begun and ended."""

    __slots__ = ("_function", "_watch", "since_ns")

    def __init__(self, watch: PoolWatch, function: Callable[..., Any]) -> None:
        self._watch = watch
        self._function: Callable[..., Any] | None = function
        self.since_ns = clock.now_ns()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        watch = self._watch
        function = self._function
        assert function is not None
        watch.running.add(self)
        watch.leave(self)
        try:
            return function(*args, **kwargs)
        finally:
            watch.running.discard(self)

    def forget(self, future: Future[Any]) -> None:
        """Be called when the future is done, or cancelled before its turn."""
        self._watch.leave(self)
        self._function = None  # the future may be kept for long, and keeps its callbacks


class _Watched(ThreadPoolExecutor):
    """What a registered executor's class becomes.

    A `submit` set on the instance would be simpler, but refer back to it, and an executor is shut
    down by the end of the last reference.
    """

    _tailwatch: PoolWatch

    def submit(
        self, fn: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[Result]:
        watch = self._tailwatch
        call = _Call(watch, fn)
        watch.waiting.add(call)
        try:
            future = super().submit(call, *args, **kwargs)
        except BaseException:
            watch.waiting.discard(call)
            raise
        future.add_done_callback(call.forget)
        return future

    submit.__doc__ = ThreadPoolExecutor.submit.__doc__


_watched_classes: weakref.WeakKeyDictionary[type, type[_Watched]] = weakref.WeakKeyDictionary()


def _watched_class(base: type[ThreadPoolExecutor]) -> type[_Watched]:
    watched = _watched_classes.get(base)
    if watched is None:
        bases = (_Watched,) if base is ThreadPoolExecutor else (_Watched, base)
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
        watched = _watched_classes[base] = type(base.__name__, bases, names)
    return watched


class ThreadPools:
    """The registered executors of this process. They are not kept alive."""

    def __init__(self, store: CellStore) -> None:
        self._store = store
        self._watches: weakref.WeakKeyDictionary[ThreadPoolExecutor, PoolWatch] = (
            weakref.WeakKeyDictionary()
        )
        self._cells = store.capped(
            families.THREADPOOL_WAIT,
            POOL_LIMIT,
            lambda name: PoolCells(name, store.counter(families.THREADPOOL_WAIT, name)),
        )

    def cells(self, name: str) -> PoolCells:
        """Return where a pool of this name counts."""
        return self._cells.get(name)

    def watch(self, executor: Executor, name: str) -> Executor:
        """Know every call from now on; return the executor.

        Raises:
            TypeError: it is no ThreadPoolExecutor.
            ValueError: the name is empty, or the executor has another one.
        """
        if not isinstance(executor, ThreadPoolExecutor):
            raise TypeError(
                f"executor={executor!r}: expected a concurrent.futures.ThreadPoolExecutor"
            )
        if not isinstance(name, str) or not name:
            raise ValueError(f"name={name!r}: expected a name that is not empty")
        known = self._watches.get(executor)
        if known is None:
            watch = PoolWatch(self.cells(name))
            executor._tailwatch = watch  # type: ignore[attr-defined]
            executor.__class__ = _watched_class(type(executor))  # type: ignore[assignment]
            self._watches[executor] = watch
        elif known.cells.name != name:
            raise ValueError(f"name={name!r}: the executor is watched as {known.cells.name!r}")
        return executor

    def tell_waits(self, now_ns: int) -> None:
        """Count the waits that are under way."""
        for watch in list(self._watches.values()):
            for call in list(watch.waiting):
                watch.credit(call, now_ns)

    def levels(self) -> Iterator[Level]:
        """Yield the gauges of each executor that is alive."""
        for executor, watch in list(self._watches.items()):
            limit = getattr(executor, "_max_workers", None)  # it has no public name
            state = PoolState(len(watch.running), limit, len(watch.waiting))
            yield from pool_levels(watch.cells.name, state)

    def begin_child(self) -> None:
        """After a fork: the threads, and what waited for them, are the parent's."""
        for watch in list(self._watches.values()):
            watch.waiting.clear()
            watch.running.clear()


def is_registered(executor: object) -> bool:
    """Return whether an executor's calls are known one by one."""
    return isinstance(executor, _Watched)
