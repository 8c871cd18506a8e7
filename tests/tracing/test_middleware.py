"""The middleware is invisible to the application, whatever happens in itself."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import logging
import os
import threading
import time
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from tailwatch_tracing import (
    RequestQueue,
    StageTimingMiddleware,
    middleware,
    render_metrics,
    service,
    stage,
)
from tailwatch_tracing.cells import snap_to_grid
from tailwatch_tracing.families import EDGES_NS
from tailwatch_tracing.runtime import Runtime
from tests.tracing.asgi import (
    App,
    Exchange,
    http_scope,
    nonzero,
    outcomes,
    request,
    requests,
    values,
)
from tests.tracing.conftest import Clock


async def answer(incoming: Request) -> Response:
    return PlainTextResponse("ok")


def starlette_app(**options: Any) -> Starlette:
    app = Starlette(routes=[Route("/x", answer)])
    app.add_middleware(StageTimingMiddleware, service="s", **options)
    return app


# --- pass-through ---


def test_messages_pass_unchanged_both_ways() -> None:
    received: list[Any] = []
    sent = [
        {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")], "trailers": True},
        {"type": "http.response.debug", "info": {}},
        {"type": "http.response.body", "body": b"one", "more_body": True},
        {"type": "http.response.body", "body": b"two"},
        {"type": "http.response.trailers", "headers": []},
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.append(await receive())
        for message in sent:
            await send(message)

    exchange = asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x"))
    assert exchange.sent == sent
    assert received == [{"type": "http.request", "body": b"", "more_body": False}]
    assert outcomes() == {"ok": 1}


def test_a_context_variable_set_inside_is_seen_outside() -> None:
    """Kludex/starlette#919, perdy/starlette-prometheus#33: lost behind a BaseHTTPMiddleware."""
    variable: ContextVar[str] = ContextVar("variable")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        variable.set("inside")
        await PlainTextResponse("ok")(scope, receive, send)

    async def main() -> str:
        await request(StageTimingMiddleware(app, service="s"), "/x")
        return variable.get()

    assert asyncio.run(main()) == "inside"


def test_cancellation_reaches_the_application_in_the_same_task() -> None:
    seen: list[Any] = []

    async def main() -> None:
        started = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(asyncio.current_task())
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                seen.append(error)
                raise

        task = asyncio.create_task(request(StageTimingMiddleware(app, service="s"), "/x"))
        await started.wait()
        task.cancel("why")
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert seen == [task, caught.value]
        assert caught.value.args == ("why",)

    asyncio.run(main())


def test_lifespan_passes_and_the_middleware_may_be_installed_in_it() -> None:
    """Wrapping at the ASGI level needs no `add_middleware`, which is refused after the start."""
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
        events.append("up")
        app.router.routes.append(Route("/late", answer))
        yield {"model": "m"}
        events.append("down")

    app = StageTimingMiddleware(Starlette(lifespan=lifespan), service="s", metrics_path="/metrics")

    async def main() -> None:
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        sent: list[Any] = []

        async def receive() -> Any:
            if events:
                assert (await request(app, "/late")).status == 200
                assert (await request(app, "/metrics")).status == 200
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message)

        scope: dict[str, Any] = {"type": "lifespan", "state": {}, "asgi": {"version": "3.0"}}
        await app(scope, receive, send)
        assert [m["type"] for m in sent] == [
            "lifespan.startup.complete",
            "lifespan.shutdown.complete",
        ]
        assert scope["state"] == {"model": "m"}

    asyncio.run(main())
    assert events == ["up", "down"]


