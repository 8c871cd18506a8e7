"""OpenTelemetry spans: one per request, one per stage, and their trace as exemplar."""

from __future__ import annotations

import asyncio
import http.server
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, render_metrics, stage
from tailwatch_tracing.service import service_named
from tailwatch_tracing.spans import STAGE_SPANS, SpanRecorder, are_configured
from tests.tracing.asgi import App, nonzero, request, values

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
SAMPLED = [(b"traceparent", f"00-{TRACE_ID}-{PARENT_ID}-01".encode())]
NOT_SAMPLED = [(b"traceparent", f"00-{TRACE_ID}-{PARENT_ID}-00".encode())]


async def answer(incoming: Request) -> Response:
    with stage("preprocess"):
        await asyncio.sleep(0.002)
    with stage("inference"):
        await asyncio.sleep(0.004)
    return PlainTextResponse("ok")


async def stream(incoming: Request) -> Response:
    return StreamingResponse(b"x" for _ in range(1000))


async def fail(incoming: Request) -> Response:
    raise LookupError


async def many(incoming: Request) -> Response:
    for _ in range(STAGE_SPANS + 20):
        with stage("token"):
            pass
    return PlainTextResponse("ok")


def app_with(provider: TracerProvider) -> App:
    routes = [
        Route("/x/{id}", answer),
        Route("/stream", stream),
        Route("/fail", fail),
        Route("/many", many),
    ]
    app = StageTimingMiddleware(Starlette(routes=routes), service="s")
    service = service_named("s")
    service.spans = SpanRecorder(service, provider)
    return app


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def app(exporter: InMemorySpanExporter) -> App:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return app_with(provider)


