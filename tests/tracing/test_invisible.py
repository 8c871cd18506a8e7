"""The same application with and without the middleware: nothing that can be seen differs.

Every behaviour runs bare first. What its server and its client saw of it, what it saw itself, how
it ended and what it left in the context must then be the same with the middleware around it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import re
import selectors
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from fastapi import BackgroundTasks, FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from tailwatch_tracing import StageTimingMiddleware, service, stage
from tailwatch_tracing.spans.recorder import SpanRecorder
from tests.tracing.asgi import App, http_scope, nonzero, values

Wrap = Callable[[App], App]
Note = Callable[[Any], None]
Behaviour = Callable[[Any, Any, Any, Note], Awaitable[Any]]

variable: ContextVar[str] = ContextVar("variable", default="unset")

START = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"1")]}
BODY = {"type": "http.response.body", "body": b"last"}
MORE = {"type": "http.response.body", "body": b"more", "more_body": True}


class Stop(BaseException):
    """As KeyboardInterrupt is, but for pytest."""


@dataclass
class Client:
    """How the other side behaves; it counts from 1."""

    body: tuple[bytes, ...] = (b"question",)
    leaves_after_sends: int | None = None
    failing_send: int | None = None
    error: BaseException = field(default_factory=lambda: OSError("gone"))
    cancels_after_sends: int | None = None
    deadline_seconds: float = 5
    patience_seconds: float = 0  # real time that threads get to answer
    incoming: tuple[dict[str, Any], ...] = ()
    scope: dict[str, Any] = field(default_factory=dict)


@dataclass
class Seen:
    """Everything that one run of an application shows to those around it."""

    sent: list[Any] = field(default_factory=list)
    noted: list[Any] = field(default_factory=list)
    ended: Any = None
    context: dict[str, Any] = field(default_factory=dict)
    scope: dict[str, Any] = field(default_factory=dict)


def told(error: BaseException | None, above: tuple[BaseException, ...] = ()) -> Any:
    """An exception as its type, its arguments and what it came from, all the way down."""
    if error is None or error in above:  # some are their own cause
        return error and "circular"
    above = (*above, error)
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return (
        type(error),
        re.sub("cancel scope .*", "cancel scope", str(error), flags=re.DOTALL),
        [told(one, above) for one in inner],
        told(error.__cause__, above),
        told(error.__context__, above),
        error.__suppress_context__,
        getattr(error, "__notes__", None),
    )


OURS = ("tailwatch_unit", "current_context")  # and OpenTelemetry's


class Server:
    """A server that is strict about nothing and remembers everything."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen = Seen()
        self._left = asyncio.Event()
        self._messages = iter(client.incoming or self._request_messages())
        self._sends = 0
        self.task: asyncio.Task[Any] | None = None

    def _request_messages(self) -> Iterator[dict[str, Any]]:
        for i, chunk in enumerate(self.client.body, 1):
            more = i < len(self.client.body)
            yield {"type": "http.request", "body": chunk, "more_body": more}

    async def receive(self) -> Any:
        for message in self._messages:
            return message
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        kind = message["type"]
        self._sends += 1
        if self._sends == self.client.failing_send:
            raise self.client.error
        self.seen.sent.append((kind, dict(message)))
        if self._sends == self.client.leaves_after_sends:
            self._left.set()
        if self._sends == self.client.cancels_after_sends:
            assert self.task is not None
            self.task.cancel("the server stops")
        if self._left.is_set() or self._sends % 2:
            await asyncio.sleep(0)

    async def serve(self, app: App, scope: dict[str, Any]) -> None:
        self.task = asyncio.current_task()
        assert self.task is not None
        try:
            async with asyncio.timeout(self.client.deadline_seconds):
                await app(scope, self.receive, self.send)
            self.seen.ended = "returned"
        except BaseException as error:
            self.seen.ended = (told(error), innermost(error))
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            self.seen.noted.append(("cancelled too late", error.args))
        while self.task.uncancel():
            pass
        current = contextvars.copy_context()
        self.seen.context = {
            key.name: placeless(current[key]) for key in current if key.name not in OURS
        }
        self.seen.scope = {key: placeless(value) for key, value in sorted(scope.items())}


