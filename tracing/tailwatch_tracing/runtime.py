"""What holds up the whole process: event loop, interpreter lock, collector, thread pools, quota.

Stops are a counter of seconds and a maximum over the last minute. A sampled percentile would miss
them: a pause of 300 ms every 2 s is 15 % of the time and less than 1 % of any sampler's ticks.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tailwatch_tracing import clock, families
from tailwatch_tracing.cells import Cell, CellStore
from tailwatch_tracing.cgroup import quota_levels, read_quota
from tailwatch_tracing.gil import GilProbe
from tailwatch_tracing.page import PROCESS, Level, Snapshot
from tailwatch_tracing.threadpools import (
    Executor,
    SampledPool,
    ThreadPools,
    anyio_limiter,
    gone,
    is_registered,
    unregistered_executor,
)
from tailwatch_tracing.torch_memory import TorchMemory
from tailwatch_tracing.window import WindowMaximum

# At random between these, so that no work that comes as regularly hides between two ticks.
_TICK_SECONDS = (0.005, 0.015)
# Timers of an idle loop come up to a few milliseconds late: epoll counts in whole milliseconds.
_NOISE_NS = 5_000_000
# A request looks this often whether its loop is watched: another thread may have one, too.
_LOOK_AGAIN_NS = 100_000_000


class GarbageCollectorPauses:
    """Time in collections of every generation; nothing else runs in the process meanwhile."""

    def __init__(self, total: Cell) -> None:
        self._total = total
        self._start_ns = 0
        self.longest = WindowMaximum()

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Be called by `gc.callbacks`."""
        now_ns = clock.now_ns()
        if phase == "start":
            self._start_ns = now_ns
        elif self._start_ns:
            pause_ns = now_ns - self._start_ns
            self._total.counts[0] += pause_ns
            self.longest.note(pause_ns, now_ns)


class LoopWatch:
    """A timer on one event loop that notes how late it is run, and looks at the loop's threads."""

    def __init__(self, runtime: Runtime, loop: asyncio.AbstractEventLoop) -> None:
        self._runtime = runtime
        self.loop = loop
        self.due_ns = 0
        self._wait_ns = 0
        self.told_ns = 0  # of the delay under way, what is counted already
        self._limiter: SampledPool | None = None
        self._executor: SampledPool | None = None
        self._executor_id = 0
        self._run = sys.get_asyncgen_hooks().firstiter
        self._schedule(clock.now_ns())

    def overdue_ns(self, now_ns: int) -> int:
        """Return how late the next tick is by now, 0 within the noise or for a stopped loop."""
        late_ns = now_ns - self.due_ns
        return late_ns if late_ns > _NOISE_NS and self.loop.is_running() else 0

    def find_limiter(self) -> None:
        """Watch AnyIO's default limiter, if AnyIO is there; to be called from a task of the loop.

        It is the same object as long as the loop lives.
        """
        anyio: Any = sys.modules.get("anyio.to_thread")
        if self._limiter is None and anyio is not None:
            self._limiter = SampledPool(self._runtime.pools.cells("anyio"), gone)
            limiter = anyio.current_default_thread_limiter()
            self._limiter.look = anyio_limiter(limiter)

    def levels(self) -> Iterator[Level]:
        """Yield the gauges of the loop's threads as of the last tick."""
        if self.loop.is_running():
            for pool in (self._limiter, self._executor):
                if pool is not None:
                    yield from pool.levels()

    def _schedule(self, now_ns: int) -> None:
        seconds = random.uniform(*_TICK_SECONDS)
        self._wait_ns = int(seconds * 1e9)
        self.due_ns = now_ns + self._wait_ns
        self.loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        now_ns = clock.now_ns()
        # A loop sets hooks of its own whenever it begins to run. While it did not, as between two
        # `run_until_complete`, nothing was late.
        run = sys.get_asyncgen_hooks().firstiter
        late_ns = now_ns - self.due_ns if run is self._run else 0
        self._run = run
        told_ns, self.told_ns = self.told_ns, 0
        self._runtime.note_lag(late_ns, now_ns, told_ns)
        self._sample_threads(late_ns)
        self._schedule(now_ns)

    def _sample_threads(self, late_ns: int) -> None:
        passed_ns = self._wait_ns + late_ns
        if self._limiter is not None:
            self._limiter.sample(passed_ns, late_ns)
        # uvloop does not show its own.
        executor = getattr(self.loop, "_default_executor", None)
        if id(executor) != self._executor_id:
            self._executor_id = id(executor)
            self._executor = None
            if isinstance(executor, ThreadPoolExecutor) and not is_registered(executor):
                cells = self._runtime.pools.cells("asyncio")
                self._executor = SampledPool(cells, unregistered_executor(executor))
        if self._executor is not None:
            self._executor.sample(passed_ns, late_ns)


