"""The page over every way of serving it."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from prometheus_client import REGISTRY, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

from tailwatch_tracing import (
    StageTimingMiddleware,
    metrics_app,
    render_metrics,
    serve_metrics,
    serving,
    stage,
)
from tailwatch_tracing.client_registry import Pause
from tailwatch_tracing.exposition import render_families
from tailwatch_tracing.metrics_server import MAX_CONNECTIONS
from tailwatch_tracing.service import service_named
from tests.tracing.asgi import Exchange, http_scope, nonzero, page_values, request, values

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(autouse=True)
def used() -> None:
    StageTimingMiddleware(Starlette(), service="s")
    with stage("inference"):
        pass


def test_the_page_parses_in_both_formats_and_has_the_process_and_the_default_registry() -> None:
    counter = Counter("serving_test_theirs", "Theirs.")
    try:
        for accept, parse in ((None, parse_text), (OPENMETRICS, parse_openmetrics)):
            body, content_type = render_metrics(accept)
            names = {family.name for family in parse(body.decode())}
            assert {"serving_test_theirs", "python_info", "process_resident_memory_bytes"} <= names
            assert {"inference_outcomes", "inference_stage_duration_seconds"} <= names
            assert content_type.startswith((accept or "text/plain").split(";")[0])
    finally:
        REGISTRY.unregister(counter)


def test_a_family_is_on_the_page_once_for_all_services() -> None:
    StageTimingMiddleware(Starlette(), service="second")
    body, _ = render_metrics()
    types = [line for line in body.decode().splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert set(values("inference_requests_in_flight", "service")) == {("s",), ("second",)}


def test_a_broken_collector_of_somebody_else_takes_only_itself_away() -> None:
    class Broken:
        def collect(self) -> Iterator[Any]:
            raise RuntimeError("theirs")

        def describe(self) -> list[Any]:
            return []

    broken = Broken()
    REGISTRY.register(broken)  # type: ignore[arg-type]
    try:
        body, _ = render_metrics()
    finally:
        REGISTRY.unregister(broken)  # type: ignore[arg-type]
    assert b"inference_requests_in_flight" in body
    assert nonzero("tailwatch_errors_total", ["where"]) == {("registry",): 1}


# --- on the service's own port ---


def instrumented(metrics_path: str) -> Starlette:
    app = Starlette()
    app.add_middleware(StageTimingMiddleware, service="s", metrics_path=metrics_path)
    return app


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/internal/prom"])
def test_the_middleware_answers_at_the_path_exactly_as_given(path: str) -> None:
    """A mounted application would answer 307 or 404 to one of the two."""

    async def main() -> None:
        app = instrumented(path)
        assert (await request(app, path)).status == 200
        other = path[:-1] if path.endswith("/") else path + "/"
        assert (await request(app, other)).status == 404

    asyncio.run(main())


def test_scrapes_are_not_counted() -> None:
    async def main() -> None:
        for _ in range(3):
            await request(instrumented("/metrics"), "/metrics")

    asyncio.run(main())
    assert nonzero("inference_requests_total", ["route"]) == {}


def test_openmetrics_is_negotiated_head_has_no_body_and_post_is_refused() -> None:
    async def main() -> list[Exchange]:
        app = instrumented("/metrics")
        accept = [(b"accept", OPENMETRICS.encode())]
        return [
            await request(app, "/metrics", headers=accept),
            await request(app, "/metrics", "HEAD", headers=accept),
            await request(app, "/metrics", "POST"),
        ]

    openmetrics, head, post = asyncio.run(main())
    assert openmetrics.body.endswith(b"# EOF\n")
    headers = dict(openmetrics.sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"application/openmetrics-text; version=1.0.0")
    assert int(headers[b"content-length"]) == len(openmetrics.body)
    assert (head.status, head.body) == (200, b"")
    assert (post.status, dict(post.sent[0]["headers"])[b"allow"]) == (405, b"GET, HEAD")


def test_rendering_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a page is rendered other requests are answered, and not by the thread that renders."""
    rendering, release = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def slow_collect(pause: Pause) -> list[Any]:
        threads.append(threading.current_thread())
        rendering.set()
        assert release.wait(30)
        return []

    async def main() -> None:
        app = StageTimingMiddleware(ok, service="s", metrics_path="/metrics")
        scrape = asyncio.create_task(request(app, "/metrics"))
        assert await asyncio.to_thread(rendering.wait, 30)
        assert (await request(app, "/x")).body == b"ok"
        assert not scrape.done()
        release.set()
        assert (await scrape).status == 200

    monkeypatch.setattr(serving, "collect", slow_collect)
    asyncio.run(main())
    assert threads[0] is not threading.main_thread()


