"""Decides for one service which requests are traced, and where their spans go."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import baggage, propagate, trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.trace import SpanContext, set_span_in_context

from tailwatch_tracing import clock, families
from tailwatch_tracing.request import SPANNED
from tailwatch_tracing.spans import current
from tailwatch_tracing.spans.adopted import (
    AdoptedSpan,
    provider_of_process,
    server_span_in,
    telemetry_within,
    watch,
)
from tailwatch_tracing.spans.conventions import omitted_from, span_text
from tailwatch_tracing.spans.export import ExportQueue, exporter_class
from tailwatch_tracing.spans.kept import KeptTrace, calls_of, stage_times
from tailwatch_tracing.spans.observations import Observations
from tailwatch_tracing.spans.propagation import (
    FIELDS,
    RANDOM,
    SAMPLED,
    RemoteParent,
    parse_baggage,
    read_headers,
)
from tailwatch_tracing.spans.provider import ProviderSpan, ProviderSpans
from tailwatch_tracing.spans.request_span import RequestSpan
from tailwatch_tracing.spans.sampling import LOW_BITS, KeepBudget, sampling_from

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from tailwatch_tracing.request import Request
    from tailwatch_tracing.service import RouteCells, Service
    from tailwatch_tracing.stages import stage

AnySpan = RequestSpan | ProviderSpan | AdoptedSpan
"""What a request's spans are made by."""

_LONGEST_FIELD = 1024  # bytes of a header that another propagator is asked to read


