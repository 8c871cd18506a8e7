"""One span per request and one per stage: what is in them, and which are kept."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased
from opentelemetry.trace import StatusCode
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from tailwatch_tracing import StageTimingMiddleware, downstream, stage
from tailwatch_tracing.service import service_named
from tailwatch_tracing.spans import are_configured, sampling
from tailwatch_tracing.spans.conventions import LONGEST_VALUE
from tailwatch_tracing.spans.kept import STAGE_SPANS
from tailwatch_tracing.spans.recorder import SpanRecorder
from tests.tracing.asgi import App, Exchange, nonzero, request, values
from tests.tracing.conftest import Clock

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
SAMPLED = [(b"traceparent", f"00-{TRACE_ID}-{PARENT_ID}-01".encode())]
NOT_SAMPLED = [(b"traceparent", f"00-{TRACE_ID}-{PARENT_ID}-00".encode())]


class Kept(SpanExporter):
    """Takes the spans of a queue of ours, or of an SDK provider."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS

    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)

    def server(self) -> ReadableSpan:
        (span,) = (span for span in self.spans if span.kind is trace.SpanKind.SERVER)
        return span


async def answer(incoming: Request) -> Response:
    with stage("preprocess"):
        await asyncio.sleep(0.002)
    with stage("inference"):
        await asyncio.sleep(0.004)
    return PlainTextResponse("ok")


async def fail(incoming: Request) -> Response:
    with stage("inference"):
        raise LookupError("a prompt")


async def fail_midstream(incoming: Request) -> Response:
    async def body() -> Any:
        yield b"x"
        raise LookupError("a prompt")

    return StreamingResponse(body())


async def refuse(incoming: Request) -> Response:
    raise HTTPException(503)


async def use_span(incoming: Request) -> Response:
    span = trace.get_current_span()
    span.set_attribute("user.tier", "gold")
    span.set_attributes({"model": "small"})
    span.add_event("looked up", {"hits": 3})
    span.update_name("my name")
    span.end()
    return PlainTextResponse(str(span.is_recording()))


async def many_stages(incoming: Request) -> Response:
    for _ in range(STAGE_SPANS + 20):
        with stage("token"):
            pass
    return PlainTextResponse("ok")


async def stay_open(incoming: Request) -> Response:
    stage("inference").__enter__()
    return PlainTextResponse("ok")


async def in_background(incoming: Request) -> Response:
    async def task() -> None:
        await asyncio.sleep(0.05)

    return PlainTextResponse("ok", background=BackgroundTask(task))


async def reject_in_numbered_stage(incoming: Request) -> Response:
    with stage(5):  # type: ignore[arg-type]
        return PlainTextResponse("busy", 429)


ROUTES = [
    Route("/x/{id}", answer, methods=["GET", "POST"]),
    Route("/stream", lambda _: StreamingResponse(b"x" for _ in range(1000))),
    Route("/fail", fail),
    Route("/midstream", fail_midstream),
    Route("/refuse", refuse),
    Route("/busy", lambda _: PlainTextResponse("busy", 429)),
    Route("/numbered", reject_in_numbered_stage),
    Route("/use", use_span),
    Route("/many", many_stages),
    Route("/open", stay_open),
    Route("/background", in_background),
    Mount("/t/{tenant}", Starlette(routes=[Route("/doc/{d}", answer)])),
]


