"""How long requests wait that overlap a scrape of 100,000 lines, under a real server.

Clients send one request after another, with a short pause, while another process scrapes now and
then; requests that overlap a scrape are compared with those of phases without any. Beside it runs
the same page made at one go in its thread, which is what the goal is there to prevent.
"""

from __future__ import annotations

import asyncio
import http.client
import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple

from starlette.applications import Starlette

from tailwatch_tracing import StageTimingMiddleware, scrapes
from tests.bench.harness import Result, median_interval, mirrored
from tests.bench.middleware import application
from tests.bench.render import count_routes
from tests.bench.uvicorn_server import (
    ASYNCIO_H11,
    UVLOOP_HTTPTOOLS,
    UvicornServer,
    other_cores,
)

ROUTES = 1333
CLIENTS = 2
PAUSE_SECONDS = 0.002
PHASE_SECONDS = 1.5  # each phase is run twice a slot
BETWEEN_SCRAPES_SECONDS = 0.1

GOAL_MS = 3.0

_REQUEST = b"GET /answer HTTP/1.1\r\nHost: bench\r\n\r\n"


class Variant(NamedTuple):
    """A server, and the goal for its 99th percentile."""

    name: str
    factory: str
    options: tuple[str, ...]
    goal_ms: float | None


VARIANTS = (
    Variant("asyncio+h11", "sliced", ASYNCIO_H11, GOAL_MS),
    Variant("uvloop+httptools", "sliced", UVLOOP_HTTPTOOLS, GOAL_MS),
    Variant("asyncio+h11, page at one go", "whole", ASYNCIO_H11, None),
)


def sliced() -> Starlette:
    """Return the service whose page has 100,000 lines, made anew for every scrape."""
    count_routes(ROUTES)
    scrapes.KEPT_FROM_BYTES = 10**12
    app = application()
    app.add_middleware(
        StageTimingMiddleware, service="bench", metrics_path="/metrics", series_limit=10**6
    )
    return app


def whole() -> Starlette:
    """Return the same with a page that is made without a rest."""
    scrapes.TURN_SECONDS = math.inf
    return sliced()


def run(slots: int) -> list[Result]:
    """Serve all variants at once, of which one has requests at a time."""
    added: dict[str, list[float]] = {variant.name: [] for variant in VARIANTS}
    with ExitStack() as stack:
        servers = {
            variant.name: stack.enter_context(
                UvicornServer(f"{__name__}:{variant.factory}", "/answer", [*variant.options])
            )
            for variant in VARIANTS
        }
        for server in servers.values():
            lines = server.get("/metrics").count(b"\n")
            if not 99_000 < lines < 101_000:
                raise RuntimeError(f"{lines} lines on the page, expected 100,000")
        for _ in range(slots):
            for name, server in servers.items():
                added[name].append(_slot(server.port))
    return [
        Result(
            "scrape_overlap",
            f"{variant.name}: p99 of requests, + while 100k lines are scraped",
            "ms",
            median_interval([seconds * 1e3 for seconds in added[variant.name]]),
            variant.goal_ms,
        )
        for variant in VARIANTS
    ]


def _slot(port: int) -> float:
    """Return what a scrape adds to the 99th percentile, in seconds."""
    alone: list[float] = []
    beside: list[float] = []
    for scraping in mirrored([False, True]):
        if scraping:
            beside += _while_scraped(port)
        else:
            alone += [end - start for start, end in _requests(port)]
    return _p99(beside) - _p99(alone)


def _p99(seconds: list[float]) -> float:
    if len(seconds) < 100:
        raise RuntimeError(f"{len(seconds)} requests, too few for a 99th percentile")
    return sorted(seconds)[int(len(seconds) * 0.99)]


def _while_scraped(port: int) -> list[float]:
    """Return the times of requests that overlapped a scrape."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_scrape, args=(port, theirs))
    process.start()
    try:
        ours.recv()  # it is ready
        times = _requests(port)
        ours.send(None)
        scrapes_done: list[tuple[float, float]] = ours.recv()
    finally:
        process.join(30)
    return [
        end - start
        for start, end in times
        if any(start < finished and end > begun for begun, finished in scrapes_done)
    ]


def _scrape(port: int, pipe: Connection) -> None:
    """Scrape until told to end, and send when each began and was complete."""
    os.sched_setaffinity(0, other_cores())
    done: list[tuple[float, float]] = []
    pipe.send(None)
    while not pipe.poll(BETWEEN_SCRAPES_SECONDS):
        begun = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        connection.close()
        done.append((begun, time.perf_counter()))
    pipe.send(done)


def _requests(port: int) -> list[tuple[float, float]]:
    """Return when each request was sent and its answer complete."""
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, other_cores())
    try:
        return asyncio.run(_clients(port))
    finally:
        os.sched_setaffinity(0, affinity)


async def _clients(port: int) -> list[tuple[float, float]]:
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + PHASE_SECONDS
    await asyncio.gather(*(_client(port, end, times.append) for _ in range(CLIENTS)))
    return times


async def _client(port: int, end: float, note: Callable[[tuple[float, float]], None]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (start := time.perf_counter()) < end:
        writer.write(_REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"answered with {head[:20]!r}, expected 200")
        await reader.readexactly(2)  # ok
        note((start, time.perf_counter()))
        await asyncio.sleep(PAUSE_SECONDS)
    writer.close()
