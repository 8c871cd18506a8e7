"""Whether memory grows with the number of requests: of every kind that has a path of its own."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailwatch_tracing import StageTimingMiddleware, render_metrics, stage
from tests.bench.harness import Interval, Result, in_fresh_process

REQUESTS = 10_000_000
WARM_REQUESTS = 1_000_000
SCRAPE_EVERY = 100_000

GOAL_KIB = 512  # of a process of some 40 MiB: a byte in twenty requests would be seen
GOAL_OBJECTS = 20

_OK: Message = {"type": "http.response.start", "status": 200, "headers": []}
_BODY: Message = {"type": "http.response.body", "body": b"ok"}
_REQUEST: Message = {"type": "http.request", "body": b"", "more_body": False}
_DISCONNECT: Message = {"type": "http.disconnect"}


def run(slots: int) -> list[Result]:
    """Send all once: what is kept does not vary from slot to slot."""
    kib, objects = in_fresh_process(measure, WARM_REQUESTS, REQUESTS, SCRAPE_EVERY)
    return [
        _exact(f"resident memory, + over {REQUESTS:.0e} requests", "KiB", kib, GOAL_KIB),
        _exact(f"objects, + over {REQUESTS:.0e} requests", "", objects, GOAL_OBJECTS),
    ]


def _exact(what: str, unit: str, value: float, limit: float) -> Result:
    return Result("growth", what, unit, Interval(value, value, value), limit)


def measure(warm: int, requests: int, scrape_every: int) -> tuple[float, int]:
    """Return by how many KiB, and by how many objects, the process grew after a warm-up."""
    return asyncio.run(_measure(warm, requests, scrape_every))


async def _measure(warm: int, requests: int, scrape_every: int) -> tuple[float, int]:
    app = StageTimingMiddleware(
        _Application(), service="bench", slo_seconds=0.5, client_timeout_seconds=5.0
    )
    await _serve(app, 0, warm, scrape_every)
    before = _resident_kib(), _objects()
    await _serve(app, warm, requests, scrape_every)
    return _resident_kib() - before[0], _objects() - before[1]


async def _serve(app: ASGIApp, first: int, count: int, scrape_every: int) -> None:
    """Send requests of all kinds, no two unmatched paths of which are the same, and scrape."""
    for number in range(first, first + count):
        path, method, send = _kind(number)
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"bench")],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
        }
        try:
            await app(scope, _receive, send)
        except (OSError, ZeroDivisionError):
            pass
        if number % scrape_every == 0:
            render_metrics()
            await asyncio.sleep(0)


def _kind(number: int) -> tuple[str, str, Send]:
    kind = number % 200
    if kind == 1:
        return f"/items/{number}", "GET", _send  # a template, with another value each time
    if kind == 2:
        return f"/nowhere/{number}", "GET", _send
    if kind == 3:
        return "/plain", f"METHOD{number}", _send
    if kind == 4:
        return "/plain", "GET", _send_to_nobody
    return {5: "/stages", 6: "/raises", 7: "/streams"}.get(kind, "/plain"), "GET", _send


class _Application:
    """Answers most paths by itself, for speed, and the others by Starlette."""

    def __init__(self) -> None:
        routes = [
            Route("/items/{item}", _item),
            Route("/stages", _stages),
            Route("/raises", _raises),
            Route("/streams", _streams),
        ]
        self._starlette = Starlette(routes=routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/plain":
            await send(_OK)
            await send(_BODY)
        else:
            await self._starlette(scope, receive, send)


async def _item(request: Request) -> Response:
    return PlainTextResponse("ok")


async def _stages(request: Request) -> Response:
    with stage("preprocess"):
        pass
    async with stage("inference"):
        await asyncio.sleep(0)
    return PlainTextResponse("ok")


async def _raises(request: Request) -> Response:
    raise ZeroDivisionError


async def _streams(request: Request) -> Response:
    async def chunks() -> AsyncIterator[str]:
        for _ in range(3):
            yield "chunk"

    return StreamingResponse(chunks())


async def _receive() -> Message:
    return _DISCONNECT


async def _send(message: Message) -> None:
    pass


async def _send_to_nobody(message: Message) -> None:
    raise OSError("the client left")


def _resident_kib() -> float:
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())