class Traced:
    """A service whose spans are taken from its own queue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        self.kept = Kept()
        monkeypatch.setattr(
            "tailwatch_tracing.spans.recorder.exporter_class", lambda: lambda: self.kept
        )
        self.app = StageTimingMiddleware(
            Starlette(routes=ROUTES), service="s", slo_seconds=0.5, client_timeout_seconds=2
        )
        recorder = service_named("s").spans
        assert recorder is not None
        self.recorder = recorder

    def get(self, path: str, method: str = "GET", **more: Any) -> Exchange:
        return asyncio.run(request(self.app, path, method, **more))

    def spans(self) -> Kept:
        self.recorder.close()
        return self.kept


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    return Traced(monkeypatch)


@pytest.fixture
def unsampled(monkeypatch: pytest.MonkeyPatch) -> Traced:
    return Traced(
        monkeypatch, OTEL_TRACES_SAMPLER="parentbased_traceidratio", OTEL_TRACES_SAMPLER_ARG="0"
    )


def app_with(provider: TracerProvider) -> App:
    app = StageTimingMiddleware(Starlette(routes=ROUTES), service="s", slo_seconds=0.5)
    service = service_named("s")
    service.spans = SpanRecorder(service, provider)
    return app


# --- what is in a span ---


def test_a_stage_of_a_rejected_request_has_a_text_for_its_name(traced: Traced) -> None:
    """Which no count has looked at: it could not be encoded, nor could what goes with it."""
    traced.get("/numbered")
    assert traced.spans().names() == ["5", "GET /numbered"]


def test_a_server_span_with_a_child_per_stage(traced: Traced) -> None:
    before = time.time_ns()
    traced.get(
        "/x/7",
        headers=[(b"host", b"api.example:8443"), (b"user-agent", b"curl/8"), *SAMPLED],
        query_string=b"token=secret",
    )
    kept = traced.spans()
    assert kept.names() == ["GET /x/{id}", "inference", "preprocess"]
    server = kept.server()
    # OpenTelemetry semantic conventions, "HTTP server span": what is required, and recommended.
    assert dict(server.attributes or {}) == {
        "http.request.method": "GET",
        "http.route": "/x/{id}",
        "http.response.status_code": 200,
        "url.path": "/x/7",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "client.address": "127.0.0.1",
        "server.address": "api.example",
        "server.port": 8443,
        "user_agent.original": "curl/8",
        "tailwatch.outcome": "ok",
    }
    assert server.status.status_code is StatusCode.UNSET
    context = server.get_span_context()
    assert context is not None
    assert f"{context.trace_id:032x}" == TRACE_ID
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" == PARENT_ID
    assert server.parent.is_remote
    stages = {span.name: span for span in kept.spans if span is not server}
    for span in stages.values():
        assert span.kind is trace.SpanKind.INTERNAL
        assert span.parent is not None
        assert span.parent.span_id == context.span_id
        assert span.context is not None
        assert span.context.trace_id == context.trace_id
    assert len({span.context.span_id for span in kept.spans if span.context}) == 3
    times = [
        before,
        server.start_time,
        stages["preprocess"].start_time,
        stages["preprocess"].end_time,
        stages["inference"].start_time,
        stages["inference"].end_time,
        server.end_time,
        time.time_ns(),
    ]
    assert times == sorted(times)  # type: ignore[type-var]
    scope = server.instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.schema_url) == (
        "tailwatch_tracing",
        "https://opentelemetry.io/schemas/1.23.1",
    )
    assert server.resource.attributes["service.name"] == "s"


@pytest.mark.parametrize(
    ("path", "method", "name", "route"),
    [
        ("/t/acme/doc/9", "GET", "GET /t/{tenant}/doc/{d}", "/t/{tenant}/doc/{d}"),
        ("/nowhere/7", "GET", "GET", None),
        ("/x/7", "PUT", "PUT /x/{id}", "/x/{id}"),
        ("/x/7", "BREW", "HTTP /x/{id}", "/x/{id}"),
    ],
)
def test_names_are_templates(
    traced: Traced, path: str, method: str, name: str, route: str | None
) -> None:
    traced.get(path, method)
    span = traced.spans().server()
    attributes = span.attributes or {}
    assert span.name == name
    assert attributes.get("http.route") == route
    known = "_OTHER" if method == "BREW" else method
    assert attributes["http.request.method"] == known
    original = attributes.get("http.request.method_original")
    assert original == ("BREW" if method == "BREW" else None)


@pytest.mark.parametrize(
    ("path", "status", "outcome", "error"),
    [
        ("/fail", 500, "error", "LookupError"),
        ("/midstream", 200, "error_midstream", "LookupError"),
        ("/refuse", 503, "error", "503"),
        ("/nowhere", 404, "client_error", None),
        ("/busy", 429, "rejected", None),
    ],
)
def test_outcome_and_error(
    traced: Traced, path: str, status: int, outcome: str, error: str | None
) -> None:
    try:
        traced.get(path)
    except LookupError:
        pass
    span = traced.spans().server()
    attributes = span.attributes or {}
    assert attributes["http.response.status_code"] == status
    assert attributes["tailwatch.outcome"] == outcome
    assert attributes.get("error.type") == error
    assert span.status.status_code is (StatusCode.ERROR if error else StatusCode.UNSET)
    assert "prompt" not in str(span.to_json())


def test_a_cancelled_request_is_no_error(traced: Traced) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(request(traced.app, "/x/7"))
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    span = traced.spans().server()
    assert span.attributes is not None
    assert span.attributes["tailwatch.outcome"] == "cancelled"
    assert span.attributes["http.response.status_code"] == 499
    assert span.status.status_code is StatusCode.UNSET


def test_a_timed_out_request_is_an_error(traced: Traced, clock: Clock) -> None:
    async def slow(incoming: Request) -> Response:
        clock.advance(3)
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(
        Starlette(routes=[Route("/slow", slow)]), service="s", client_timeout_seconds=2
    )
    asyncio.run(request(app, "/slow"))
    span = traced.spans().server()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "timeout"
    assert span.status.status_code is StatusCode.ERROR


def test_a_stream_of_1000_chunks_is_one_span(traced: Traced) -> None:
    traced.get("/stream")
    assert traced.spans().names() == ["GET /stream"]


def test_the_span_ends_with_the_last_body_message(traced: Traced) -> None:
    started = time.monotonic_ns()
    traced.get("/background")
    assert time.monotonic_ns() - started >= 50e6
    span = traced.spans().server()
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time < 40e6


def test_an_open_stage_ends_with_its_request(traced: Traced) -> None:
    traced.get("/open")
    kept = traced.spans()
    (inference,) = (span for span in kept.spans if span.name == "inference")
    assert inference.end_time == kept.server().end_time


def test_stage_spans_are_bounded_and_the_rest_is_counted(traced: Traced) -> None:
    traced.get("/many")
    assert len(traced.spans().spans) == STAGE_SPANS + 1
    assert values("tailwatch_spans_dropped_total", "reason") == {
        ("export_failed",): 0,
        ("queue_full",): 0,
        ("stage_limit",): 20,
        ("keep_limit",): 0,
    }


def test_what_a_client_sends_is_kept_short(traced: Traced) -> None:
    long = b"a" * 60_000
    headers = [(b"host", long), (b"user-agent", long)]
    traced.get("/" + long.decode(), long.decode(), headers=headers)
    attributes = traced.spans().server().attributes or {}
    for value in attributes.values():
        assert not isinstance(value, str) or len(value) <= LONGEST_VALUE


@pytest.mark.parametrize("host", [b"[::1]:80", b"[", b"a:b", b"", b"\xff"])
def test_an_odd_host_harms_nothing(traced: Traced, host: bytes) -> None:
    traced.get("/x/7", headers=[(b"host", host)])
    attributes = traced.spans().server().attributes or {}
    assert attributes.get("server.address") == {b"[::1]:80": "::1", b"\xff": "ÿ"}.get(host)
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def test_attributes_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced(monkeypatch, TAILWATCH_SPAN_OMIT="client.address, user_agent.original")
    traced.get("/x/7", headers=[(b"user-agent", b"curl/8")])
    attributes = traced.spans().server().attributes or {}
    assert "client.address" not in attributes
    assert "user_agent.original" not in attributes
    assert "server.address" in attributes


# --- what code within a request sees ---


@pytest.mark.parametrize("sampled", [True, False])
def test_the_span_is_current_for_clients_within_and_gone_after(
    traced: Traced, sampled: bool
) -> None:
    inside: list[trace.SpanContext] = []

    async def handler(incoming: Request) -> Response:
        await asyncio.sleep(0)
        inside.append(trace.get_current_span().get_span_context())
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/current", handler)]), service="s")

    async def main() -> trace.SpanContext:
        headers = [*(SAMPLED if sampled else NOT_SAMPLED), (b"tracestate", b"vendor=1")]
        await request(app, "/current", headers=headers)
        return trace.get_current_span().get_span_context()

    assert asyncio.run(main()) == trace.INVALID_SPAN_CONTEXT
    (context,) = inside
    assert context.trace_id == int(TRACE_ID, 16)
    assert context.span_id != int(PARENT_ID, 16)
    assert not context.is_remote
    assert context.trace_flags.sampled is sampled
    assert context.trace_state.to_header() == "vendor=1"


def test_code_within_may_add_to_the_span(traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    assert traced.get("/use").body == b"True"
    span = traced.spans().server()
    assert span.name == "my name"
    assert span.attributes is not None
    assert span.attributes["user.tier"] == "gold"
    assert span.attributes["model"] == "small"
    assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
        ("looked up", {"hits": 3})
    ]


def test_a_span_that_is_over_takes_nothing_and_says_nothing(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    left: list[trace.Span] = []

    async def handler(incoming: Request) -> Response:
        left.append(trace.get_current_span())
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/x", handler)]), service="s")
    asyncio.run(request(app, "/x"))
    left[0].set_attribute("late", 1)
    assert not left[0].is_recording()
    assert "late" not in (traced.spans().server().attributes or {})
    assert caplog.text == ""


def test_a_status_set_within_wins(traced: Traced) -> None:
    async def handler(incoming: Request) -> Response:
        trace.get_current_span().set_status(StatusCode.ERROR, "no model")
        trace.get_current_span().record_exception(ValueError("odd"))
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/x", handler)]), service="s")
    asyncio.run(request(app, "/x"))
    span = traced.spans().server()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no model")
    (event,) = span.events
    assert event.attributes is not None
    assert event.attributes["exception.message"] == "odd"


# --- which are kept ---


def test_a_parent_decides(traced: Traced) -> None:
    traced.get("/x/7", headers=NOT_SAMPLED)
    traced.get("/x/8", headers=SAMPLED)
    assert (traced.spans().server().attributes or {})["url.path"] == "/x/8"


def test_the_share_is_the_one_of_opentelemetrys_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services that sample the same share keep the same traces."""
    ours = sampling.sampling_from(
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.3"}
    )
    theirs = TraceIdRatioBased(0.3)
    draw = random.Random(1)
    for _ in range(2000):
        trace_id = draw.getrandbits(128)
        expected = theirs.should_sample(None, trace_id, "x").decision.is_sampled()
        assert (trace_id & sampling.LOW_BITS < ours.bound) is expected


