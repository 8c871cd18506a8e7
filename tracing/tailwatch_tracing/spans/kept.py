"""What is left of a request whose trace is kept, until its spans are made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tailwatch_tracing.spans.conventions import span_text
from tailwatch_tracing.spans.propagation import RemoteParent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Event
    from opentelemetry.trace import Link, Status

    from tailwatch_tracing.calls import Call
    from tailwatch_tracing.request import Request
    from tailwatch_tracing.stages import stage

STAGE_SPANS = 128
"""Stage spans of one request at most: O(1) spans however long a stream lasts."""


class Server(NamedTuple):
    """A request's server span; times are nanoseconds since 1970."""

    name: str
    parent: RemoteParent | None
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: Sequence[Event]
    links: Sequence[Link]
    status: Status


class KeptTrace(NamedTuple):
    """A server span, or only its ids where another instrumentation makes it, and what is below it.

    `stages` are names with their beginnings and ends, in nanoseconds since 1970; `calls` are those
    to other services, with times as of `clock.now_ns` and what makes them nanoseconds since 1970.
    """

    trace_id: int
    span_id: int
    flags: int
    state: bytes
    server: Server | None
    stages: Sequence[tuple[str, int, int]]
    calls: Sequence[Call]
    offset_ns: int

    @property
    def span_count(self) -> int:
        """How many spans there will be."""
        return len(self.stages) + len(self.calls) + (self.server is not None)


def calls_of(request: Request) -> Sequence[Call]:
    """Return the calls to other services that a request has made."""
    calls: Sequence[Call] = getattr(request, "calls", ())
    return calls


def stage_times(log: Sequence[stage], end_ns: int, offset_ns: int) -> list[tuple[str, int, int]]:
    """Return the first stages of a request; one that is open at its end is cut there."""
    return [
        (
            span_text(interval.name),
            interval.start_ns + offset_ns,
            (interval.end_ns if 0 < interval.end_ns < end_ns else end_ns) + offset_ns,
        )
        for interval in log[:STAGE_SPANS]
    ]
