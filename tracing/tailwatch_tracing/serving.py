"""The ways to serve the page: on the service's port, on a port of its own, or as an application."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.registry import CollectorRegistry

from tailwatch_tracing.client_registry import render_registry
from tailwatch_tracing.cuda import pending_times
from tailwatch_tracing.exposition import Family, HistogramFamily, negotiate, render_families
from tailwatch_tracing.page import Snapshot, families
from tailwatch_tracing.queues import bind_idle_queues
from tailwatch_tracing.request import Message, Receive, Send
from tailwatch_tracing.routes import Scope
from tailwatch_tracing.runtime import runtime
from tailwatch_tracing.service import default_service, service_named, services
from tailwatch_tracing.worker_ports import PortLease
from tailwatch_tracing.worker_processes import registry_of_workers
from tailwatch_tracing.workers import workers

_HANDLER_TIMEOUT_SECONDS = 10


def render_metrics(accept: str | None = None) -> tuple[bytes, str]:
    """Return the page and its Content-Type for an Accept header.

    The page has every service of this process, and the families of prometheus_client's default
    registry: process_*, python_info, and the service's own.
    """
    openmetrics, content_type = negotiate(accept)
    registered = _registered(REGISTRY, openmetrics)
    return registered + render_families(collect(), openmetrics), content_type


def collect() -> list[Family | HistogramFamily]:
    """Return the families of all services of this process and its siblings, each family once."""
    bind_idle_queues()
    snapshot = Snapshot()
    pending_times.observe_finished()
    for service in services():
        service.snapshot_into(snapshot)
    workers.snapshot_into(snapshot)
    runtime.snapshot_into(snapshot)
    return list(families(snapshot))


def _registered(registry: CollectorRegistry, openmetrics: bool) -> bytes:
    try:
        return render_registry(registry_of_workers(registry, workers.numbered()), openmetrics)
    except Exception:  # somebody else's collector must not take our families with it
        default_service().note_error("registry")
        return b""


class _Renderer:
    """One thread that renders, so that no request waits for a page; begun by the first scrape."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    async def render(self, accept: str | None) -> tuple[bytes, str]:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # not asyncio: its threads would not find back
            return render_metrics(accept)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="tailwatch-metrics")
        return await loop.run_in_executor(self._executor, render_metrics, accept)

    def forget_thread(self) -> None:
        self._executor = None


_renderer = _Renderer()
os.register_at_fork(after_in_child=_renderer.forget_thread)


async def answer_metrics(scope: Scope, send: Send) -> None:
    """Answer an HTTP request with the page; 405 for other methods than GET and HEAD."""
    if scope["method"] not in ("GET", "HEAD"):
        await _respond(send, 405, b"Method Not Allowed\n", [(b"allow", b"GET, HEAD")])
        return
    accept = b",".join(value for name, value in scope["headers"] if name.lower() == b"accept")
    try:
        body, content_type = await _renderer.render(accept.decode("latin-1"))
    except Exception:
        default_service().note_error("metrics")
        await _respond(send, 500, b"the metrics page could not be rendered\n", [])
        return
    headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
    await _respond(send, 200, b"" if scope["method"] == "HEAD" else body, headers)


async def _respond(
    send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]
) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


def metrics_app() -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return an ASGI application that answers every path with the page, to mount or to serve."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await answer_metrics(scope, send)
        elif scope["type"] == "lifespan":
            message: Message = {"type": ""}
            while message["type"] != "lifespan.shutdown":
                message = await receive()
                await send({"type": message["type"] + ".complete"})
        else:
            await send({"type": "websocket.close", "code": 1000})

    return app


class _PageHandler(BaseHTTPRequestHandler):
    timeout = _HANDLER_TIMEOUT_SECONDS

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404, "the page is at /metrics")
            return
        body, content_type = render_metrics(self.headers.get("Accept"))
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing per scrape."""


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):  # the scraper left
            default_service().note_error("metrics")


class _PageServer6(_PageServer):
    address_family = AF_INET6


class MetricsServer:
    """A server of the page on a port of its own; `port` is the one it listens on.

    Of several workers that share a page one listens, and another takes over when that one dies.
    """

    def __init__(
        self, port: int, bind: Callable[[], ThreadingHTTPServer], lease: PortLease | None
    ) -> None:
        self.port = port
        self._bind = bind
        self._lease = lease
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._stop_waiting: Callable[[], None] | None = None
        if lease is None or lease.take():
            try:
                self._listen()
            except OSError:
                if lease is not None:
                    lease.release()
                raise
        else:
            self._stop_waiting = workers.at_every_beat(self._take_over)
        _metrics_servers.append(self)

    def close(self) -> None:
        """Stop listening, or waiting to; returns when the port is free of us."""
        with self._lock:
            if self._stop_waiting is not None:
                self._stop_waiting()
                self._stop_waiting = None
            if self._server is not None and self._thread is not None:
                self._server.shutdown()
                self._server.server_close()
                self._thread.join()
                self._server = None
            if self._lease is not None:
                self._lease.release()
            if self in _metrics_servers:
                _metrics_servers.remove(self)

    def leave_to_parent(self) -> None:
        """In a forked child: close what is the parent's, so that a sibling can take it over."""
        self._lock = threading.Lock()
        self._stop_waiting = None
        if self._server is not None:
            self._server.socket.close()
            self._server = None
        if self._lease is not None:
            self._lease.leave_to_parent()

    def _listen(self) -> None:
        self._server = server = self._bind()
        self.port = server.server_address[1]
        self._thread = threading.Thread(
            target=server.serve_forever, name="tailwatch-metrics-server", daemon=True
        )
        self._thread.start()

    def _take_over(self) -> None:
        with self._lock:
            if self._stop_waiting is None or self._lease is None or not self._lease.take():
                return
            try:
                self._listen()
            except OSError:  # another program was faster, or the port is not free yet
                self._lease.release()
            else:
                self._stop_waiting()
                self._stop_waiting = None


_metrics_servers: list[MetricsServer] = []


def _leave_ports_to_parent() -> None:
    for server in _metrics_servers:
        server.leave_to_parent()
    _metrics_servers.clear()


os.register_at_fork(after_in_child=_leave_ports_to_parent)


def serve_metrics(
    port: int,
    address: str = "127.0.0.1",
    *,
    service: str | None = None,
    workers_dir: str | os.PathLike[str] | None = None,
) -> MetricsServer:
    """Serve the page at /metrics on its own thread and port, whatever the event loop does.

    Call it in the process that works, after any fork: in a server's start-up hook, or in a worker's
    main function.

    Args:
        port: TCP port, 0 for a free one.
        address: Where to listen; loopback by default, as the page has no authentication.
        service: The label `service` of a process without the middleware.
        workers_dir: As the middleware's. A port on which a sibling serves already is no error then:
            this process takes it over when the sibling dies.

    Raises:
        OSError: the port cannot be had, or the workers directory not used; the message names it.
    """
    if service is not None:
        service_named(service)
    runtime.watch_process()
    workers.configure(service, workers_dir)
    workers.serve()
    server_class = _PageServer6 if ":" in address else _PageServer

    def bind() -> ThreadingHTTPServer:
        try:
            return server_class((address, port), _PageHandler)
        except OSError as error:
            raise OSError(
                error.errno, f"metrics port {address}:{port} cannot be had: {error.strerror}"
            ) from None

    path = workers.port_path(address, port) if port else None
    return MetricsServer(port, bind, None if path is None else PortLease(path))
