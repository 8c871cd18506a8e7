"""Spans on their way to a collector: over HTTP and gRPC, from forked workers, and to nobody."""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, downstream, stage
from tailwatch_tracing.service import service_named
from tailwatch_tracing.spans import export
from tests.tracing.asgi import App, nonzero, request, values
from tests.tracing.otlp import Received, grpc_collector, http_collector

ROOT = Path(__file__).parents[2]

both_protocols = pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])


async def answer(incoming: Request) -> Response:
    with stage("inference"):
        return PlainTextResponse("ok")


class Service:
    """An application of this process that exports to a port."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, port: int, **environ: str) -> None:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1.5",  # the exporter tries again after a second
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "NO_PROXY": "127.0.0.1",
            **environ,
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        self.app: App = StageTimingMiddleware(
            Starlette(routes=[Route("/x", answer)]), service="embedder"
        )

    def get(self, count: int = 1) -> None:
        async def main() -> None:
            for _ in range(count):
                assert (await request(self.app, "/x")).body == b"ok"

        asyncio.run(main())

    def close(self) -> None:
        recorder = service_named("embedder").spans
        assert recorder is not None
        recorder.close()


def dropped() -> dict[tuple[str, ...], float]:
    return nonzero("tailwatch_spans_dropped_total", ["reason"])


def wait_for_drops(reason: str, count: int) -> None:
    deadline = time.monotonic() + 20
    while dropped().get((reason,), 0) < count:
        assert time.monotonic() < deadline, dropped()
        time.sleep(0.01)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def hanging_port() -> Iterator[int]:
    """Accept connections and never answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


@contextmanager
def collector_of(protocol: str, port: int) -> Iterator[Received]:
    if protocol == "grpc":
        with grpc_collector(port) as (_, received):
            yield received
    else:
        with http_collector(port) as collector:
            yield collector.received


# --- to a collector ---