async def ok(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("ok")(scope, receive, send)


def test_no_step_of_a_page_holds_the_interpreter_for_more_than_a_few_series() -> None:
    """Reading, summing and rendering of many series have a pause in front of each."""
    service = service_named("s")
    for i in range(300):
        service.route_cells(f"/route{i}").duration.observe(10**6 * i)
        service.count_request(service.routes[f"/route{i}"], "GET", 200, "ok")
    lines, since_pause = 0, [0]

    def pause() -> None:
        since_pause.append(0)

    ours = serving.collect(pause)
    assert len(since_pause) > 2 * 300  # the cells of durations and of requests are read
    render_families(ours)
    assert len(since_pause) > 5 * 300  # these two families, and the sums by outcome, are made

    since_pause = [0]
    for piece in serving._pieces(False, pause):
        since_pause[-1] += piece.count(b"\n")
        lines += piece.count(b"\n")
    assert lines > 300 * 75
    assert max(since_pause) <= 75


def test_a_large_page_is_sent_in_blocks_between_which_others_have_the_event_loop() -> None:
    service = service_named("s")
    for i in range(300):
        service.route_cells(f"/route{i}").duration.observe(10**6)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> Exchange:
        app, exchange = instrumented("/metrics"), Exchange()
        beside = asyncio.create_task(other())
        at: list[int] = []

        async def send(message: Any) -> None:  # never waits, like a socket with room
            at.append(turns)
            await exchange.send(message)

        await app(http_scope("/metrics"), exchange.receive, send)
        beside.cancel()
        assert at[1:] == sorted(set(at[1:]))
        return exchange

    exchange = asyncio.run(main())
    blocks = [len(message["body"]) for message in exchange.sent[1:]]
    assert len(blocks) > 10
    assert max(blocks) < 80_000
    length = int(dict(exchange.sent[0]["headers"])[b"content-length"])
    assert length == len(exchange.body) == sum(blocks)


@pytest.mark.parametrize(
    ("client", "accept_encoding", "is_compressed"),
    [
        (("192.0.2.7", 1), b"gzip", True),
        (("2001:db8::7", 1), b"deflate, gzip;q=0.5", True),
        (("testclient", 1), b"gzip", True),
        (("192.0.2.7", 1), b"", False),
        (("192.0.2.7", 1), b"deflate, br", False),
        (("192.0.2.7", 1), b"gzip;q=0", False),
        (("127.0.0.1", 1), b"gzip", False),  # it would cost more than the bytes it saves
        (("::1", 1), b"gzip", False),
        (None, b"gzip", False),  # a Unix socket
    ],
)
def test_gzip_is_for_other_machines_that_ask_for_it(
    client: Any, accept_encoding: bytes, is_compressed: bool
) -> None:
    headers = [(b"Accept-Encoding", accept_encoding)]

    async def main(method: str) -> Exchange:
        app = instrumented("/metrics")
        return await request(app, "/metrics", method, headers=headers, client=client)

    got = asyncio.run(main("GET"))
    sent = dict(got.sent[0]["headers"])
    body = gzip.decompress(got.body) if is_compressed else got.body
    assert b"inference_requests_in_flight{" in body
    assert sent.get(b"content-encoding") == (b"gzip" if is_compressed else None)
    assert int(sent[b"content-length"]) == len(got.body)
    assert sent[b"vary"] == b"Accept, Accept-Encoding"
    head = asyncio.run(main("HEAD"))
    assert head.body == b""
    assert [name for name, _ in head.sent[0]["headers"]] == [*sent]


def test_who_scrapes_acts_and_scrapes_again_sees_it() -> None:
    async def main() -> list[float]:
        app = StageTimingMiddleware(ok, service="s", metrics_path="/metrics")
        seen = []
        for _ in range(5):
            await request(app, "/x")
            page = (await request(app, "/metrics")).body.decode()
            seen.append(sum(page_values(page, "inference_requests_total", []).values()))
        return seen

    assert asyncio.run(main()) == [1, 2, 3, 4, 5]


# --- clients that leave or hang ---


def test_a_client_that_leaves_or_hangs_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_SEND_SECONDS", 0.01)

    async def main() -> None:
        app, left, hangs = instrumented("/metrics"), Exchange(), asyncio.Event()
        left.fail_on("http.response.body")
        await app(http_scope("/metrics"), left.receive, left.send)

        async def send(message: Any) -> None:
            await hangs.wait()

        await app(http_scope("/metrics"), left.receive, send)

    asyncio.run(main())
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def test_a_scrape_that_is_cancelled_leaves_the_page_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = threading.Event()

    def slow_collect(pause: Pause) -> list[Any]:
        assert release.wait(30)
        return []

    async def main() -> None:
        app = instrumented("/metrics")
        impatient = asyncio.create_task(request(app, "/metrics"))
        patient = asyncio.create_task(request(app, "/metrics"))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        release.set()
        assert (await patient).status == 200

    monkeypatch.setattr(serving, "collect", slow_collect)
    asyncio.run(main())
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def test_a_child_forked_during_a_scrape_answers_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that makes the parent's page is not in the child, whatever it holds."""
    parent, rendering, release = os.getpid(), threading.Event(), threading.Event()

    def collect(pause: Pause) -> list[Any]:
        if os.getpid() == parent:
            rendering.set()
            assert release.wait(60)
        return []

    monkeypatch.setattr(serving, "collect", collect)
    scrape = serving._scrapes.page(False, False)
    assert rendering.wait(30)
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        answered = asyncio.run(request(metrics_app(), "/")).status
        os._exit(0 if answered == 200 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    release.set()
    assert scrape.result(30).length > 0


# --- who may ---

TOKEN = "Bearer s3cret"
REFUSED = 401


async def statuses(app: Any, path: str) -> list[int]:
    async def status(method: str, *headers: bytes) -> int:
        pairs = [(b"authorization", header) for header in headers]
        return (await request(app, path, method, headers=pairs)).status

    return [
        await status("GET"),
        await status("GET", b"Bearer wrong"),
        await status("GET", b"Bearer s3cret", b"Bearer s3cret"),
        await status("POST"),
        await status("GET", b"Bearer s3cret"),
        await status("HEAD", b"bearer s3cret"),
        await status("POST", b"Bearer s3cret"),
    ]


@pytest.mark.parametrize("is_variable", [False, True])
def test_the_page_is_for_those_who_show_what_is_asked_for(
    is_variable: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    option: str | None = TOKEN
    if is_variable:
        monkeypatch.setenv("TAILWATCH_METRICS_AUTH", TOKEN)
        option = None
    wrapped = StageTimingMiddleware(ok, service="s", metrics_path="/metrics", metrics_auth=option)
    for app in (wrapped, metrics_app(metrics_auth=option)):
        got = asyncio.run(statuses(app, "/metrics"))
        assert got == [REFUSED, REFUSED, REFUSED, REFUSED, 200, 200, 405]

    refused = asyncio.run(request(wrapped, "/metrics"))
    assert dict(refused.sent[0]["headers"])[b"www-authenticate"] == b'Bearer realm="metrics"'
    assert asyncio.run(request(wrapped, "/x")).status == 200  # the service is everybody's
    assert "s3cret" not in caplog.text


def test_a_refused_scrape_costs_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_scrapes", None)
    app = metrics_app(metrics_auth=TOKEN)
    assert asyncio.run(request(app, "/")).status == REFUSED


def test_a_setting_that_protects_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="metrics_auth without metrics_path"):
        StageTimingMiddleware(ok, service="s", metrics_auth=TOKEN)
    for make in (
        lambda: StageTimingMiddleware(ok, service="s", metrics_path="/m", metrics_auth="s3cret"),
        lambda: metrics_app(metrics_auth="s3cret"),
        lambda: serve_metrics(0, metrics_auth="s3cret"),
    ):
        with pytest.raises(ValueError, match="metrics_auth has another form, expected 'Bearer"):
            make()


# --- on another event loop ---


def test_the_page_is_served_under_trio_as_well() -> None:
    service = service_named("s")
    for i in range(50):
        service.route_cells(f"/route{i}").duration.observe(10**6)
    exchange = Exchange()
    turns = 0

    async def main() -> None:
        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async def receive() -> Any:
            return {"type": "http.request"}

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await instrumented("/metrics")(http_scope("/metrics"), receive, exchange.send)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert exchange.status == 200
    assert page_values(exchange.body.decode(), "inference_requests_in_flight", []) == {(): 0}
    assert len(exchange.sent) > 3
    assert turns >= len(exchange.sent) - 2


def test_a_client_that_hangs_is_given_up_under_trio_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "_SEND_SECONDS", 0.01)

    async def main() -> None:
        app = instrumented("/metrics")
        await app(http_scope("/metrics"), trio.sleep_forever, lambda message: trio.sleep_forever())

    trio.run(main)
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def test_a_page_that_cannot_be_rendered_is_a_500_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(serving, "collect", lambda pause: 1 / 0)
        assert asyncio.run(request(instrumented("/metrics"), "/metrics")).status == 500
    assert nonzero("tailwatch_errors_total", ["where"]) == {("metrics",): 1}


# --- as an application ---


def test_the_application_can_be_mounted_and_run_alone() -> None:
    async def main() -> None:
        app = Starlette(routes=[Mount("/prom", metrics_app())])
        assert b"inference_requests_in_flight" in (await request(app, "/prom/")).body

        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        sent: list[Any] = []

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await metrics_app()({"type": "lifespan"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        await metrics_app()(http_scope("/", type="websocket"), receive, send)
        assert sent[-1] == "websocket.close"

    asyncio.run(main())


# --- on a port of its own ---


def get(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers["content-type"], response.read()
    finally:
        connection.close()


def test_serves_on_a_port_of_its_own_with_the_event_loop_blocked() -> None:
    server = serve_metrics(0)
    found: list[Any] = []

    async def main() -> None:
        thread = threading.Thread(target=lambda: found.append(get(server.port)))
        thread.start()
        thread.join(30)  # blocks the loop

    try:
        asyncio.run(main())
        status, content_type, body = found[0]
        assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert page_values(body.decode(), "inference_requests_in_flight", []) == {(): 0}
        assert get(server.port, Accept=OPENMETRICS)[2].endswith(b"# EOF\n")
        assert get(server.port, "/metrics?x=1")[0] == 200
        assert get(server.port, method="HEAD")[::2] == (200, b"")
        assert get(server.port, "/other")[0] == 404
    finally:
        server.close()
    with pytest.raises(ConnectionRefusedError):
        get(server.port)


def test_a_port_of_its_own_asks_for_the_same() -> None:
    server = serve_metrics(0, metrics_auth="Basic prometheus:s3cret")
    try:
        assert get(server.port)[0] == REFUSED
        assert get(server.port, Authorization="Basic " + "cHJvbWV0aGV1czpzM2NyZXQ=")[0] == 200
        assert get(server.port, Authorization="Basic " + "cHJvbWV0aGV1czp3cm9uZw==")[0] == REFUSED
    finally:
        server.close()


def test_idle_connections_are_bounded_and_their_end_makes_room() -> None:
    server = serve_metrics(0)
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MAX_CONNECTIONS)]
    try:
        with pytest.raises(ConnectionError):
            get(server.port)
        for connection in idle:
            connection.close()
        for _ in range(MAX_CONNECTIONS + 1):
            assert answered(server.port)
    finally:
        server.close()


def answered(port: int) -> bool:
    """Ask until a thread that served another one has noted its end."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            return bool(get(port)[0] == 200)
        except ConnectionError:
            continue
    return False


@pytest.mark.parametrize(
    ("error", "counted"), [(BrokenPipeError, 0), (TimeoutError, 0), (ValueError, 1)]
)
def test_a_scraper_that_leaves_is_no_error_of_ours(
    error: type[Exception], counted: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve_metrics(0, service="s")
    try:
        try:
            raise error
        except error:
            server._server.handle_error(None, None)  # type: ignore[arg-type]
    finally:
        server.close()
    assert (
        page_values(render_metrics()[0].decode(), "tailwatch_errors_total", ["where"])[("metrics",)]
        == counted
    )


def test_a_taken_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"metrics port 127.0.0.1:{port} cannot be had: Address"):
            serve_metrics(port)


def test_a_plain_worker_names_its_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailwatch_tracing.service._services", {})
    server = serve_metrics(0, service="indexer")
    try:
        with stage("inference"):
            time.sleep(0)
        body = get(server.port)[2].decode()
    finally:
        server.close()
    assert (
        page_values(body, "inference_stage_duration_seconds_count", ["service", "stage"])[
            ("indexer", "inference")
        ]
        == 1
    )
