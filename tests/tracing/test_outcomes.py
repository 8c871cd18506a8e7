"""How a request ended, and what status was sent: one outcome each, in every way to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import anyio
import pytest
import trio
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tailwatch_tracing import RequestQueue, StageTimingMiddleware, stage
from tailwatch_tracing.families import OUTCOMES
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

Handler = Callable[[Request], Awaitable[Response]]

START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"x"}
MORE = {"type": "http.response.body", "body": b"x", "more_body": True}


def app_of(handler: Handler, **options: Any) -> App:
    app = Starlette()
    app.add_middleware(StageTimingMiddleware, service="s", **options)
    app.router.routes.append(Route("/x", handler, methods=["GET", "POST"]))
    return app


def wrap(app: App, **options: Any) -> App:
    return StageTimingMiddleware(app, service="s", **options)


def assert_counted_once(status: int, outcome: str, route: str = "/x") -> None:
    """Exactly one response is counted, in both families, and nothing stays in flight."""
    assert requests() == {(route, "GET", str(status), outcome): 1}
    assert outcomes() == {outcome: 1}
    assert values("inference_requests_in_flight") == {(): 0}
    assert values("inference_oldest_in_flight_seconds") == {(): 0}
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def durations() -> float:
    return sum(values("inference_request_duration_seconds_sum").values())


def test_every_outcome_exists_from_the_start() -> None:
    wrap(Starlette())
    assert set(values("inference_outcomes_total", "outcome")) == {(name,) for name in OUTCOMES.row}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"),
        (204, "ok"),
        (304, "ok"),
        (307, "ok"),
        (400, "client_error"),
        (404, "client_error"),
        (429, "rejected"),
        (499, "client_error"),
        (500, "error"),
        (503, "error"),
        (599, "error"),
    ],
)
def test_an_answer_is_counted_by_its_status(status: int, outcome: str) -> None:
    async def handler(incoming: Request) -> Response:
        return Response(status_code=status)

    asyncio.run(request(app_of(handler), "/x"))
    assert_counted_once(status, outcome)


def test_a_status_given_as_an_enum_is_the_same_series() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "status": HTTPStatus.OK})
        await send(BODY)

    async def main() -> None:
        for _ in range(2):
            await request(wrap(app), "/x")

    asyncio.run(main())
    assert requests() == {("__unmatched__", "GET", "200", "ok"): 2}


def test_an_exception_before_the_response_is_an_error_of_500() -> None:
    async def handler(incoming: Request) -> Response:
        raise LookupError("theirs")

    with pytest.raises(LookupError, match="theirs"):
        asyncio.run(request(app_of(handler), "/x"))
    assert_counted_once(500, "error")


def test_an_http_exception_is_its_status() -> None:
    async def handler(incoming: Request) -> Response:
        raise HTTPException(403)

    asyncio.run(request(app_of(handler), "/x"))
    assert_counted_once(403, "client_error")


def test_an_error_after_the_response_started_keeps_the_status_that_was_sent() -> None:
    """trallnag/prometheus-fastapi-instrumentator#7: plain 200, 500, or two responses."""
    error = RuntimeError("mid-stream")

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"
        raise error

    async def handler(incoming: Request) -> Response:
        return StreamingResponse(chunks())

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(request(app_of(handler), "/x"))
    assert caught.value is error
    assert_counted_once(200, "error_midstream")


