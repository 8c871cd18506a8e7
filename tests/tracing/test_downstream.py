"""Calls to other services: their time, and the trace that the callee is told of."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import tailwatch_tracing.clock
from tailwatch_tracing import StageTimingMiddleware, downstream, stage
from tailwatch_tracing.calls import CALL_SPANS, Call
from tailwatch_tracing.units import current_unit
from tests.tracing.asgi import nonzero, request
from tests.tracing.conftest import Clock

Handler = Callable[[Request], object]

# The examples of W3C Trace Context.
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def calls() -> dict[str, tuple[float, float]]:
    """Target -> number of calls and the sum of their seconds."""
    sums = nonzero("inference_downstream_seconds_sum", ["target"])
    counts = nonzero("inference_downstream_seconds_count", ["target"])
    return {name: (count, sums.get((name,), 0.0)) for (name,), count in counts.items()}


def serve(handler: Handler, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    app = StageTimingMiddleware(Starlette(routes=[Route("/x", handler)]), service="s")  # type: ignore[arg-type]
    asyncio.run(request(app, "/x", headers=headers or []))


# --- time ---


def test_a_block_is_one_call_and_no_stage(clock: Clock) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            clock.advance(0.1)
            with downstream("db"):
                clock.advance(0.2)
            async with downstream("db"):
                clock.advance(0.3)
        return PlainTextResponse("ok")

    serve(handler)
    assert calls() == {"db": (2, 0.5)}
    assert nonzero("inference_stage_seconds_total", ["stage"]) == {
        ("inference",): pytest.approx(0.6)
    }


def test_decorates_sync_and_async_functions(clock: Clock) -> None:
    @downstream("db")
    def query(seconds: float) -> str:
        """Doc."""
        clock.advance(seconds)
        return "row"

    @downstream("model")
    async def ask(seconds: float) -> str:
        clock.advance(seconds)
        await asyncio.sleep(0)
        clock.advance(seconds)
        return "answer"

    assert (query(0.1), query(0.2), asyncio.run(ask(0.2))) == ("row", "row", "answer")
    assert (query.__name__, query.__doc__) == ("query", "Doc.")
    assert calls() == {"db": (2, pytest.approx(0.3)), "model": (1, 0.4)}


def test_decorates_an_object_that_is_called_like_an_async_function(clock: Clock) -> None:
    class Model:
        async def __call__(self) -> int:
            clock.advance(0.2)
            return 7

    assert asyncio.run(downstream("model")(Model())()) == 7
    assert calls() == {"model": (1, 0.2)}


def test_refuses_generator_functions() -> None:
    async def rows() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(
        TypeError, match=r"downstream\('db'\) cannot decorate the generator function"
    ):
        downstream("db")(rows)


def test_a_call_that_fails_is_observed_and_its_error_passes(clock: Clock) -> None:
    with pytest.raises(LookupError), downstream("db"):
        clock.advance(0.1)
        raise LookupError
    assert calls() == {"db": (1, 0.1)}


def test_calls_of_a_rejected_request_were_made_all_the_same(clock: Clock) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with downstream("db"):
            clock.advance(0.1)
        return PlainTextResponse("busy", 429)

    serve(handler)
    assert calls() == {"db": (1, 0.1)}


def test_one_object_in_use_by_many_times_each(clock: Clock) -> None:
    db = downstream("db")

    async def one(seconds: int, ready: asyncio.Event, go_on: asyncio.Event) -> None:
        with db:
            ready.set()
            await go_on.wait()
            with db:
                clock.advance(seconds)

    async def main() -> None:
        ready, go_on = [asyncio.Event() for _ in range(2)], [asyncio.Event() for _ in range(2)]
        tasks = [asyncio.create_task(one(10**n, ready[n], go_on[n])) for n in range(2)]
        for event in ready:
            await event.wait()
        go_on[0].set()
        await tasks[0]
        go_on[1].set()
        await tasks[1]

    asyncio.run(main())
    with db:
        clock.advance(100)
    # Inner calls of 1 and 10, outer ones from the start to 1 and to 11, and the last one.
    assert calls() == {"db": (5, 1 + 10 + 1 + 11 + 100)}


def test_an_object_that_others_have_left_meanwhile_nests(clock: Clock) -> None:
    """Whose outer call began while another task held the object; both have its name."""
    db = downstream("db")
    other = contextvars.copy_context()
    other.run(db.__enter__)
    with db:
        other.run(db.__exit__, None, None, None)
        clock.advance(10)
        with db:
            clock.advance(1)
        clock.advance(10)
    assert calls() == {"db": (3, 1 + 21)}
    assert nonzero("inference_downstream_seconds_bucket", ["le"])[("5.0",)] == 2


def test_one_object_first_entered_by_two_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    db = downstream("db")
    is_within, may_leave = threading.Event(), threading.Event()

    def other_call() -> None:
        with db:
            is_within.set()
            may_leave.wait(10)

    other = threading.Thread(target=other_call)

    def interrupted() -> int:
        if not other.ident:
            other.start()
            assert is_within.wait(10)
        return time.perf_counter_ns()

    monkeypatch.setattr(tailwatch_tracing.clock, "now_ns", interrupted)
    with db:
        may_leave.set()
        other.join()
    assert calls()["db"][0] == 2


def test_objects_in_use_at_once_are_not_mixed_up(clock: Clock) -> None:
    db, model = downstream("db"), downstream("model")
    with db, db:
        with model:
            clock.advance(1)
        clock.advance(1)
    assert calls() == {"db": (2, 4.0), "model": (1, 1.0)}


def test_a_call_left_in_another_context_is_observed_once(clock: Clock) -> None:
    db = downstream("db")
    with db:
        again = contextvars.copy_context()
        again.run(db.__enter__)
        clock.advance(1)
    db.__exit__(None, None, None)
    again.run(db.__exit__, None, None, None)
    assert calls() == {"db": (2, 2.0)}


def test_targets_are_capped(clock: Clock) -> None:
    for n in range(100):
        with downstream(f"t{n}"):
            clock.advance(1)
    found = calls()
    assert len(found) == 65
    assert found["__other__"] == (36, 36.0)
    overflow = nonzero("tailwatch_series_overflow_total", ["metric"])
    assert overflow == {("inference_downstream_seconds",): 36}


def test_threads_lose_no_call() -> None:
    def work() -> None:
        for _ in range(500):
            with downstream("db"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nonzero("inference_downstream_seconds_count", ["target"]) == {("db",): 2000}


# --- headers without spans ---


def passed_on(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    found: list[dict[str, str]] = []

    async def handler(incoming: Request) -> PlainTextResponse:
        with downstream("retrieval") as call:
            found.append(call.headers)
        return PlainTextResponse("ok")

    serve(handler, headers)
    return found[0]


def test_a_service_that_takes_no_part_passes_the_trace_on_unchanged() -> None:
    assert passed_on(
        [
            (b"traceparent", TRACEPARENT.encode()),
            (b"tracestate", b"congo=t61rcWkgMzE"),
            (b"tracestate", b"rojo=00f067aa0ba902b7"),
            (b"authorization", b"Bearer x"),
        ]
    ) == {"traceparent": TRACEPARENT, "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"}


def test_a_later_version_of_the_standard_is_passed_on_as_it_is() -> None:
    later = f"cc-{TRACE_ID}-b7ad6b7169203331-01-what-the-future-brings"
    assert passed_on([(b"traceparent", later.encode())]) == {"traceparent": later}


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [b""],
        [TRACEPARENT.upper().encode()],
        [TRACEPARENT.encode() + b"-00"],
        [TRACEPARENT.encode() + b"\n"],
        [b"ff" + TRACEPARENT[2:].encode()],
        [f"00-{'0' * 32}-b7ad6b7169203331-01".encode()],
        [f"00-{TRACE_ID}-{'0' * 16}-01".encode()],
        [TRACEPARENT.encode()] * 2,
        [b"\xff" * 55],
    ],
)
def test_a_trace_that_is_not_valid_is_not_passed_on(headers: list[bytes]) -> None:
    sent = [(b"traceparent", value) for value in headers]
    assert passed_on([*sent, (b"tracestate", b"a=b")]) == {}


@pytest.mark.parametrize("state", [b"x" * 513, b"a=\xff", b"a=b\r\nx: y"])
def test_a_state_that_is_not_valid_leaves_the_parent(state: bytes) -> None:
    assert passed_on([(b"traceparent", TRACEPARENT.encode()), (b"tracestate", state)]) == {
        "traceparent": TRACEPARENT
    }


def test_there_are_no_headers_outside_a_request_and_none_needed() -> None:
    with downstream("db") as call:
        assert call.headers == {}
    assert downstream("db").headers == {}


def test_opentelemetry_is_not_imported_for_it() -> None:
    code = textwrap.dedent(
        """
        import sys
        from tailwatch_tracing import downstream
        with downstream("db") as call:
            assert call.headers == {}
        assert not any(name.startswith("opentelemetry") for name in sys.modules)
        """
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- headers with spans ---


def current(state: str = "") -> trace.Span:
    return NonRecordingSpan(
        SpanContext(
            int(TRACE_ID, 16),
            0xB7AD6B7169203331,
            is_remote=False,
            trace_flags=TraceFlags(1),
            trace_state=TraceState.from_header([state]) if state else None,
        )
    )


def test_under_another_instrumentation_its_span_is_the_parent() -> None:
    token = context.attach(trace.set_span_in_context(current("congo=t61rcWkgMzE")))
    try:
        with downstream("db") as call:
            assert call.headers == {"traceparent": TRACEPARENT, "tracestate": "congo=t61rcWkgMzE"}
    finally:
        context.detach(token)


def test_with_spans_on_the_call_is_the_parent_and_left_to_the_span(clock: Clock) -> None:
    seen: list[str] = []
    left: list[Call] = []

    async def handler(incoming: Request) -> PlainTextResponse:
        unit = current_unit.get()
        unit.span = object()  # type: ignore[attr-defined]
        token = context.attach(trace.set_span_in_context(current()))
        begun = clock.now_ns
        with downstream("told") as call:
            clock.advance(0.1)
            seen.extend(call.headers["traceparent"] for _ in range(2))
        with pytest.raises(LookupError), downstream("silent"):
            raise LookupError
        context.detach(token)
        left.extend(unit.calls)
        assert left[0][1:3] == (begun, begun + 100_000_000)
        unit.span = None  # type: ignore[attr-defined]
        return PlainTextResponse("ok")

    serve(handler)
    assert seen[0] == seen[1]
    version, trace_id, parent_id, flags = seen[0].split("-")
    assert (version, trace_id, flags) == ("00", TRACE_ID, "01")
    assert int(parent_id, 16) not in (0, 0xB7AD6B7169203331)
    told, silent = left
    assert (told.target, told.span_id, told.error) == ("told", int(parent_id, 16), None)
    assert told.parent_id == silent.parent_id == 0xB7AD6B7169203331
    assert (silent.target, silent.span_id, silent.error) == ("silent", 0, LookupError)


def test_a_call_made_with_an_object_used_before_has_an_id_of_its_own() -> None:
    seen: list[str] = []
    kept: list[list[Call]] = []
    db = downstream("db")

    async def handler(incoming: Request) -> PlainTextResponse:
        unit = current_unit.get()
        unit.span = object()  # type: ignore[attr-defined]
        token = context.attach(trace.set_span_in_context(current()))
        for _ in range(2):
            with db as call:
                seen.append(call.headers["traceparent"])
        context.detach(token)
        unit.span = None  # type: ignore[attr-defined]
        return PlainTextResponse("ok")

    async def app(scope: object, receive: object, send: Callable[..., object]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[misc]
        with downstream("db"):
            await send({"type": "http.response.body", "body": b"x"})  # type: ignore[misc]
            unit = current_unit.get()
            unit.span = object()  # type: ignore[attr-defined]
        kept.append(getattr(unit, "calls", []))
        unit.span = None  # type: ignore[attr-defined]

    serve(handler)
    assert seen[0] != seen[1]
    asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x"))  # type: ignore[arg-type]
    assert kept == [[]], "a call that ends after its request is nobody's span"


def test_a_request_leaves_no_more_calls_than_the_limit() -> None:
    sizes: list[int] = []

    async def handler(incoming: Request) -> PlainTextResponse:
        unit = current_unit.get()
        unit.span = object()  # type: ignore[attr-defined]
        for _ in range(CALL_SPANS + 7):
            with downstream("db"):
                pass
        sizes.append(len(unit.calls))
        unit.span = None  # type: ignore[attr-defined]
        return PlainTextResponse("ok")

    serve(handler)
    assert sizes == [CALL_SPANS]
    assert nonzero("tailwatch_spans_dropped_total", ["reason"]) == {("stage_limit",): 7}


def test_a_request_without_a_span_keeps_no_calls() -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with downstream("db"):
            pass
        assert not hasattr(current_unit.get(), "calls")
        return PlainTextResponse("ok")

    serve(handler)
    assert not nonzero("tailwatch_errors_total", ["where"])


def test_a_propagation_that_fails_fails_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> trace.Span:
        raise RuntimeError

    monkeypatch.setattr(trace, "get_current_span", fails)
    with stage("x"), downstream("db") as call:
        assert call.headers == {}
    assert nonzero("tailwatch_errors_total", ["where"]) == {("spans",): 1}


def test_the_headers_are_those_of_opentelemetrys_own_propagator() -> None:
    with TracerProvider().get_tracer("t").start_as_current_span("outer"):
        expected: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(expected)
        with downstream("db") as call:
            assert call.headers == expected