@pytest.mark.parametrize(
    ("name", "argument", "headers", "expected"),
    [
        ("always_on", "", NOT_SAMPLED, True),
        ("always_off", "", SAMPLED, False),
        ("traceidratio", "1", NOT_SAMPLED, True),
        ("traceidratio", "0", SAMPLED, False),
        ("PARENTBASED_ALWAYS_OFF", "", SAMPLED, True),
        ("parentbased_always_off", "", [], False),
        ("parentbased_always_on", "", [], True),
        ("parentbased_traceidratio", "0", SAMPLED, True),
        ("parentbased_traceidratio", "0", [], False),
        ("parentbased_traceidratio", "1", [], True),
    ],
)
def test_samplers(
    monkeypatch: pytest.MonkeyPatch, name: str, argument: str, headers: Any, expected: bool
) -> None:
    traced = Traced(monkeypatch, OTEL_TRACES_SAMPLER=name, OTEL_TRACES_SAMPLER_ARG=argument)
    traced.get("/x/7", headers=headers)
    assert bool(traced.spans().spans) is expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"OTEL_TRACES_SAMPLER": "sometimes"},
            "OTEL_TRACES_SAMPLER=sometimes: expected one of always_on, always_off",
        ),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "10%"},
            "OTEL_TRACES_SAMPLER_ARG=10%: expected a ratio from 0 to 1",
        ),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"},
            "OTEL_TRACES_SAMPLER_ARG=nan: expected a ratio from 0 to 1",
        ),
        (
            {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"},
            "OTEL_BSP_MAX_QUEUE_SIZE=-1: expected a whole number above 0",
        ),
    ],
)
def test_a_setting_out_of_its_range_is_said_and_traced_without(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    environ: dict[str, str],
    message: str,
) -> None:
    traced = Traced(monkeypatch, **environ)
    traced.get("/x/7")
    assert message in caplog.text
    assert len(traced.spans().spans) == 3