def finished(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_server_span_with_a_child_per_stage(app: App, exporter: InMemorySpanExporter) -> None:
    before = time.time_ns()
    asyncio.run(request(app, "/x/7", headers=SAMPLED))
    spans = finished(exporter)
    assert set(spans) == {"GET /x/{id}", "preprocess", "inference"}
    server = spans["GET /x/{id}"]
    assert server.kind is trace.SpanKind.SERVER
    assert server.attributes == {
        "http.request.method": "GET",
        "http.route": "/x/{id}",
        "http.response.status_code": 200,
        "url.path": "/x/7",
        "url.scheme": "http",
        "tailwatch.outcome": "ok",
    }
    context = server.get_span_context()
    assert context is not None
    assert f"{context.trace_id:032x}" == TRACE_ID
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" == PARENT_ID
    for name in ("preprocess", "inference"):
        parent = spans[name].parent
        assert parent is not None
        assert parent.span_id == context.span_id
    times = [
        before,
        server.start_time,
        spans["preprocess"].start_time,
        spans["preprocess"].end_time,
        spans["inference"].start_time,
        spans["inference"].end_time,
        server.end_time,
        time.time_ns(),
    ]
    assert times == sorted(times)  # type: ignore[type-var]


def test_a_stream_of_1000_chunks_is_one_span(app: App, exporter: InMemorySpanExporter) -> None:
    asyncio.run(request(app, "/stream"))
    assert set(finished(exporter)) == {"GET /stream"}
    assert len(exporter.get_finished_spans()) == 1


def test_stage_spans_are_bounded_and_the_rest_is_counted(
    app: App, exporter: InMemorySpanExporter
) -> None:
    asyncio.run(request(app, "/many"))
    assert len(exporter.get_finished_spans()) == STAGE_SPANS + 1
    assert values("tailwatch_spans_dropped_total", "reason") == {
        ("export_failed",): 0,
        ("queue_full",): 0,
        ("stage_limit",): 20,
    }


def test_a_failed_request_is_an_error_span(app: App, exporter: InMemorySpanExporter) -> None:
    with pytest.raises(LookupError):
        asyncio.run(request(app, "/fail"))
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "500"
    assert span.attributes["tailwatch.outcome"] == "error"


def test_the_span_is_current_for_clients_within_and_gone_after(app: App) -> None:
    inside: list[int] = []

    async def handler(incoming: Request) -> Response:
        inside.append(trace.get_current_span().get_span_context().trace_id)
        return PlainTextResponse("ok")

    async def main() -> int:
        app.app.router.routes.append(Route("/current", handler))  # type: ignore[attr-defined]
        await request(app, "/current", headers=SAMPLED)
        return trace.get_current_span().get_span_context().trace_id

    assert asyncio.run(main()) == 0
    assert inside == [int(TRACE_ID, 16)]


def duration_exemplars() -> list[Any]:
    body, _ = render_metrics("application/openmetrics-text")
    return [
        sample.exemplar
        for family in parse_openmetrics(body.decode())
        if family.name == "inference_request_duration_seconds"
        for sample in family.samples
        if sample.exemplar
    ]


def test_the_trace_is_the_exemplar_of_its_durations_bucket(app: App) -> None:
    asyncio.run(request(app, "/x/7", headers=SAMPLED))
    (exemplar,) = duration_exemplars()
    assert exemplar.labels["trace_id"] == TRACE_ID
    assert len(exemplar.labels["span_id"]) == 16
    assert 0.006 <= exemplar.value < 5
    assert abs(float(exemplar.timestamp) - time.time()) < 60


def test_an_unsampled_trace_is_no_exemplar(app: App) -> None:
    asyncio.run(request(app, "/x/7", headers=NOT_SAMPLED))
    assert duration_exemplars() == []


def test_an_unsampled_request_makes_no_stage_spans() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    asyncio.run(request(app_with(provider), "/x/7"))
    assert exporter.get_finished_spans() == ()
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def test_an_error_in_the_spans_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no tracer")

    with caplog.at_level(logging.WARNING):
        exchange = asyncio.run(request(app_with(Broken(shutdown_on_exit=False)), "/x/7"))
    assert exchange.body == b"ok"
    assert nonzero("tailwatch_errors_total", ["where"]) == {("spans",): 1}


def test_a_client_cannot_write_to_the_log_with_baggage_or_long_headers(
    app: App, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    headers = [
        (b"traceparent", b"00-\xff-x" * 99),
        (b"tracestate", b"=" * 999),
        (b"baggage", b"a" * 99),
    ]
    asyncio.run(request(app, "/x/7", headers=headers))
    assert caplog.text == ""
    assert finished(exporter)["GET /x/{id}"].parent is None


def test_what_cannot_be_begun_is_not_tried_with_each_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1")
    app = StageTimingMiddleware(Starlette(routes=[Route("/x/{id}", answer)]), service="s")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert asyncio.run(request(app, "/x/7")).body == b"ok"
    assert nonzero("tailwatch_errors_total", ["where"]) == {("spans",): 1}
    assert service_named("s").spans is None


# --- when there are spans at all ---


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_an_endpoint_is_what_turns_spans_on(environ: dict[str, str], expected: bool) -> None:
    assert are_configured(environ) is expected


def test_an_endpoint_without_the_extra_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tailwatch_tracing.spans._is_installed", lambda module: False)
    with caplog.at_level(logging.WARNING):
        assert not are_configured({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"})
    assert "pip install 'tailwatch[tracing]'" in caplog.text


def test_nothing_but_the_client_library_is_imported_without_an_endpoint() -> None:
    code = """
        import sys
        from tailwatch_tracing import StageTimingMiddleware, render_metrics
        StageTimingMiddleware(None, service="s")
        body, _ = render_metrics()
        assert b"spans_dropped" not in body
        extras = {"opentelemetry", "starlette", "fastapi", "anyio", "pynvml", "yaml", "psutil"}
        sys.exit(str(sorted(extras & set(sys.modules))) if extras & set(sys.modules) else 0)
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=environ)


class Collector(http.server.ThreadingHTTPServer):
    """Takes OTLP over HTTP on loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        super().__init__(("127.0.0.1", 0), CollectorHandler)


class CollectorHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Collector)
        self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_forked_workers_export_their_own_spans_over_otlp(collector: Collector) -> None:
    """The middleware is built before the fork, as a preloading server does."""
    code = """
        import asyncio, os
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route
        from tailwatch_tracing import StageTimingMiddleware, stage
        import threading

        async def answer(request):
            with stage("inference"):
                return PlainTextResponse(str(os.getpid()))

        app = StageTimingMiddleware(Starlette(routes=[Route("/x", answer)]), service="embedder")
        assert threading.active_count() == 1

        async def main():
            async def receive():
                return {"type": "http.request"}
            async def send(message): ...
            scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
            await app(dict(scope), receive, send)

        children = []
        for _ in range(2):
            pid = os.fork()
            if not pid:
                asyncio.run(main())
                raise SystemExit  # the exporter flushes at exit
            children.append(pid)
        for pid in children:
            assert os.waitpid(pid, 0)[1] == 0
    """
    environ = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_address[1]}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "no_proxy": "127.0.0.1",
    }
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=environ)
    names: list[str] = []
    for path, exported in collector.requests:
        assert path == "/v1/traces"
        for resource in exported.resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            assert attributes["service.name"] == "embedder"
            names += [span.name for scope in resource.scope_spans for span in scope.spans]
    assert sorted(names) == ["GET /x", "GET /x", "inference", "inference"]