def by_name(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


def test_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_collector() as collector:
        service = Service(monkeypatch, collector.port)
        service.get()
        spans = by_name(collector.received.wait_for(2))
        service.close()
    assert set(spans) == {"GET /x", "inference"}
    assert spans["inference"].parent_span_id == spans["GET /x"].span_id
    assert spans["inference"].trace_id == spans["GET /x"].trace_id
    assert spans["GET /x"].kind == Span.SPAN_KIND_SERVER
    assert collector.paths == ["/v1/traces"]
    assert collector.received.resources()[0]["service.name"] == "embedder"


def test_what_cannot_be_encoded_loses_no_other_span(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of a character, as in `json.loads('"\\ud83d"')` of what a client has cut in two."""
    half, whole = "a\ud83d", "a?"

    async def handler(incoming: Request) -> Response:
        span = trace.get_current_span()
        span.update_name(half)
        span.set_attribute("answer", half)
        span.set_status(trace.StatusCode.ERROR, half)
        span.add_event(half, {"cause": half, "what": object()}, 1.5)  # type: ignore[arg-type, dict-item]
        span.add_event(5)  # type: ignore[arg-type]
        span.add_link(span.get_span_context(), {"why": half})
        span.record_exception(ValueError(half))
        with stage(half), downstream(half):
            return PlainTextResponse("ok")

    with http_collector() as collector:
        service = Service(monkeypatch, collector.port)
        service.app = StageTimingMiddleware(
            Starlette(routes=[Route("/x", handler)]), service="embedder"
        )
        service.get()
        server, *below = collector.received.wait_for(3)
        service.close()
    assert (server.name, server.status.message) == (whole, whole)
    assert [span.name for span in below] == [whole, whole]
    assert [event.name for event in server.events] == [whole, "5", "exception"]
    assert {each.key for each in server.events[0].attributes} == {"cause", "what"}
    for name, attributes in (
        ("answer", server.attributes),
        ("why", server.links[0].attributes),
        ("exception.message", server.events[2].attributes),
        ("peer.service", below[1].attributes),
    ):
        (text,) = (each.value.string_value for each in attributes if each.key == name)
        assert text == whole
    assert dropped() == {}
    assert "Failed to encode" not in caplog.text


def test_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc_collector() as (port, received):
        service = Service(monkeypatch, port, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
        service.get(3)
        spans = received.wait_for(6)
        service.close()
    assert Counter(span.name for span in spans) == {"GET /x": 3, "inference": 3}
    assert received.resources()[0]["service.name"] == "embedder"


def test_an_unknown_protocol_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    assert "http" in export.exporter_class().__module__
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=http/json: expected grpc or http/protobuf" in caplog.text


def test_calls_to_other_services_are_client_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def handler(incoming: Request) -> Response:
        with downstream("retrieval") as call:
            told.append(call.headers["traceparent"])
        try:
            with downstream("db"):
                raise LookupError
        except LookupError:
            return PlainTextResponse("ok")

    with http_collector() as collector:
        service = Service(monkeypatch, collector.port)
        app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="embedder")
        asyncio.run(request(app, "/"))
        spans = by_name(collector.received.wait_for(3))
        service.close()
    server, retrieval, db = spans["GET /"], spans["retrieval"], spans["db"]
    assert told == [f"00-{server.trace_id.hex()}-{retrieval.span_id.hex()}-03"]
    for span in (retrieval, db):
        assert span.kind == Span.SPAN_KIND_CLIENT
        assert span.parent_span_id == server.span_id
        assert server.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= server.end_time_unix_nano
    attributes = {each.key: each.value.string_value for each in db.attributes}
    assert attributes == {"peer.service": "db", "error.type": "LookupError"}


# --- from processes ---


@both_protocols
def test_forked_workers_export_their_own_spans(protocol: str) -> None:
    """The middleware is built, and has traced, before the fork."""
    code = """
        import asyncio, os, sys
        sys.path.insert(0, os.getcwd())
        from tests.tracing.traced_app import app
        from tests.tracing.asgi import request
        import threading

        assert threading.active_count() == 1
        asyncio.run(request(app, "/pid"))
        children = []
        for _ in range(2):
            pid = os.fork()
            if not pid:
                asyncio.run(request(app, "/pid"))
                raise SystemExit  # what is queued is exported at exit
            children.append(pid)
        for pid in children:
            assert os.waitpid(pid, 0)[1] == 0
    """
    port = closed_port()
    with collector_of(protocol, port) as received:
        environ = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
            "NO_PROXY": "127.0.0.1",
        }
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], check=True, env=environ, cwd=ROOT
        )
    assert received.names() == ["GET /pid"] * 3 + ["inference"] * 3
    assert len({span.trace_id for span in received.spans()}) == 3


@both_protocols
def test_gunicorn_with_preload_exports_from_each_worker(protocol: str) -> None:
    otlp_port, port = closed_port(), closed_port()
    with collector_of(protocol, otlp_port) as received:
        command = [
            *(sys.executable, "-m", "gunicorn", "tests.tracing.traced_app:app", "--preload"),
            *("-w", "2", "-k", "asgi", "--bind", f"127.0.0.1:{port}", "--log-level", "warning"),
        ]
        environ = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{otlp_port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "NO_PROXY": "127.0.0.1",
            "PYTHONWARNINGS": "ignore",
        }
        with tempfile.TemporaryFile() as log:
            server = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
            try:
                answered = ask_until_two_answer(port)
            finally:
                server.terminate()
                server.wait(30)
            log.seek(0)
            assert b"tailwatch" not in log.read()
    spans = received.spans()
    exported = Counter(
        str(attribute.value.int_value)
        for span in spans
        for attribute in span.attributes
        if attribute.key == "pid"
    )
    assert exported == answered
    assert len(spans) == 2 * answered.total()


def ask_until_two_answer(port: int) -> Counter[str]:
    answered: Counter[str] = Counter()
    deadline = time.monotonic() + 30
    while len(answered) < 2 or answered.total() < 50:
        assert time.monotonic() < deadline, answered
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/pid")
            answered[connection.getresponse().read().decode()] += 1
        except OSError:  # it does not listen yet
            time.sleep(0.05)
        finally:
            connection.close()
    return answered


def test_a_child_has_neither_the_parents_thread_nor_its_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(monkeypatch, closed_port(), OTEL_BSP_SCHEDULE_DELAY="600000")
    service.get()
    recorder = service_named("embedder").spans
    assert recorder is not None
    assert len(recorder._queue._traces) == 1
    assert recorder._queue._thread is not None
    pid = os.fork()
    if pid == 0:
        os._exit(bool(recorder._queue._traces) or recorder._queue._thread is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    monkeypatch.setattr(recorder._queue, "_is_failing", True)  # nobody is there: do not wait
    service.close()


# --- to nobody ---


class Stuck(SpanExporter):
    """Takes a batch and does not return until it may."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.has_taken = threading.Event()
        self.may_return = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.batches.append(len(spans))
        self.has_taken.set()
        self.may_return.wait(30)
        return SpanExportResult.FAILURE


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of 10 spans, and an exporter that holds a batch of 4: two spans a request."""
    stuck = Stuck()
    monkeypatch.setattr("tailwatch_tracing.spans.recorder.exporter_class", lambda: lambda: stuck)
    service = Service(
        monkeypatch, 1, OTEL_BSP_MAX_QUEUE_SIZE="10", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="4"
    )
    service.get(2)
    assert stuck.has_taken.wait(20)
    service.get(100)
    recorder = service_named("embedder").spans
    assert recorder is not None
    held = sum(stuck.batches)
    assert len(recorder._queue._traces) <= 5
    assert dropped() == {("queue_full",): 204 - held - 10}
    stuck.may_return.set()
    service.close()
    assert dropped() == {("queue_full",): 204 - held - 10, ("export_failed",): held + 10}


@both_protocols
def test_a_collector_that_is_down_costs_one_warning_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    port = closed_port()
    with caplog.at_level(logging.WARNING):
        service = Service(monkeypatch, port, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=protocol)
        for tries in (1, 2):
            service.get()
            wait_for_drops("export_failed", 2 * tries)
        assert [record.name for record in caplog.records] == ["tailwatch_tracing"]
        message = caplog.records[0].getMessage()
        assert message.startswith(
            f"embedder: spans cannot be exported to 127.0.0.1:{port}, "
            "tailwatch_spans_dropped_total counts them: "
        )
        assert "refused" in message.lower() or "unavailable" in message.lower()
        assert dropped() == {("export_failed",): 4}
        with collector_of(protocol, port) as received:
            deadline = time.monotonic() + 60
            while not received.spans():
                assert time.monotonic() < deadline
                service.get()
                time.sleep(0.05)
            service.close()
    assert len(caplog.records) == 1


def test_no_request_waits_for_a_collector_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(export, "EXIT_SECONDS", 0.1)
    with hanging_port() as port:
        service = Service(
            monkeypatch, port, OTEL_EXPORTER_OTLP_TIMEOUT="5", OTEL_BSP_MAX_QUEUE_SIZE="20"
        )
        service.get(20)
        time.sleep(0.1)  # the export hangs now
        service.get(200)  # more than the queue has room for
        counts = dropped()
        # All of them were answered while the first export was still waiting for its five seconds.
        assert ("export_failed",) not in counts
        assert counts[("queue_full",)] >= 2 * 220 - 2 * 20 - 20
        assert caplog.text == ""
        service.close()


def test_an_endpoint_that_refuses_is_said_with_its_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with http_collector() as collector:
        monkeypatch.setattr(collector.RequestHandlerClass, "do_POST", refuse)
        service = Service(monkeypatch, collector.port)
        service.get()
        wait_for_drops("export_failed", 2)
        service.close()
    assert "404" in caplog.text
    assert len(caplog.records) == 1


def refuse(handler: Any) -> None:
    handler.rfile.read(int(handler.headers["Content-Length"]))
    handler.send_error(404)


def test_a_setting_that_the_exporter_refuses_ends_the_spans(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(
        monkeypatch,
        1,
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_EXPORTER_OTLP_COMPRESSION="bzip2",
    )
    service.get()
    wait_for_drops("export_failed", 2)
    service.get(3)
    assert values("tailwatch_errors_total", "where")[("spans",)] == 1
    assert service_named("embedder").spans is None
    assert dropped() == {("export_failed",): 2}


@pytest.mark.parametrize(
    ("is_hanging", "protocol"), [(False, "http/protobuf"), (True, "http/protobuf"), (True, "grpc")]
)
def test_a_process_does_not_wait_long_for_a_collector_at_its_end(
    is_hanging: bool, protocol: str
) -> None:
    code = """
        import asyncio, os, sys, time
        sys.path.insert(0, os.getcwd())
        from tailwatch_tracing.spans import export
        from tests.tracing.traced_app import app
        from tests.tracing.asgi import request

        export.EXIT_SECONDS = 1.0
        asyncio.run(request(app, "/pid"))
        print(time.monotonic(), flush=True)
    """
    with hanging_port() as hanging:
        port = hanging if is_hanging else closed_port()
        environ = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            check=True,
            env=environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
    # The exporter's own patience is ten seconds, that of the SDK's processor thirty.
    assert time.monotonic() - float(done.stdout) < 6
    assert done.stderr.count("\n") <= 1
