"""The page on a port of its own, served by threads, whatever the event loop does."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Any

from tailwatch_tracing.answers import Answer, Scrape
from tailwatch_tracing.service import default_service
from tailwatch_tracing.worker_ports import PortLease

MAX_CONNECTIONS = 32

_REQUEST_SECONDS = 10.0  # to ask; and again, to take the answer
_PATHS = frozenset(("/", "/metrics"))


class _PageHandler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.path.partition("?")[0] not in _PATHS:
            self.send_error(404, "the page is at /metrics")
            return
        assert isinstance(self.server, PageServer)
        answer = self.server.answer(
            Scrape(
                self.command,
                ",".join(self.headers.get_all("Accept", [])),
                ",".join(self.headers.get_all("Accept-Encoding", [])),
                [value.encode("latin-1") for value in self.headers.get_all("Authorization", [])],
                self.client_address[0],
            )
        )
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self._send(answer.blocks)

    def _send(self, blocks: Sequence[bytes]) -> None:
        end = time.monotonic() + _REQUEST_SECONDS
        for block in blocks:  # a client that reads slowly has no more time than one that does not
            self.connection.settimeout(max(0.001, end - time.monotonic()))
            self.wfile.write(block)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing per scrape."""


class PageServer(ThreadingHTTPServer):
    """Listens, and answers at /metrics on a thread per connection, of which there are not many.

    Args:
        address: Host and TCP port, 0 for a free one.
        answer: Returns what a scrape is answered with.

    Raises:
        OSError: the port cannot be had; the message names it.
    """

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], answer: Callable[[Scrape], Answer]) -> None:
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        self.answer = answer
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__(address, _PageHandler)
        except OSError as error:
            raise OSError(
                error.errno,
                f"metrics port {address[0]}:{address[1]} cannot be had: {error.strerror}",
            ) from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own, or close when too many are busy."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Count what is not the scraper's doing."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            default_service().note_error("metrics")


class MetricsServer:
    """A server of the page on a port of its own; `port` is the one it listens on.

    Of several workers that share a page one listens, and another takes over when that one dies.
    """

    def __init__(
        self,
        port: int,
        bind: Callable[[], PageServer],
        lease: PortLease | None,
        at_every_beat: Callable[[Callable[[], None]], Callable[[], None] | None],
    ) -> None:
        self.port = port
        self._bind = bind
        self._lease = lease
        self._lock = threading.Lock()
        self._server: PageServer | None = None
        self._thread: threading.Thread | None = None
        self._end_beats: Callable[[], None] | None = None
        if lease is None or lease.take():
            try:
                self._listen()
            except OSError:
                if lease is not None:
                    lease.release()
                raise
        if lease is not None:
            self._end_beats = at_every_beat(self._look_after_port)
        _metrics_servers.append(self)

    def close(self) -> None:
        """Stop listening, or waiting to; returns when the port is free of us."""
        with self._lock:
            if self._end_beats is not None:
                self._end_beats()
                self._end_beats = None
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
        self._end_beats = None
        if self._server is not None:
            self._server.socket.close()
            self._server = None
        if self._lease is not None:
            self._lease.drop()

    def _listen(self) -> None:
        self._server = server = self._bind()
        self.port = server.server_address[1]
        self._thread = threading.Thread(
            target=server.serve_forever, name="tailwatch-metrics-server", daemon=True
        )
        self._thread.start()

    def _look_after_port(self) -> None:
        """Keep the lease of a port that is ours; take over one that nobody has any more."""
        with self._lock:
            if self._end_beats is None or self._lease is None or not self._lease.take():
                return
            if self._server is None:
                try:
                    self._listen()
                except OSError:  # another program was faster, or the port is not free yet
                    self._lease.release()


_metrics_servers: list[MetricsServer] = []


def _leave_ports_to_parent() -> None:
    for server in _metrics_servers:
        server.leave_to_parent()
    _metrics_servers.clear()


os.register_at_fork(after_in_child=_leave_ports_to_parent)