async def pass_on(incoming: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(incoming)


def among_middlewares(app: Starlette) -> App:
    """With Starlette's BaseHTTPMiddleware on both sides of ours."""
    app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    app.add_middleware(StageTimingMiddleware, service="s")
    app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    return app


@pytest.mark.parametrize("event", ["none", "REJECTED", "left"])
def test_an_error_that_a_base_http_middleware_holds_back_is_midstream(event: str) -> None:
    """It ends the stream as if it were complete, and raises when nobody can see the difference."""
    queue = RequestQueue("batch", service="s")
    exchange = Exchange()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"
        if event == "REJECTED":
            queue.reject()
        if event == "left":
            exchange.disconnect.set()
            await asyncio.sleep(1)
        raise LookupError

    async def handler(incoming: Request) -> Response:
        return StreamingResponse(chunks())

    async def main() -> None:
        app = among_middlewares(Starlette(routes=[Route("/x", handler)]))
        await app(http_scope("/x"), exchange.receive, exchange.send)

    if event == "left":
        asyncio.run(main())
    else:
        with pytest.raises(LookupError):
            asyncio.run(main())
    outcome = {"none": "error_midstream", "REJECTED": "rejected", "left": "client_disconnect"}
    assert_counted_once(200, outcome[event])


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_behind_a_base_http_middleware_background_errors_are_still_not_the_requests(
    streams: bool, fails: bool
) -> None:
    async def background() -> None:
        if fails:
            raise LookupError

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"

    async def handler(incoming: Request) -> Response:
        task = BackgroundTask(background)
        if streams:
            return StreamingResponse(chunks(), background=task)
        return PlainTextResponse("x", background=task)

    app = among_middlewares(Starlette(routes=[Route("/x", handler)]))
    try:
        asyncio.run(request(app, "/x"))
    except LookupError:
        assert fails
    assert_counted_once(200, "ok")


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_stream_is_counted_at_its_end_unless_a_base_http_middleware_may_hide_an_error(
    is_inside: bool, spec_version: str
) -> None:
    in_background: list[dict[str, float]] = []

    async def background() -> None:
        in_background.append(outcomes())

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"

    async def handler(incoming: Request) -> Response:
        return StreamingResponse(chunks(), background=BackgroundTask(background))

    app = Starlette(routes=[Route("/x", handler)])
    if is_inside:
        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    app.add_middleware(StageTimingMiddleware, service="s")
    if not is_inside:
        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    asgi = {"version": "3.0", "spec_version": spec_version}
    asyncio.run(request(app, "/x", asgi=asgi))
    assert in_background == [{} if is_inside else {"ok": 1}]
    assert_counted_once(200, "ok")


@pytest.mark.parametrize(
    ("status", "outcome"), [(200, "ok"), (404, "client_error"), (503, "error")]
)
def test_behind_a_base_http_middleware_an_answer_is_counted_by_its_status(
    status: int, outcome: str
) -> None:
    async def handler(incoming: Request) -> Response:
        return PlainTextResponse("x", status)

    asyncio.run(request(among_middlewares(Starlette(routes=[Route("/x", handler)])), "/x"))
    assert_counted_once(status, outcome)


def test_an_application_that_returns_half_way_is_an_error_midstream() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(MORE)

    asyncio.run(request(wrap(app), "/x"))
    assert_counted_once(200, "error_midstream", "__unmatched__")


def test_a_second_last_message_counts_nothing() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in (START, BODY, BODY):
            await send(message)

    asyncio.run(request(wrap(app), "/x"))
    assert_counted_once(200, "ok", "__unmatched__")


def test_an_application_that_returns_without_an_answer_is_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    asyncio.run(request(wrap(app), "/x"))
    assert_counted_once(500, "error", "__unmatched__")


# --- clients that leave, tasks that are cancelled ---


async def cancel_after(app: App, started: asyncio.Event, exchange: Exchange) -> None:
    task = asyncio.create_task(app(http_scope("/x"), exchange.receive, exchange.send))  # type: ignore[arg-type]
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("has_left", "outcome"), [(False, "cancelled"), (True, "client_disconnect")]
)
def test_cancelled_before_the_response_starts(has_left: bool, outcome: str) -> None:
    """stephenhillier/starlette_exporter#77: counted as a 500."""

    async def main() -> None:
        started = asyncio.Event()
        exchange = Exchange()

        async def handler(incoming: Request) -> Response:
            await incoming.body()
            if has_left:
                exchange.disconnect.set()
                await incoming.receive()
            started.set()
            await asyncio.Event().wait()
            return Response()

        await cancel_after(app_of(handler), started, exchange)

    asyncio.run(main())
    assert_counted_once(499, outcome)


