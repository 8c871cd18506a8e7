"""The service that real servers run in test_workers_servers.py."""

from __future__ import annotations

import asyncio
import os
import time

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, stage

with stage("warm-up"):  # while the application is loaded, as of a model
    pass


async def pid(request: Request) -> PlainTextResponse:
    with stage("inference"):
        pass
    return PlainTextResponse(str(os.getpid()))


async def hang(request: Request) -> PlainTextResponse:
    await asyncio.sleep(600)
    return PlainTextResponse("never")


async def block(request: Request) -> PlainTextResponse:
    """Hold the loop, and every thread with it where the GIL is held."""
    time.sleep(float(request.query_params["seconds"]))
    return PlainTextResponse(str(os.getpid()))


routes = [Route("/pid", pid), Route("/hang", hang), Route("/block", block)]

app = Starlette(routes=routes)
app.add_middleware(StageTimingMiddleware, service="workers", metrics_path="/metrics")


def __getattr__(name: str) -> StageTimingMiddleware:
    """Return `wrapped`, whose middleware is built when it is loaded: by a parent that preloads."""
    if name != "wrapped":
        raise AttributeError(name)
    return StageTimingMiddleware(
        Starlette(routes=routes), service="workers", metrics_path="/metrics"
    )
