"""Websockets are counted and timed by themselves, and never as requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tailwatch_tracing import StageTimingMiddleware, stage
from tests.tracing.asgi import App, http_scope, nonzero, outcomes, values
from tests.tracing.conftest import Clock

CONNECT = {"type": "websocket.connect"}
HELLO = {"type": "websocket.receive", "text": "hello"}

Endpoint = Callable[[WebSocket], Awaitable[None]]


def websocket_scope(**more: Any) -> dict[str, Any]:
    scope = http_scope("/ws/7", type="websocket", subprotocols=[], **more)
    del scope["method"]  # it has none
    return scope


async def connect(
    app: App, incoming: Iterable[dict[str, Any]], send_error: Exception | None = None
) -> list[Any]:
    """Serve one websocket: what the server is sent; `send_error` fails all that follow accept."""
    messages = iter((CONNECT, *incoming))
    sent: list[Any] = []

    async def receive() -> Any:
        for message in messages:
            return message
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if send_error is not None and message["type"] != "websocket.accept":
            raise send_error
        sent.append(message)

    scope = websocket_scope(extensions={"websocket.http.response": {}})
    await app(scope, receive, send)
    return sent


def app_of(endpoint: Endpoint) -> App:
    app = Starlette(routes=[WebSocketRoute("/ws/{n}", endpoint)])
    app.add_middleware(StageTimingMiddleware, service="s")
    return app


def closes() -> dict[str, float]:
    return {code: n for (code,), n in nonzero("inference_websocket_closes_total", ["code"]).items()}


def assert_closed(code: str, *, lived_seconds: float | None = None) -> None:
    assert closes() == {code: 1}
    assert values("inference_websocket_connections") == {(): 0}
    assert values("inference_websocket_duration_seconds_count") == {
        (): 0 if lived_seconds is None else 1
    }
    assert values("inference_websocket_duration_seconds_sum") == {(): lived_seconds or 0}
    assert outcomes() == {}
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def echo_for(clock: Clock) -> Endpoint:
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        while (message := await websocket.receive())["type"] == "websocket.receive":
            await websocket.send_text(message["text"])
            clock.advance(90)

    return echo


@pytest.mark.parametrize(
    ("disconnect", "code"),
    [
        ({"code": 1000}, "1000"),
        ({"code": 1001, "reason": "going"}, "1001"),
        ({"code": 1006}, "1006"),
        ({}, "1005"),
        ({"code": 4321}, "4321"),
        ({"code": None}, "__other__"),
        ({"code": "1000"}, "__other__"),
        ({"code": 99999}, "__other__"),
    ],
)
def test_the_clients_close_code(clock: Clock, disconnect: dict[str, Any], code: str) -> None:
    """litestar-org/litestar#1934, claws/aioprometheus#94: a scope without a method."""
    incoming = [HELLO, HELLO, {"type": "websocket.disconnect", **disconnect}]
    sent = asyncio.run(connect(app_of(echo_for(clock)), incoming))
    assert [message["type"] for message in sent] == ["websocket.accept", *["websocket.send"] * 2]
    assert_closed(code, lived_seconds=180)