def test_cancelled_mid_stream_keeps_the_status_sent() -> None:
    async def main() -> None:
        started = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send(START)
            await send(MORE)
            started.set()
            await asyncio.Event().wait()

        await cancel_after(wrap(app), started, Exchange())

    asyncio.run(main())
    assert_counted_once(200, "cancelled", "__unmatched__")


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
def test_a_disconnect_in_a_stream_is_the_clients(spec_version: str) -> None:
    """Starlette cancels the stream by itself below ASGI 2.4, and meets a failed send from it on."""

    async def main() -> None:
        exchange = Exchange()

        async def chunks() -> AsyncIterator[bytes]:
            yield b"one"
            exchange.disconnect.set()
            if spec_version == "2.4":
                exchange.fail_on("http.response.body")
            while True:
                await asyncio.sleep(0)
                yield b"more"

        async def handler(incoming: Request) -> Response:
            return StreamingResponse(chunks())

        scope = http_scope("/x", asgi={"version": "3.0", "spec_version": spec_version})
        try:
            await app_of(handler)(scope, exchange.receive, exchange.send)
        except Exception as error:
            assert type(error).__name__ == "ClientDisconnect"

    asyncio.run(main())
    assert_counted_once(200, "client_disconnect")


@pytest.mark.parametrize(
    "error", [OSError("gone"), ConnectionResetError(), anyio.BrokenResourceError()], ids=type
)
@pytest.mark.parametrize(
    ("message", "status"), [("http.response.start", 499), ("http.response.body", 200)]
)
def test_a_failed_send_is_a_client_that_left(error: Exception, message: str, status: int) -> None:
    async def handler(incoming: Request) -> Response:
        return PlainTextResponse("x")

    async def main() -> None:
        exchange = Exchange()
        exchange.fail_on(message, error)
        await app_of(handler)(http_scope("/x"), exchange.receive, exchange.send)

    with pytest.raises(type(error)) as caught:
        asyncio.run(main())
    assert caught.value is error
    assert_counted_once(status, "client_disconnect")


def test_an_os_error_of_the_handlers_own_is_an_error() -> None:
    async def handler(incoming: Request) -> Response:
        raise FileNotFoundError("model.bin")

    with pytest.raises(FileNotFoundError):
        asyncio.run(request(app_of(handler), "/x"))
    assert_counted_once(500, "error")


def test_a_failed_send_that_the_application_swallows_is_still_the_clients() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        try:
            await send(MORE)
        except OSError:
            return

    async def main() -> None:
        exchange = Exchange()
        exchange.fail_on("http.response.body")
        await wrap(app)(http_scope("/x"), exchange.receive, exchange.send)

    asyncio.run(main())
    assert_counted_once(200, "client_disconnect", "__unmatched__")


async def request_and_leave(app: App) -> None:
    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    await app(http_scope("/x"), receive, Exchange().send)


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_upload_that_breaks_off_is_the_clients_wherever_the_middleware_is(
    wrapped: bool,
) -> None:
    """Inside, the error passes; around the application, the 500 that nobody gets does."""

    async def upload(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    plain = Starlette(routes=[Route("/x", upload, methods=["GET"])])
    app = wrap(plain) if wrapped else app_of(upload)

    with pytest.raises(ClientDisconnect):
        asyncio.run(request_and_leave(app))
    assert_counted_once(499, "client_disconnect")


def test_an_upload_that_breaks_off_is_the_clients_though_fastapi_says_400() -> None:
    async def upload(body: dict[str, int]) -> None: ...

    app = FastAPI()
    app.add_api_route("/x", upload)
    asyncio.run(request_and_leave(wrap(app)))
    assert_counted_once(400, "client_disconnect")


def test_a_500_that_the_client_did_not_wait_for_to_its_end_is_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "status": 500})
        assert (await receive())["type"] == "http.disconnect"
        await send(BODY)

    asyncio.run(request_and_leave(wrap(app)))
    assert_counted_once(500, "error", "__unmatched__")


