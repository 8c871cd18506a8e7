"""CPU that a middleware adds to a request for a trivial Starlette endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.bench.asgi import cpu_per_request, sent
from tests.bench.harness import Result, added, added_ratio, in_fresh_process

REQUESTS = 2000
PASSES = 6

RUNWAY_GOAL = 0.35
INSTRUMENTATOR_GOAL = 0.08

BARE, NOOP, OURS = "bare", "no-op wrapper", "tailwatch"
RUNWAY, INSTRUMENTATOR = "asgi-runway", "prometheus-fastapi-instrumentator"


class NoOp:
    """The least that a middleware must do to see a request: two clocks and a wrapped send.

    It records nothing: the floor of every number here.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped_send(message: Message) -> None:
            await send(message)

        time.perf_counter()
        await self.app(scope, receive, wrapped_send)
        time.perf_counter()


def run(slots: int) -> list[Result]:
    """Compare in `slots` fresh processes."""
    seconds = [in_fresh_process(measure, REQUESTS, PASSES) for _ in range(slots)]
    micros = [{name: value * 1e6 for name, value in slot.items()} for slot in seconds]
    return [
        *_costs(micros),
        Result(
            "middleware",
            f"{OURS} / {RUNWAY}, added CPU",
            "x",
            added_ratio(micros, OURS, RUNWAY, BARE),
            RUNWAY_GOAL,
        ),
        Result(
            "middleware",
            f"{OURS} / {INSTRUMENTATOR}, added CPU",
            "x",
            added_ratio(micros, OURS, INSTRUMENTATOR, BARE),
            INSTRUMENTATOR_GOAL,
        ),
    ]


def _costs(micros: Sequence[dict[str, float]]) -> list[Result]:
    return [
        Result("middleware", f"{name} adds", "us", added(micros, name, BARE))
        for name in (NOOP, OURS, RUNWAY, INSTRUMENTATOR)
    ]


def measure(requests: int, passes: int) -> dict[str, float]:
    """Return CPU seconds a request for each variant, having checked that each one recorded.

    Raises:
        RuntimeError: a middleware that counted another number of requests than were sent.
    """
    targets = {
        name: (application, "/answer")
        for name, application in {
            BARE: application(),
            NOOP: _with_noop(),
            OURS: with_tailwatch(),
            RUNWAY: _with_runway(),
            INSTRUMENTATOR: with_instrumentator(),
        }.items()
    }
    costs = asyncio.run(cpu_per_request(targets, requests, passes))
    expected = sent(requests, passes)
    for name, counted in _recorded().items():
        if counted != expected:
            raise RuntimeError(f"{name} counted {counted:g} requests, expected {expected}")
    return costs


async def answer(request: Request) -> Response:
    """Answer at once: what is left to measure is the machinery around the endpoint."""
    return PlainTextResponse("ok")


def application() -> Starlette:
    """Return the service to be instrumented."""
    return Starlette(routes=[Route("/answer", answer)])


def _with_noop() -> Starlette:
    app = application()
    app.add_middleware(NoOp)
    return app


def with_tailwatch() -> Starlette:
    from tailwatch_tracing import StageTimingMiddleware

    app = application()
    app.add_middleware(
        StageTimingMiddleware,
        service="bench",
        metrics_path="/metrics",
        slo_seconds=0.5,
        client_timeout_seconds=5.0,
    )
    return app


def _with_runway() -> Starlette:
    """Follow its README's quick start: the middleware with its defaults."""
    from asgi_runway import RunwayMiddleware

    app = application()
    app.add_middleware(RunwayMiddleware)
    return app


def with_instrumentator() -> Starlette:
    """Follow its README's fast track."""
    from prometheus_fastapi_instrumentator import Instrumentator

    app = application()
    Instrumentator().instrument(app).expose(app)
    return app


def _recorded() -> dict[str, float]:
    from tailwatch_tracing import render_metrics

    page, _ = render_metrics()
    ours = sum(
        sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == "inference_requests_total"
    )
    return {
        OURS: ours,
        RUNWAY: _count("runway_requests_total"),
        INSTRUMENTATOR: _count("http_requests_total"),
    }


def _count(name: str) -> float:
    return sum(
        sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == name
    )
