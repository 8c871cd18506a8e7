"""How long a thread waits for the interpreter's lock (GIL), found out by one that asks for it.

A thread sleeps, which gives the lock up, and measures how much later than asked it is back. Part of
that is not the lock's: the time that the kernel let the thread wait for a processor, or for its
control group's next period. The kernel counts it per thread, and it is subtracted. What is left is
a wait for the lock, whatever keeps it: a thread that computes in Python (5 ms each time, the
interpreter's switch interval), a C call that does not release it, or a holder that itself lacks a
processor.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

from tailwatch_tracing import clock, families
from tailwatch_tracing.cells import Cell, CellStore
from tailwatch_tracing.window import WindowMaximum

# A wake-up costs about 0.1 ms of CPU, so seven a second are under 0.1 % of a core. The pauses vary,
# because a regular beat would fall into step with a quota's period or a timer of the service.
_SHORTEST_PAUSE_NS = 100_000_000
_LONGEST_PAUSE_NS = 200_000_000
# What a timer is late on an idle machine: 50 us of slack that the kernel takes, and the wake-up.
_NOISE_NS = 1_000_000


class GilProbe:
    """A thread that asks for the lock some seven times a second, as long as the process lives."""

    def __init__(self, store: CellStore) -> None:
        self.longest = WindowMaximum()
        self._store = store
        self._waited: Cell | None = None
        self._thread: threading.Thread | None = None
        self._is_tried = False

    @property
    def waited(self) -> Cell:
        """Nanoseconds waited; on the page from the first use on."""
        if self._waited is None:
            self._waited = self._store.counter(families.GIL_WAIT)
        return self._waited

    @property
    def is_known(self) -> bool:
        """Whether anything has been measured."""
        return self._waited is not None

    def start(self) -> None:
        """Begin to ask; again is harmless.

        Without a GIL, or where the kernel does not tell how long a thread waited for a processor,
        nothing is measured.
        """
        if self._is_tried:
            return
        self._is_tried = True
        if getattr(sys, "_is_gil_enabled", _always)() and Path("/proc/self/schedstat").exists():
            self._thread = threading.Thread(target=self._run, name="tailwatch-gil", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, within one pause."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def begin_child(self) -> None:
        """After a fork: the thread is the parent's."""
        self._thread = None
        self._is_tried = False

    def note(self, late_ns: int, run_delay_ns: int, now_ns: int) -> None:
        """Take in one answer: how late it came, and how much of that was a wait for a processor."""
        waited_ns = late_ns - run_delay_ns
        if waited_ns > _NOISE_NS:
            self.waited.counts[0] += waited_ns
            self.longest.note(waited_ns, now_ns)

    def _run(self) -> None:
        self.waited  # noqa: B018 - 0 from the start
        vary = random.Random()
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as schedstat:
            run_delay_ns = _run_delay_ns(schedstat.fileno())
            while self._thread is threading.current_thread():
                pause_ns = vary.randint(_SHORTEST_PAUSE_NS, _LONGEST_PAUSE_NS)
                asked_ns = clock.now_ns()
                time.sleep(pause_ns / 1e9)
                now_ns = clock.now_ns()
                before_ns, run_delay_ns = run_delay_ns, _run_delay_ns(schedstat.fileno())
                self.note(now_ns - asked_ns - pause_ns, run_delay_ns - before_ns, now_ns)


def _run_delay_ns(schedstat: int) -> int:
    """Return how long this thread has waited on a run queue.

    Source: Documentation/scheduler/sched-stats.rst of the kernel: the second number.
    """
    return int(os.pread(schedstat, 100, 0).split()[1])


def _always() -> bool:
    return True
