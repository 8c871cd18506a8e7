"""One server span per request, whoever makes it: FastAPI, another instrumentation, or ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanKind
from opentelemetry.util._once import Once
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, stage
from tailwatch_tracing.service import services
from tests.tracing.asgi import App, nonzero, request
from tests.tracing.test_spans import SAMPLED, TRACE_ID, Kept
from tests.tracing.test_spans_exemplars import exemplars


class Process:
    """A process with an SDK provider of its own, which native telemetry and the like take."""

    def __init__(self, provider: TracerProvider) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = provider
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def servers(self) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.kind is SpanKind.SERVER]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.name == name]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    process = Process(TracerProvider(shutdown_on_exit=False))
    trace.set_tracer_provider(process.provider)
    return process


@pytest.fixture
def instrumented() -> Iterator[Callable[..., None]]:
    """opentelemetry-instrumentation-fastapi, taken back afterwards."""
    apps: list[FastAPI] = []

    def instrument(app: FastAPI, **options: Any) -> None:
        FastAPIInstrumentor.instrument_app(app, **options)
        apps.append(app)

    yield instrument
    for app in apps:
        FastAPIInstrumentor.uninstrument_app(app)


async def answer() -> PlainTextResponse:
    with stage("inference"):
        trace.get_current_span().set_attribute("seen", True)
        return PlainTextResponse("ok")


async def fail() -> None:
    with stage("inference"):
        raise LookupError("a prompt")


def fastapi_app(**options: Any) -> FastAPI:
    app = FastAPI(**options)
    app.add_api_route("/x/{id}", answer)
    app.add_api_route("/fail", fail)
    return app


def add_ours(app: Any) -> App:
    app.add_middleware(StageTimingMiddleware, service="s")
    asgi: App = app
    return asgi


def wrap_with_ours(app: Any) -> App:
    return StageTimingMiddleware(app, service="s")


Install = Callable[[Any], App]
both_ways = pytest.mark.parametrize(
    "install", [add_ours, wrap_with_ours], ids=["theirs-around", "ours-around"]
)


def check_one_server_span(process: Process, path: str = "/x/{id}") -> None:
    (server,) = process.servers()
    assert server.name == f"GET {path}"
    (inference,) = process.named("inference")
    assert server.context is not None
    assert inference.parent is not None
    assert inference.parent.span_id == server.context.span_id
    assert inference.context is not None
    assert inference.context.trace_id == server.context.trace_id
    exemplar = exemplars()[("inference_request_duration_seconds", path)][0]
    assert exemplar.labels["trace_id"] == f"{server.context.trace_id:032x}"
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


@both_ways
@pytest.mark.parametrize("headers", [[], SAMPLED], ids=["root", "called"])
def test_fastapis_native_telemetry(process: Process, install: Install, headers: Any) -> None:
    asyncio.run(request(install(fastapi_app()), "/x/7", headers=headers))
    check_one_server_span(process)
    (server,) = process.servers()
    assert server.instrumentation_scope is not None
    assert server.instrumentation_scope.name == "fastapi"
    assert server.context is not None
    if headers:
        assert f"{server.context.trace_id:032x}" == TRACE_ID


@both_ways
def test_native_telemetry_of_a_request_that_fails(process: Process, install: Install) -> None:
    with pytest.raises(LookupError):
        asyncio.run(request(install(fastapi_app()), "/fail"))
    check_one_server_span(process, "/fail")


@both_ways
def test_the_instrumentation_of_fastapi(
    process: Process, install: Install, instrumented: Callable[..., None]
) -> None:
    app = fastapi_app(telemetry={"tracing": False})
    instrumented(app, exclude_spans=["receive", "send"])
    asyncio.run(request(install(app), "/x/7"))
    check_one_server_span(process)
    assert len(process.spans()) == 2


@both_ways
def test_the_instrumentation_of_fastapi_beside_native_telemetry(
    process: Process, install: Install, instrumented: Callable[..., None]
) -> None:
    app = fastapi_app()
    instrumented(app, exclude_spans=["receive", "send"])
    asyncio.run(request(install(app), "/x/7"))
    check_one_server_span(process)


@both_ways
def test_a_failing_request_under_the_instrumentation_of_fastapi(
    process: Process,
    install: Install,
    instrumented: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = fastapi_app(telemetry={"tracing": False})
    instrumented(app, exclude_spans=["receive", "send"])
    with pytest.raises(LookupError):
        asyncio.run(request(install(app), "/fail"))
    check_one_server_span(process, "/fail")
    assert "ended span" not in caplog.text


def starlette_app() -> Starlette:
    async def starlette_answer(incoming: Request) -> Response:
        with stage("inference"):
            return PlainTextResponse("ok")

    return Starlette(routes=[Route("/x/{id}", starlette_answer)])


def ours_then_theirs(app: Starlette) -> App:
    app.add_middleware(StageTimingMiddleware, service="s")
    app.add_middleware(OpenTelemetryMiddleware)
    return app


def theirs_then_ours(app: Starlette) -> App:
    app.add_middleware(OpenTelemetryMiddleware)
    app.add_middleware(StageTimingMiddleware, service="s")
    return app


def theirs_around_ours(app: Starlette) -> App:
    theirs: App = OpenTelemetryMiddleware(StageTimingMiddleware(app, service="s"))
    return theirs


def ours_around_theirs(app: Starlette) -> App:
    return StageTimingMiddleware(OpenTelemetryMiddleware(app), service="s")


def ours_around_a_stack_with_theirs(app: Starlette) -> App:
    app.add_middleware(OpenTelemetryMiddleware)
    return StageTimingMiddleware(app, service="s")


@pytest.mark.parametrize(
    "install",
    [
        ours_then_theirs,
        theirs_then_ours,
        theirs_around_ours,
        ours_around_theirs,
        ours_around_a_stack_with_theirs,
    ],
)
def test_the_asgi_middleware(process: Process, install: Callable[[Starlette], App]) -> None:
    asyncio.run(request(install(starlette_app()), "/x/7", headers=SAMPLED))
    (server,) = process.servers()
    (inference,) = process.named("inference")
    assert server.context is not None
    assert inference.parent is not None
    assert inference.parent.span_id == server.context.span_id
    assert f"{server.context.trace_id:032x}" == TRACE_ID
    names = [span.name for span in process.spans() if " http " not in span.name]
    assert len(names) == 2


def test_the_instrumentations_provider_may_be_another(
    process: Process, instrumented: Callable[..., None]
) -> None:
    other = Process(TracerProvider(shutdown_on_exit=False))
    app = fastapi_app(telemetry={"tracer_provider": other.provider})
    asyncio.run(request(wrap_with_ours(app), "/x/7"))
    (server,) = other.servers()
    (inference,) = process.named("inference")
    assert process.servers() == []
    assert server.context is not None
    assert inference.parent is not None
    assert inference.parent.span_id == server.context.span_id


@pytest.fixture
def no_provider(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """What goes to the endpoint of a process that has set up nothing of the SDK."""
    kept = Kept()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr("tailwatch_tracing.spans.recorder.exporter_class", lambda: lambda: kept)
    return kept


def close() -> None:
    for service in services():
        assert service.spans is not None
        service.spans.close()


@both_ways
def test_without_a_provider_of_the_process_ours_is_the_server_span(
    no_provider: Kept, install: Install, instrumented: Callable[..., None]
) -> None:
    """Native telemetry and instrumentation are there, but have nowhere to send anything."""
    app = fastapi_app()
    instrumented(app)
    asyncio.run(request(install(app), "/x/7", headers=SAMPLED))
    close()
    assert no_provider.names() == ["GET /x/{id}", "inference"]
    context = no_provider.server().context
    assert context is not None
    assert f"{context.trace_id:032x}" == TRACE_ID


@both_ways
def test_a_request_that_native_telemetry_leaves_out_is_left_out(
    process: Process, install: Install
) -> None:
    app = fastapi_app(telemetry={"exclude": lambda scope: scope["path"] == "/x/7"})
    asyncio.run(request(install(app), "/x/7"))
    servers = process.servers()
    if install is wrap_with_ours:
        assert servers == []
    else:  # around ours nothing shows that there is native telemetry
        assert len(servers) == 1


@both_ways
def test_an_unsampled_request_of_theirs_has_no_spans_of_ours(
    monkeypatch: pytest.MonkeyPatch, install: Install
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    process = Process(TracerProvider(sampler=TraceIdRatioBased(0), shutdown_on_exit=False))
    trace.set_tracer_provider(process.provider)
    asyncio.run(request(install(fastapi_app()), "/x/7"))
    assert process.spans() == ()
    assert exemplars() == {}


def test_a_span_around_the_server_is_nobodys_parent(process: Process) -> None:
    """`with tracer.start_as_current_span("main"): serve()` would be one endless trace."""

    async def main() -> None:
        with process.provider.get_tracer("t").start_as_current_span("main"):
            await request(wrap_with_ours(starlette_app()), "/x/7")

    asyncio.run(main())
    (server,) = process.servers()
    (outer,) = process.named("main")
    assert server.parent is None
    assert server.context is not None
    assert outer.context is not None
    assert server.context.trace_id != outer.context.trace_id


def test_spans_of_libraries_within_are_children(process: Process) -> None:
    async def handler(incoming: Request) -> Response:
        with trace.get_tracer("client").start_as_current_span("GET", kind=SpanKind.CLIENT):
            return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="s")
    asyncio.run(request(app, "/"))
    (server,) = process.servers()
    (client,) = process.named("GET")
    assert client.parent is not None
    assert server.context is not None
    assert client.parent.span_id == server.context.span_id


def test_an_application_called_within_a_request_has_its_own_server_span(process: Process) -> None:
    inner = fastapi_app()

    async def handler(incoming: Request) -> Response:
        with trace.get_tracer("client").start_as_current_span("call", kind=SpanKind.CLIENT) as span:
            ids = span.get_span_context()
            parent = f"00-{ids.trace_id:032x}-{ids.span_id:016x}-01".encode()
            await request(inner, "/x/7", headers=[(b"traceparent", parent)])
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/outer", handler)]), service="s")
    asyncio.run(request(app, "/outer"))
    assert sorted(span.name for span in process.servers()) == ["GET /outer", "GET /x/{id}"]


def mounted() -> App:
    outer = Starlette()
    outer.mount("/sub", StageTimingMiddleware(starlette_app(), service="inner"))
    return StageTimingMiddleware(outer, service="s")


def test_a_mounted_service_of_ours_adds_its_stages(process: Process) -> None:
    asyncio.run(request(mounted(), "/sub/x/7"))
    check_one_server_span(process, "/sub/x/{id}")


def test_and_so_without_a_provider_of_the_process(no_provider: Kept) -> None:
    asyncio.run(request(mounted(), "/sub/x/7", headers=SAMPLED))
    close()
    assert no_provider.names() == ["GET /sub/x/{id}", "inference"]
