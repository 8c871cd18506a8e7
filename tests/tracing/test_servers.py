"""Real servers, HTTP/1.1 and HTTP/2: what they and their clients see, and what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import hypercorn.asyncio
import hypercorn.config
import pytest
import uvicorn
import wsproto
from fastapi import BackgroundTasks, FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from wsproto import events

from tailwatch_tracing import StageTimingMiddleware
from tests.tracing.asgi import App, nonzero, outcomes, requests, values

SERVERS = ("h11", "httptools", "hypercorn", "hypercorn-h2")

Serve = Callable[[App], contextlib.AbstractAsyncContextManager[int]]


@contextlib.asynccontextmanager
async def uvicorn_serving(app: App, http: str) -> AsyncIterator[int]:
    """Serve in this event loop; yields the port, and stops as at a SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app,
            http=http,
            ws="wsproto",
            lifespan="on",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([listener]))
        try:
            while not server.started:
                assert not task.done()
                await asyncio.sleep(0.005)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def hypercorn_serving(app: App) -> AsyncIterator[int]:
    stop = asyncio.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = hypercorn.config.Config()
    config.bind = [f"fd://{listener.detach()}"]  # hypercorn closes it
    config.graceful_timeout = 1
    config.errorlog = None
    running = hypercorn.asyncio.serve(app, config, shutdown_trigger=stop.wait)  # type: ignore[arg-type]
    task = asyncio.create_task(running)
    try:
        yield port
    finally:
        stop.set()
        await task


def serving(name: str, app: App) -> contextlib.AbstractAsyncContextManager[int]:
    return hypercorn_serving(app) if name.startswith("hypercorn") else uvicorn_serving(app, name)


def client_of(name: str, port: int) -> httpx.AsyncClient:
    is_h2 = name.endswith("h2")
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", http1=not is_h2, http2=is_h2, trust_env=False
    )