def test_a_disconnect_after_the_last_body_message_changes_nothing() -> None:
    async def main() -> None:
        exchange = Exchange()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send(START)
            await send(BODY)
            exchange.disconnect.set()
            await receive()
            assert (await receive())["type"] == "http.disconnect"

        await wrap(app)(http_scope("/x"), exchange.receive, exchange.send)

    asyncio.run(main())
    assert_counted_once(200, "ok", "__unmatched__")


class TellsEarly(Exchange):
    """Tells of the client's leaving while it sends the last message, as hypercorn over HTTP/2."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.disconnect.set()
            for _ in range(5):
                await asyncio.sleep(0)


@pytest.mark.parametrize("middlewares", [0, 1])
def test_a_client_that_leaves_with_the_last_message_has_its_answer(middlewares: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"

    async def handler(incoming: Request) -> Response:
        return StreamingResponse(chunks())

    async def main() -> None:
        app = Starlette(routes=[Route("/x", handler)])
        for _ in range(middlewares):
            app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
        app.add_middleware(StageTimingMiddleware, service="s")
        exchange = TellsEarly()
        await app(http_scope("/x"), exchange.receive, exchange.send)

    asyncio.run(main())
    assert_counted_once(200, "ok")


@pytest.mark.parametrize(("body", "outcome"), [(b"", "ok"), (b"rest", "client_disconnect")])
def test_a_last_message_that_is_cut_has_not_come_unless_it_is_empty(
    body: bytes, outcome: str
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def listen() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            sending.cancel()

        await send(START)
        await send(MORE)
        last = send({"type": "http.response.body", "body": body, "more_body": False})
        sending = asyncio.create_task(last)
        await asyncio.gather(listen(), sending, return_exceptions=True)

    async def main() -> None:
        exchange = TellsEarly()
        await wrap(app)(http_scope("/x"), exchange.receive, exchange.send)

    asyncio.run(main())
    assert_counted_once(200, outcome, "__unmatched__")


def test_a_generator_exit_counts_as_cancelled() -> None:
    """A server that drops the coroutine, as at the end of its loop."""

    class Never:
        def __await__(self) -> Any:
            yield

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Never()

    exchange = asyncio.run(_exchange())
    coroutine = wrap(app)(http_scope("/x"), exchange.receive, exchange.send)
    coroutine.send(None)  # type: ignore[attr-defined]
    coroutine.close()  # type: ignore[attr-defined]
    assert_counted_once(499, "cancelled", "__unmatched__")


class Fatal(BaseException): ...


CANCELLED = asyncio.CancelledError()


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize(
    ("error", "is_cancelled"),
    [
        (SystemExit(1), False),
        (KeyboardInterrupt(), False),
        (Fatal(), False),
        (ExceptionGroup("", [LookupError()]), False),
        (BaseExceptionGroup("", [CANCELLED, Fatal()]), False),
        (BaseExceptionGroup("", [CANCELLED, BaseExceptionGroup("", [CANCELLED])]), True),
        (CANCELLED, True),
    ],
    ids=repr,
)
def test_what_is_no_cancellation_is_an_error(
    error: BaseException, is_cancelled: bool, starts: bool
) -> None:
    """Uvicorn answers all of them with a 500 where nothing was sent."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if starts:
            await send(START)
        raise error

    exchange = asyncio.run(_exchange())
    with pytest.raises(type(error)) as caught:
        wrap(app)(http_scope("/x"), exchange.receive, exchange.send).send(None)  # type: ignore[attr-defined]
    assert caught.value is error
    if is_cancelled:
        expected = (200 if starts else 499, "cancelled")
    else:
        expected = (200, "error_midstream") if starts else (500, "error")
    assert_counted_once(*expected, "__unmatched__")


def test_a_task_that_trio_cancels_is_cancelled() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep_forever()

    async def main() -> None:
        exchange = Exchange()
        with trio.move_on_after(0.01):
            await wrap(app)(http_scope("/x"), exchange.receive, exchange.send)

    trio.run(main)
    assert_counted_once(499, "cancelled", "__unmatched__")