def test_websockets_pass_and_make_no_http_series() -> None:
    """litestar-org/litestar#1934."""

    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    app = Starlette(routes=[WebSocketRoute("/ws", echo)])
    app.add_middleware(StageTimingMiddleware, service="s")

    async def main() -> list[str]:
        incoming = iter(
            [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": "hello"}]
        )
        sent: list[Any] = []

        async def receive() -> Any:
            return next(incoming)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = http_scope("/ws", type="websocket", subprotocols=[])
        del scope["method"]
        await app(scope, receive, send)
        return [message.get("text", message["type"]) for message in sent]

    assert asyncio.run(main()) == ["websocket.accept", "hello", "websocket.close"]
    assert outcomes() == {}
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


@pytest.mark.parametrize("path", ["/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics"])
@pytest.mark.parametrize("root_path", ["", "/proxy"])
def test_probes_are_passed_on_uncounted(path: str, root_path: str) -> None:
    app = Starlette(routes=[Route(path, answer)])
    app.add_middleware(StageTimingMiddleware, service="s")
    exchange = asyncio.run(request(app, root_path + path, root_path=root_path))
    assert exchange.body == b"ok"
    assert outcomes() == {}


@pytest.mark.parametrize("root_path", ["/", "/metrics", "/proxy/"])
def test_a_root_path_is_taken_off_as_starlette_does(root_path: str) -> None:
    app = starlette_app(metrics_path="/metrics")
    for path in ("/metrics", "/health", "/x"):
        asyncio.run(request(app, path, root_path=root_path))
    assert requests() == {("/x", "GET", "200", "ok"): 1}


@pytest.mark.parametrize("missing", ["path", "headers"])
def test_a_scope_that_lacks_something_is_the_applications(missing: str) -> None:
    """Without a metrics path as well, and with two middlewares of the service around it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("theirs")(scope, receive, send)

    async def without(scope: Any, receive: Any, send: Any) -> None:
        del scope[missing]
        await wrapped(scope, receive, send)

    wrapped = StageTimingMiddleware(StageTimingMiddleware(app, service="s"), service="s")
    exchange = asyncio.run(request(without, "/x"))
    assert exchange.body == b"theirs"


def test_exclude_is_the_users_to_choose() -> None:
    app = starlette_app(exclude=["/y"])
    app.router.routes.extend([Route("/health", answer), Route("/y", answer)])

    async def main() -> None:
        for path in ("/health", "/y", "/x"):
            await request(app, path)

    asyncio.run(main())
    assert nonzero("inference_requests_total", ["route"]) == {("/health",): 1, ("/x",): 1}


# --- its own errors ---


@pytest.mark.parametrize(
    ("broken", "where"), [("route_cells", "route"), ("count_request", "request")]
)
def test_an_error_in_the_counting_fails_no_request(
    broken: str, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = starlette_app()

    def fail(*args: Any) -> None:
        raise ZeroDivisionError

    async def main() -> list[Exchange]:
        await request(app, "/y")
        monkeypatch.setattr(service.Service, broken, fail)
        return [await request(app, "/x") for _ in range(3)]

    with caplog.at_level(logging.WARNING):
        exchanges = asyncio.run(main())
    assert [exchange.body for exchange in exchanges] == [b"ok"] * 3
    assert nonzero("tailwatch_errors_total", ["where"]) == {(where,): 3}
    assert values("inference_requests_in_flight") == {(): 0}
    assert len(caplog.records) == 1, "said once, not per request"


def test_an_unreadable_route_fails_no_request() -> None:
    class Strange:
        """A kind of route nobody has met yet."""

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["route"] = Strange()
        scope["router"] = Strange()
        await PlainTextResponse("ok")(scope, receive, send)

    assert asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x")).body == b"ok"
    assert nonzero("tailwatch_errors_total", ["where"]) == {("route",): 1}
    assert nonzero("inference_requests_total", ["route"]) == {("__unmatched__",): 1}


def test_an_event_loop_without_timers_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "runtime", Runtime())

    async def main() -> None:
        asyncio.get_running_loop().call_later = no_timers  # type: ignore[method-assign, assignment]
        assert (await request(starlette_app(), "/x")).status == 200

    def no_timers(*_: Any) -> Any:
        raise NotImplementedError

    asyncio.run(main())
    assert nonzero("tailwatch_errors_total", ["where"]) == {("request",): 1}
    assert values("inference_requests_in_flight") == {(): 0}


def test_a_forked_child_has_none_of_its_parents_requests() -> None:
    queue = RequestQueue("batch", service="s")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        place = queue.enter()
        pid = os.fork()
        if pid == 0:
            in_flight = values("inference_requests_in_flight")
            os._exit(in_flight != {(): 0} or queue.depth)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert values("inference_requests_in_flight") == {(): 1}
        assert queue.depth == 1
        place.leave()

    asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x"))


def test_a_request_closed_in_another_context_ends_quietly() -> None:
    """As the garbage collector closes what a stopped event loop has left over."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    exchange = Exchange()
    handled: Any = StageTimingMiddleware(app, service="s")(
        http_scope("/x"), exchange.receive, exchange.send
    )

    async def main() -> None:
        contextvars.copy_context().run(handled.send, None)

    asyncio.run(main())
    handled.close()
    assert outcomes() == {"cancelled": 1}
    assert values("inference_requests_in_flight") == {(): 0}


def test_an_error_in_summing_up_very_many_stages_fails_no_request() -> None:
    class Nameless:
        def __str__(self) -> str:
            raise ValueError

    async def many(incoming: Request) -> Response:
        for _ in range(1500):
            with stage(Nameless()):  # type: ignore[arg-type]
                pass
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/x", many)]), service="s")
    assert asyncio.run(request(app, "/x")).status == 200
    assert nonzero("tailwatch_errors_total", ["where"]) == {("stage",): 1, ("request",): 1}


@pytest.mark.parametrize("status", [None, "200", object()], ids=["none", "text", "object"])
def test_a_status_that_is_no_number_is_the_servers_to_refuse(status: object) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    exchange = asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x"))
    assert exchange.body == b"ok"
    assert nonzero("tailwatch_errors_total", ["where"]) == {("request",): 1}
    assert values("inference_requests_in_flight") == {(): 0}


def test_a_stage_name_that_is_no_string_fails_nothing() -> None:
    async def handler(incoming: Request) -> Response:
        with stage(7), stage(["x"]):  # type: ignore[arg-type]
            return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/x", handler)])
    app.add_middleware(StageTimingMiddleware, service="s")
    assert asyncio.run(request(app, "/x")).body == b"ok"
    render_metrics()


def test_a_stage_that_is_suspended_has_its_cpu_time_from_the_second_request_on() -> None:
    """From then on the service's requests are driven."""
    seconds = 0.02

    async def handler(incoming: Request) -> Response:
        with stage("inference"):
            await asyncio.sleep(0)
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
        return PlainTextResponse("ok")

    async def main() -> list[float]:
        app = StageTimingMiddleware(Starlette(routes=[Route("/x", handler)]), service="s")
        used = []
        for _ in range(3):
            await request(app, "/x")
            cpu = values("inference_stage_cpu_seconds_total", "stage")
            used.append(cpu.get(("inference",), 0.0))
        return used

    first, second, third = asyncio.run(main())
    assert first == 0
    assert seconds <= second < 2 * seconds
    assert 2 * seconds <= third < 3 * seconds


# --- one service, several middlewares; several services ---


def test_a_rebuilt_stack_goes_on_counting() -> None:
    """trallnag/prometheus-fastapi-instrumentator#269, #152: "Duplicated timeseries"."""

    async def main() -> None:
        app = starlette_app()
        await request(app, "/x")
        app.middleware_stack = app.build_middleware_stack()
        await request(app, "/x")
        await request(starlette_app(), "/x")

    asyncio.run(main())
    assert outcomes() == {"ok": 3}


@pytest.mark.parametrize("inner", ["s", "other"])
@pytest.mark.parametrize("between", [None, BaseHTTPMiddleware])
def test_a_request_is_counted_once_by_each_service(inner: str, between: Any) -> None:
    """As where a mounted application, or the same one, is instrumented twice."""

    async def pass_on(incoming: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(incoming)

    async def chat(websocket: WebSocket) -> None:
        await websocket.close()

    async def main() -> None:
        sub = Starlette(routes=[Route("/x", answer), WebSocketRoute("/ws", chat)])
        sub.add_middleware(StageTimingMiddleware, service=inner, metrics_path="/metrics")
        app = Starlette(routes=[Mount("/sub", sub)])
        app.add_middleware(StageTimingMiddleware, service="s")
        if between is not None:
            app.add_middleware(between, dispatch=pass_on)
        app.add_middleware(StageTimingMiddleware, service="s")
        for _ in range(3):
            assert (await request(app, "/sub/x")).body == b"ok"
        assert (await request(app, "/sub/metrics")).status == 200
        exchange = Exchange()
        await app(
            http_scope("/sub/ws", type="websocket", subprotocols=[]),
            exchange.receive,
            exchange.send,
        )

    asyncio.run(main())
    by_service = nonzero("inference_requests_total", ["service", "route"])
    assert by_service[("s", "/sub/x")] == 3
    assert by_service.get(("other", "/sub/x"), 0) == (3 if inner == "other" else 0)
    assert sum(values("inference_requests_in_flight").values()) == 0
    closes = nonzero("inference_websocket_closes_total", ["service", "code"])
    assert closes == {(service, "403"): 1 for service in {"s", inner}}


def test_a_request_from_within_a_request_is_another() -> None:
    async def inner(incoming: Request) -> Response:
        return PlainTextResponse("inner")

    async def outer(incoming: Request) -> Response:
        return PlainTextResponse((await request(app, "/inner")).body)

    app = Starlette(routes=[Route("/outer", outer), Route("/inner", inner)])
    app.add_middleware(StageTimingMiddleware, service="s")
    app.add_middleware(StageTimingMiddleware, service="s")
    assert asyncio.run(request(app, "/outer")).body == b"inner"
    assert nonzero("inference_requests_total", ["route"]) == {("/outer",): 1, ("/inner",): 1}


def test_two_applications_are_told_apart_by_their_service() -> None:
    async def main() -> None:
        for name, times in (("a", 1), ("b", 2)):
            app: App = StageTimingMiddleware(Starlette(routes=[Route("/x", answer)]), service=name)
            for _ in range(times):
                await request(app, "/x")

    asyncio.run(main())
    assert nonzero("inference_requests_total", ["service", "route"]) == {
        ("a", "/x"): 1,
        ("b", "/x"): 2,
    }


def test_the_first_service_to_be_named_takes_over_what_came_before_it() -> None:
    """A model's warm-up, and a scrape, come before a framework builds its middlewares."""
    queue = RequestQueue("batch")
    queue.enter().leave()
    with stage("inference"):
        pass
    assert nonzero("inference_stage_duration_seconds_count", ["service", "stage"]) == {
        ("unnamed", "inference"): 1
    }
    asyncio.run(request(starlette_app(), "/x"))
    with stage("inference"):
        pass
    queue.enter().leave()
    assert nonzero("inference_queue_wait_seconds_count", ["service", "queue"]) == {
        ("s", "batch"): 2
    }
    counts = nonzero("inference_stage_duration_seconds_count", ["service", "stage"])
    assert counts[("s", "inference")] == 2
    assert {service for service, _ in counts} == {"s"}


def test_a_scrape_before_any_service_makes_none() -> None:
    RequestQueue("batch")
    assert values("inference_queue_depth", "service", "queue") == {}
    asyncio.run(request(starlette_app(), "/x"))
    assert values("inference_queue_depth", "service", "queue") == {("s", "batch"): 0}


# --- options ---


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"service": ""}, ValueError, "service=''"),
        ({"metrics_path": "metrics"}, ValueError, "metrics_path='metrics'"),
        ({"slo_seconds": 0}, ValueError, "slo_seconds=0"),
        ({"slo_seconds": float("nan")}, ValueError, "slo_seconds=nan"),
        ({"client_timeout_seconds": -1}, ValueError, "client_timeout_seconds=-1"),
        ({"series_limit": 0}, ValueError, "series_limit=0"),
        ({"metrics_path": 5}, ValueError, "metrics_path=5"),
        ({"slo_seconds": "0.5"}, TypeError, "slo_seconds='0.5'"),
        ({"client_timeout_seconds": "5"}, TypeError, "client_timeout_seconds='5'"),
        ({"series_limit": "9"}, TypeError, "series_limit='9'"),
        ({"exclude": None}, TypeError, "exclude=None"),
        ({"exclude": "/health"}, TypeError, "exclude='/health'"),
        ({"gpu_uuids": 1}, TypeError, "gpu_uuids=1"),
        ({"gpu_uuids": "GPU-1"}, TypeError, "gpu_uuids='GPU-1'"),
    ],
)
def test_an_option_out_of_its_range_is_named(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        StageTimingMiddleware(Starlette(), **{"service": "s", **options})


def test_the_objective_is_snapped_to_the_grid_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            StageTimingMiddleware(Starlette(), service="s", slo_seconds=0.45)
    assert values("inference_slo_seconds") == {(): 0.42}
    assert [record.message for record in caplog.records] == [
        "s: slo_seconds=0.45 is counted as 0.42, the nearest edge of the latency buckets"
    ]


@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5, 10, 30, 60, 120])
def test_usual_objectives_are_edges(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    StageTimingMiddleware(Starlette(), service="s", slo_seconds=seconds)
    assert values("inference_slo_seconds") == {(): seconds}
    assert caplog.records == []


def test_the_grid_spans_1_ms_to_120_s_in_steps_of_at_most_a_fifth() -> None:
    assert EDGES_NS[0] == 1_000_000
    assert EDGES_NS[-1] == 120 * 10**9
    steps = [b / a for a, b in itertools.pairwise(EDGES_NS)]
    assert 1 < min(steps)
    assert max(steps) <= 1.2 + 1e-12
    assert (snap_to_grid(1e-9), snap_to_grid(1e9)) == (0.001, 120)


def test_no_objective_and_no_timeout_have_no_sample() -> None:
    starlette_app().build_middleware_stack()
    assert values("inference_slo_seconds") == {}
    assert values("inference_client_timeout_seconds") == {}


def test_nothing_is_threaded_before_the_first_scrape() -> None:
    before = threading.active_count()
    asyncio.run(request(starlette_app(metrics_path="/metrics"), "/x"))
    assert threading.active_count() == before


def test_durations_fall_into_the_bucket_that_their_edge_ends(clock: Clock) -> None:
    seconds = iter((0.001, 0.001000001, 120, 120.1))

    async def handler(incoming: Request) -> Response:
        clock.now_ns += round(next(seconds) * 1e9)
        return PlainTextResponse("ok")

    async def main() -> None:
        app = Starlette(routes=[Route("/x", handler)])
        app.add_middleware(StageTimingMiddleware, service="s")
        for _ in range(4):
            await request(app, "/x")

    asyncio.run(main())
    below = {
        le: count
        for (route, le), count in values(
            "inference_request_duration_seconds_bucket", "route", "le"
        ).items()
        if route == "/x"
    }
    assert (below["0.001"], below["0.0012"], below["100.0"]) == (1, 2, 2)
    assert (below["120.0"], below["+Inf"]) == (3, 4)
