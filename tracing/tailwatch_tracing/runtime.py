"""Stops of the whole process: event loop and garbage collector.

Both are a counter of seconds and a maximum over the last minute. A sampled percentile would miss
them: a pause of 300 ms every 2 s is 15 % of the time and less than 1 % of any sampler's ticks.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator

from tailwatch_tracing import clock, families
from tailwatch_tracing.cells import Cell, CellStore
from tailwatch_tracing.page import PROCESS, Level, Snapshot

_TICK_SECONDS = 0.02
# Timers of an idle loop come up to a few milliseconds late: epoll counts in whole milliseconds.
_NOISE_NS = 5_000_000
_LOOK_AGAIN_NS = 1_000_000_000


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
    """A timer on one event loop that notes how late it is run."""

    def __init__(self, runtime: Runtime, loop: asyncio.AbstractEventLoop) -> None:
        self._runtime = runtime
        self.loop = loop
        self.due_ns = 0
        self.told_ns = 0  # of the delay under way, what is counted already
        self._schedule(clock.now_ns())

    def overdue_ns(self, now_ns: int) -> int:
        """Return how late the next tick is by now, 0 within the noise or for a stopped loop."""
        late_ns = now_ns - self.due_ns
        return late_ns if late_ns > _NOISE_NS and self.loop.is_running() else 0

    def _schedule(self, now_ns: int) -> None:
        self.due_ns = now_ns + int(_TICK_SECONDS * 1e9)
        self.loop.call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        now_ns = clock.now_ns()
        told_ns, self.told_ns = self.told_ns, 0
        self._runtime.note_lag(now_ns - self.due_ns, now_ns, told_ns)
        self._schedule(now_ns)


class Runtime:
    """What this process loses to event-loop stalls and garbage collection."""

    def __init__(self) -> None:
        self.store = CellStore(PROCESS)
        self.collector = GarbageCollectorPauses(self.store.counter(families.GC_PAUSE))
        self.lag = WindowMaximum()
        self.look_again_ns = 0
        self._lost = self.store.counter(families.EVENT_LOOP_LOST)
        self._watches: list[LoopWatch] = []

    def watch_collector(self) -> None:
        """Begin to time garbage collection; again is harmless."""
        if self.collector.on_collection not in gc.callbacks:
            gc.callbacks.append(self.collector.on_collection)

    def watch_loop(self) -> None:
        """Watch the running event loop unless that is done already, or none is asyncio's."""
        self.look_again_ns = clock.now_ns() + _LOOK_AGAIN_NS
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # trio
            return
        self._watches = [watch for watch in self._watches if not watch.loop.is_closed()]
        if all(watch.loop is not loop for watch in self._watches):
            self._watches.append(LoopWatch(self, loop))

    def note_lag(self, lag_ns: int, now_ns: int, told_ns: int = 0) -> None:
        """Take in how late a timer of a watched loop was run, of which `told_ns` are counted."""
        self.look_again_ns = now_ns + _LOOK_AGAIN_NS
        if lag_ns > _NOISE_NS:
            self._lost.counts[0] += lag_ns - told_ns
            self.lag.note(lag_ns, now_ns)

    def forget_loops(self) -> None:
        """Leave the parent's loops alone after a fork."""
        self._watches = []
        self.look_again_ns = 0

    def snapshot_into(self, snapshot: Snapshot) -> None:
        """Add the process's cells and levels."""
        self.tell_stalls()
        snapshot.add_store(self.store)
        snapshot.add_levels(PROCESS, self.levels())

    def tell_stalls(self) -> None:
        """Count a stall that is under way before its end."""
        now_ns = clock.now_ns()
        for watch in self._watches:
            overdue_ns = watch.overdue_ns(now_ns)
            if overdue_ns > watch.told_ns:
                self._lost.counts[0] += overdue_ns - watch.told_ns
                watch.told_ns = overdue_ns

    def levels(self) -> Iterator[Level]:
        """Yield what the process's gauges are now."""
        now_ns = clock.now_ns()
        lag_ns = max([self.lag.read(now_ns), *(w.overdue_ns(now_ns) for w in self._watches)])
        yield Level(families.EVENT_LOOP_LAG_MAX, (), lag_ns / 1e9)
        yield Level(families.GC_PAUSE_MAX, (), self.collector.longest.read(now_ns) / 1e9)


runtime = Runtime()
os.register_at_fork(after_in_child=runtime.forget_loops)
