"""The HTTP server, over real loopback sockets."""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Iterable, Iterator

import pytest
from prometheus_client.openmetrics import parser as openmetrics

from tailwatch_exporters import serve
from tailwatch_exporters.collectors import Collector, Runner
from tailwatch_exporters.serve import (
    HttpServer,
    Request,
    Response,
    accepts_gzip,
    exporter_pages,
    render_response,
)
from tailwatch_tracing.exposition import Family
from tests.exporters.support import parse


class Fixed(Collector):
    name = "fixed"

    def collect(self) -> Iterable[Family]:
        yield Family("thing_total", "counter", "Things.", [(f'{{n="{n}"}}', n) for n in range(50)])


class Broken(Collector):
    name = "broken"

    def collect(self) -> Iterable[Family]:
        yield Family("half", "gauge", "Half of it.", [("", 1)])
        raise ZeroDivisionError("no good")


class Stuck(Collector):
    name = "stuck"

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()

    def collect(self) -> Iterable[Family]:
        self.entered.set()
        self.release.wait(10)
        return ()


def start(*collectors: Collector, wait_seconds: float = 5.0) -> HttpServer:
    runner = Runner(collectors, "1.2.3", wait_seconds=wait_seconds)
    names = [c.name for c in collectors]
    server = HttpServer("127.0.0.1", 0, exporter_pages(runner, names, "1.2.3"))
    server.start()
    return server


@pytest.fixture
def server() -> Iterator[HttpServer]:
    server = start(Fixed())
    yield server
    server.stop()


class Client:
    """A connection on which raw requests are sent."""

    def __init__(self, server: HttpServer) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, *lines: str) -> None:
        self.socket.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())

    def receive(self, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        status = self.file.readline().decode()
        headers = {}
        while (line := self.file.readline().decode().rstrip()) != "":
            name, _, text = line.partition(": ")
            headers[name.lower()] = text
        body = self.file.read(int(headers["content-length"])) if has_body else b""
        return int(status.split()[1]), headers, body

    def ask(self, *lines: str) -> tuple[int, dict[str, str], bytes]:
        self.send(*lines)
        return self.receive(has_body=not lines[0].startswith("HEAD"))

    def is_closed(self) -> bool:
        return self.file.read(1) == b""


def test_metrics_over_one_connection(server: HttpServer) -> None:
    with Client(server) as client:
        for _ in range(3):
            status, headers, body = client.ask("GET /metrics HTTP/1.1", "Host: x")
            assert status == 200
            assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert parse(body.decode())("thing_total", n="7") == 7
            assert parse(body.decode())("exporter_collector_success", collector="fixed") == 1
            assert parse(body.decode())("tailwatch_build_info", version="1.2.3") == 1


def test_requests_sent_together_are_answered_in_turn(server: HttpServer) -> None:
    with Client(server) as client:
        request = "GET /-/healthy HTTP/1.1\r\n\r\n"
        client.socket.sendall((request + request).encode())
        assert client.receive()[0] == 200
        assert client.receive()[0] == 200


def test_openmetrics_when_asked_for(server: HttpServer) -> None:
    with Client(server) as client:
        accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
        _, headers, body = client.ask("GET /metrics HTTP/1.1", accept)
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {f.name for f in openmetrics.text_string_to_metric_families(body.decode())}
    assert "thing" in families


def test_head_has_the_length_and_no_body(server: HttpServer) -> None:
    with Client(server) as client:
        length = len(client.ask("GET /-/healthy HTTP/1.1")[2])
        status, headers, _ = client.ask("HEAD /-/healthy HTTP/1.1")
        assert (status, int(headers["content-length"])) == (200, length)
        assert client.ask("GET /-/healthy HTTP/1.1")[0] == 200  # nothing was left in between


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_refused(server: HttpServer, method: str) -> None:
    with Client(server) as client:
        client.send(f"{method} /metrics HTTP/1.1", "Content-Length: 5")
        client.socket.sendall(b"hello")
        status, headers, _ = client.receive()
        assert (status, headers["allow"]) == (405, "GET, HEAD")
        assert client.ask("GET /metrics HTTP/1.1")[0] == 200


def test_unknown_pages_and_queries(server: HttpServer) -> None:
    with Client(server) as client:
        assert client.ask("GET /metric HTTP/1.1")[0] == 404
        assert client.ask("GET /metrics?x=1 HTTP/1.1")[0] == 200
        status, headers, body = client.ask("GET / HTTP/1.1")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b'href="/metrics"' in body and b"1.2.3" in body and b"fixed" in body


def test_a_scraper_on_this_machine_gets_the_page_as_it_is(server: HttpServer) -> None:
    with Client(server) as client:
        _, headers, body = client.ask("GET /metrics HTTP/1.1", "Accept-Encoding: gzip")
        assert "content-encoding" not in headers
        assert parse(body.decode()).names()


def ask_from_afar(page: bytes, accept_encoding: str) -> tuple[bytes, bytes]:
    request = Request("GET", "/metrics", {"accept-encoding": accept_encoding}, keeps_alive=True)
    answer = render_response(request, Response(page), may_compress=True)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    return head, body


def test_gzip_only_on_request() -> None:
    page = b"gpu_up 1\n" * 500
    head, body = ask_from_afar(page, "")
    assert (b"Content-Encoding" in head, body) == (False, page)
    head, packed = ask_from_afar(page, "gzip")
    assert b"Content-Encoding: gzip" in head
    assert len(packed) < len(page) and zlib.decompress(packed, 31) == page
    head, body = ask_from_afar(b"short", "gzip")
    assert (b"Content-Encoding" in head, body) == (False, b"short")


@pytest.mark.parametrize(
    ("header", "accepts"),
    [("gzip", True), ("deflate, gzip;q=0.5", True), ("GZIP", True), ("gzip;q=0", False),
     ("gzip; q=0.0", False), ("br", False), ("", False), ("xgzip", False)],
)  # fmt: skip
def test_accept_encoding(header: str, accepts: bool) -> None:
    assert accepts_gzip(header) is accepts


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GET /metrics\r\n\r\n", 400),
        ("nonsense\r\n\r\n", 400),
        ("GET /metrics HTTP/2.0\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n", 413),
        ("GET /metrics HTTP/1.1\r\nContent-Length: " + "9" * 5000 + "\r\n\r\n", 413),
        ("GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        ("GET /" + "x" * 20000, 431),
    ],
)
def test_bad_requests_are_told_and_end_the_connection(
    server: HttpServer, text: str, status: int
) -> None:
    with Client(server) as client:
        client.socket.sendall(text.encode())
        answer, headers, body = client.receive()
        assert (answer, headers["connection"]) == (status, "close")
        assert body.endswith(b"\n") and body.count(b"\n") == 1
        assert client.is_closed()