def placeless(value: Any) -> str:
    """A value as text, without its address."""
    return re.sub(r"0x[0-9a-f]+", "", repr(value))


def innermost(error: BaseException) -> str | None:
    """The function in which an exception was raised: it is the original, not a copy."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].name if frames else None


class Impatient(selectors.SelectSelector):
    """Where all would wait, the clock jumps: what hangs is over at once, at its deadline."""

    def __init__(self, patience_seconds: float) -> None:
        super().__init__()
        self._patience_seconds = patience_seconds
        self.skipped_seconds = 0.0

    def select(self, timeout: float | None = None) -> Any:
        patience = self._patience_seconds
        ready = super().select(patience if timeout is None else min(timeout, patience))
        if not ready and timeout is not None and timeout > patience:
            self.skipped_seconds += timeout - patience
        return ready


def impatient_loop(patience_seconds: float) -> asyncio.AbstractEventLoop:
    selector = Impatient(patience_seconds)
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: time.monotonic() + selector.skipped_seconds  # type: ignore[method-assign]
    return loop


def observe(make: Callable[[Note], App], client: Client) -> Seen:
    """Serve one connection in a fresh event loop and context."""

    async def main() -> Seen:
        server = Server(client)
        app = make(server.seen.noted.append)
        await server.serve(app, {**http_scope("/x"), **client.scope})
        for _ in range(20):  # what was left running may still show itself
            await asyncio.sleep(0)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        server.seen.noted.append(("tasks left", len(others)))
        return server.seen

    def run() -> Seen:
        with asyncio.Runner(loop_factory=lambda: impatient_loop(client.patience_seconds)) as runner:
            return runner.run(main())

    return contextvars.copy_context().run(run)


def around(app: App) -> App:
    return StageTimingMiddleware(
        app, service="s", metrics_path="/metrics", slo_seconds=0.5, client_timeout_seconds=5
    )


def driven(app: App) -> App:
    """As once a stage was suspended: each request is driven, to know its CPU time."""
    wrapped = around(app)
    service.service_named("s").has_suspended_stages = True
    return wrapped


def traced(app: App) -> App:
    wrapped = around(app)
    named = service.service_named("s")
    named.spans = SpanRecorder(named, TracerProvider())
    return wrapped


WRAPS: dict[str, Wrap] = {"as it is": around, "driven": driven, "traced": traced}


def assert_same(
    make: Callable[[Note, Wrap], App], client: Callable[[], Client], wrap: Wrap = around
) -> None:
    """Bare and instrumented runs look alike, and the instrumented one was counted."""
    bare = observe(lambda note: make(note, lambda app: app), client())
    instrumented = observe(lambda note: make(note, wrap), client())
    assert instrumented == bare
    assert_counted(client())


def assert_counted(client: Client) -> None:
    kind = client.scope.get("type", "http")
    assert values("inference_requests_in_flight") == {(): 0}
    assert sum(values("inference_outcomes_total").values()) == (kind == "http")
    assert values("inference_websocket_connections") == ({(): 0} if kind == "websocket" else {})
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


# --- plain ASGI applications ---


async def answers(scope: Any, receive: Any, send: Any, note: Note) -> None:
    variable.set("inside")
    note(await receive())
    await send({**START, "trailers": True})
    await send({"type": "http.response.body", "body": memoryview(b"view")})
    await send({"type": "http.response.trailers", "headers": [(b"x", b"y")], "more_trailers": True})
    await send({"type": "http.response.trailers", "headers": []})


async def uses_every_extension(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await send({"type": "http.response.early_hint", "links": [b"</s.css>; rel=preload"]})
    await send({"type": "http.response.push", "path": "/s.css", "headers": []})
    await send({"type": "http.response.debug", "info": {"template": "t"}})
    await send(START)
    await send({"type": "http.response.zerocopysend", "file": 7, "more_body": True})
    await send({"type": "http.response.pathsend", "path": "/etc/hostname"})


async def streams(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await send(START)
    for i in range(5):
        variable.set(f"chunk {i}")
        await send({**MORE, "body": b"%d" % i})
        await asyncio.sleep(0)
    await send({"type": "http.response.body"})
    note("after the last")


async def raises_before(scope: Any, receive: Any, send: Any, note: Note) -> None:
    variable.set("before the error")
    try:
        raise KeyError("inner")
    except KeyError as inner:
        error = LookupError("outer", 7)
        error.add_note("a note")
        raise error from inner


async def raises_in_context(scope: Any, receive: Any, send: Any, note: Note) -> None:
    try:
        raise KeyError("first")
    except KeyError:
        raise ValueError("while handling it")  # noqa: B904


async def raises_without_cause(scope: Any, receive: Any, send: Any, note: Note) -> None:
    try:
        raise KeyError("first")
    except KeyError:
        raise ValueError("from None") from None


async def raises_midstream(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await send(START)
    await send(MORE)
    raise RuntimeError("mid-stream")


async def raises_after(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await send(START)
    await send(BODY)
    raise RuntimeError("in the background")


async def raises_a_group(scope: Any, receive: Any, send: Any, note: Note) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async with asyncio.TaskGroup() as group:
        group.create_task(fail(ValueError("one")))
        group.create_task(fail(OSError("two")))


async def raises_a_base_exception(scope: Any, receive: Any, send: Any, note: Note) -> None:
    try:
        raise Stop("stop")
    except Stop as stop:
        raise GeneratorExit("by hand") from stop


async def stops_iteration(scope: Any, receive: Any, send: Any, note: Note) -> None:
    raise StopAsyncIteration("by mistake")


async def returns_early(scope: Any, receive: Any, send: Any, note: Note) -> None: ...


async def returns_midstream(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await send(START)
    await send(MORE)


async def answers_twice(scope: Any, receive: Any, send: Any, note: Note) -> None:
    for message in (START, BODY, {**START, "status": 500}, MORE, BODY):
        await send(message)


async def has_no_start(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await send(BODY)


async def sends_no_type(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await send({"body": b"x"})


async def sends_nothing_at_all(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await send(None)


async def sends_odd_messages(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await send({"type": "http.response.start"})
    await send({"type": "of.the.future", "more_body": "perhaps", "body": 7})
    await send({"type": "http.response.body", "body": None, "more_body": 1})
    await send({"type": "http.response.body", "body": b"x", "more_body": None})


async def receives_until_the_client_leaves(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await send(START)
    await send(BODY)
    for _ in range(4):
        note(await receive())


async def reads_an_upload(scope: Any, receive: Any, send: Any, note: Note) -> None:
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        note(message["body"])
    note(message)
    await send(START)
    await send(BODY)


async def keeps_answering(scope: Any, receive: Any, send: Any, note: Note) -> None:
    """Whatever the client does, as an application that catches everything."""
    await send(START)
    for _ in range(6):
        try:
            await send(MORE)
        except Exception as error:
            note(told(error))
    await send(BODY)


async def cleans_up_when_cancelled(scope: Any, receive: Any, send: Any, note: Note) -> None:
    try:
        await send(START)
        await send(MORE)
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        note((error.args, asyncio.current_task().cancelling()))  # type: ignore[union-attr]
        await asyncio.sleep(0)
        note("cleaned up")
        raise


async def survives_its_cancellation(scope: Any, receive: Any, send: Any, note: Note) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await send(START)
        await send(MORE)
        await asyncio.sleep(10)
    asyncio.current_task().uncancel()  # type: ignore[union-attr]
    await send(BODY)


async def has_a_deadline_of_its_own(scope: Any, receive: Any, send: Any, note: Note) -> None:
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(10)
    except TimeoutError as error:
        note(told(error))
    with anyio.move_on_after(0) as cancelled:
        await anyio.sleep(10)
    note(cancelled.cancelled_caught)
    await send({**START, "status": 504})
    await send(BODY)


async def waits_for_ever(scope: Any, receive: Any, send: Any, note: Note) -> None:
    await asyncio.sleep(1000)


async def races_its_client(scope: Any, receive: Any, send: Any, note: Note) -> None:
    """A task that waits for the disconnect beside one that sends, as Starlette does."""
    await receive()

    async def listen() -> None:
        note(await receive())
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        await send(START)
        for _ in range(50):
            await send(MORE)
        await send(BODY)
        group.cancel_scope.cancel()


async def starts_tasks(scope: Any, receive: Any, send: Any, note: Note) -> None:
    variable.set("for the tasks")

    async def child() -> str:
        with stage("inference"):
            await asyncio.sleep(0)
        variable.set("a child's own")
        return contextvars.copy_context()[variable]

    note(await asyncio.gather(child(), asyncio.create_task(child())))
    note(await asyncio.to_thread(variable.get))
    await send(START)
    await send(BODY)


async def changes_its_scope(scope: Any, receive: Any, send: Any, note: Note) -> None:
    note(sorted(scope))
    scope["path"] = "/changed"
    scope["user"] = "u"
    scope.pop("client")
    await send(START)
    await send(BODY)


async def sends_from_a_task(scope: Any, receive: Any, send: Any, note: Note) -> None:
    """`send` and `receive` return coroutines: they can be scheduled."""
    note(await asyncio.create_task(receive()))
    await asyncio.create_task(send(START))
    await asyncio.wait_for(send(BODY), 1)


async def mutates_what_it_sent(scope: Any, receive: Any, send: Any, note: Note) -> None:
    message = dict(START)
    await send(message)
    message.clear()
    chunk = dict(MORE)
    await send(chunk)
    chunk["more_body"] = False
    note(chunk)
    await send(BODY)


RAW: dict[str, Behaviour] = {
    function.__name__: function
    for function in (
        answers,
        uses_every_extension,
        streams,
        raises_before,
        raises_in_context,
        raises_without_cause,
        raises_midstream,
        raises_after,
        raises_a_group,
        raises_a_base_exception,
        stops_iteration,
        returns_early,
        returns_midstream,
        answers_twice,
        has_no_start,
        sends_no_type,
        sends_nothing_at_all,
        sends_odd_messages,
        reads_an_upload,
        keeps_answering,
        survives_its_cancellation,
        has_a_deadline_of_its_own,
        starts_tasks,
        changes_its_scope,
        sends_from_a_task,
        mutates_what_it_sent,
    )
}

CLIENTS: dict[str, Callable[[], Client]] = {
    "patient": Client,
    "uploads": lambda: Client(body=(b"a", b"b", b"c")),
    "asks for the head": lambda: Client(scope={"method": "HEAD"}),
    "leaves at once": lambda: Client(body=(), leaves_after_sends=1),
    "leaves mid-stream": lambda: Client(leaves_after_sends=2),
    "first send fails": lambda: Client(failing_send=1),
    "second send fails": lambda: Client(failing_send=2, error=anyio.BrokenResourceError("gone")),
    "third send fails": lambda: Client(failing_send=3, error=RuntimeError("refused")),
    "cancels": lambda: Client(cancels_after_sends=2),
}

WAITING: dict[str, Behaviour] = {
    function.__name__: function
    for function in (
        receives_until_the_client_leaves,
        cleans_up_when_cancelled,
        waits_for_ever,
        races_its_client,
    )
}

IMPATIENT: dict[str, Callable[[], Client]] = {
    "leaves": lambda: Client(leaves_after_sends=2),
    "cancels": lambda: Client(cancels_after_sends=2),
    "times out": Client,
}


def raw(behaviour: Behaviour) -> Callable[[Note, Wrap], App]:
    def make(note: Note, wrap: Wrap) -> App:
        async def app(scope: Any, receive: Any, send: Any) -> Any:
            note(("seen on entry", variable.get(), len(asyncio.all_tasks())))
            return await behaviour(scope, receive, send, note)

        return wrap(app)

    return make


def with_threads(client: Callable[[], Client]) -> Callable[[], Client]:
    return lambda: replace(client(), patience_seconds=1)


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("behaviour", RAW.values(), ids=RAW)
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_a_plain_application(
    wrap: Wrap, behaviour: Behaviour, client: Callable[[], Client]
) -> None:
    client = with_threads(client) if behaviour is starts_tasks else client
    assert_same(raw(behaviour), client, wrap)


@pytest.mark.parametrize("client", IMPATIENT.values(), ids=IMPATIENT)
@pytest.mark.parametrize("behaviour", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_an_application_that_waits(
    wrap: Wrap, behaviour: Behaviour, client: Callable[[], Client]
) -> None:
    assert_same(raw(behaviour), client, wrap)


@pytest.mark.parametrize(
    "scope",
    [
        {"root_path": None},
        {"root_path": b"/bytes"},
        {"path": ""},
        {"path": None},
        {"method": None},
        {"method": ["a list"]},
        {"headers": None},
        {"route": object(), "router": object(), "endpoint": object(), "fastapi": None},
        {"app_root_path": 7},
        {"state": {}, "extensions": {"http.response.early_hint": {}}, "of.the.future": 1},
    ],
    ids=str,
)
def test_a_scope_of_any_kind(scope: dict[str, Any]) -> None:
    """Errors of our own are counted and nothing else: the application answers as without us."""

    def make(wrap: Wrap) -> Callable[[Note], App]:
        return lambda note: raw(answers)(note, wrap)

    bare = observe(make(lambda app: app), Client(scope=scope))
    assert observe(make(around), Client(scope=scope)) == bare


@pytest.mark.parametrize("missing", ["root_path", "path", "method", "headers", "http_version"])
def test_a_scope_that_lacks_something(missing: str) -> None:
    def make(wrap: Wrap) -> Callable[[Note], App]:
        def without(note: Note) -> App:
            wrapped = raw(answers)(note, wrap)

            async def app(scope: Any, receive: Any, send: Any) -> None:
                del scope[missing]
                await wrapped(scope, receive, send)

            return app

        return without

    assert observe(make(around), Client()) == observe(make(lambda app: app), Client())


# --- Starlette and FastAPI, among other middlewares ---


class Passes(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["x-passed"] = request.url.path
        return response


class Answers(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if "refused" in request.url.path:
            raise ValueError("in the middleware")
        return await call_next(request)


STACKS: dict[str, tuple[list[Any], list[Any]]] = {
    "alone": ([], []),
    "above": ([], [Passes, Answers]),
    "below": ([Passes, Answers], []),
    "between": ([GZipMiddleware, Passes], [Answers, GZipMiddleware]),
}


def endpoints(note: Note) -> list[Any]:
    async def plain(request: Request) -> Response:
        variable.set("endpoint")
        note(await request.body())
        return JSONResponse({"a": 1}, headers={"x-b": "2"})

    def in_thread(request: Request) -> Response:
        note(variable.get())
        return Response(b"x" * 2000, media_type="text/plain")

    async def stream(request: Request) -> Response:
        async def chunks() -> AsyncIterator[str]:
            for i in range(4):
                yield f"data: {i}\n\n"
                await asyncio.sleep(0)

        return StreamingResponse(chunks(), media_type="text/event-stream")

    async def cut(request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"one"
            raise LookupError("mid-stream")

        return StreamingResponse(chunks())

    async def background(request: Request) -> Response:
        async def later() -> None:
            note("later")
            raise ValueError("in the background")

        return Response("x", background=BackgroundTask(later))

    async def stream_and_background(request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"one"

        async def later() -> None:
            note("later")

        return StreamingResponse(chunks(), background=BackgroundTask(later))

    async def file(request: Request) -> Response:
        return FileResponse(__file__)

    async def fails(request: Request) -> Response:
        raise ArithmeticError("endpoint")

    async def groups(request: Request) -> Response:
        async with anyio.create_task_group() as group:
            group.start_soon(fails, request)
        return Response()

    async def refuses(request: Request) -> Response:
        raise HTTPException(418, "teapot", {"x-c": "3"})

    async def leaves(request: Request) -> Response:
        try:
            async for chunk in request.stream():
                note(chunk)
            note(await request.is_disconnected())
        except ClientDisconnect:
            note("left")
            raise
        return Response("x")

    async def hangs(request: Request) -> Response:
        try:
            await asyncio.sleep(1000)
        finally:
            note("let go")
        return Response()

    names = (
        plain,
        in_thread,
        stream,
        cut,
        background,
        stream_and_background,
        file,
        fails,
        groups,
        refuses,
        leaves,
        hangs,
    )
    return [Route(f"/{endpoint.__name__}", endpoint, methods=["GET", "POST"]) for endpoint in names]


PATHS = [
    *(route.path for route in endpoints(print)),
    "/mounted/plain",
    "/mounted/fails",
    "/missing",
    "/refused",
]

FRAMEWORK_CLIENTS: dict[str, Callable[[str], Client]] = {
    "patient": lambda path: Client(scope={"path": path}),
    "2.4": lambda path: Client(
        scope={"path": path, "asgi": {"version": "3.0", "spec_version": "2.4"}},
    ),
    "gone": lambda path: Client(body=(b"half", b"never"), scope={"path": path, "method": "POST"}),
    "leaves": lambda path: Client(leaves_after_sends=2, scope={"path": path}),
    "broken": lambda path: Client(
        failing_send=2,
        scope={"path": path, "asgi": {"version": "3.0", "spec_version": "2.4"}},
    ),
    "head, by path": lambda path: Client(
        scope={"path": path, "method": "HEAD", "extensions": {"http.response.pathsend": {}}},
    ),
    "gzip": lambda path: Client(scope={"path": path, "headers": [(b"accept-encoding", b"gzip")]}),
}


@pytest.mark.parametrize("client", FRAMEWORK_CLIENTS.values(), ids=FRAMEWORK_CLIENTS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_a_starlette_application_among_middlewares(
    stack: tuple[list[Any], list[Any]], path: str, client: Callable[[str], Client]
) -> None:
    above, below = stack

    def make(note: Note, wrap: Wrap) -> App:
        middleware = [
            *(Middleware(one) for one in above),
            *([Middleware(Placed)] if wrap is around else []),
            *(Middleware(one) for one in below),
        ]
        routes = endpoints(note)
        return Starlette(routes=[*routes, Mount("/mounted", routes=routes)], middleware=middleware)

    is_reached = path != "/refused" or Answers not in above

    def new_client() -> Client:
        return client(path)

    assert_same_framework(
        make,
        with_threads(new_client) if path in ("/in_thread", "/file") else new_client,
        is_reached,
    )


class Placed:
    """The middleware, as a framework makes it at a place in its stack."""

    def __init__(self, app: App) -> None:
        self.app = around(app)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def assert_same_framework(
    make: Callable[[Note, Wrap], App], client: Callable[[], Client], is_reached: bool = True
) -> None:
    bare = observe(lambda note: make(note, lambda app: app), client())
    instrumented = observe(lambda note: make(note, around), client())
    assert instrumented == bare
    if is_reached:
        assert_counted(client())


def fastapi_app(note: Note, wrap: Wrap) -> App:
    app = FastAPI()

    async def dependency() -> AsyncIterator[str]:
        token = variable.set("dependency")
        try:
            yield "given"
        except Exception as error:
            note(told(error))
            raise
        finally:
            note("dependency closed")
            variable.reset(token)

    from fastapi import Depends

    @app.get("/x")
    async def get_x(number: int, tasks: BackgroundTasks, given: str = Depends(dependency)) -> Any:
        async def later() -> None:
            note("background")

        tasks.add_task(later)
        if number == 0:
            raise LookupError("endpoint")
        if number == 1:
            raise HTTPException(403)
        return {"given": given}

    @app.exception_handler(LookupError)
    async def handle(request: Request, error: LookupError) -> Response:
        note(told(error))
        return Response("handled", 500)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"errors": len(error.errors())}, 422)

    return wrap(app)


@pytest.mark.parametrize("query", [b"number=0", b"number=1", b"number=2", b"number=x", b""])
@pytest.mark.parametrize("failing_send", [None, 1, 2])
def test_a_fastapi_application_with_dependencies(query: bytes, failing_send: int | None) -> None:
    assert_same_framework(
        fastapi_app, lambda: Client(scope={"query_string": query}, failing_send=failing_send)
    )


# --- websockets and lifespan ---


async def echoes(websocket: WebSocket) -> None:
    variable.set("websocket")
    await websocket.accept("chat", [(b"x-d", b"4")])
    async for text in websocket.iter_text():
        if text == "fail":
            raise LookupError("theirs")
        if text == "bye":
            await websocket.close(4001, "why")
        await websocket.send_text(text)


async def denies(websocket: WebSocket) -> None:
    await websocket.send_denial_response(JSONResponse({"no": 1}, 402))


async def refuses_websocket(websocket: WebSocket) -> None:
    await websocket.close(1008)


async def forgets(websocket: WebSocket) -> None: ...


async def lingers(websocket: WebSocket) -> None:
    await websocket.accept()
    await asyncio.sleep(1000)


WEBSOCKETS = {
    function.__name__: function
    for function in (echoes, denies, refuses_websocket, forgets, lingers)
}
CONNECT = {"type": "websocket.connect"}
CONVERSATIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "says goodbye": (
        CONNECT,
        {"type": "websocket.receive", "text": "hello"},
        {"type": "websocket.disconnect", "code": 1001, "reason": "r"},
    ),
    "is shown the door": (CONNECT, {"type": "websocket.receive", "text": "bye"}),
    "makes it fail": (CONNECT, {"type": "websocket.receive", "text": "fail"}),
    "sends bytes": (CONNECT, {"type": "websocket.receive", "bytes": b"\0"}),
    "leaves in the handshake": ({"type": "websocket.disconnect"},),
    "odd": (CONNECT, {"type": "websocket.disconnect", "code": None}),
}


@pytest.mark.parametrize("failing_send", [None, 1, 2])
@pytest.mark.parametrize("incoming", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("endpoint", WEBSOCKETS.values(), ids=WEBSOCKETS)
def test_a_websocket(endpoint: Any, incoming: Any, failing_send: int | None) -> None:
    scope = {
        "type": "websocket",
        "subprotocols": ["chat"],
        "extensions": {"websocket.http.response": {}},
    }
    assert_same_framework(
        lambda note, wrap: wrap(Starlette(routes=[WebSocketRoute("/x", endpoint)])),
        lambda: Client(scope=scope, incoming=incoming, failing_send=failing_send),
    )
    assert sum(values("inference_outcomes_total").values()) == 0


@pytest.mark.parametrize("fails", [None, "startup", "shutdown"])
def test_lifespan(fails: str | None) -> None:
    def make(note: Note, wrap: Wrap) -> App:
        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[dict[str, int]]:
            if fails == "startup":
                raise RuntimeError("no model")
            yield {"model": 1}
            if fails == "shutdown":
                raise RuntimeError("no goodbye")

        return wrap(Starlette(lifespan=lifespan))

    incoming = ({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    scope = {"type": "lifespan", "state": {}}

    def seen(wrap: Wrap) -> Seen:
        seen = observe(lambda note: make(note, wrap), Client(scope=dict(scope), incoming=incoming))
        seen.scope["app"] = ""
        for i, (kind, message) in enumerate(seen.sent):
            traced = message.get("message", "").splitlines()
            seen.sent[i] = (kind, traced[-1:])  # the traceback has a frame of ours
        return seen

    assert seen(around) == seen(lambda app: app)


def test_a_scope_type_of_the_future_passes() -> None:
    def make(note: Note, wrap: Wrap) -> App:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            note((scope["type"], receive.__qualname__, send.__qualname__))
            await send({"type": "quic.send"})

        return wrap(app)

    assert_same_framework(make, lambda: Client(scope={"type": "quic"}))


def test_the_comparison_sees_a_difference() -> None:
    """A middleware that is not invisible does not pass: one for each thing that is compared."""

    async def drops_a_message(app: App, scope: Any, receive: Any, send: Any) -> None:
        async def dropping(message: Any) -> None:
            if not message.get("more_body"):
                await send(message)

        await app(scope, receive, dropping)

    async def wraps_errors(app: App, scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except Exception as error:
            raise RuntimeError("wrapped") from error

    async def runs_in_a_task(app: App, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]

    async def marks_the_scope(app: App, scope: Any, receive: Any, send: Any) -> None:
        scope["mark"] = 1
        await app(scope, receive, send)

    for visible in (drops_a_message, wraps_errors, runs_in_a_task, marks_the_scope):

        def wrap(app: App, visible: Any = visible) -> App:
            async def wrapped(scope: Any, receive: Any, send: Any) -> None:
                await visible(app, scope, receive, send)

            return wrapped

        def differs(name: str, wrap: Wrap = wrap) -> bool:
            make = raw(RAW[name])
            bare = observe(lambda note: make(note, lambda app: app), Client())
            return observe(lambda note: make(note, wrap), Client()) != bare

        assert any(differs(name) for name in ("streams", "raises_before")), visible.__name__


def test_services_are_made_for_this_file_alone() -> None:
    assert service.services() == []
