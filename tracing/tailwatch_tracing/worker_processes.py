"""prometheus_client's default registry in a service of several workers.

What it says of the process is said of each worker, under the label `worker`. A service's own
metrics are those of all workers when the client is in its multiprocess mode, else of this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from tailwatch_tracing.worker_directory import Worker
from tailwatch_tracing.worker_file import Unreadable
from tailwatch_tracing.worker_levels import read_head

# Families of the client's GCCollector, and the keys of gc.get_stats() that they are from.
_COLLECTOR = {
    "python_gc_objects_collected": "collected",
    "python_gc_objects_uncollectable": "uncollectable",
    "python_gc_collections": "collections",
}


def registry_of_workers(
    registry: CollectorRegistry, workers: Sequence[Worker]
) -> CollectorRegistry:
    """Return a registry with the same families, those of the process from every live worker.

    Without workers, and without the client's multiprocess mode, it is the same one.
    """
    if not workers and _multiprocess_directory() is None:
        return registry
    combined = CollectorRegistry()
    combined.register(_WorkersCollector(registry, workers))
    return combined


class _WorkersCollector(Collector):
    def __init__(self, registry: CollectorRegistry, workers: Sequence[Worker]) -> None:
        self._registry = registry
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        """Yield each family once."""
        shared = _of_all_workers()
        processes = self._processes()
        for family in self._registry.collect():
            if family.name in shared:
                continue
            if self._workers and family.name in processes:
                yield _per_worker(family, processes[family.name])
            elif self._workers and family.name in _COLLECTOR:
                yield _per_worker(family, self._collections(family.name))
            else:
                yield family
        yield from shared.values()

    def _processes(self) -> dict[str, list[tuple[Worker, Metric]]]:
        found: dict[str, list[tuple[Worker, Metric]]] = {}
        pid = 0
        collector = ProcessCollector(pid=lambda: pid, registry=None)
        for worker in self._workers:
            pid = worker.pid
            for family in collector.collect():
                found.setdefault(family.name, []).append((worker, family))
        return found

    def _collections(self, name: str) -> Iterator[tuple[Worker, Metric]]:
        for worker in self._workers:
            family = Metric(name, "", "counter")
            for generation, stats in enumerate(_collector(worker)):
                labels = {"generation": str(generation)}
                family.add_sample(name + "_total", labels, stats[_COLLECTOR[name]])
            yield worker, family


def _of_all_workers() -> dict[str, Metric]:
    """Return what the client sums over workers itself, by name; nothing unless it is told to."""
    path = _multiprocess_directory()
    if path is None:
        return {}
    collector = MultiProcessCollector(None, path)  # type: ignore[no-untyped-call]
    return {family.name: family for family in collector.collect()}  # type: ignore[no-untyped-call]


def _multiprocess_directory() -> str | None:
    path = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return path if path and os.path.isdir(path) else None


def _collector(worker: Worker) -> list[dict[str, int]]:
    try:
        head = read_head(worker.levels)
    except Unreadable:  # said with the levels
        head = None
    return [] if head is None else head.collector


def _per_worker(family: Metric, found: Iterable[tuple[Worker, Metric]]) -> Metric:
    whole = Metric(family.name, family.documentation, family.type)
    for worker, part in found:
        for sample in part.samples:
            whole.add_sample(
                sample.name, {**sample.labels, "worker": str(worker.number)}, sample.value
            )
    return whole
