"""A daemon thread that takes a sample at a fixed interval."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

STALE_INTERVALS = 3
"""A sample older than this many intervals is not published any more."""


class SamplerThread:
    """Calls `take` every `interval_seconds` until `stop`; late calls are not made up for.

    Args:
        name: the thread's name.
        take: takes one sample; returns how long to wait at least until the next one, in seconds.
        interval_seconds: from the beginning of one sample to the beginning of the next.
        phase: fraction of the interval by which the second sample is brought forward, so that
            several samplers that start together do not wake together.
        on_end: called in the thread when it ends.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[], float],
        interval_seconds: float,
        phase: float = 0.0,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._take = take
        self._interval_seconds = interval_seconds
        self._phase = phase
        self._on_end = on_end
        self._stopping = threading.Event()
        self._failure = ""
        # A daemon: a call that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def name(self) -> str:
        """Return the thread's name."""
        return self._thread.name

    def start(self) -> None:
        """Begin sampling; the first sample is taken at once."""
        self._thread.start()

    def is_running(self) -> bool:
        """Return whether the thread samples, and was not asked to end."""
        return self._thread.is_alive() and not self._stopping.is_set()

    def signal_stop(self) -> None:
        """Ask the thread to end after the sample it is taking."""
        self._stopping.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread; return whether it has ended. One never started has."""
        if self._thread.ident is None:
            return True
        self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            due = time.monotonic() - self._phase * self._interval_seconds
            while not self._stopping.is_set():
                rest_seconds = self._take_one()
                due = max(due + self._interval_seconds, time.monotonic() + rest_seconds)
                self._stopping.wait(due - time.monotonic())
        finally:
            if self._on_end is not None:
                self._on_end()

    def _take_one(self) -> float:
        try:
            rest_seconds = self._take()
        except Exception as error:  # a sampler that ended would leave its series stale for good
            failure = f"{type(error).__name__}: {error}"
            if failure != self._failure:  # once, and not at every sample
                logger.exception("sampler %s failed", self.name)
                self._failure = failure
            return 0.0
        self._failure = ""
        return rest_seconds