async def _exchange() -> Exchange:
    return Exchange()


# --- where the duration ends ---


def test_background_tasks_are_not_the_clients_wait(clock: Clock) -> None:
    """trallnag/prometheus-fastapi-instrumentator#191."""
    in_flight_in_background: list[float] = []

    def background() -> None:
        in_flight_in_background.append(values("inference_requests_in_flight")[()])
        clock.advance(0.2)

    async def handler(incoming: Request) -> Response:
        clock.advance(0.03)
        return PlainTextResponse("x", background=BackgroundTask(background))

    asyncio.run(request(app_of(handler), "/x"))
    assert durations() == 0.03
    assert in_flight_in_background == [0]
    assert_counted_once(200, "ok")


def test_an_error_in_a_background_task_is_not_the_requests() -> None:
    def background() -> None:
        raise LookupError

    async def handler(incoming: Request) -> Response:
        return PlainTextResponse("x", background=BackgroundTask(background))

    with pytest.raises(LookupError):
        asyncio.run(request(app_of(handler), "/x"))
    assert_counted_once(200, "ok")


def test_a_stream_is_timed_to_its_last_chunk(clock: Clock) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            clock.advance(0.05)
            yield b"x"

    async def handler(incoming: Request) -> Response:
        return StreamingResponse(chunks())

    asyncio.run(request(app_of(handler), "/x"))
    assert durations() == 0.25


