"""The page over every way of serving it."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
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

    def slow_collect() -> list[Any]:
        threads.append(threading.current_thread())
        rendering.set()
        assert release.wait(30)
        return []

    async def ok(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("ok")(scope, receive, send)

    async def main() -> None:
        app = StageTimingMiddleware(ok, service="s", metrics_path="/metrics")
        scrape = asyncio.create_task(request(app, "/metrics"))
        while not rendering.is_set():
            await asyncio.sleep(0.001)
        assert (await request(app, "/x")).body == b"ok"
        assert not scrape.done()
        release.set()
        assert (await scrape).status == 200

    monkeypatch.setattr(serving, "collect", slow_collect)
    asyncio.run(main())
    assert threads[0] is not threading.main_thread()


def test_a_page_that_cannot_be_rendered_is_a_500_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(serving, "collect", lambda: 1 / 0)
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
