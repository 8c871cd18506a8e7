"""CPU that tracing adds to a FastAPI request with four stages, its export included.

Every variant exports over OTLP/HTTP with the SDK's exporter to a receiver in another process. What
is compared is the CPU time of the whole process, from the first request of a block until its last
span is delivered, so that the exporting thread's encoding and sending count. The CPU time of the
event loop's thread alone is printed beside it: that is what requests wait for.

Every variant has metrics beside its traces: tailwatch its own, FastAPI's native telemetry and
opentelemetry-instrumentation-fastapi those that they record for a meter provider (in memory: one
message a minute is not what a request costs).
The peers' stages are spans made with start_as_current_span. `tailwatch without spans` tells what of
tailwatch's cost is not tracing.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp

from tests.bench.asgi import request
from tests.bench.harness import (
    Result,
    added,
    added_ratio,
    in_fresh_process,
    median_interval,
    mirrored,
)

REQUESTS = 2000  # at 1 % a block's export is one message of a hundred spans
PASSES = 2

FULL_GOAL = 0.45
SAMPLED_GOAL = 0.05

STAGES = ("ingress", "preprocess", "inference", "postprocess")

BARE = "bare"
WITHOUT, FULL, SAMPLED = "tailwatch without spans", "tailwatch, 100 %", "tailwatch, 1 %"
NATIVE, CONTRIB = "FastAPI native telemetry, 100 %", "opentelemetry-instrumentation-fastapi, 100 %"

SPANS = {BARE: 0, WITHOUT: 0, FULL: 5, SAMPLED: 0.05, NATIVE: 7, CONTRIB: 7}
"""Spans a request: the server's and four stages; FastAPI's endpoint and response, or two sends."""

LOOP = ", loop thread"

_RECEIVER = """
import http.server, json, os
from collections import Counter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