@pytest.mark.parametrize(
    "lines", [("GET /-/healthy HTTP/1.0",), ("GET /-/healthy HTTP/1.1", "Connection: close")]
)
def test_connections_end_when_the_client_wants(server: HttpServer, lines: tuple[str, ...]) -> None:
    with Client(server) as client:
        assert client.ask(*lines)[0] == 200
        assert client.is_closed()


def test_a_slow_client_keeps_no_one_waiting(server: HttpServer) -> None:
    with Client(server) as slow, Client(server) as other:
        slow.socket.sendall(b"GET /met")
        assert other.ask("GET /metrics HTTP/1.1")[0] == 200
        slow.socket.sendall(b"rics HTTP/1.1\r\n\r\n")
        assert slow.receive()[0] == 200


def test_a_client_that_never_finishes_is_let_go(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_REQUEST_SECONDS", 0.2)
    with Client(server) as client:
        client.socket.sendall(b"GET /met")
        assert client.is_closed()


def test_a_client_that_never_asks_is_let_go(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_REQUEST_SECONDS", 0.2)
    with Client(server) as silent, Client(server) as idle:
        assert idle.ask("GET /-/healthy HTTP/1.1")[0] == 200
        assert silent.is_closed()
        time.sleep(0.3)
        assert idle.ask("GET /-/healthy HTTP/1.1")[0] == 200  # between requests there is more time


def test_a_machine_out_of_threads_does_not_end_the_server(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for _ in range(serve.MAX_CONNECTIONS + 1):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with Client(server) as refused:
                status, _, body = refused.receive()
                assert (status, body) == (503, b"can't start new thread\n")
    with Client(server) as client:
        assert client.ask("GET /-/healthy HTTP/1.1")[0] == 200


def test_too_many_connections_are_told(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [Client(server) for _ in range(serve.MAX_CONNECTIONS)]
    try:
        for client in clients:
            assert client.ask("GET /-/healthy HTTP/1.1")[0] == 200
        with Client(server) as refused:
            status, _, body = refused.receive()
            assert status == 503 and b"64 connections" in body
    finally:
        for client in clients:
            client.__exit__()


def test_a_broken_collector_leaves_the_page(caplog: pytest.LogCaptureFixture) -> None:
    server = start(Broken(), Fixed())
    try:
        with Client(server) as client:
            for _ in range(3):
                page = parse(client.ask("GET /metrics HTTP/1.1")[2].decode())
    finally:
        server.stop()
    assert page("half") == 1
    assert page("thing_total", n="3") == 3
    assert page("exporter_collector_success", collector="broken") == 0
    assert page("exporter_collector_success", collector="fixed") == 1
    assert [r.message for r in caplog.records] == [
        "collector broken: ZeroDivisionError: no good"
    ]  # once, not at each scrape


def test_a_stuck_scrape_is_told_to_the_next_one() -> None:
    stuck = Stuck()
    server = start(stuck, wait_seconds=0.1)
    try:
        with Client(server) as first, Client(server) as second:
            first.send("GET /metrics HTTP/1.1")
            assert stuck.entered.wait(5)
            status, _, body = second.ask("GET /metrics HTTP/1.1")
            assert (status, body) == (503, b"another scrape has been running for 0.1 s\n")
            assert second.ask("GET /-/healthy HTTP/1.1")[0] == 200
            stuck.release.set()
            assert first.receive()[0] == 200
    finally:
        stuck.release.set()
        server.stop()


def test_stop_closes_idle_connections() -> None:
    server = start(Fixed())
    with Client(server) as client:
        assert client.ask("GET /-/healthy HTTP/1.1")[0] == 200
        server.stop()
        assert client.is_closed()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port or 1), timeout=1)
