"""The collector `threads`: the busiest thread of each process group.

One hot thread limits a service while every core looks half idle: the scheduler moves it between
cores, so nothing per core shows it. A sampler compares the threads' CPU times over a fixed
interval; a scrape publishes its latest answer, whoever scrapes and however often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tailwatch_exporters.collectors import Collector, CollectorError
from tailwatch_exporters.sampler_thread import STALE_INTERVALS, SamplerThread
from tailwatch_exporters.thread_walk import Group, ThreadWalk
from tailwatch_tracing.exposition import Family, labels

GROUP_LIMIT = 100
OTHER_GROUP = "other"

_BUDGET_RATIO = 0.02
_ACTIVITY_STEP = 0.05
_BUSY_MEMORY = 0.9  # per sample: a group that was busy keeps its series for some time


class _Published(NamedTuple):
    """The answer of one sample."""

    at: float
    busiest: list[tuple[str, float]]
    threads: list[tuple[str, float]]


class ThreadsCollector(Collector):
    """`host_thread_cpu_max_ratio{group}` and `host_group_threads{group}`.

    A group is all processes of one name (comm); kernel threads are the group `kernel`. Beyond
    `group_limit` groups the least busy ones are published together as `other`.

    Args:
        procfs_path: where /proc is mounted.
        interval_seconds: what the ratio is measured over. The walk takes at most 2 % of one core:
            where it needs more, the interval grows.
        group_limit: most groups with series of their own.
        ticks_per_second: unit of the CPU times, USER_HZ.
        clock: seconds.
        cpu_clock: CPU seconds of the calling thread.
    """

    name = "threads"

    def __init__(
        self,
        procfs_path: Path = Path("/proc"),
        interval_seconds: float = 5.0,
        group_limit: int = GROUP_LIMIT,
        ticks_per_second: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._walk = ThreadWalk(procfs_path, ticks_per_second, clock)
        self._interval_seconds = interval_seconds
        self._group_limit = group_limit
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._pace_seconds = interval_seconds
        self._activity: dict[str, float] = {}
        self._named: frozenset[str] = frozenset()
        self._published: _Published | None = None
        self._failure: str | None = None
        self._thread = SamplerThread("threads", self.sample, interval_seconds)

    def start(self) -> None:
        """Begin sampling."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """End sampling."""
        self._thread.signal_stop()
        return self._thread.join(timeout_seconds)

    def sample(self) -> float:
        """Take one sample; return the seconds to rest so that the budget holds."""
        started = self._cpu_clock()
        try:
            groups = self._walk.take()
        except OSError as error:
            self._failure = str(error)
            return 0.0
        self._failure = None
        named = self._select(groups)
        self._published = _publish(self._clock(), groups, named)
        rest_seconds = (self._cpu_clock() - started) / _BUDGET_RATIO
        self._pace_seconds = max(self._interval_seconds, rest_seconds)
        return rest_seconds

    def collect(self) -> Iterator[Family]:
        """Yield the latest sample, nothing when it is stale.

        Raises:
            CollectorError: /proc could not be listed at the last sample.
        """
        if self._failure is not None:
            raise CollectorError(self._failure)
        published = self._published
        if published is None:
            return
        if self._clock() - published.at > STALE_INTERVALS * self._pace_seconds:
            return
        yield Family(
            "host_thread_cpu_max_ratio",
            "gauge",
            "Share of one core that the busiest thread of the process group used, 0..1, "
            "over the last sampling interval.",
            published.busiest,
        )
        yield Family(
            "host_group_threads",
            "gauge",
            "Threads of the process group.",
            published.threads,
        )

    def _select(self, groups: dict[str, Group]) -> frozenset[str]:
        """Return the groups that get series of their own: the recently busiest ones."""
        earlier = self._activity
        self._activity = {
            name: max(group.busiest_ratio or 0.0, earlier.get(name, 0.0) * _BUSY_MEMORY)
            for name, group in groups.items()
        }
        # In steps, and with those first that were named before: groups that are busy alike must
        # not take turns.
        ranked = sorted(
            self._activity,
            key=lambda name: (
                -int(self._activity[name] / _ACTIVITY_STEP),
                name not in self._named,
                name,
            ),
        )
        self._named = frozenset(ranked[: self._group_limit])
        return self._named


def _publish(at: float, groups: dict[str, Group], named: frozenset[str]) -> _Published:
    busiest: dict[str, float] = {}
    threads: dict[str, float] = {}
    for name, group in groups.items():
        published_name = name if name in named else OTHER_GROUP
        threads[published_name] = threads.get(published_name, 0) + group.threads
        if group.busiest_ratio is not None:
            ratio = max(busiest.get(published_name, 0.0), group.busiest_ratio)
            busiest[published_name] = ratio
    return _Published(at, _samples(busiest), _samples(threads))


def _samples(values: dict[str, float]) -> list[tuple[str, float]]:
    return [(labels(group=name), value) for name, value in sorted(values.items())]