counts = Counter()

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(json.dumps(counts).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            (name,) = (a.value.string_value for a in resource.resource.attributes
                       if a.key == "service.name")
            counts[name] += sum(len(scope.spans) for scope in resource.scope_spans)
        self.answer(b"")

    def log_message(self, *args): ...

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class Variant(NamedTuple):
    """An application, and what delivers the spans that it still holds."""

    app: ASGIApp
    flush: Callable[[], object]


def run(slots: int) -> list[Result]:
    """Compare in `slots` fresh processes."""
    seconds = [in_fresh_process(measure, REQUESTS, PASSES) for _ in range(slots)]
    micros = [{name: value * 1e6 for name, value in slot.items()} for slot in seconds]
    costs = [
        Result("spans", f"{name} adds{part}", "us", added(micros, name + part, BARE + part))
        for name in (WITHOUT, FULL, SAMPLED, NATIVE, CONTRIB)
        for part in ("", LOOP)
    ]
    only_tracing = median_interval(
        [(slot[SAMPLED] - slot[WITHOUT]) / (slot[NATIVE] - slot[BARE]) for slot in micros]
    )
    return [
        *costs,
        Result("spans", f"({SAMPLED} - {WITHOUT}) / {NATIVE}", "x", only_tracing),
        Result(
            "spans",
            f"{FULL} / {NATIVE}, added CPU",
            "x",
            added_ratio(micros, FULL, NATIVE, BARE),
            FULL_GOAL,
        ),
        Result(
            "spans",
            f"{SAMPLED} / {NATIVE}, added CPU",
            "x",
            added_ratio(micros, SAMPLED, NATIVE, BARE),
            SAMPLED_GOAL,
        ),
    ]


def measure(requests: int, passes: int) -> dict[str, float]:
    """Return CPU seconds a request for each variant, of the process and of its loop's thread.

    Raises:
        RuntimeError: a variant that delivered another number of spans than it should have made.
    """
    with receiver() as endpoint:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        os.environ["OTEL_BSP_MAX_QUEUE_SIZE"] = "100000"  # of all variants: none may drop
        variants = {
            BARE: Variant(_application(_no_stages), lambda: None),
            WITHOUT: _tailwatch(WITHOUT, "0"),
            FULL: _tailwatch(FULL, "1"),
            SAMPLED: _tailwatch(SAMPLED, "0.01"),
            NATIVE: _native(),
            CONTRIB: _contrib(),
        }
        costs = asyncio.run(_costs(variants, requests, passes))
        _check(endpoint, requests * (1 + 2 * passes))
    return costs


async def _costs(variants: dict[str, Variant], requests: int, passes: int) -> dict[str, float]:
    for app, flush in variants.values():
        await request(app, "/answer", requests)
        flush()
    blocks: dict[str, list[float]] = {}
    for _ in range(passes):
        for name in mirrored(list(variants)):
            app, flush = variants[name]
            process, loop = time.process_time(), time.thread_time()
            await request(app, "/answer", requests)
            loop = time.thread_time() - loop
            flush()
            process = time.process_time() - process
            blocks.setdefault(name, []).append(process / requests)
            blocks.setdefault(name + LOOP, []).append(loop / requests)
    return {name: statistics.median(values) for name, values in blocks.items()}


@contextmanager
def receiver() -> Iterator[str]:
    """Run an OTLP/HTTP receiver in another process, on other cores where there are some."""
    others = os.sched_getaffinity(1) - os.sched_getaffinity(0)
    process = subprocess.Popen(
        [sys.executable, "-c", _RECEIVER],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=(lambda: os.sched_setaffinity(0, others)) if others else None,
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def _check(endpoint: str, requests: int) -> None:
    with urllib.request.urlopen(endpoint) as answer:
        delivered = json.load(answer)
    for name, spans in SPANS.items():
        expected, found = spans * requests, delivered.get(name, 0)
        margin = expected if name == SAMPLED else 0  # of a few dozen traces drawn at random
        if abs(found - expected) > margin:
            raise RuntimeError(f"{name} delivered {found} spans, expected {expected:g}")


async def _no_stages() -> PlainTextResponse:
    return PlainTextResponse("ok")


def _application(endpoint: Callable[..., object], **options: object) -> FastAPI:
    app = FastAPI(**options)  # type: ignore[arg-type]
    app.add_api_route("/answer", endpoint)
    return app


def _tailwatch(service: str, ratio: str) -> Variant:
    from tailwatch_tracing import StageTimingMiddleware, stage
    from tailwatch_tracing.service import service_named

    async def answer() -> PlainTextResponse:
        with stage("ingress"):
            pass
        with stage("preprocess"):
            pass
        with stage("inference"):
            pass
        with stage("postprocess"):
            pass
        return PlainTextResponse("ok")

    os.environ["OTEL_TRACES_SAMPLER"] = "parentbased_traceidratio"
    os.environ["OTEL_TRACES_SAMPLER_ARG"] = ratio
    middleware = StageTimingMiddleware(
        _application(answer), service=service, slo_seconds=0.5, client_timeout_seconds=5.0
    )
    if service == WITHOUT:
        service_named(service).spans = None
    del os.environ["OTEL_TRACES_SAMPLER"], os.environ["OTEL_TRACES_SAMPLER_ARG"]
    recorder = service_named(service).spans
    return Variant(middleware, (lambda: None) if recorder is None else recorder.flush)


def _traced_by_hand(name: str) -> tuple[Callable[..., object], dict[str, Any]]:
    """Return an endpoint whose stages are spans, and the providers that export its telemetry."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": name})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meters = MeterProvider([InMemoryMetricReader()], resource)
    tracer = provider.get_tracer("bench")

    async def answer() -> PlainTextResponse:
        with tracer.start_as_current_span("ingress"):
            pass
        with tracer.start_as_current_span("preprocess"):
            pass
        with tracer.start_as_current_span("inference"):
            pass
        with tracer.start_as_current_span("postprocess"):
            pass
        return PlainTextResponse("ok")

    return answer, {"tracer_provider": provider, "meter_provider": meters}


def _native() -> Variant:
    answer, providers = _traced_by_hand(NATIVE)
    app = _application(answer, telemetry=providers)
    return Variant(app, providers["tracer_provider"].force_flush)


def _contrib() -> Variant:
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    answer, providers = _traced_by_hand(CONTRIB)
    app = _application(answer, telemetry={"tracing": False, "metrics": False})
    FastAPIInstrumentor.instrument_app(app, **providers)
    return Variant(app, providers["tracer_provider"].force_flush)
