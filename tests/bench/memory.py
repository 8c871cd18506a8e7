"""Memory that a route's series cost the service."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, render_metrics
from tests.bench.asgi import request
from tests.bench.harness import Interval, Result, in_fresh_process
from tests.bench.middleware import answer

ROUTES = 100


def run(slots: int) -> list[Result]:
    """Count once: allocations do not vary from slot to slot."""
    byte_count, series = in_fresh_process(measure)
    return [
        _exact("bytes a route (one method, one status)", "B", byte_count / ROUTES),
        _exact("series a route", "", series / ROUTES),
        _exact("bytes a series", "B", byte_count / series),
    ]


def _exact(what: str, unit: str, value: float) -> Result:
    return Result("memory", what, unit, Interval(value, value, value))


def measure() -> tuple[int, int]:
    """Return the bytes kept and series added by a first request to each of the routes."""
    paths = [f"/route{i}" for i in range(ROUTES + 1)]
    app = Starlette(routes=[Route(path, answer) for path in paths])
    app.add_middleware(StageTimingMiddleware, service="bench", metrics_path="/metrics")
    asyncio.run(request(app, paths[0], 10))  # what is built once is not a route's
    before = _series()
    allocated = _kept(lambda: asyncio.run(_each(app, paths[1:])))
    return allocated, _series() - before


async def _each(app: Starlette, paths: list[str]) -> None:
    for path in paths:
        await request(app, path, 1)


def _kept(action: Callable[[], None]) -> int:
    gc.collect()
    tracemalloc.start()
    action()
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept


def _series() -> int:
    page, _ = render_metrics()
    return sum(1 for line in page.decode().splitlines() if line and not line.startswith("#"))