@pytest.mark.parametrize("path", ["/fail", "/midstream"])
def test_a_failed_request_is_kept_without_being_sampled(unsampled: Traced, path: str) -> None:
    unsampled.get("/x/7")
    with pytest.raises(LookupError):
        unsampled.get(path, headers=NOT_SAMPLED)
    kept = unsampled.spans()
    server = kept.server()
    assert server.attributes is not None
    assert server.attributes["url.path"] == path
    assert server.attributes["tailwatch.kept"] == "failed"
    assert server.context is not None
    assert server.context.trace_flags.sampled
    assert f"{server.context.trace_id:032x}" == TRACE_ID
    assert kept.names() == [f"GET {path}"] + ["inference"] * (path == "/fail")


def test_a_slow_request_is_kept_with_what_code_within_said(unsampled: Traced, clock: Clock) -> None:
    inside: list[bool] = []

    async def slow(incoming: Request) -> Response:
        span = trace.get_current_span()
        inside.append(span.get_span_context().trace_flags.sampled)
        span.set_attribute("model", "small")
        clock.advance(0.6)
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(
        Starlette(routes=[Route("/slow", slow)]), service="s", slo_seconds=0.5
    )
    asyncio.run(request(app, "/slow"))
    server = unsampled.spans().server()
    assert server.attributes is not None
    assert server.attributes["tailwatch.kept"] == "slow"
    assert server.attributes["model"] == "small"
    assert inside == [False]  # nobody knew yet


