"""traceparent, tracestate and baggage, against the standards and OpenTelemetry's own readers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware
from tailwatch_tracing.spans.propagation import (
    MOST_BAGGAGE_BYTES,
    MOST_BAGGAGE_MEMBERS,
    MOST_STATE_BYTES,
    parse_baggage,
    parse_traceparent,
    parse_tracestate,
    read_headers,
)
from tests.tracing.asgi import nonzero, request

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


@pytest.mark.parametrize(
    "value",
    [
        f"00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-00",
        f" \t00-{TRACE}-{SPAN}-01 ",
        f"01-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-what-the-future-brings",
        f"00-{TRACE}-{SPAN}-01-more",  # not in version 00
        f"cc-{TRACE}-{SPAN}-01.what",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01\n",
        "",
        "00",
    ],
)
def test_traceparent_is_read_as_opentelemetry_reads_it(value: str) -> None:
    context = TraceContextTextMapPropagator().extract({"traceparent": value})
    theirs = trace.get_current_span(context).get_span_context()
    ours = parse_traceparent(value.encode())
    if value.endswith("\n"):
        assert ours is None  # Python's $ lets it pass
    elif not theirs.is_valid:
        assert ours is None
    else:
        assert ours is not None
        assert (ours.trace_id, ours.span_id) == (theirs.trace_id, theirs.span_id)
        assert bool(ours.flags & 1) is theirs.trace_flags.sampled


def test_two_traceparents_are_none() -> None:
    """W3C Trace Context, section 3.2.2: the header is sent once."""
    header = (b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())
    assert read_headers([header])[0] is not None
    assert read_headers([header, header])[0] is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"rojo=00f0,congo=t61rcWkgMzE", [("rojo", "00f0"), ("congo", "t61rcWkgMzE")]),
        (b"a=1 , b=2,,\tc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        (b"fw529a3039@dt=FfAAAA", [("fw529a3039@dt", "FfAAAA")]),
        (b"a=1,a=2", []),
        (b"a=1,B=2", []),
        (b"a=1,b", []),
        (b"a=" + b"x" * MOST_STATE_BYTES, []),
        (b",".join(b"k%d=v" % i for i in range(33)), []),
        (b",".join(b"k%d=v" % i for i in range(33)) + b",a=" + b"x" * 200, []),
        (b"a=\xff", []),
    ],
)
def test_tracestate_is_whole_or_nothing(value: bytes, expected: list[tuple[str, str]]) -> None:
    assert parse_tracestate(value) == expected


def test_of_a_long_tracestate_long_members_go_first_then_the_last() -> None:
    """At least 512 characters are to be sent on, W3C's "Tracestate Limits"."""
    short = [(f"k{i:02}", "v" * 27) for i in range(20)]  # 32 bytes each, with a comma
    members = [("first", "1"), ("long", "x" * 200), *short]
    value = ",".join(f"{key}={text}" for key, text in members).encode()
    assert parse_tracestate(value) == [("first", "1"), *short[:15]]
    assert parse_tracestate(value + b",B=2") == []


def test_no_more_of_a_tracestate_is_held_than_is_sent_on() -> None:
    headers = [(b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())]
    members = b",".join(b"k%02d=" % i + b"v" * 27 for i in range(20))
    for state in (members, b"a=" + b"x" * 60_000, b"a=1" + b" " * 60_000):
        parent, _ = read_headers([*headers, (b"tracestate", state)])
        assert parent is not None
        assert len(parent.state) <= MOST_STATE_BYTES


def test_several_tracestate_headers_are_one_list() -> None:
    parent, _ = read_headers(
        [
            (b"traceparent", f"00-{TRACE}-{SPAN}-01".encode()),
            (b"tracestate", b"a=1"),
            (b"tracestate", b"b=2"),
        ]
    )
    assert parent is not None
    assert parse_tracestate(parent.state) == [("a", "1"), ("b", "2")]


@pytest.mark.parametrize(
    "value",
    [
        "user=alice,region=eu%20west",
        " user = alice , empty= ",
        "key=value;property=1;flag, other=2",
        "a=1,a=2",
        "k%20ey=%E4%BD%A0",
    ],
)
def test_baggage_is_read_as_opentelemetry_reads_it(value: str) -> None:
    theirs = baggage.get_all(W3CBaggagePropagator().extract({"baggage": value}))
    assert parse_baggage([value.encode()]) == dict(theirs)


