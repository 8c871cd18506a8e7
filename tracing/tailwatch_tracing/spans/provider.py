"""Spans by way of a tracer provider that the process has set up itself.

Its sampler, id generator, limits, resource and processors apply. A sampled request's server span is
one of the SDK's from the beginning; what is made at the end, its stages and what is kept late, goes
to the same processors without asking the sampler again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    set_span_in_context,
)

from tailwatch_tracing import clock
from tailwatch_tracing.service import VERSION
from tailwatch_tracing.spans import current
from tailwatch_tracing.spans.conventions import (
    FAILED,
    SCHEMA_URL,
    add_outcome,
    call_attributes,
    request_attributes,
    span_name,
    span_text,
)
from tailwatch_tracing.spans.kept import KeptTrace
from tailwatch_tracing.spans.observations import Observations
from tailwatch_tracing.spans.propagation import RemoteParent
from tailwatch_tracing.spans.request_span import (
    ERROR,
    RequestSpan,
    child_of,
    remote_context,
    trace_state_of,
)

if TYPE_CHECKING:
    from contextvars import Token

    from tailwatch_tracing.request import Request
    from tailwatch_tracing.service import RouteCells
    from tailwatch_tracing.spans.recorder import SpanRecorder
    from tailwatch_tracing.stages import stage


class _GivenIds(RandomIdGenerator):
    """Draws ids at random, but for the next span of a thread that was given its own."""

    def __init__(self) -> None:
        self._given = threading.local()

    def give(self, trace_id: int, span_id: int) -> None:
        """Let the next span of this thread have these."""
        self._given.ids = [span_id, trace_id]

    def generate_span_id(self) -> int:
        """Return the given id once, then random ones."""
        ids: list[int] | None = getattr(self._given, "ids", None)
        if not ids:
            return super().generate_span_id()
        self._given.ids = None
        return ids[0]

    def generate_trace_id(self) -> int:
        """Return the given id, or a random one."""
        ids: list[int] | None = getattr(self._given, "ids", None)
        return ids[1] if ids else super().generate_trace_id()


class ProviderSpans:
    """Makes the spans of a service with a provider that is not its own."""

    def __init__(self, provider: TracerProvider) -> None:
        names = ("tailwatch_tracing", VERSION, SCHEMA_URL)
        self._tracer = provider.get_tracer(*names)
        self._ids = _GivenIds()
        self._late = TracerProvider(
            sampler=ALWAYS_ON,
            resource=provider.resource,
            shutdown_on_exit=False,
            active_span_processor=getattr(self._tracer, "span_processor", None),
            id_generator=self._ids,
        ).get_tracer(*names)

    def begin(
        self,
        recorder: SpanRecorder,
        request: Request,
        parent: RemoteParent | None,
        now: Context,
    ) -> RequestSpan | ProviderSpan:
        """Start the request's span and make it current."""
        scope = request.scope
        offset_ns = time.time_ns() - clock.now_ns()
        caller = INVALID_SPAN if parent is None else NonRecordingSpan(remote_context(parent))
        span = self._tracer.start_span(
            span_name(scope["method"], ""),
            set_span_in_context(caller, now),
            SpanKind.SERVER,
            request_attributes(scope, recorder.omitted),
            start_time=request.start_ns + offset_ns,
        )
        ours: RequestSpan | ProviderSpan
        if span.is_recording():
            ours = ProviderSpan(recorder, span, parent, offset_ns)
            made = span
        else:
            ids = span.get_span_context()
            flags = int(ids.trace_flags)
            made = ours = RequestSpan(recorder, ids.trace_id, ids.span_id, flags, parent)
        ours.token = current.attach(set_span_in_context(made, now))
        return ours

    def send(self, kept: KeptTrace) -> None:
        """Make the spans of a kept trace, except a server span that exists."""
        own = SpanContext(
            kept.trace_id,
            kept.span_id,
            is_remote=False,
            trace_flags=TraceFlags(kept.flags),
            trace_state=trace_state_of(kept.state),
        )
        server = kept.server
        if server is not None:
            caller = Context()
            if server.parent is not None:
                caller = _context_of(remote_context(server.parent))
            self._ids.give(kept.trace_id, kept.span_id)
            span = self._late.start_span(
                server.name,
                caller,
                SpanKind.SERVER,
                server.attributes,
                server.links,
                server.start_ns,
            )
            for event in server.events:
                span.add_event(event.name, event.attributes, event.timestamp)
            span.set_status(server.status)
            self._send_below(kept, own)
            span.end(server.end_ns)
        else:
            self._send_below(kept, own)

    def _send_below(self, kept: KeptTrace, own: SpanContext) -> None:
        parent = _context_of(own)
        for name, start_ns, end_ns in kept.stages:
            self._late.start_span(name, parent, start_time=start_ns).end(end_ns)
        for call in kept.calls:
            if call.span_id:
                self._ids.give(kept.trace_id, call.span_id)
            span = self._late.start_span(
                span_text(call.target),
                _context_of(child_of(own, call.parent_id or own.span_id)),
                SpanKind.CLIENT,
                call_attributes(call),
                start_time=call.start_ns + kept.offset_ns,
            )
            if call.error is not None:
                span.set_status(ERROR)
            span.end(call.end_ns + kept.offset_ns)


def _context_of(span: SpanContext) -> Context:
    return set_span_in_context(NonRecordingSpan(span), Context())


class ProviderSpan(Observations):
    """The server span of a sampled request, one of the SDK's."""

    token: Token[Context]
    inner: trace.Span | None = None

    def __init__(
        self,
        recorder: SpanRecorder,
        span: trace.Span,
        parent: RemoteParent | None,
        offset_ns: int,
    ) -> None:
        self._recorder = recorder
        self._span = span
        self._offset_ns = offset_ns
        self.parent_id = 0 if parent is None else parent.span_id

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
        """End the span, with the stages below it."""
        if self.inner is not None:  # ours is never ended, so that it goes nowhere
            self._recorder.keep_inside(self.inner, self, request, route, outcome, end_ns, log)
            return
        span = self._span
        offset_ns = self._offset_ns
        ids = span.get_span_context()
        span.update_name(span_name(request.scope["method"], route.template))
        attributes: dict[str, str | int] = {}
        add_outcome(attributes, route.template, status, outcome)
        span.set_attributes(attributes)
        if outcome in FAILED:
            span.set_status(ERROR)
        if ids.trace_flags.sampled:
            self._recorder.send_below(ids, request, end_ns, offset_ns, log)
        span.end(end_ns + offset_ns)
        if ids.trace_flags.sampled:
            self.point_to(
                ids.trace_id,
                ids.span_id,
                request,
                route,
                outcome,
                end_ns,
                offset_ns,
                log,
            )
