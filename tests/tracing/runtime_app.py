"""A service whose endpoints hold up others, for tests on a real server."""

from __future__ import annotations

import time

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware


async def quick(request: Request) -> PlainTextResponse:
    """Answer at once."""
    return PlainTextResponse("quick")


async def block(request: Request) -> PlainTextResponse:
    """Hold the event loop for a second."""
    time.sleep(1)
    return PlainTextResponse("blocked")


def work(request: Request) -> PlainTextResponse:
    """Hold a thread for half a second."""
    time.sleep(0.5)
    return PlainTextResponse("worked")


app = StageTimingMiddleware(
    Starlette(routes=[Route("/quick", quick), Route("/block", block), Route("/work", work)]),
    service="held-up",
    metrics_path="/metrics",
)
