"""Four stage timers against four slotted context managers that read the same clocks."""

from __future__ import annotations

import asyncio
import time

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, stage
from tests.bench.asgi import cpu_per_request
from tests.bench.harness import Result, added, added_ratio, in_fresh_process
from tests.bench.middleware import answer

REQUESTS = 2000
PASSES = 6

GOAL = 2.2

NONE, PLAIN, OURS = "no timer", "4 context managers", "4 stages"


class Stopwatch:
    """What timing a block costs at least: the two clocks that a stage reads, at both ends."""

    __slots__ = ("cpu_ns", "cpu_start_ns", "start_ns", "wall_ns")

    def __init__(self) -> None:
        self.wall_ns = 0
        self.cpu_ns = 0

    def __enter__(self) -> None:
        self.start_ns = time.perf_counter_ns()
        self.cpu_start_ns = time.thread_time_ns()

    def __exit__(self, *exc_info: object) -> None:
        self.cpu_ns += time.thread_time_ns() - self.cpu_start_ns
        self.wall_ns += time.perf_counter_ns() - self.start_ns


async def timed_by_stopwatches(request: Request) -> Response:
    """Time four blocks with the plain context manager."""
    with Stopwatch():
        pass
    with Stopwatch():
        pass
    with Stopwatch():
        pass
    with Stopwatch():
        pass
    return PlainTextResponse("ok")


async def timed_by_stages(request: Request) -> Response:
    """Time four blocks with stages."""
    with stage("ingress"):
        pass
    with stage("preprocess"):
        pass
    with stage("inference"):
        pass
    with stage("postprocess"):
        pass
    return PlainTextResponse("ok")


def run(slots: int) -> list[Result]:
    """Compare in `slots` fresh processes, all under the same middleware."""
    seconds = [in_fresh_process(measure, REQUESTS, PASSES) for _ in range(slots)]
    micros = [{name: value * 1e6 for name, value in slot.items()} for slot in seconds]
    return [
        Result("stages", f"{PLAIN} add", "us", added(micros, PLAIN, NONE)),
        Result("stages", f"{OURS} add", "us", added(micros, OURS, NONE)),
        Result(
            "stages",
            f"{OURS} / {PLAIN}, added CPU",
            "x",
            added_ratio(micros, OURS, PLAIN, NONE),
            GOAL,
        ),
    ]


def measure(requests: int, passes: int) -> dict[str, float]:
    """Return CPU seconds a request for an endpoint with no timer, plain timers and stages."""
    endpoints = {NONE: answer, PLAIN: timed_by_stopwatches, OURS: timed_by_stages}
    targets = {name: (_application(endpoint), "/answer") for name, endpoint in endpoints.items()}
    return asyncio.run(cpu_per_request(targets, requests, passes))


def _application(endpoint: object) -> Starlette:
    app = Starlette(routes=[Route("/answer", endpoint)])  # type: ignore[arg-type]
    app.add_middleware(StageTimingMiddleware, service="bench", metrics_path="/metrics")
    return app