class Runtime:
    """What this process loses to stops, and what its calls wait for.

    Args:
        root: Where proc and sys are, for the control group.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.store = CellStore(PROCESS)
        self.collector = GarbageCollectorPauses(self.store.counter(families.GC_PAUSE))
        self.gil = GilProbe(self.store)
        self.pools = ThreadPools(self.store)
        self.torch_memory = TorchMemory(self.store)
        self.lag = WindowMaximum()
        self.look_again_ns = 0
        self.root = root
        self._lost = self.store.counter(families.EVENT_LOOP_LOST)
        # By its loop: each is put in by its own thread, so that two at once lose none.
        self._watches: dict[asyncio.AbstractEventLoop, LoopWatch] = {}

    def watch_collector(self) -> None:
        """Begin to time garbage collection; again is harmless."""
        if self.collector.on_collection not in gc.callbacks:
            gc.callbacks.append(self.collector.on_collection)

    def watch_process(self) -> None:
        """Begin what needs a thread: to be called in the process that works, after any fork."""
        self.watch_collector()
        self.gil.start()

    def watch_loop(self) -> None:
        """Watch the process, and the running event loop unless that is done already.

        A loop that is not asyncio's, as trio's, is not watched.
        """
        self.look_again_ns = clock.now_ns() + _LOOK_AGAIN_NS
        self.watch_process()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # trio
            return
        for known in list(self._watches):
            if known.is_closed():
                self._watches.pop(known, None)
        watch = self._watches.get(loop)
        if watch is None:
            self._watches[loop] = watch = LoopWatch(self, loop)
        watch.find_limiter()

    def note_lag(self, lag_ns: int, now_ns: int, told_ns: int = 0) -> None:
        """Take in how late a timer of a watched loop was run, of which `told_ns` are counted."""
        if lag_ns > _NOISE_NS:
            self._lost.counts[0] += lag_ns - told_ns
            self.lag.note(lag_ns, now_ns)

    def begin_child(self) -> None:
        """After a fork: loops and threads are the parent's."""
        self._watches = {}
        self.look_again_ns = 0
        self.gil.begin_child()
        self.pools.begin_child()
        self.torch_memory.begin_child()

    def snapshot_into(self, snapshot: Snapshot) -> None:
        """Add the process's cells and levels."""
        self.tell_stalls()
        snapshot.add_levels(PROCESS, self.levels())
        snapshot.add_store(self.store)
        quota = read_quota(self.root)  # of the group: no worker tells another of it
        if quota is not None:
            snapshot.add_levels(PROCESS, quota_levels(quota))

    def tell_stalls(self) -> None:
        """Count stalls and waits that are under way before their end."""
        now_ns = clock.now_ns()
        for watch in list(self._watches.values()):
            overdue_ns = watch.overdue_ns(now_ns)
            if overdue_ns > watch.told_ns:
                self._lost.counts[0] += overdue_ns - watch.told_ns
                watch.told_ns = overdue_ns
        self.pools.tell_waits(now_ns)

    def levels(self) -> Iterator[Level]:
        """Yield what the process's gauges are now."""
        now_ns = clock.now_ns()
        watches = list(self._watches.values())
        lag_ns = max([self.lag.read(now_ns), *(watch.overdue_ns(now_ns) for watch in watches)])
        yield Level(families.EVENT_LOOP_LAG_MAX, (), lag_ns / 1e9)
        if self.gil.is_known:
            yield Level(families.GIL_WAIT_MAX, (), self.gil.longest.read(now_ns) / 1e9)
        yield Level(families.GC_PAUSE_MAX, (), self.collector.longest.read(now_ns) / 1e9)
        yield from self.pools.levels()
        for watch in watches:
            yield from watch.levels()
        yield from self.torch_memory.levels()


runtime = Runtime()


def _begin_child() -> None:
    runtime.begin_child()


os.register_at_fork(after_in_child=_begin_child)


def watch_threadpool(executor: Executor, name: str) -> Executor:
    """Show how busy a ThreadPoolExecutor is and how long calls wait for it; return the executor.

        pool = watch_threadpool(ThreadPoolExecutor(4), "preprocess")

    Call it where the executor is made: what was submitted before is not seen. Results, exceptions
    and cancellation are as without it; the executor is not kept alive.

    Args:
        executor: Any ThreadPoolExecutor, of a subclass too.
        name: The label `pool`; executors of one name are added up. At most 64 are kept apart.

    Raises:
        TypeError: it is not a ThreadPoolExecutor.
        ValueError: the name is empty, or the executor is watched under another one.
    """
    return runtime.pools.watch(executor, name)


def watch_largest_free_block(every_seconds: float = 60) -> None:
    """Publish the largest free block of PyTorch's CUDA allocator, read this often at most.

    Memory that is reserved and free but in small pieces is of no use to a large tensor. Off unless
    called, because the reading walks every block of the allocator, with its lock and the
    interpreter's held.

    Args:
        every_seconds: Least time between two readings; a scrape in between gets the last one.

    Raises:
        ValueError: the interval is not above 0.
    """
    runtime.torch_memory.watch_largest_free_block(every_seconds)
