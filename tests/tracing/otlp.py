"""OTLP receivers on loopback, over HTTP and gRPC, and applications whose spans go to one."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Received:
    """What a receiver has taken, and waiting for it."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self._arrived = threading.Condition()

    def add(self, request: ExportTraceServiceRequest) -> None:
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()

    def spans(self) -> list[Span]:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans())

    def wait_for(self, count: int, seconds: float = 20) -> list[Span]:
        """Return the spans once there are that many; fail when they do not come."""
        deadline = time.monotonic() + seconds
        with self._arrived:
            while len(self.spans()) < count:
                assert self._arrived.wait(max(0, deadline - time.monotonic())), (
                    f"{len(self.spans())} spans after {seconds} s, expected {count}"
                )
        return self.spans()

    def resources(self) -> list[dict[str, str]]:
        return [
            {each.key: each.value.string_value for each in resource.resource.attributes}
            for request in self.requests
            for resource in request.resource_spans
        ]


class HttpCollector(http.server.ThreadingHTTPServer):
    """Takes OTLP over HTTP."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        self.received = Received()
        self.paths: list[str] = []
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, HttpCollector)
        self.server.paths.append(self.path)
        self.server.received.add(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def http_collector(port: int = 0) -> Iterator[HttpCollector]:
    server = HttpCollector(port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Servicer(TraceServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:
        self._received.add(request)
        return ExportTraceServiceResponse()


@contextmanager
def grpc_collector(port: int = 0) -> Iterator[tuple[int, Received]]:
    received = Received()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(_Servicer(received), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield port, received
    finally:
        server.stop(None).wait()
