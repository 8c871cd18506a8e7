"""The span of one request, as code within the request sees it and as it is kept at the end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk.trace import Event
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags, TraceState

from tailwatch_tracing import clock
from tailwatch_tracing.spans import current
from tailwatch_tracing.spans.conventions import (
    FAILED,
    add_outcome,
    request_attributes,
    span_name,
    span_text,
)
from tailwatch_tracing.spans.kept import KeptTrace, Server, calls_of, stage_times
from tailwatch_tracing.spans.observations import Observations
from tailwatch_tracing.spans.propagation import SAMPLED, RemoteParent, parse_tracestate

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.util.types import Attributes, AttributeValue

    from tailwatch_tracing.request import Request
    from tailwatch_tracing.service import RouteCells
    from tailwatch_tracing.spans.recorder import SpanRecorder
    from tailwatch_tracing.stages import stage

MOST_ITEMS = 128
"""Attributes, events and links that code within a request may add: the SDK's own limit."""


class RequestSpan(Observations, trace.Span):
    """Made for every request, so it costs as little as it can until somebody uses it.

    Code within a request may add to it whether or not the request was sampled: it may be kept for
    how it ends.
    """

    # Set for every request; what follows is the instance's only once somebody uses it.
    __slots__ = ("_flags", "_parent", "_recorder", "_span_id", "_trace_id", "token")

    _attributes: dict[str, AttributeValue] | None = None
    _context: SpanContext | None = None
    _events: list[Event] | None = None
    _links: list[Link] | None = None
    _name: str | None = None
    _status: Status | None = None

    inner: trace.Span | None = None
    """A server span that another instrumentation has made of the same request."""

    def __init__(
        self,
        recorder: SpanRecorder,
        trace_id: int,
        span_id: int,
        flags: int,
        parent: RemoteParent | None,
    ) -> None:
        self._recorder = recorder
        self._trace_id = trace_id
        self._span_id = span_id
        self._flags = flags
        self._parent = parent
        self.token: Token[Context]  # takes the span back out of the context

    # --- what code within the request may ask of it ---

    def get_span_context(self) -> SpanContext:
        """Return the ids and flags that clients send on."""
        known = self._context
        if known is None:
            parent = self._parent
            known = self._context = SpanContext(
                self._trace_id,
                self._span_id,
                is_remote=False,
                trace_flags=TraceFlags(self._flags & 0xFF),
                trace_state=trace_state_of(b"" if parent is None else parent.state),
            )
        return known

    def is_recording(self) -> bool:
        """Return True until the request has ended: nobody knows earlier whether it is kept."""
        return self._flags < _OVER and (self._flags & SAMPLED != 0 or self._recorder.keeps_late)

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """Set one attribute; it wins over the span's own."""
        if self._attributes is None:
            self._attributes = {}
        if len(self._attributes) < MOST_ITEMS or key in self._attributes:
            self._attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set several attributes."""
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(
        self, name: str, attributes: Attributes = None, timestamp: int | None = None
    ) -> None:
        """Add something that happens now, or at `timestamp` in nanoseconds since 1970."""
        if self._events is None:
            self._events = []
        if len(self._events) < MOST_ITEMS:
            checked = self._recorder.checked(attributes or {})
            self._events.append(Event(span_text(name), checked, int(timestamp or time.time_ns())))

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        """Point to a span of another trace."""
        if self._links is None:
            self._links = []
        if len(self._links) < MOST_ITEMS:
            self._links.append(Link(context, self._recorder.checked(attributes or {})))

    def update_name(self, name: str) -> None:
        """Set the span's name, instead of method and route."""
        self._name = span_text(name)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status, instead of what the outcome says; OK is final, UNSET says nothing."""
        given = status if isinstance(status, Status) else Status(status, description)
        if given.description is not None:
            given = Status(given.status_code, span_text(given.description))
        known = self._status
        is_final = known is not None and known.status_code is StatusCode.OK
        if given.status_code is not StatusCode.UNSET and not is_final:
            self._status = given

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an exception as an event, with its message and stack trace."""
        kind = type(exception)
        self.add_event(
            "exception",
            {
                "exception.type": f"{kind.__module__}.{kind.__qualname__}",
                "exception.message": str(exception),
                "exception.stacktrace": "".join(traceback.format_exception(exception)),
                "exception.escaped": str(escaped),
                **(attributes or {}),
            },
            timestamp,
        )

    def end(self, end_time: int | None = None) -> None:
        """Do nothing: the span ends with its request."""

    # --- what the request does with it ---

    @property
    def parent_id(self) -> int:
        """The caller's span; 0 without one."""
        return 0 if self._parent is None else self._parent.span_id

    def detach(self) -> None:
        """Make the span current no longer."""
        current.detach(self.token)

    def finish(
        self,
        request: Request,
        route: RouteCells,
        status: int,
        outcome: str,
        end_ns: int,
        log: Sequence[stage],
    ) -> None:
        """Keep the request's spans if it was sampled, slow or failed, or forget them."""
        flags = self._flags
        late = ""
        if self.inner is not None:
            self._flags = flags | _OVER
            self._recorder.keep_inside(self.inner, self, request, route, outcome, end_ns, log)
            return
        if not flags & SAMPLED:
            slo_ns = request.service.slo_ns
            if outcome in FAILED:
                late = "failed"
            elif slo_ns is not None and end_ns - request.start_ns > slo_ns:
                late = "slow"
            spans = 1 + len(log) + len(calls_of(request))
            if not late or not self._recorder.may_keep(end_ns, spans):
                self._flags = flags | _OVER
                return
        self._keep(request, route, status, outcome, end_ns, log, late)
        self._flags = flags | _OVER

    def _keep(
        self,
        request: Request,
        route: RouteCells,
        status: int,
        outcome: str,
        end_ns: int,
        log: Sequence[stage],
        late: str,
    ) -> None:
        recorder = self._recorder
        # The wall clock is read once per request: a step of it would tear the trace apart.
        offset_ns = time.time_ns() - clock.now_ns()
        scope = request.scope
        attributes: dict[str, Any] = request_attributes(scope, recorder.omitted)
        add_outcome(attributes, route.template, status, outcome)
        if late:
            attributes["tailwatch.kept"] = late
        if self._attributes is not None:
            attributes.update(recorder.checked(self._attributes))
        parent = self._parent
        is_taken = recorder.send(
            KeptTrace(
                self._trace_id,
                self._span_id,
                self._flags | SAMPLED,
                parent.state if parent is not None else b"",
                Server(
                    self._name or span_name(scope["method"], route.template),
                    parent,
                    request.start_ns + offset_ns,
                    end_ns + offset_ns,
                    attributes,
                    self._events or (),
                    self._links or (),
                    self._status or (ERROR if outcome in FAILED else UNSET),
                ),
                stage_times(log, end_ns, offset_ns),
                calls_of(request),
                offset_ns,
            ),
            request,
            log,
        )
        if is_taken:
            self.point_to(
                self._trace_id,
                self._span_id,
                request,
                route,
                outcome,
                end_ns,
                offset_ns,
                log,
            )


_OVER = 0x100  # beside the flags of a traceparent: the request has ended

ERROR = Status(StatusCode.ERROR)
UNSET = Status(StatusCode.UNSET)


def trace_state_of(header: bytes) -> TraceState | None:
    """Return the header tracestate as OpenTelemetry has it; None without one."""
    return TraceState(parse_tracestate(header)) if header else None


def child_of(span: SpanContext, span_id: int) -> SpanContext:
    """Return another span of the same trace in this process."""
    return SpanContext(span.trace_id, span_id, False, span.trace_flags, span.trace_state)


def remote_context(parent: RemoteParent) -> SpanContext:
    """Return the caller's span as OpenTelemetry has it."""
    return SpanContext(
        parent.trace_id,
        parent.span_id,
        is_remote=True,
        trace_flags=TraceFlags(parent.flags),
        trace_state=trace_state_of(parent.state),
    )