async def settled(condition: Callable[[], bool]) -> None:
    """Wait until the server has seen what its client did."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def wrapped(app: App, **options: Any) -> App:
    return StageTimingMiddleware(app, service="s", **options)


def everything(more: list[Any] | None = None) -> FastAPI:
    app = FastAPI()

    @app.get("/items/{item_id}")
    async def get_item(item_id: int, tasks: BackgroundTasks) -> dict[str, int]:
        tasks.add_task(lambda: None)
        return {"item": item_id}

    @app.post("/upload")
    async def upload(request: Request) -> int:
        return len(await request.body())

    @app.get("/events")
    async def stream() -> StreamingResponse:
        async def chunks() -> AsyncIterator[str]:
            for i in range(5):
                yield f"data: {i}\n\n"

        return StreamingResponse(chunks(), media_type="text/event-stream")

    @app.get("/fails")
    async def fails() -> None:
        raise LookupError("theirs")

    app.router.routes.extend(more or [])
    return app


PATHS = [
    ("GET", "/items/7"),
    ("HEAD", "/items/7"),
    ("GET", "/items/x"),
    ("POST", "/upload"),
    ("GET", "/events"),
    ("GET", "/fails"),
    ("GET", "/missing"),
    ("OPTIONS", "/items/7"),
    ("GET", "/health"),
]


@pytest.mark.parametrize("server", SERVERS)
def test_clients_see_the_same_answers(server: str) -> None:
    async def answers(app: App) -> list[Any]:
        seen = []
        async with serving(server, app) as port, client_of(server, port) as client:
            for method, path in PATHS:
                content = b"x" * 200_000 if method == "POST" else None
                answer = await client.request(method, path, content=content)
                headers = [(k, v) for k, v in answer.headers.raw if k.lower() != b"date"]
                seen.append((answer.http_version, answer.status_code, headers, answer.content))
        return seen

    bare = asyncio.run(answers(everything()))
    assert asyncio.run(answers(wrapped(everything()))) == bare
    assert {version for version, *_ in bare} == {"HTTP/2" if server.endswith("h2") else "HTTP/1.1"}
    assert requests() == {
        ("/items/{item_id}", "GET", "200", "ok"): 1,
        ("/items/{item_id}", "HEAD", "405", "client_error"): 1,
        ("/items/{item_id}", "GET", "422", "client_error"): 1,
        ("/upload", "POST", "200", "ok"): 1,
        ("/events", "GET", "200", "ok"): 1,
        ("/fails", "GET", "500", "error"): 1,
        ("__unmatched__", "GET", "404", "client_error"): 1,
        ("/items/{item_id}", "OPTIONS", "405", "client_error"): 1,
    }
    assert values("inference_time_to_first_chunk_seconds_count", "route") == {("/events",): 1}
    assert values("inference_chunk_gap_seconds_count", "route") == {("/events",): 4}
    assert values("inference_requests_in_flight") == {(): 0}
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


@pytest.mark.parametrize("server", SERVERS)
def test_a_stream_behind_a_base_http_middleware_is_complete(server: str) -> None:
    """The response below still waits for its client to leave, and is told so at the end."""

    async def stream(request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"one"
            yield b"two"

        return StreamingResponse(chunks())

    async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    async def main() -> None:
        app = Starlette(routes=[Route("/stream", stream)])
        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
        async with serving(server, wrapped(app)) as port, client_of(server, port) as client:
            assert (await client.get("/stream")).content == b"onetwo"
            await settled(lambda: bool(outcomes()))

    asyncio.run(main())
    assert requests() == {("/stream", "GET", "200", "ok"): 1}
    assert values("inference_requests_in_flight") == {(): 0}


@pytest.mark.parametrize("server", SERVERS)
def test_an_error_midstream_breaks_the_connection_and_is_told(server: str) -> None:
    """trallnag/prometheus-fastapi-instrumentator#7."""

    async def cut(request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"one"
            raise LookupError("theirs")

        return StreamingResponse(chunks())

    async def main() -> int:
        app = wrapped(Starlette(routes=[Route("/cut", cut)]))
        async with serving(server, app) as port, client_of(server, port) as client:
            client.timeout = 0.5  # hypercorn leaves an HTTP/2 stream open
            async with client.stream("GET", "/cut") as answer:
                with contextlib.suppress(httpx.HTTPError):
                    await answer.aread()
                return answer.status_code

    assert asyncio.run(main()) == 200
    assert requests() == {("/cut", "GET", "200", "error_midstream"): 1}


@pytest.mark.parametrize("server", SERVERS)
def test_a_client_that_leaves_a_stream_is_told(server: str) -> None:
    """stephenhillier/starlette_exporter#77, modelcontextprotocol/python-sdk#1647."""

    async def endless(request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            while not await request.is_disconnected():
                yield b"more"
                await asyncio.sleep(0.001)

        return StreamingResponse(chunks())

    async def main() -> None:
        app = wrapped(Starlette(routes=[Route("/endless", endless)]))
        async with serving(server, app) as port:
            async with client_of(server, port) as client, client.stream("GET", "/endless") as it:
                async for _ in it.aiter_bytes():
                    break
            await settled(lambda: bool(outcomes()))

    asyncio.run(main())
    assert requests() == {("/endless", "GET", "200", "client_disconnect"): 1}
    assert values("inference_requests_in_flight") == {(): 0}


@pytest.mark.parametrize("server", ["h11", "httptools"])
def test_what_a_stopping_server_cancels_is_told(server: str) -> None:
    async def main() -> None:
        started = asyncio.Event()

        async def hang(request: Request) -> Response:
            started.set()
            await asyncio.Event().wait()
            return Response()

        app = wrapped(Starlette(routes=[Route("/hang", hang)]))
        async with client_of(server, 1) as client:
            async with serving(server, app) as port:
                asking = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/hang"))
                await started.wait()
                assert values("inference_requests_in_flight") == {(): 1}
            assert (await asking).status_code == 500  # the server's, after the application's end

    asyncio.run(main())
    assert requests() == {("/hang", "GET", "499", "cancelled"): 1}
    assert values("inference_requests_in_flight") == {(): 0}


@pytest.mark.parametrize("server", ["h11", "hypercorn"])
def test_installed_in_its_lifespan_it_counts_from_the_first_request(server: str) -> None:
    """trallnag/prometheus-fastapi-instrumentator#214: refused after the application has started."""
    shown: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        with pytest.raises(RuntimeError, match="Cannot add middleware after"):
            app.add_middleware(StageTimingMiddleware, service="s")
        stack = app.middleware_stack
        assert stack is not None
        app.middleware_stack = StageTimingMiddleware(stack, service="s", metrics_path="/metrics")
        yield {"model": "loaded"}
        shown.append("down")

    app = FastAPI(lifespan=lifespan)

    @app.get("/model")
    async def model(request: Request) -> str:
        return str(request.state.model)

    async def main() -> str:
        async with serving(server, app) as port, client_of(server, port) as client:
            assert (await client.get("/model")).json() == "loaded"
            return (await client.get("/metrics")).text

    assert 'route="/model",method="GET",status="200"' in asyncio.run(main())
    assert shown == ["down"]
    assert requests() == {("/model", "GET", "200", "ok"): 1}


def test_a_lifespan_that_fails_still_stops_the_server() -> None:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        raise RuntimeError("no model")
        yield

    async def main() -> bool:
        config = uvicorn.Config(wrapped(Starlette(lifespan=lifespan)), port=0, log_config=None)
        server = uvicorn.Server(config)
        with contextlib.suppress(SystemExit):
            await server.serve()
        return server.started

    assert asyncio.run(main()) is False


def test_waiting_for_a_blocked_loop_is_upstream_wait_and_not_duration() -> None:
    """BerriAI/litellm#22319: the user sees 20 s, the metric says 10."""
    is_blocked, others_wait = threading.Event(), threading.Event()

    async def block(request: Request) -> Response:
        is_blocked.set()
        others_wait.wait(10)
        time.sleep(0.3)
        return Response()

    async def quick(request: Request) -> Response:
        return Response()

    def ask(port: int, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", path, headers={"X-Request-Start": f"t={time.time():.6f}"})
        if path == "/quick":
            others_wait.set()
        connection.getresponse().read()
        connection.close()

    async def main() -> None:
        routes = [Route("/block", block), Route("/quick", quick)]
        app = wrapped(Starlette(routes=routes), trust_request_start=True)
        async with serving("h11", app) as port:
            blocking = asyncio.to_thread(ask, port, "/block")

            def ask_quick() -> None:
                is_blocked.wait(10)
                ask(port, "/quick")

            await asyncio.gather(blocking, asyncio.to_thread(ask_quick))

    asyncio.run(main())
    assert values("inference_upstream_wait_seconds_count") == {(): 2}
    (waited,) = values("inference_upstream_wait_seconds_sum").values()
    assert 0.3 <= waited < 5
    durations = values("inference_request_duration_seconds_sum", "route")
    assert durations[("/block",)] >= 0.3
    assert durations[("/quick",)] < 0.3


# --- websockets ---


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        if text == "bye":
            await websocket.close(4001, "why")
            return
        if text == "fail":
            raise LookupError("theirs")
        await websocket.send_text(text)


async def refuse(websocket: WebSocket) -> None:
    await websocket.close(1008)


async def deny(websocket: WebSocket) -> None:
    await websocket.send_denial_response(JSONResponse({"no": True}, 402))


async def talk(port: int, path: str, say: list[events.Event]) -> list[Any]:
    """Open a websocket, say each in turn and hear its answer; what was heard, to the close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    writer.write(connection.send(events.Request(host=f"127.0.0.1:{port}", target=path)))
    heard: list[Any] = []
    to_say = iter(say)
    async with asyncio.timeout(10):
        while data := await reader.read(65536):
            connection.receive_data(data)
            for event in connection.events():
                if isinstance(event, events.RejectConnection):
                    heard.append(event.status_code)
                elif isinstance(event, events.CloseConnection):
                    heard.append(event.code)
                    if connection.state is wsproto.connection.ConnectionState.REMOTE_CLOSING:
                        writer.write(connection.send(event.response()))
                elif isinstance(event, events.TextMessage | events.AcceptConnection):
                    heard.append(getattr(event, "data", "accepted"))
                    words = next(to_say, None)
                    if words is not None:
                        writer.write(connection.send(words))
            if heard and isinstance(heard[-1], int) and heard[-1] < 1000:
                break
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return heard


HELLO = events.TextMessage("hello")


@pytest.mark.parametrize("server", ["h11", "hypercorn"])
@pytest.mark.parametrize(
    ("path", "say", "heard", "code"),
    [
        ("/echo", [HELLO, events.TextMessage("bye")], ["accepted", "hello", 4001], "4001"),
        ("/echo", [HELLO, events.CloseConnection(1001)], ["accepted", "hello", 1001], "1001"),
        ("/refuse", [], [403], "403"),
        ("/deny", [], [402], "402"),
        ("/missing", [], [403], "403"),
    ],
)
def test_websockets_over_real_servers(
    server: str, path: str, say: list[events.Event], heard: list[Any], code: str
) -> None:
    """litestar-org/litestar#1934, claws/aioprometheus#94."""

    async def main(wrap: Callable[..., App]) -> list[Any]:
        routes = [
            WebSocketRoute("/echo", echo),
            WebSocketRoute("/refuse", refuse),
            WebSocketRoute("/deny", deny),
        ]
        async with serving(server, wrap(Starlette(routes=routes))) as port:
            return await talk(port, path, say)

    bare = asyncio.run(main(lambda app: app))
    assert bare == heard
    assert asyncio.run(main(wrapped)) == bare
    if server == "hypercorn" and code == "1001":
        code = "1006"  # what it tells the application for every close of the client's
    assert nonzero("inference_websocket_closes_total", ["code"]) == {(code,): 1}
    assert values("inference_websocket_connections") == {(): 0}
    assert outcomes() == {}


@pytest.mark.parametrize("server", ["h11", "hypercorn"])
def test_a_websocket_whose_client_vanishes_has_the_code_that_the_server_tells(server: str) -> None:
    told: list[dict[str, Any]] = []

    async def listen(websocket: WebSocket) -> None:
        await websocket.accept()
        told.append(dict(await websocket.receive()))

    async def main() -> None:
        app = wrapped(Starlette(routes=[WebSocketRoute("/e", listen)]))
        async with serving(server, app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            connection = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
            writer.write(connection.send(events.Request(host="x", target="/e")))
            await reader.readuntil(b"\r\n\r\n")
            assert values("inference_websocket_connections") == {(): 1}
            writer.transport.abort()
            await settled(lambda: values("inference_websocket_connections") == {(): 0})

    asyncio.run(main())
    code = {"h11": 1005, "hypercorn": 1006}[server]
    assert [message["code"] for message in told] == [code]
    assert nonzero("inference_websocket_closes_total", ["code"]) == {(str(code),): 1}


def plain(text: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse(text)

    return endpoint


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_the_bytes_on_the_wire_are_the_same(version: str) -> None:
    async def ask(app: App) -> bytes:
        async with serving("h11", app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for method in ("GET", "HEAD", "GET"):
                close = "close" if version == "1.0" else "keep-alive"
                head = f"{method} /a HTTP/{version}\r\nHost: x\r\nConnection: {close}\r\n\r\n"
                writer.write(head.encode())
                if version == "1.0":
                    break
            writer.write_eof()
            heard = await reader.read()
            writer.close()
            return b"\n".join(line for line in heard.split(b"\n") if not line.startswith(b"date"))

    app = Starlette(routes=[Route("/a", plain("hello"))])
    bare = asyncio.run(ask(app))
    assert bare.endswith(b"hello")
    assert asyncio.run(ask(wrapped(Starlette(routes=[Route("/a", plain("hello"))])))) == bare
