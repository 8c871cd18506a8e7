"""A small HTTP/1.1 server for pages: keep-alive, HEAD, gzip, a thread per connection.

http.server costs a scrape half a millisecond and the process some megabytes; a page of metrics
needs neither. A connection has a thread of its own, so that a slow client keeps no one waiting.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from html import escape
from ipaddress import ip_address
from typing import NamedTuple

from tailwatch_exporters.collectors import Runner
from tailwatch_tracing.exposition import accepts_gzip, negotiate

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64

_MAX_HEAD_BYTES = 16 * 1024
_MAX_BODY_BYTES = 64 * 1024
_IDLE_SECONDS = 330.0  # Prometheus keeps an idle connection for five minutes
_REQUEST_SECONDS = 10.0
_GZIP_FROM_BYTES = 1024
_TEXT = "text/plain; charset=utf-8"
_STATUS_TEXT = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Request(NamedTuple):
    """A request's head; header names are in lower case, `path` is without its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    keeps_alive: bool


class Response(NamedTuple):
    """What a page answers."""

    body: bytes
    content_type: str = _TEXT
    status: int = 200


Page = Callable[[Request], Response]


class RequestError(Exception):
    """A request that cannot be served; the connection ends with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def parse_request(head: bytes) -> Request:
    """Parse a request line and headers, without the empty line at the end.

    Raises:
        RequestError: 400, saying what is wrong.
    """
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise RequestError(400, f"request line {lines[0]!r}, need METHOD PATH HTTP/1.x")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise RequestError(400, f"header {line!r}, need NAME: VALUE")
        name = name.lower()
        value = value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    connection = headers.get("connection", "").lower()
    is_old = words[2] == "HTTP/1.0"
    keeps_alive = "keep-alive" in connection if is_old else "close" not in connection
    return Request(words[0], words[1].partition("?")[0], headers, keeps_alive)


class HttpServer:
    """Serves pages until `stop`.

    Args:
        host, port: where to listen; port 0 takes a free one.
        pages: path -> what answers it.

    Raises:
        OSError: the address is taken or not ours.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        self._pages = pages
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._accept, name="http", daemon=True)

    @property
    def port(self) -> int:
        """Return the port that is listened on."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Close the listener and all connections."""
        self._is_stopping = True
        _shutdown(self._listener)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                _shutdown(connection)
        if self._thread.ident is not None:
            self._thread.join(1.0)

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._is_stopping:
                    return
                logger.warning("accept: %s", error)  # out of file descriptors, mostly
                time.sleep(0.1)
                continue
            if not self._slots.acquire(blocking=False):
                _refuse(connection, f"{MAX_CONNECTIONS} connections are open")
                continue
            try:
                threading.Thread(
                    target=self._serve, args=(connection,), name="http-connection", daemon=True
                ).start()
            except RuntimeError as error:  # out of threads: the next connection may find one
                self._slots.release()
                logger.warning("connection refused: %s", error)
                _refuse(connection, str(error))

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._serve_requests(connection, may_compress=not _is_local(connection))
        except RequestError as error:
            _send(connection, error)
        except OSError:  # the client left, or was too slow
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()
            self._slots.release()

    def _serve_requests(self, connection: socket.socket, may_compress: bool) -> None:
        buffer = b""
        idle_seconds = _REQUEST_SECONDS  # who never asks anything must not hold a connection
        while not self._is_stopping:
            head, buffer = _read_head(connection, buffer, idle_seconds)
            if head is None:
                return
            idle_seconds = _IDLE_SECONDS
            request = parse_request(head)
            buffer = _skip_body(connection, request, buffer)
            answer = self._answer(request)
            connection.sendall(render_response(request, answer, may_compress))
            if not request.keeps_alive:
                return

    def _answer(self, request: Request) -> Response:
        page = self._pages.get(request.path)
        if page is None:
            return Response(f"{request.path}: no such page\n".encode(), status=404)
        if request.method not in ("GET", "HEAD"):
            text = f"{request.method}: only GET and HEAD are answered\n"
            return Response(text.encode(), status=405)
        try:
            return page(request)
        except TimeoutError as error:
            return Response(f"{error}\n".encode(), status=503)
        except Exception:  # one page's fault must not end the server
            logger.exception("%s failed", request.path)
            return Response(b"internal error, see the log\n", status=500)