@pytest.mark.parametrize("value", [b"", b"a", b"=1", b"a b=1", b"\xff=1", b'a="q"', b"a=1;;"])
def test_bad_baggage_members_are_left_out(value: bytes) -> None:
    assert parse_baggage([value, b"good=1"]) == {"good": "1"}


def test_baggage_is_bounded() -> None:
    """W3C Baggage, section 3.3.2: 64 members and 8192 bytes, none of them cut."""
    many = b",".join(b"k%d=v" % i for i in range(1000))
    assert list(parse_baggage([many])) == [f"k{i}" for i in range(MOST_BAGGAGE_MEMBERS)]
    long = b",".join(b"k%d=" % i + b"v" * 1000 for i in range(20))
    found = parse_baggage([long])
    assert list(found) == [f"k{i}" for i in range(8)]
    assert set(map(len, found.values())) == {1000}
    assert parse_baggage([b"a=" + b"v" * MOST_BAGGAGE_BYTES]) == {}


class Within:
    """What a client within the request would send."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
        self.sent: list[dict[str, str]] = []
        self.app = StageTimingMiddleware(Starlette(routes=[Route("/", self._answer)]), service="s")

    async def _answer(self, incoming: Request) -> Response:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        self.sent.append(carrier)
        return PlainTextResponse("ok")

    def get(self, *headers: tuple[bytes, bytes]) -> dict[str, str]:
        asyncio.run(request(self.app, "/", headers=list(headers)))
        return self.sent[-1]


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> Within:
    return Within(monkeypatch)


def test_a_client_within_sends_it_all_on(within: Within) -> None:
    sent = within.get(
        (b"traceparent", f"00-{TRACE}-{SPAN}-01".encode()),
        (b"tracestate", b"a=1,b=2"),
        (b"baggage", b"user=alice"),
        (b"baggage", b"region=eu"),
    )
    assert sent["traceparent"].startswith(f"00-{TRACE}-")
    assert SPAN not in sent["traceparent"]
    assert sent["tracestate"] == "a=1,b=2"
    assert sent["baggage"] == "user=alice,region=eu"


def test_without_a_caller_a_client_within_sends_a_new_trace(within: Within) -> None:
    first, second = within.get(), within.get()
    assert first["traceparent"][3:35] != second["traceparent"][3:35]
    assert "baggage" not in first


def test_baggage_does_not_reach_the_next_request(within: Within) -> None:
    async def both() -> None:
        await request(within.app, "/", headers=[(b"baggage", b"user=alice")])
        await request(within.app, "/", headers=[])

    asyncio.run(both())
    assert "baggage" in within.sent[0]
    assert "baggage" not in within.sent[1]


def test_a_client_cannot_write_to_the_log(within: Within, caplog: pytest.LogCaptureFixture) -> None:
    parent = (b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())
    for name, value in [
        (b"traceparent", b"00-\xff-x" * 99),
        (b"tracestate", b"=" * 999),
        (b"tracestate", b"A=1"),
        (b"tracestate", b"a=1,a=2"),
        (b"baggage", b"a" * 9999),
        (b"baggage", b"\xff=\xff,=,;,a=b=c;d"),
        (b"baggage", b"a=" + b"v" * 5000),
        (b"baggage", b",".join(b"k%d=" % i + b"/" * 1000 for i in range(8))),
    ]:
        within.get(parent, (name, value))
    assert caplog.text == ""
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def test_another_propagator_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Custom(TextMapPropagator):
        def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
            parent = trace.SpanContext(int(carrier["x-trace"], 16), 5, True, trace.TraceFlags(1))
            return trace.set_span_in_context(trace.NonRecordingSpan(parent), context)

        def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
            ids = trace.get_current_span(context).get_span_context()
            carrier["x-trace"] = f"{ids.trace_id:x}"

        @property
        def fields(self) -> set[str]:
            return {"x-trace"}

    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", Custom())
    within = Within(monkeypatch)
    assert within.get((b"x-trace", b"abc"), (b"traceparent", b"x"))["x-trace"] == "abc"
