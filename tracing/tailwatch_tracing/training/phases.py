"""The time of a training loop, given to one phase at a time.

A kernel launch returns before the kernel has run. Where CUDA is used, a phase therefore lasts from
the GPU's reaching the mark at its beginning to its reaching the one at its end: phases still add up
to the loop's time, and waiting for data that the GPU does not notice costs nothing. Nothing here
waits for the GPU.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import NamedTuple

from tailwatch_tracing import clock, families
from tailwatch_tracing.cells import Cell
from tailwatch_tracing.cuda import GpuInterval

DATA, COMPUTE, COMMUNICATION, OPTIMIZER, CHECKPOINT = range(5)
PHASES = families.TRAINING_PHASE.row

PENDING_LIMIT = 1024


class Wait:
    """What the end of a backward pass waits for: its last gradients, on their way over the ranks.

    Marked from whatever thread hands them over or gets them back.
    """

    def __init__(self) -> None:
        self._gpu = GpuInterval()
        self._begin_ns = 0
        self._end_ns = 0

    def begin(self, *, on_gpu: bool) -> None:
        """Mark that gradients are handed over; the last call of a backward pass counts."""
        self._begin_ns = clock.now_ns()
        if on_gpu:
            self._gpu.begin()

    def end(self, *, on_gpu: bool) -> None:
        """Mark that gradients are back; the last call of a backward pass counts."""
        self._end_ns = clock.now_ns()
        if on_gpu:
            self._gpu.end()

    def duration_ns(self) -> int | None:
        """Return nanoseconds, None while the GPU is not done."""
        if self._gpu.is_timed:
            return self._gpu.duration_ns()
        return max(0, self._end_ns - self._begin_ns)


class _Interval(NamedTuple):
    phase: int
    host_ns: int
    gpu: GpuInterval | None
    waits: list[Wait]

    def duration_ns(self) -> int | None:
        if self.gpu is not None and self.gpu.is_timed:
            return self.gpu.duration_ns()
        return self.host_ns


class PhaseClock:
    """Gives the time of the loop to the phase it is in; at most 1,024 intervals wait for the GPU.

    Args:
        seconds: The cell of `training_phase_seconds_total`.
    """

    def __init__(self, seconds: Cell) -> None:
        self._seconds = seconds
        self._phase: int | None = None
        self._start_ns = 0
        self._gpu: GpuInterval | None = None
        self._waits: list[Wait] = []
        self._pending: deque[_Interval] = deque()

    def switch(self, phase: int | None) -> int | None:
        """Be in another phase from now on, in none with None; return the one before."""
        now_ns = clock.now_ns()
        before = self._phase
        if before is not None:
            host_ns = now_ns - self._start_ns
            if self._gpu is None and not self._waits and not self._pending:
                self._seconds.counts[before] += host_ns
            else:
                self._finish(_Interval(before, host_ns, self._gpu, self._waits))
        self._phase = phase
        self._start_ns = now_ns
        self._gpu = None
        if phase is not None and _uses_cuda():
            self._gpu = GpuInterval()
            self._gpu.begin()
        return before

    def add_wait(self, wait: Wait) -> None:
        """Let a wait within the current phase count as communication."""
        if self._phase is not None:
            self._waits.append(wait)

    def credit_finished(self) -> None:
        """Count what the GPU has done by now; the host's time when there is too much to wait for.

        Raises:
            RuntimeError: as torch does when the device has failed.
        """
        while self._pending:
            interval = self._pending[0]
            is_late = len(self._pending) > PENDING_LIMIT
            duration_ns = interval.host_ns if is_late else interval.duration_ns()
            if duration_ns is None:
                return
            waited_ns = [wait.duration_ns() for wait in interval.waits]
            if None in waited_ns and not is_late:
                return
            self._pending.popleft()
            waited = max(0, min(duration_ns, sum(each or 0 for each in waited_ns)))
            self._seconds.counts[interval.phase] += duration_ns - waited
            if waited:
                self._seconds.counts[COMMUNICATION] += waited

    def _finish(self, interval: _Interval) -> None:
        if interval.gpu is not None:
            interval.gpu.end()
        self._waits = []
        self._pending.append(interval)
        self.credit_finished()


def _uses_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