def render_response(request: Request, response: Response, may_compress: bool) -> bytes:
    """Return head and body as they go over the wire, compressed where the client accepts it."""
    body = response.body
    lines = [
        f"HTTP/1.1 {response.status} {_STATUS_TEXT[response.status]}",
        f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}",
        f"Content-Type: {response.content_type}",
        "Vary: Accept, Accept-Encoding",
    ]
    accepted = request.headers.get("accept-encoding", "")
    if may_compress and len(body) >= _GZIP_FROM_BYTES and accepts_gzip(accepted):
        body = _gzip(body)
        lines.append("Content-Encoding: gzip")
    if response.status == 405:
        lines.append("Allow: GET, HEAD")
    if not request.keeps_alive:
        lines.append("Connection: close")
    lines.append(f"Content-Length: {len(body)}\r\n\r\n")
    head = "\r\n".join(lines).encode()
    return head if request.method == "HEAD" else head + body


def _is_local(connection: socket.socket) -> bool:
    # To a scraper on this machine compressing and unpacking cost more than the bytes they save.
    return ip_address(connection.getpeername()[0].partition("%")[0]).is_loopback


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(level=1, wbits=31, memLevel=6)  # less memory to clear
    return compressor.compress(body) + compressor.flush()


def _refuse(connection: socket.socket, text: str) -> None:
    connection.settimeout(0.1)  # the others wait meanwhile
    _send(connection, RequestError(503, text))
    connection.close()


def _send(connection: socket.socket, error: RequestError) -> None:
    request = Request("GET", "", {}, keeps_alive=False)
    response = Response(f"{error}\n".encode(), status=error.status)
    try:
        connection.sendall(render_response(request, response, may_compress=False))
    except OSError:  # it left
        pass


def _read_head(
    connection: socket.socket, buffer: bytes, idle_seconds: float
) -> tuple[bytes | None, bytes]:
    """Return a request's head and what was read after it; None when the client closed.

    Raises:
        TimeoutError: nothing came in `idle_seconds`, or not the whole head ten seconds later.
    """
    deadline = None
    while (end := buffer.find(b"\r\n\r\n")) < 0:
        if len(buffer) > _MAX_HEAD_BYTES:
            raise RequestError(431, f"request head over {_MAX_HEAD_BYTES} bytes")
        if buffer and deadline is None:
            deadline = time.monotonic() + _REQUEST_SECONDS
        # The whole head has one deadline: a client that sends a byte at a time is not waited for.
        left = idle_seconds if deadline is None else deadline - time.monotonic()
        connection.settimeout(max(0.001, left))
        chunk = connection.recv(_MAX_HEAD_BYTES)
        if not chunk:
            return None, b""
        buffer = buffer + chunk if buffer else chunk.lstrip(b"\r\n")
    connection.settimeout(_REQUEST_SECONDS)
    return buffer[:end], buffer[end + 4 :]


def _skip_body(connection: socket.socket, request: Request, buffer: bytes) -> bytes:
    """Read past a request's body, which no page wants; return what follows it."""
    if "transfer-encoding" in request.headers:
        raise RequestError(413, "a request body is not read")
    text = request.headers.get("content-length", "0")
    if not text.isdecimal():
        raise RequestError(400, f"Content-Length {text!r}, need a number")
    # Of its digits first: int() refuses thousands of them.
    if len(text) > len(str(_MAX_BODY_BYTES)) or int(text) > _MAX_BODY_BYTES:
        raise RequestError(413, f"request body over {_MAX_BODY_BYTES} bytes")
    length = int(text)
    while len(buffer) < length:
        chunk = connection.recv(_MAX_BODY_BYTES)
        if not chunk:
            raise ConnectionError("closed within a request body")
        buffer += chunk
    return buffer[length:]


def _shutdown(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in it
    except OSError:  # not connected any more
        pass


def exporter_pages(runner: Runner, collectors: list[str], version: str) -> dict[str, Page]:
    """Return the exporter's pages: /metrics, /-/healthy and a landing page."""

    def metrics(request: Request) -> Response:
        openmetrics, content_type = negotiate(request.headers.get("accept"))
        return Response(runner.render(openmetrics), content_type)

    def healthy(request: Request) -> Response:
        return Response(b"tailwatch exporter is healthy\n")

    landing = _landing_page(collectors, version).encode()

    def index(request: Request) -> Response:
        return Response(landing, "text/html; charset=utf-8")

    return {"/": index, "/metrics": metrics, "/-/healthy": healthy}


def _landing_page(collectors: list[str], version: str) -> str:
    names = ", ".join(escape(name) for name in collectors)
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>tailwatch exporter</title></head>
<body>
<h1>tailwatch exporter</h1>
<p>Version {escape(version)}. Collectors: {names}.</p>
<ul><li><a href="/metrics">Metrics</a></li><li><a href="/-/healthy">Health</a></li></ul>
</body>
</html>
"""
