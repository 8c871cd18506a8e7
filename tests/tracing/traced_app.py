"""The service that real servers run in test_spans_export.py; built by a parent that preloads."""

from __future__ import annotations

import os

from opentelemetry import trace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, stage


async def pid(request: Request) -> PlainTextResponse:
    trace.get_current_span().set_attribute("pid", os.getpid())
    with stage("inference"):
        return PlainTextResponse(str(os.getpid()))


app = StageTimingMiddleware(Starlette(routes=[Route("/pid", pid)]), service="embedder")