def test_a_file_sent_by_its_path_ends_the_request(clock: Clock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        clock.advance(0.1)
        await send({"type": "http.response.pathsend", "path": "/f"})
        clock.advance(1)

    asyncio.run(request(wrap(app), "/x"))
    assert durations() == 0.1
    assert_counted_once(200, "ok", "__unmatched__")


# --- elapsed client time-outs ---


def slow(clock: Clock, seconds: float, status: int = 200) -> Handler:
    async def handler(incoming: Request) -> Response:
        clock.advance(seconds)
        return Response(status_code=status)

    return handler


@pytest.mark.parametrize(
    ("seconds", "status", "outcome"),
    [
        (5.0, 200, "ok"),
        (5.001, 200, "timeout"),
        (5.001, 404, "client_error"),
        (5.001, 500, "error"),
        (5.001, 429, "rejected"),
    ],
)
def test_a_late_answer_is_a_timeout_unless_it_is_worse(
    clock: Clock, seconds: float, status: int, outcome: str
) -> None:
    asyncio.run(request(app_of(slow(clock, seconds, status), client_timeout_seconds=5), "/x"))
    assert_counted_once(status, outcome)


def test_without_a_client_timeout_nothing_times_out(clock: Clock) -> None:
    asyncio.run(request(app_of(slow(clock, 3600)), "/x"))
    assert_counted_once(200, "ok")


@pytest.mark.parametrize(("to_start", "outcome"), [(1, "ok"), (6, "timeout")])
def test_a_stream_is_late_when_its_start_is(clock: Clock, to_start: float, outcome: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            clock.advance(4)
            yield b"x"

    async def handler(incoming: Request) -> Response:
        clock.advance(to_start)
        return StreamingResponse(chunks())

    asyncio.run(request(app_of(handler, client_timeout_seconds=5), "/x"))
    assert_counted_once(200, outcome)


def test_a_body_without_a_start_is_the_servers_to_refuse(clock: Clock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(MORE)
        clock.advance(6)
        await send(BODY)

    asyncio.run(request(wrap(app, client_timeout_seconds=5), "/x"))
    assert_counted_once(0, "timeout", "__unmatched__")


def test_a_client_that_left_after_its_timeout_timed_out(clock: Clock) -> None:
    async def main() -> None:
        exchange = Exchange()

        async def handler(incoming: Request) -> Response:
            await incoming.body()
            clock.advance(5.5)
            exchange.disconnect.set()
            await incoming.receive()
            return PlainTextResponse("late")

        await app_of(handler, client_timeout_seconds=5)(
            http_scope("/x"), exchange.receive, exchange.send
        )

    asyncio.run(main())
    assert_counted_once(200, "timeout")


# --- the many that are alike ---


def test_however_a_request_is_counted_every_family_has_it(clock: Clock) -> None:
    """The first of its kind, those like it, the slow ones and the late: the same sums."""
    seconds = [0.1, 0.1, 0.5, 0.6, 0.1, 6.0, 0.0005, 0.1]

    async def handler(incoming: Request) -> Response:
        clock.advance(seconds[int(incoming.path_params["i"])])
        return PlainTextResponse("x")

    async def main() -> None:
        app = Starlette(routes=[Route("/{i}", handler)])
        app.add_middleware(
            StageTimingMiddleware, service="s", slo_seconds=0.5, client_timeout_seconds=5
        )
        for i in range(len(seconds)):
            await request(app, f"/{i}")

    asyncio.run(main())
    assert requests() == {("/{i}", "GET", "200", "ok"): 7, ("/{i}", "GET", "200", "timeout"): 1}
    assert outcomes() == {"ok": 7, "timeout": 1}
    assert nonzero("inference_request_duration_seconds_count", ["route"]) == {("/{i}",): 8}
    assert durations() == pytest.approx(7.5005)
    below = values("inference_request_duration_seconds_bucket", "route", "le")
    assert [below[("/{i}", le)] for le in ("0.001", "0.1", "0.5", "0.6", "5.0")] == [1, 5, 6, 7, 7]
    assert nonzero("inference_stage_duration_seconds_count", ["stage"]) == {("unattributed",): 8}
    assert values("inference_stage_duration_seconds_sum", "stage")[("unattributed",)] == (
        pytest.approx(7.5005)
    )
    assert nonzero("inference_stage_seconds_total", ["stage", "slow"]) == {
        ("unattributed", "false"): pytest.approx(0.9005),
        ("unattributed", "true"): pytest.approx(6.6),
    }


# --- rejected by a queue ---


def test_a_refused_request_is_in_no_duration_and_no_stage(clock: Clock) -> None:
    queue = RequestQueue("preprocess")

    async def handler(incoming: Request) -> Response:
        with stage("ingress"):
            clock.advance(1)
            queue.reject()
        return PlainTextResponse("full", 503)

    asyncio.run(request(app_of(handler), "/x"))
    assert_counted_once(503, "rejected")
    assert sum(values("inference_request_duration_seconds_count").values()) == 0
    assert sum(values("inference_stage_duration_seconds_count").values()) == 0
    assert sum(values("inference_stage_seconds_total").values()) == 0
    assert nonzero("inference_rejected_total", ["queue", "reason"]) == {("preprocess", "full"): 1}


def test_a_bare_503_is_an_error_and_a_429_is_rejected_without_a_queue() -> None:
    async def handler(incoming: Request) -> Response:
        return Response(status_code=int(incoming.query_params["status"]))

    async def main() -> None:
        app = app_of(handler)
        for status in (b"status=503", b"status=429"):
            await request(app, "/x", query_string=status)

    asyncio.run(main())
    assert outcomes() == {"error": 1, "rejected": 1}
    assert sum(values("inference_request_duration_seconds_count").values()) == 1


# --- in flight ---


def test_in_flight_and_the_age_of_the_oldest(clock: Clock) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handler(incoming: Request) -> Response:
            await release.wait()
            return Response()

        app = app_of(handler)
        tasks = []
        for _ in range(3):
            tasks.append(asyncio.create_task(request(app, "/x")))
            await asyncio.sleep(0)
            clock.advance(1)
        assert values("inference_requests_in_flight") == {(): 3}
        assert values("inference_oldest_in_flight_seconds") == {(): 3}
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        assert values("inference_oldest_in_flight_seconds") == {(): 2}
        release.set()
        await asyncio.gather(*tasks[1:])

    asyncio.run(main())
    assert values("inference_requests_in_flight") == {(): 0}
    assert values("inference_oldest_in_flight_seconds") == {(): 0}
