"""Whether the middleware's cost depends on how many routes the service has."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware
from tests.bench.asgi import cpu_per_request
from tests.bench.harness import Result, in_fresh_process, median_interval
from tests.bench.middleware import answer

REQUESTS = 2000
PASSES = 6
MANY = 100

GROWTH_GOAL_US = 1.0


def run(slots: int) -> list[Result]:
    """Compare one route with the last of a hundred, each against the same app without us."""
    seconds = [in_fresh_process(measure, REQUESTS, PASSES) for _ in range(slots)]
    growth = [
        ((slot["many, with"] - slot["many"]) - (slot["one, with"] - slot["one"])) * 1e6
        for slot in seconds
    ]
    return [
        Result(
            "routes",
            f"added CPU on the last of {MANY} routes minus on the only one",
            "us",
            median_interval(growth),
            GROWTH_GOAL_US,
        )
    ]


def measure(requests: int, passes: int) -> dict[str, float]:
    """Return CPU seconds a request with one and with many routes, with and without us."""
    targets = {
        "one": (_application(1), "/route0"),
        "one, with": (_instrumented(1), "/route0"),
        "many, with": (_instrumented(MANY), f"/route{MANY - 1}"),
        "many": (_application(MANY), f"/route{MANY - 1}"),
    }
    return asyncio.run(cpu_per_request(targets, requests, passes))


def _application(routes: int) -> Starlette:
    return Starlette(routes=[Route(f"/route{i}", answer) for i in range(routes)])


def _instrumented(routes: int) -> Starlette:
    app = _application(routes)
    app.add_middleware(StageTimingMiddleware, service="bench", metrics_path="/metrics")
    return app
