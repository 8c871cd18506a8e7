"""When a response starts, when its chunks come, what goes on after it and what was before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from fastapi import BackgroundTasks, FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tailwatch_tracing import RequestQueue, StageTimingMiddleware, stage, upstream
from tailwatch_tracing.upstream import wait_ns
from tests.tracing.asgi import (
    App,
    Exchange,
    http_scope,
    nonzero,
    outcomes,
    request,
    requests,
    values,
)
from tests.tracing.conftest import Clock

START = {"type": "http.response.start", "status": 200, "headers": []}

STREAM_TIMES = (
    "inference_time_to_response_start_seconds",
    "inference_time_to_first_chunk_seconds",
    "inference_chunk_gap_seconds",
)


def app_of(handler: Callable[[Request], Awaitable[Response]], **options: Any) -> Starlette:
    app = Starlette(routes=[Route("/x", handler)])
    app.add_middleware(StageTimingMiddleware, service="s", **options)
    return app


def sums(*names: str) -> list[float]:
    """The sum of each histogram over all its series, in milliseconds."""
    return [round(sum(values(f"{name}_sum").values()) * 1000, 6) for name in names]


def counts(*names: str) -> list[float]:
    return [sum(values(f"{name}_count").values()) for name in names]


class Passes(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


# --- streams ---


def slow_stream(clock: Clock, **more: Any) -> Callable[[Request], Awaitable[Response]]:
    """50 ms to the handler's answer, 50 to the first chunk, 250 in all."""

    async def chunks() -> AsyncIterator[bytes]:
        for chunk, seconds in ((b"", 0.05), (b"one", 0.03), (b"", 0.07), (b"two", 0.05)):
            yield chunk
            for _ in range(5):  # let it get through a middleware's task
                await asyncio.sleep(0)
            clock.advance(seconds)

    async def handler(incoming: Request) -> Response:
        clock.advance(0.05)
        return StreamingResponse(chunks(), **more)

    return handler


@pytest.mark.parametrize("neighbours", [[], [Passes], [GZipMiddleware], [Passes, Passes]])
def test_a_stream_has_every_time(clock: Clock, neighbours: list[Any]) -> None:
    """trallnag/prometheus-fastapi-instrumentator#291, rycus86/prometheus_flask_exporter#143."""
    app = app_of(slow_stream(clock))
    for neighbour in neighbours:
        app.add_middleware(neighbour)
    asyncio.run(request(app, "/x"))
    assert sums("inference_request_duration_seconds") == [250]
    assert sums(*STREAM_TIMES) == [50, 100, 100]
    assert counts(*STREAM_TIMES) == [1, 1, 1]
    assert values("inference_time_to_first_chunk_seconds_count", "route") == {("/x",): 1}


def test_a_stream_below_a_base_http_middleware_inside_has_every_time(clock: Clock) -> None:
    """perdy/starlette-prometheus, whose own BaseHTTPMiddleware saw the headers only."""
    app = Starlette(routes=[Route("/x", slow_stream(clock))])
    app.add_middleware(Passes)
    app.add_middleware(StageTimingMiddleware, service="s")
    asyncio.run(request(app, "/x"))
    assert sums("inference_request_duration_seconds", *STREAM_TIMES) == [250, 50, 100, 100]
    assert outcomes() == {"ok": 1}


def test_an_answer_in_one_message_has_no_stream_times(clock: Clock) -> None:
    """Its first chunk is its last: the duration says when."""

    async def handler(incoming: Request) -> Response:
        clock.advance(0.05)
        return JSONResponse({})

    asyncio.run(request(app_of(handler), "/x"))
    assert counts(*STREAM_TIMES) == [0, 0, 0]