def test_always_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced(monkeypatch, OTEL_TRACES_SAMPLER="always_off")
    with pytest.raises(LookupError):
        traced.get("/fail")
    assert traced.spans().spans == []
    assert nonzero("tailwatch_spans_dropped_total", ["reason"]) == {}


def test_an_outage_keeps_a_bounded_number_and_counts_the_rest(
    unsampled: Traced, clock: Clock
) -> None:
    for _ in range(2):
        for _ in range(sampling.KEPT_PER_SECOND + 5):
            with pytest.raises(LookupError):
                unsampled.get("/fail")
        clock.advance(1)
    assert len(unsampled.spans().spans) == 2 * sampling.KEPT_PER_SECOND * 2
    # Five requests of a second, twice, with one stage each.
    assert values("tailwatch_spans_dropped_total", "reason")[("keep_limit",)] == 20


def test_calls_of_a_trace_that_is_not_kept_any_more_are_counted(
    unsampled: Traced, clock: Clock
) -> None:
    async def handler(incoming: Request) -> Response:
        with downstream("db"):
            pass
        raise LookupError("a row")

    app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="s")
    for _ in range(sampling.KEPT_PER_SECOND + 1):
        with pytest.raises(LookupError):
            asyncio.run(request(app, "/"))
    assert values("tailwatch_spans_dropped_total", "reason")[("keep_limit",)] == 2


def test_ids_differ_however_the_service_seeds(traced: Traced) -> None:
    for _ in range(2):
        random.seed(42)
        traced.get("/stream")
    ids = {span.context.trace_id for span in traced.spans().spans if span.context}
    assert len(ids) == 2


