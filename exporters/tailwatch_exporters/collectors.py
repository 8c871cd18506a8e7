"""What a collector is, and the runner that turns the collectors into one page."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from tailwatch_tracing.exposition import Family, RenderedFamily, labels, render_families

logger = logging.getLogger(__name__)


AnyFamily = Family | RenderedFamily


class CollectorError(Exception):
    """A part of a collector failed; what was yielded before stays on the page."""


class Collector(ABC):
    """One source of families. `name` is its flag, its file and its label value.

    `collect` is called from one thread at a time and must not wait for a device: what may block
    belongs into a thread that `start` begins.
    """

    name: str

    @abstractmethod
    def collect(self) -> Iterable[AnyFamily]:
        """Yield the families as they are now."""

    def fatal(self) -> str | None:
        """Return why only a new process can help, where that was asked for; else None."""
        return None

    def start(self) -> None:
        """Begin what runs in the background."""
        return

    def stop(self, timeout_seconds: float) -> bool:
        """End what runs in the background; return whether all of it did end in time."""
        return True


class Runner:
    """Renders all collectors as one page; a broken collector never empties it.

    Args:
        collectors: in the order of the page.
        version: of tailwatch.
        clock: seconds, for `exporter_collector_duration_seconds`.
        wait_seconds: how long a scrape waits for another one that is still running.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        version: str,
        clock: Callable[[], float] = time.perf_counter,
        wait_seconds: float = 5.0,
    ) -> None:
        self._collectors = collectors
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._failures: dict[str, str] = {}
        self._labels = {c.name: labels(collector=c.name) for c in collectors}
        self._build = [(labels(version=version), 1)]

    def render(self, openmetrics: bool = False) -> bytes:
        """Return the page.

        Raises:
            TimeoutError: another scrape has not returned within `wait_seconds`.
        """
        if not self._lock.acquire(timeout=self._wait_seconds):
            raise TimeoutError(f"another scrape has been running for {self._wait_seconds:g} s")
        try:
            return render_families(self._collect(), openmetrics)
        finally:
            self._lock.release()

    def _collect(self) -> list[AnyFamily]:
        families: list[AnyFamily] = []
        success: list[tuple[str, float]] = []
        duration: list[tuple[str, float]] = []
        for collector in self._collectors:
            start = self._clock()
            ok = self._collect_one(collector, families)
            label_text = self._labels[collector.name]
            success.append((label_text, int(ok)))
            duration.append((label_text, self._clock() - start))
        families.append(
            Family(
                "exporter_collector_success",
                "gauge",
                "Whether the collector read everything it reads, 0 or 1.",
                success,
            )
        )
        families.append(
            Family(
                "exporter_collector_duration_seconds",
                "gauge",
                "Time the collector took in this scrape.",
                duration,
            )
        )
        families.append(
            Family(
                "tailwatch_build_info",
                "gauge",
                "Version of tailwatch in this process.",
                self._build,
            )
        )
        return families

    def _collect_one(self, collector: Collector, families: list[AnyFamily]) -> bool:
        try:
            for family in collector.collect():
                # Absent hardware: no family at all.
                if family.samples if isinstance(family, Family) else family.blocks:
                    families.append(family)
        except CollectorError as error:
            self._report(collector.name, str(error))
            return False
        except Exception as error:  # a broken collector is reported as data
            self._report(collector.name, f"{type(error).__name__}: {error}", exc_info=True)
            return False
        self._failures.pop(collector.name, None)
        return True

    def _report(self, name: str, message: str, exc_info: bool = False) -> None:
        """Log a failure once, and again only when it changes."""
        if self._failures.get(name) != message:
            self._failures[name] = message
            logger.error("collector %s: %s", name, message, exc_info=exc_info)