def test_a_stream_without_content_has_no_first_chunk(clock: Clock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x"))
    assert counts(*STREAM_TIMES) == [1, 0, 0]


def test_the_last_message_may_be_the_first_chunk(clock: Clock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        clock.advance(0.2)
        await send({"type": "http.response.body", "body": memoryview(b"all")})

    asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x"))
    assert sums(*STREAM_TIMES) == [0, 200, 0]


def test_a_refused_stream_is_in_no_time(clock: Clock) -> None:
    queue = RequestQueue("batch")

    async def chunks() -> AsyncIterator[bytes]:
        yield b"busy"

    async def handler(incoming: Request) -> Response:
        if incoming.query_params:
            return StreamingResponse(chunks(), 429)
        queue.reject()
        return StreamingResponse(chunks(), 503)

    async def main() -> None:
        app = app_of(handler)
        await request(app, "/x")
        await request(app, "/x", query_string=b"a=1")

    asyncio.run(main())
    assert outcomes() == {"rejected": 2}
    assert counts(*STREAM_TIMES, "inference_request_duration_seconds") == [0, 0, 0, 0]


def test_a_thousand_events_are_one_request_and_999_gaps(clock: Clock) -> None:
    """open-telemetry/opentelemetry-python-contrib#831: a span for each chunk."""

    async def events() -> AsyncIterator[str]:
        for i in range(1000):
            clock.advance(0.01)
            yield f"data: {i}\n\n"

    async def handler(incoming: Request) -> Response:
        return StreamingResponse(events(), media_type="text/event-stream")

    asyncio.run(request(app_of(handler), "/x"))
    assert requests() == {("/x", "GET", "200", "ok"): 1}
    assert counts(*STREAM_TIMES) == [1, 1, 999]
    assert sums(*STREAM_TIMES) == [0, 10, 9990]


def test_gaps_are_counted_while_the_stream_goes_on(clock: Clock) -> None:
    async def main() -> list[float]:
        sent_three, go_on = asyncio.Event(), asyncio.Event()

        async def events() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x"
            sent_three.set()
            await go_on.wait()

        async def handler(incoming: Request) -> Response:
            return StreamingResponse(events())

        task = asyncio.create_task(request(app_of(handler), "/x"))
        await sent_three.wait()
        seen = counts(*STREAM_TIMES)
        go_on.set()
        await task
        return seen

    assert asyncio.run(main()) == [1, 1, 2]


def test_a_file_sent_by_descriptor_is_a_stream(clock: Clock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        for more in (True, True, False):
            clock.advance(0.1)
            await send({"type": "http.response.zerocopysend", "file": 3, "more_body": more})

    asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x"))
    assert sums(*STREAM_TIMES) == [0, 100, 200]
    assert outcomes() == {"ok": 1}


# --- background ---


def test_background_tasks_have_their_own_time(clock: Clock) -> None:
    """trallnag/prometheus-fastapi-instrumentator#191, DataDog/dd-trace-py#3023 and #7132."""
    app = FastAPI()

    @app.get("/items/{item_id}")
    async def get_item(item_id: int, tasks: BackgroundTasks) -> int:
        clock.advance(0.03)
        tasks.add_task(clock.advance, 0.2)
        return item_id

    app.add_middleware(StageTimingMiddleware, service="s")
    asyncio.run(request(app, "/items/7"))
    assert sums("inference_request_duration_seconds", "inference_background_seconds") == [30, 200]
    assert values("inference_background_seconds_count", "route") == {("/items/{item_id}",): 1}


def test_a_streams_background_is_not_its_duration(clock: Clock) -> None:
    async def handler(incoming: Request) -> Response:
        async def chunks() -> AsyncIterator[str]:
            for _ in range(2):
                clock.advance(0.03)
                yield "x"

        return StreamingResponse(chunks(), background=BackgroundTask(clock.advance, 0.2))

    app = Starlette(routes=[Route("/x", handler)])
    app.add_middleware(StageTimingMiddleware, service="s")
    asyncio.run(request(app, "/x"))
    assert sums("inference_request_duration_seconds", "inference_background_seconds") == [60, 200]


@pytest.mark.parametrize("neighbour", [Passes, GZipMiddleware])
@pytest.mark.parametrize("is_outside", [False, True])
def test_background_among_other_middlewares(clock: Clock, neighbour: Any, is_outside: bool) -> None:
    async def handler(incoming: Request) -> Response:
        clock.advance(0.03)
        return Response("x", background=BackgroundTask(clock.advance, 0.2))

    app = Starlette(routes=[Route("/x", handler)])
    if not is_outside:
        app.add_middleware(neighbour)
    app.add_middleware(StageTimingMiddleware, service="s")
    if is_outside:
        app.add_middleware(neighbour)
    asyncio.run(request(app, "/x"))
    assert sums("inference_request_duration_seconds", "inference_background_seconds") == [30, 200]
    assert outcomes() == {"ok": 1}


def test_returning_is_no_background_work(clock: Clock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body"})
        clock.advance(0.001)

    asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x"))
    assert counts("inference_background_seconds") == [0]


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError, SystemExit])
def test_background_work_that_fails_is_timed_too(clock: Clock, error: type[BaseException]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body"})
        clock.advance(0.2)
        raise error

    async def main() -> None:
        with pytest.raises(error):
            await request(StageTimingMiddleware(app, service="s"), "/x")

    asyncio.run(main())
    assert sums("inference_background_seconds") == [200]
    assert outcomes() == {"ok": 1}


@pytest.mark.parametrize("is_inside", [False, True])
def test_stages_of_the_background_are_not_the_requests(clock: Clock, is_inside: bool) -> None:
    def later() -> None:
        with stage("inference"):
            clock.advance(0.2)

    async def chunks() -> AsyncIterator[bytes]:
        with stage("preprocess"):
            clock.advance(0.03)
        yield b"x"

    async def handler(incoming: Request) -> Response:
        return StreamingResponse(chunks(), background=BackgroundTask(later))

    app = Starlette(routes=[Route("/x", handler)])
    if is_inside:
        app.add_middleware(Passes)
    app.add_middleware(StageTimingMiddleware, service="s")
    asyncio.run(request(app, "/x"))
    assert sums("inference_request_duration_seconds") == [30]
    stages = {
        name: seconds
        for (name,), seconds in values("inference_stage_seconds_total", "stage").items()
        if seconds
    }
    assert stages == {"preprocess": 0.03, "inference": 0.2}


# --- before the server ---

NOW_NS = 1_700_000_000_500_000_000


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "time_ns", lambda: NOW_NS)


@pytest.mark.parametrize(
    ("stamp", "waited_ms"),
    [
        (b"t=1700000000.123", 377),
        (b"1700000000.123", 377),
        (b"t=1700000000", 500),
        (b"1700000000", 500),
        (b"1700000000123", 377),
        (b"t=1700000000123", 377),
        (b"1700000000123.75", 376.25),
        (b"t=1700000000123456", 376.544),
        (b"1700000000123456789", 376.543211),
        (b" t=1699999998.5 ", 2000),
        (b"t=1700000000.2, t=1700000000.4", 300),
        (b"1700000000500", 0),
        (b"t=1700000001.4", 0),
        (b"t=1699996401.5", 3599_000),
    ],
)
def test_every_form_of_request_start(wall_clock: None, stamp: bytes, waited_ms: float) -> None:
    """nginx's t=${msec}, Heroku's milliseconds, Apache's t=%t; a clock a little ahead is 0."""
    assert wait_ns([(b"x-request-start", stamp)]) == round(waited_ms * 1e6)


@pytest.mark.parametrize(
    "stamp",
    [
        b"",
        b"t=",
        b"now",
        b"t=nan",
        b"inf",
        b"1e9",
        b"-1700000000",
        b"1_700_000_000",
        b"t=t=1700000000",
        b"1700000000.",
        b"1700000000.1234567890",
        b"0x6553f100",
        b"1700000002",
        b"9999999999999",
        b"t=0",
        b"1",
        b"1699996399",
        b"1600000000000",
        b"99999999999",
        b"1" * 5000,
        b"\xd9\xa1" * 10,
        b"2023-11-14T22:13:20Z",
    ],
)
def test_garbage_and_absurd_stamps_are_ignored(wall_clock: None, stamp: bytes) -> None:
    assert wait_ns([(b"x-request-start", stamp)]) is None


def test_without_the_header_nothing_is_known(wall_clock: None) -> None:
    assert wait_ns([(b"x-queue-start", b"1700000000"), (b"host", b"1700000000")]) is None


def test_of_several_stamps_the_earliest_that_can_be_counts(wall_clock: None) -> None:
    headers = [(b"x-request-start", stamp) for stamp in (b"1700000000.4", b"5", b"1700000000.1")]
    assert wait_ns(headers) == 400_000_000


@pytest.mark.parametrize(("options", "count"), [({}, 0), ({"trust_request_start": True}, 1)])
def test_a_request_start_counts_where_it_is_trusted(
    options: dict[str, bool], count: int, wall_clock: None
) -> None:
    async def handler(incoming: Request) -> Response:
        return Response()

    headers = [(b"x-request-start", b"t=1700000000.123")]

    asyncio.run(request(app_of(handler, **options), "/x", headers=headers))
    assert counts("inference_upstream_wait_seconds") == [count]
    assert sums("inference_upstream_wait_seconds") == [377 * count]


@pytest.mark.parametrize("headers", [None, [None], [(b"x-request-start",)]])
def test_headers_of_no_known_form_fail_nothing(headers: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body"})

    wrapped: App = StageTimingMiddleware(app, service="s", trust_request_start=True)

    async def main() -> None:
        exchange = Exchange()
        await wrapped(http_scope("/x", headers=headers), exchange.receive, exchange.send)

    asyncio.run(main())
    assert outcomes() == {"ok": 1}
    assert nonzero("tailwatch_errors_total", ["where"]) == {("request",): 1}