def test_forked_workers_draw_other_ids(traced: Traced) -> None:
    traced.get("/stream")  # the parent has drawn
    read, write = os.pipe()
    children = []
    for _ in range(2):
        pid = os.fork()
        if not pid:
            os.write(write, b"%032x" % traced.recorder._draw(128))
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    drawn = os.read(read, 64)
    assert len(drawn) == 64
    assert drawn[:32] != drawn[32:]


# --- through the process's own provider ---


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def provider_to(exporter: InMemorySpanExporter, **options: Any) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False, **options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def test_spans_go_through_a_given_provider(exporter: InMemorySpanExporter) -> None:
    asyncio.run(request(app_with(provider_to(exporter)), "/x/7", headers=SAMPLED))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"GET /x/{id}", "preprocess", "inference"}
    server = spans["GET /x/{id}"]
    assert server.attributes is not None
    assert server.attributes["http.route"] == "/x/{id}"
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" == PARENT_ID
    for name in ("preprocess", "inference"):
        parent = spans[name].parent
        assert parent is not None
        assert server.context is not None
        assert parent.span_id == server.context.span_id


def test_its_processors_see_the_request_begin(exporter: InMemorySpanExporter) -> None:
    provider = provider_to(exporter)
    inside: list[bool] = []

    async def handler(incoming: Request) -> Response:
        inside.append(isinstance(trace.get_current_span(), ReadableSpan))
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/x", handler)]), service="s")
    service_named("s").spans = SpanRecorder(service_named("s"), provider)
    asyncio.run(request(app, "/x"))
    assert inside == [True]


def test_its_sampler_decides(exporter: InMemorySpanExporter) -> None:
    app = app_with(provider_to(exporter, sampler=TraceIdRatioBased(0)))
    asyncio.run(request(app, "/x/7"))
    assert exporter.get_finished_spans() == ()
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def test_failed_requests_are_kept_through_it(exporter: InMemorySpanExporter) -> None:
    app = app_with(provider_to(exporter, sampler=TraceIdRatioBased(0)))
    with pytest.raises(LookupError):
        asyncio.run(request(app, "/fail", headers=NOT_SAMPLED))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"GET /fail", "inference"}
    server = spans["GET /fail"]
    assert server.context is not None
    assert f"{server.context.trace_id:032x}" == TRACE_ID
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" == PARENT_ID
    assert server.status.status_code is StatusCode.ERROR
    parent = spans["inference"].parent
    assert parent is not None
    assert parent.span_id == server.context.span_id


def test_nothing_is_kept_when_it_is_off(exporter: InMemorySpanExporter) -> None:
    app = app_with(provider_to(exporter, sampler=ALWAYS_OFF))
    with pytest.raises(LookupError):
        asyncio.run(request(app, "/fail"))
    assert exporter.get_finished_spans() == ()


def test_an_error_in_the_spans_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no tracer")

    with caplog.at_level(logging.WARNING):
        app = app_with(Broken(shutdown_on_exit=False))
        for _ in range(3):
            assert asyncio.run(request(app, "/x/7")).body == b"ok"
    # What cannot be begun is not tried with each request.
    assert nonzero("tailwatch_errors_total", ["where"]) == {("spans",): 1}
    assert service_named("s").spans is None


# --- when there are spans at all ---


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_SDK_DISABLED": "True"}, False),
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
        from tailwatch_tracing import *
        StageTimingMiddleware(None, service="s")
        body, _ = render_metrics()
        assert b"spans_dropped" not in body
        extras = {"opentelemetry", "starlette", "fastapi", "anyio", "pynvml", "yaml", "psutil"}
        sys.exit(str(sorted(extras & set(sys.modules))) if extras & set(sys.modules) else 0)
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=environ)


def test_the_first_request_does_not_wait_for_imports() -> None:
    code = """
        import sys
        from tailwatch_tracing import StageTimingMiddleware
        StageTimingMiddleware(None, service="s")
        assert "opentelemetry.exporter.otlp.proto.http.trace_exporter" in sys.modules
    """
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=environ)