def test_a_fork_leaves_the_parents_exporter_behind(app: App) -> None:
    """Its connection is the parent's: two processes must not write to one socket."""
    asyncio.run(request(app, "/x/7"))
    recorder = service_named("s").spans
    assert recorder is not None
    assert recorder._tracer is not None
    pid = os.fork()
    if pid == 0:
        os._exit(recorder._tracer is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_first_request_does_not_wait_for_imports() -> None:
    code = """
        import sys
        from tailwatch_tracing import StageTimingMiddleware
        StageTimingMiddleware(None, service="s")
        assert "opentelemetry.sdk.trace.export" in sys.modules
        assert "opentelemetry.exporter.otlp.proto.http.trace_exporter" in sys.modules
    """
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=environ)


def test_a_dead_collector_costs_counted_spans_and_one_try_at_exit() -> None:
    """33 requests of one span each: a queue of 10, and an exporter that holds a batch of 2."""
    code = """
        import asyncio, logging, threading, time
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult
        logging.disable()
        tries, taken, may_fail = [], threading.Event(), threading.Event()

        def export(self, spans):
            tries.append(len(spans))
            taken.set()
            may_fail.wait(30)
            return SpanExportResult.FAILURE
        OTLPSpanExporter.export = export

        from tailwatch_tracing import StageTimingMiddleware
        from tailwatch_tracing.service import service_named

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async def send(message): ...
        middleware = StageTimingMiddleware(app, service="s")
        scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
        for i in range(33):
            asyncio.run(middleware(dict(scope), None, send))
            if i == 1:
                taken.wait(30)
        recorder = service_named("s").spans
        print(tries, recorder._dropped.counts[1])
        ending = threading.Thread(target=recorder._tracer.span_processor.shutdown)
        ending.start()
        while not recorder._tracer.span_processor._span_processors[0].is_ending:
            time.sleep(0.001)
        may_fail.set()
        ending.join()
        print(tries, recorder._dropped.counts[0])
    """
    environ = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_BSP_MAX_QUEUE_SIZE": "10",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["[2] 21", "[2] 12"]


def test_spans_that_cannot_be_delivered_are_counted() -> None:
    code = """
        import asyncio, logging
        from tailwatch_tracing import StageTimingMiddleware, render_metrics
        logging.disable()

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async def send(message): ...
        middleware = StageTimingMiddleware(app, service="s")
        scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
        asyncio.run(middleware(scope, None, send))
        from tailwatch_tracing.service import service_named
        service_named("s").spans._tracer.span_processor.shutdown()
        print(render_metrics()[0].decode())
    """
    environ = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "no_proxy": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=True,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert 'tailwatch_spans_dropped_total{service="s",reason="export_failed"} 1' in done.stdout