class SpanRecorder:
    """Makes the spans of one service; holds no thread before the first kept trace.

    Where the process has an SDK tracer provider of its own when the first request arrives, that
    one's sampler, resource, limits and processors are used; otherwise OTEL_* variables say which
    traces are sampled and where they go.

    Args:
        service: Whose requests.
        provider: Used instead of the process's.
    """

    def __init__(self, service: Service, provider: TracerProvider | None = None) -> None:
        self._service = service
        self._given_provider = provider
        self._dropped = service.store.counter(families.SPANS_DROPPED)
        self._sampling = sampling_from(os.environ)
        self._budget = KeepBudget()
        self._limits = SpanLimits()
        self.keeps_late = self._sampling.keeps_late
        self.omitted = omitted_from(os.environ)
        self._queue = ExportQueue(service.name, self.note_dropped, self._give_up, exporter_class())
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Know nothing of the process, as at first and in a forked child."""
        self._is_ready = False
        self._by_provider: ProviderSpans | None = None
        self._apps: dict[int, tuple[object, bool]] = {}
        self._known_app: object = self  # none
        self._draw = random.Random().getrandbits  # not the global one, which a service may seed

    def begin(self, request: Request, app: object = None) -> None:
        """Open the request's span and make it current; `app` is the application below."""
        try:
            if not self._is_ready:
                self._look_around()
            now = current.get_current()
            parent = None
            for name, _ in request.scope.get("headers", ()):
                if name in self._fields:
                    parent, now = self._read_headers(request.scope["headers"], now)
                    break
            if now:  # else nobody has put anything into the context
                outer = server_span_in(now, parent)
                if outer is not None:
                    request.span = AdoptedSpan(self, outer, None)
                    request.events |= SPANNED
                    return
            if app is not self._known_app:
                self._look_within(app)
            if self._is_traced_within:
                request.span = AdoptedSpan(self, None, parent)
                request.events |= SPANNED
            elif self._by_provider is not None:
                request.span = self._by_provider.begin(self, request, parent, now)
                request.events |= SPANNED
            else:
                sampling = self._sampling
                draw = self._draw
                if parent is None:
                    trace_id = draw(128) or 1
                    flags = RANDOM
                else:
                    trace_id = parent.trace_id
                    flags = parent.flags & RANDOM
                if parent is not None and sampling.follows_parent:
                    flags |= parent.flags
                elif trace_id & LOW_BITS < sampling.bound:
                    flags |= SAMPLED
                if flags & SAMPLED:
                    request.events |= SPANNED
                span = RequestSpan(self, trace_id, draw(64) or 1, flags, parent)
                # As set_span_in_context does, in one step instead of five.
                span.token = current.attach(Context({**now, self._span_key: span}))
                request.span = span
        except Exception:
            self._service.note_error("spans")
            if not self._is_ready:  # a setting that the SDK refuses: no request would be traced
                self._service.spans = None

    def may_keep(self, now_ns: int, spans: int) -> bool:
        """Return whether an unsampled trace may be kept, and count its spans when not."""
        if not self.keeps_late:
            return False
        if self._budget.take(now_ns):
            return True
        self.note_dropped("keep_limit", spans)
        return False

    def keep_inside(
        self,
        span: trace.Span,
        observations: Observations,
        request: Request,
        route: RouteCells,
        outcome: str,
        end_ns: int,
        log: Sequence[stage],
    ) -> None:
        """Add a request's stages to the server span of another instrumentation."""
        ids = span.get_span_context()
        if not ids.trace_flags.sampled:
            return
        offset_ns = time.time_ns() - clock.now_ns()
        self.send_below(ids, request, end_ns, offset_ns, log)
        observations.point_to(
            ids.trace_id,
            ids.span_id,
            request,
            route,
            outcome,
            end_ns,
            offset_ns,
            log,
        )

    def send_below(
        self,
        ids: SpanContext,
        request: Request,
        end_ns: int,
        offset_ns: int,
        log: Sequence[stage],
    ) -> None:
        """Send the stages and calls below a server span that exists."""
        kept = KeptTrace(
            ids.trace_id,
            ids.span_id,
            int(ids.trace_flags),
            ids.trace_state.to_header().encode() if ids.trace_state else b"",
            None,
            stage_times(log, end_ns, offset_ns),
            calls_of(request),
            offset_ns,
        )
        self.send(kept, request, log)

    def send(self, kept: KeptTrace, request: Request, log: Sequence[stage]) -> bool:
        """Send the spans of a kept trace to where they go; return whether there is room for it."""
        is_taken = True
        if self._by_provider is not None:
            self._by_provider.send(kept)
        else:
            is_taken = self._queue.add(kept)
        missing = len(log) - len(kept.stages)
        if request.folded is not None:
            missing += request.folded.count
        if missing:
            self.note_dropped("stage_limit", missing)
        return is_taken

    def checked(self, attributes: Mapping[str, AttributeValue]) -> Mapping[str, Any]:
        """Return what code within a request adds, within the SDK's limits and as it takes it."""
        return BoundedAttributes(
            self._limits.max_span_attributes,
            {
                key: span_text(value) if isinstance(value, str) else value
                for key, value in attributes.items()
            },
            max_value_len=self._limits.max_span_attribute_length,
        )

    def note_dropped(self, reason: str, count: int) -> None:
        """Count spans that are not delivered."""
        self._dropped.counts[families.SPANS_DROPPED.row.index(reason)] += count

    def flush(self, seconds: float = 10.0) -> bool:
        """Export what is queued now, as before a process is frozen; return whether it was."""
        return self._queue.flush(seconds)

    def close(self) -> None:
        """Export what is queued, as at the end of the process."""
        self._queue.close()

    def _look_around(self) -> None:
        """Find the process's provider and propagator: at its first request, not before a fork."""
        provider = self._given_provider or provider_of_process()
        if provider is not None:
            watch(provider)
            self._by_provider = ProviderSpans(provider)
            self.keeps_late = provider.sampler.get_description() != "AlwaysOffSampler"
        (self._span_key,) = set_span_in_context(trace.INVALID_SPAN, Context())
        self._fields = frozenset(
            field.encode("latin-1") for field in propagate.get_global_textmap().fields
        )
        self._is_ready = True

    def _look_within(self, app: object) -> None:
        """Find out whether the application below makes server spans itself."""
        if id(app) not in self._apps:
            within = telemetry_within(app)
            for processors in within or ():
                watch(processors)
            self._apps[id(app)] = (app, within is not None)
        self._known_app, self._is_traced_within = self._apps[id(app)]

    def _read_headers(
        self, headers: Iterable[tuple[bytes, bytes]], now: Context
    ) -> tuple[RemoteParent | None, Context]:
        """Return the caller's span, and the context with what else it sent."""
        if not self._fields <= FIELDS:
            return self._ask_propagator(headers, now)
        parent, baggage_values = read_headers(headers)
        if baggage_values is not None and b"baggage" in self._fields:
            for name, value in parse_baggage(baggage_values).items():
                now = baggage.set_baggage(name, value, now)
        return parent if b"traceparent" in self._fields else None, now

    def _ask_propagator(
        self, headers: Iterable[tuple[bytes, bytes]], now: Context
    ) -> tuple[RemoteParent | None, Context]:
        """Let a propagator of OTEL_PROPAGATORS beyond W3C's read the headers."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in self._fields and len(value) <= _LONGEST_FIELD
        }
        found = propagate.extract(carrier, now)
        ids = trace.get_current_span(found).get_span_context()
        if not ids.is_valid or not ids.is_remote:
            return None, found
        state = ids.trace_state.to_header().encode()
        flags = int(ids.trace_flags) & (SAMPLED | RANDOM)
        return RemoteParent(ids.trace_id, ids.span_id, flags, state), found

    def _give_up(self) -> None:
        """Trace no more: the exporter refuses a setting."""
        self._service.note_error("spans")
        self._service.spans = None
