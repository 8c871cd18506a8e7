"""GPU time of a stage: CUDA events on the current stream, read when the GPU has passed them.

A kernel launch returns before the kernel has run, so the wall's clock around it times the launch.
An event is a mark in a stream: the time between two of them is that between the GPU's reaching one
and the other. Nothing here waits for the GPU, and torch is used only where the service has imported
it and CUDA has begun.

Source: documentation of torch.cuda.Event, and of CUDA's cudaEventRecord and cudaEventElapsedTime.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import Any, NamedTuple

from tailwatch_tracing.cells import HistogramCell
from tailwatch_tracing.exposition import Exemplar
from tailwatch_tracing.service import default_service

PENDING_LIMIT = 1024
_LOOK_AT = 8  # intervals that a unit's end looks at: work is finished about as fast as it comes


def _mark() -> Any:
    """Record an event that times, on the current stream; None where there is none to record.

    While a CUDA graph is captured an event would become a part of the graph and have no time.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return None
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


class GpuInterval:
    """What the GPU does of one interval of a stage."""

    __slots__ = ("_end", "_observed_ns", "_start", "_trace")

    def __init__(self) -> None:
        self._start: Any = None
        self._end: Any = None
        self._observed_ns: int | None = None
        self._trace: tuple[str, str, float] | None = None

    @property
    def is_timed(self) -> bool:
        """Whether both of its ends are marked."""
        return self._end is not None

    def begin(self) -> None:
        """Mark the beginning."""
        self._start = _mark()

    def end(self) -> None:
        """Mark the end, if the beginning is."""
        if self._start is not None:
            self._end = _mark()

    def duration_ns(self) -> int | None:
        """Return nanoseconds to about half a microsecond, None while the GPU is not done.

        Raises:
            RuntimeError: as torch does, of events on two devices, or when the device has failed.
        """
        if not self._end.query():
            return None
        milliseconds: float = self._start.elapsed_time(self._end)
        return round(milliseconds * 1e6)

    def observe(self, wall: HistogramCell, duration_ns: int) -> None:
        """Count how long it took in its stage's cell."""
        wall.observe(duration_ns)
        self._observed_ns = duration_ns
        if self._trace is not None:
            self.point(wall, self._trace)

    def point(self, wall: HistogramCell, trace: tuple[str, str, float]) -> None:
        """Let the bucket that counts it, as soon as that is known, point to a kept trace.

        Args:
            wall: Its stage's cell.
            trace: Ids of trace and span in hexadecimal, and seconds since 1970.
        """
        self._trace = trace
        duration_ns = self._observed_ns
        if duration_ns is not None:
            trace_id, span_id, at = trace
            wall.keep_exemplar(duration_ns, Exemplar(trace_id, span_id, duration_ns / 1e9, at))


class _Entry(NamedTuple):
    interval: GpuInterval
    host_ns: int
    wall: HistogramCell


class PendingTimes:
    """Intervals that the GPU may not have done yet, at most PENDING_LIMIT, in order of their end.

    Each is observed once: with the GPU's time when that is known; with the host's when the events
    fail, or when it is the oldest and there are too many.
    """

    def __init__(self) -> None:
        self.entries: deque[_Entry] = deque()
        self._lock = threading.Lock()

    def add(self, wall: HistogramCell, interval: GpuInterval, host_ns: int) -> None:
        """Observe an interval in its stage's cell, now or later."""
        self.entries.append(_Entry(interval, host_ns, wall))
        self.observe_finished(_LOOK_AT)

    def observe_finished(self, look_at: int = PENDING_LIMIT) -> None:
        """Observe what the GPU has done by now, of the oldest `look_at` intervals."""
        # Who does not get the lock goes on: another thread is at it.
        if not self.entries or not self._lock.acquire(blocking=False):
            return
        try:
            is_late: list[_Entry] = []
            for _ in range(min(look_at, len(self.entries))):
                entry = self.entries.popleft()
                if not _observe(entry):
                    is_late.append(entry)
            self.entries.extendleft(reversed(is_late))
            while len(self.entries) > PENDING_LIMIT:
                entry = self.entries.popleft()
                entry.interval.observe(entry.wall, entry.host_ns)
        finally:
            self._lock.release()

    def move(self, wall: HistogramCell, to: HistogramCell, pending: PendingTimes) -> None:
        """Leave what would be observed in one cell to others, to observe it in another cell."""
        for entry in self.entries:
            if entry.wall is wall:
                pending.add(to, entry.interval, entry.host_ns)

    def forget(self) -> None:
        """In a forked child: what a GPU does is its parent's."""
        self.entries.clear()
        self._lock = threading.Lock()


def _observe(entry: _Entry) -> bool:
    try:
        duration_ns = entry.interval.duration_ns()
    except Exception:
        default_service().note_error("stage")
        duration_ns = entry.host_ns
    if duration_ns is None:
        return False
    entry.interval.observe(entry.wall, duration_ns)
    return True


pending_times = PendingTimes()
"""Of this process."""

os.register_at_fork(after_in_child=pending_times.forget)