@pytest.mark.parametrize(("close", "code"), [({}, "1000"), ({"code": 4000}, "4000")])
def test_the_applications_close_code(clock: Clock, close: dict[str, Any], code: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        clock.advance(2)
        await send({"type": "websocket.close", **close})
        clock.advance(60)
        await receive()
        assert (await receive())["type"] == "websocket.disconnect"

    wrapped = StageTimingMiddleware(app, service="s")
    asyncio.run(connect(wrapped, [{"type": "websocket.disconnect", "code": 1005}]))
    assert_closed(code, lived_seconds=2)


def test_a_refused_handshake_is_told_by_its_status(clock: Clock) -> None:
    async def refuse(websocket: WebSocket) -> None:
        await websocket.close(1008)

    asyncio.run(connect(app_of(refuse), []))
    assert_closed("403")


def test_a_denial_response_is_told_by_its_status(clock: Clock) -> None:
    async def deny(websocket: WebSocket) -> None:
        await websocket.send_denial_response(JSONResponse({}, 402))

    asyncio.run(connect(app_of(deny), []))
    assert_closed("402")


def test_no_route_is_a_refused_handshake(clock: Clock) -> None:
    app = Starlette()
    app.add_middleware(StageTimingMiddleware, service="s")
    asyncio.run(connect(app, []))
    assert_closed("403")


@pytest.mark.parametrize(
    ("accepts", "error", "code"),
    [
        (False, None, "500"),
        (False, LookupError, "500"),
        (True, None, "1006"),
        (True, LookupError, "1011"),
        (True, asyncio.CancelledError, "1006"),
    ],
)
def test_an_application_that_ends_without_a_close(
    clock: Clock, accepts: bool, error: type[BaseException] | None, code: str
) -> None:
    async def end(websocket: WebSocket) -> None:
        if accepts:
            await websocket.accept()
        clock.advance(3)
        if error is not None:
            raise error

    async def main() -> None:
        try:
            await connect(app_of(end), [])
        except BaseException as raised:
            assert type(raised) is error

    asyncio.run(main())
    assert_closed(code, lived_seconds=3 if accepts else None)


def test_a_send_that_fails_is_a_broken_connection(clock: Clock) -> None:
    """ASGI 2.4: send raises OSError once the client has gone; Starlette makes a 1006 of it."""

    async def main() -> None:
        await connect(app_of(echo_for(clock)), [HELLO], OSError("gone"))

    with pytest.raises(WebSocketDisconnect) as caught:
        asyncio.run(main())
    assert caught.value.code == 1006
    assert_closed("1006", lived_seconds=0)


def test_open_ones_are_counted_and_cancellation_ends_them(clock: Clock) -> None:
    async def main() -> None:
        async def stay(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.receive_text()

        app = app_of(stay)
        tasks = [asyncio.create_task(connect(app, [])) for _ in range(3)]
        await asyncio.sleep(0)
        assert values("inference_websocket_connections") == {(): 3}
        assert values("inference_requests_in_flight") == {(): 0}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert values("inference_websocket_connections") == {(): 0}
    assert closes() == {"1006": 3}


def test_usual_codes_exist_from_the_first_websocket_and_none_before(clock: Clock) -> None:
    app = app_of(echo_for(clock))
    assert values("inference_websocket_connections") == {}
    assert values("inference_websocket_closes_total", "code") == {}
    asyncio.run(connect(app, [{"type": "websocket.disconnect", "code": 1001}]))
    assert set(values("inference_websocket_closes_total", "code")) == {
        (code,) for code in ("1000", "1001", "1005", "1006", "1011")
    }


def test_codes_that_clients_make_up_are_capped(clock: Clock) -> None:
    async def main() -> None:
        app = app_of(echo_for(clock))
        for code in range(3000, 3500):
            await connect(app, [{"type": "websocket.disconnect", "code": code}])

    asyncio.run(main())
    assert sum(closes().values()) == 500
    assert len(closes()) < 70
    assert closes()["__other__"] > 400
    overflow = nonzero("tailwatch_series_overflow_total", ["metric"])
    assert overflow == {("inference_websocket_closes_total",): closes()["__other__"]}


def test_excluded_paths_are_passed_on_uncounted(clock: Clock) -> None:
    app = StageTimingMiddleware(app_of(echo_for(clock)), service="outer", exclude=["/ws/7"])
    asyncio.run(connect(app, [{"type": "websocket.disconnect"}]))
    assert values("inference_websocket_connections", "service") == {("s",): 0}


def test_stages_belong_to_the_websockets_service(clock: Clock) -> None:
    async def work(websocket: WebSocket) -> None:
        await websocket.accept()
        for _ in range(2):
            with stage("inference"):
                clock.advance(0.1)
        await websocket.close()

    StageTimingMiddleware(Starlette(), service="first of the process")
    asyncio.run(connect(app_of(work), []))
    assert nonzero("inference_stage_duration_seconds_count", ["service", "stage"]) == {
        ("s", "inference"): 2
    }


def test_a_forked_child_has_none_of_its_parents_websockets() -> None:
    async def fork(websocket: WebSocket) -> None:
        await websocket.accept()
        pid = os.fork()
        if pid == 0:
            os._exit(values("inference_websocket_connections") != {(): 0})
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert values("inference_websocket_connections") == {(): 1}
        await websocket.close()

    asyncio.run(connect(app_of(fork), []))
    assert closes() == {"1000": 1}


def test_two_middlewares_of_a_service_share_their_websockets(clock: Clock) -> None:
    async def main() -> None:
        for _ in range(2):
            app = app_of(echo_for(clock))
            await connect(app, [{"type": "websocket.disconnect", "code": 1000}])

    asyncio.run(main())
    assert closes() == {"1000": 2}
    assert values("inference_websocket_connections") == {(): 0}
