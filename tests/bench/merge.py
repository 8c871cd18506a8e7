"""A scrape's merge over eight workers, against prometheus_client's multiprocess mode."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from prometheus_client.multiprocess import MultiProcessCollector

from tailwatch_tracing import families
from tailwatch_tracing.exposition import Family, HistogramFamily
from tailwatch_tracing.page import Series, Snapshot, is_published
from tailwatch_tracing.page import families as families_of
from tailwatch_tracing.worker_directory import WorkerDirectory
from tests.bench.harness import (
    Interval,
    Result,
    first_core,
    in_fresh_process,
    median_interval,
    mirrored,
)

WORKERS = 8
ROUTES = 120
STATUSES = (200, 201, 204, 400, 404, 422, 429, 500)
BUCKETS = len(families.EDGES_NS) + 1
LINES = ROUTES * (BUCKETS + 2 + len(STATUSES))  # a histogram's buckets, sum and count; counters
REPEATS = 3

GOAL = 0.1


def run(slots: int) -> list[Result]:
    """Compare the merges of the same counts, from files to what a renderer takes."""
    if not 9_900 <= LINES <= 10_300:
        raise ValueError(f"{LINES} lines a worker, expected 10k")
    seconds = [in_fresh_process(measure, REPEATS) for _ in range(slots)]

    def ratio(ours: str) -> Interval:
        return median_interval([slot[ours] / slot["prometheus_client"] for slot in seconds])

    what = f"merge of {WORKERS} workers of {LINES} lines over prometheus_client's"
    return [
        Result("merge", what, "x", ratio("tailwatch"), GOAL),
        Result("merge", f"{what}, first scrape of a worker", "x", ratio("first")),
        *(
            Result("merge", name, "ms", median_interval([slot[name] * 1e3 for slot in seconds]))
            for name in ("tailwatch", "prometheus_client")
        ),
    ]


def measure(repeats: int) -> dict[str, float]:
    """Return CPU seconds of each merge, the least of its blocks.

    Raises:
        RuntimeError: the two disagree on what was counted.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root, _workers(Path(root)):
        directory = WorkerDirectory(Path(root) / "ours", "bench")
        collector = MultiProcessCollector(None, f"{root}/client")  # type: ignore[no-untyped-call]
        merges: dict[str, Callable[[], object]] = {
            "first": lambda: merged(WorkerDirectory(Path(root) / "ours", "bench")),
            "tailwatch": lambda: merged(directory),
            "prometheus_client": lambda: list(collector.collect()),  # type: ignore[no-untyped-call]
        }
        _compare(merged(directory), _client_values(collector))
        blocks: dict[str, list[float]] = {name: [] for name in merges}
        for _ in range(repeats):
            for name in mirrored(list(merges)):
                begun = time.process_time()
                merges[name]()
                blocks[name].append(time.process_time() - begun)
        return {name: min(values) for name, values in blocks.items()}


def merged(directory: WorkerDirectory) -> list[Family | HistogramFamily]:
    """Read and sum as a scrape does."""
    snapshot = Snapshot()
    snapshot.add_service("bench")
    for key, counts in directory.read(None).sums.items():
        if is_published(key.metric, key.values, len(counts)):
            snapshot.add_counts(key.metric, Series(key.owner, key.values), counts)
    return [
        family._replace(series=list(family.series))
        if isinstance(family, HistogramFamily)
        else family
        for family in families_of(snapshot)
    ]


@contextmanager
def _workers(root: Path) -> Iterator[None]:
    """Have processes that have counted and live on until the block's end."""
    (root / "client").mkdir()
    (root / "ours").mkdir()
    context = get_context("spawn")
    pipes: list[Connection] = []
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(root / "client")
    processes = []
    for seed in range(WORKERS):
        ours, theirs = context.Pipe()
        process = context.Process(target=_count, args=(root / "ours", seed, theirs))
        process.start()
        pipes.append(ours)
        processes.append(process)
    try:
        for pipe in pipes:
            pipe.recv()
        yield
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join()


def _count(root: Path, seed: int, pipe: Connection) -> None:
    """Be a worker that counts the same for both, and stays."""
    from prometheus_client import CollectorRegistry, Counter, Histogram

    registry = CollectorRegistry()
    edges = [edge / 1e9 for edge in families.EDGES_NS]
    durations = Histogram(
        families.REQUEST_DURATION.name,
        families.REQUEST_DURATION.help,
        ["service", "route"],
        buckets=edges,
        registry=registry,
    )
    requests = Counter(
        families.REQUESTS.name,
        families.REQUESTS.help,
        ["service", *families.REQUESTS.labels],
        registry=registry,
    )
    file = WorkerDirectory(root, "bench").join()
    chosen = random.Random(seed)
    routes = list(range(ROUTES))
    chosen.shuffle(routes)  # no two workers meet their routes in the same order
    for number in routes:
        route = f"/v1/models/{{model}}/route{number}"
        for status in STATUSES:
            values = (route, "POST", str(status), "ok" if status < 400 else "error")
            count = chosen.randrange(1, 1000)
            file.allocate("bench", families.REQUESTS.name, values, 1)[0] = count
            requests.labels("bench", *values).inc(count)
        counts = file.allocate("bench", families.REQUEST_DURATION.name, (route,), BUCKETS + 1)
        duration = durations.labels("bench", route)
        for bucket in range(BUCKETS):
            edge_ns = families.EDGES_NS[min(bucket, BUCKETS - 2)] + (bucket == BUCKETS - 1)
            counts[bucket] = 1
            counts[BUCKETS] += edge_ns
            duration.observe(edge_ns / 1e9)
    pipe.send(None)
    try:
        pipe.recv()
    except EOFError:
        pass


def _client_values(collector: MultiProcessCollector) -> tuple[float, float]:
    requests = observed = 0.0
    for family in collector.collect():  # type: ignore[no-untyped-call]
        for sample in family.samples:
            if sample.name == families.REQUESTS.name:
                requests += sample.value
            elif sample.name == families.REQUEST_DURATION.name + "_count":
                observed += sample.value
    return requests, observed


def _compare(ours: list[Family | HistogramFamily], theirs: tuple[float, float]) -> None:
    requests = observed = 0.0
    for family in ours:
        if isinstance(family, HistogramFamily):
            observed += sum(sum(series.counts) for series in family.series)
        elif family.name == families.REQUESTS.name:
            requests += sum(value for _, value in family.samples)
    if (requests, observed) != theirs or not requests or not observed:
        raise RuntimeError(f"tailwatch merged {requests, observed}, prometheus_client {theirs}")


if __name__ == "__main__":
    os.sched_setaffinity(0, {first_core()})
    print(measure(REPEATS))
