"""A page of 100,000 lines from the cells that count, against prometheus_client's."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from tailwatch_tracing import families, render_metrics
from tailwatch_tracing.service import service_named
from tests.bench.harness import Result, in_fresh_process, median_interval, mirrored

ROUTES = 1200
STATUSES = (200, 201, 204, 400, 404, 422, 429, 500)
LINES = ROUTES * (len(families.EDGES_NS) + 3 + len(STATUSES))
REPEATS = 2

GOAL = 0.12

OURS, PEER = "tailwatch", "prometheus_client"


def run(slots: int) -> list[Result]:
    """Compare in `slots` fresh processes."""
    seconds = [in_fresh_process(measure, REPEATS) for _ in range(slots)]
    ratios = median_interval([slot[OURS] / slot[PEER] for slot in seconds])
    return [
        *(
            Result(
                "render",
                f"{name}, {LINES} lines",
                "ms",
                median_interval([slot[name] * 1e3 for slot in seconds]),
            )
            for name in (OURS, PEER)
        ),
        Result("render", f"{OURS} / {PEER}", "x", ratios, GOAL),
    ]


def measure(repeats: int) -> dict[str, float]:
    """Return CPU seconds of each page, the least of its blocks.

    Ours is the whole page as a scrape gets it, the reading of the cells and prometheus_client's
    default registry included; theirs is `generate_latest` of a registry with the same content.

    Raises:
        RuntimeError: the two pages differ in a line of the content.
    """
    registry = _count()
    pages: dict[str, Callable[[], bytes]] = {
        OURS: lambda: render_metrics()[0],
        PEER: lambda: generate_latest(registry),
    }
    _compare(pages[OURS]().decode(), pages[PEER]().decode())
    blocks: dict[str, list[float]] = {name: [] for name in pages}
    for _ in range(repeats):
        for name in mirrored(list(pages)):
            begun = time.process_time()
            pages[name]()
            blocks[name].append(time.process_time() - begun)
    return {name: min(values) for name, values in blocks.items()}


def count_routes(routes: int) -> None:
    """Have a service with as many routes, each with durations over the whole grid."""
    service = service_named("bench")
    service.configure(
        slo_seconds=None, client_timeout_seconds=None, series_limit=10**6, gpu_uuids=()
    )
    for number in range(routes):
        cells = service.route_cells(_route(number))
        for index, edge in enumerate(families.EDGES_NS):
            if index % 3 == 0:
                cells.duration.observe(edge)


def _route(number: int) -> str:
    return f"/v1/models/{{model}}/route{number}"


def _count() -> CollectorRegistry:
    count_routes(ROUTES)
    service = service_named("bench")
    registry = CollectorRegistry()
    durations = Histogram(
        families.REQUEST_DURATION.name,
        families.REQUEST_DURATION.help,
        ["service", "route"],
        buckets=[edge / 1e9 for edge in families.EDGES_NS],
        registry=registry,
    )
    requests = Counter(
        families.REQUESTS.name,
        families.REQUESTS.help,
        ["service", *families.REQUESTS.labels],
        registry=registry,
    )
    for number in range(ROUTES):
        route = _route(number)
        for index, edge in enumerate(families.EDGES_NS):
            if index % 3 == 0:
                durations.labels("bench", route).observe(edge / 1e9)
        for status in STATUSES:
            outcome = "ok" if status < 400 else "client_error"
            service.count_request(service.routes[route], "POST", status, outcome)
            requests.labels("bench", route, "POST", str(status), outcome).inc()
    return registry


def _compare(ours: str, theirs: str) -> None:
    content = (families.REQUESTS.name, families.REQUEST_DURATION.name)
    if _values(ours, content) != _values(theirs, content):
        raise RuntimeError("the two pages differ")


def _values(page: str, names: tuple[str, ...]) -> dict[tuple[str, frozenset[str]], float]:
    found = {}
    for line in page.splitlines():
        if line.startswith(names):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            if not name.endswith("_created"):
                key = (name, frozenset(re.findall(r'\w+="[^"]*"', labels)))
                found[key] = round(float(value), 6)
    if len(found) != LINES:
        raise RuntimeError(f"{len(found)} lines of the content, expected {LINES}")
    return found
