"""OpenTelemetry spans: one per request, one child per stage, made when the request ends.

Needs `tailwatch[tracing]` and an endpoint in OTEL_EXPORTER_OTLP_ENDPOINT or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT; without either nothing of OpenTelemetry is imported. The
exporter's thread starts with the first request of a process, so that it survives pre-forking
servers. Where the process has an SDK tracer provider of its own, the spans go there instead.

Sampling and everything else follows the SDK's OTEL_* variables. Attributes: OpenTelemetry semantic
conventions for HTTP server spans, 1.23, and `tailwatch.outcome`.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailwatch_tracing import clock, families
from tailwatch_tracing.exposition import Exemplar
from tailwatch_tracing.service import RouteCells, Service

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.trace import Span, Tracer

    from tailwatch_tracing.request import Request
    from tailwatch_tracing.stages import stage

logger = logging.getLogger("tailwatch_tracing")

STAGE_SPANS = 128
"""Stage spans of one request at most: O(1) spans however long a stream lasts."""

_FAILED = ("error", "error_midstream")


def are_configured(environ: Mapping[str, str]) -> bool:
    """Return whether an OTLP endpoint is set and tracing is not switched off.

    A set endpoint without the extra is said once per service, in the log.
    """
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    is_off = (
        environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environ.get("OTEL_TRACES_EXPORTER") == "none"
    )
    if not endpoint or is_off:
        return False
    if _is_installed("opentelemetry.sdk.trace") and _is_installed("opentelemetry.exporter.otlp"):
        return True
    logger.warning("an OTLP endpoint is set, but spans need: pip install 'tailwatch[tracing]'")
    return False


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


class SpanRecorder:
    """Makes the spans of one service; holds no thread before `begin`."""

    def __init__(self, service: Service, provider: TracerProvider | None = None) -> None:
        self._service = service
        self._provider = provider
        self._tracer: Tracer | None = None
        self._dropped = service.store.counter(families.SPANS_DROPPED)
        if provider is None:
            _import_sdk()
        os.register_at_fork(after_in_child=self._forget_tracer)

    def begin(self, request: Request) -> None:
        """Open the request's server span and make it current for clients called within."""
        try:
            from opentelemetry import context, propagate, trace

            tracer = self._tracer or self._begin_tracer()
            scope = request.scope
            # The wall clock is read once per request: a step of it would tear the trace apart.
            offset_ns = time.time_ns() - clock.now_ns()
            carrier = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in scope.get("headers", ())
                if name.lower() in _PROPAGATED and len(value) <= _LONGEST_PROPAGATED
            }
            span = tracer.start_span(
                scope["method"],
                propagate.extract(carrier),
                trace.SpanKind.SERVER,
                {
                    "http.request.method": scope["method"],
                    "url.path": scope["path"],
                    "url.scheme": scope.get("scheme", "http"),
                },
                start_time=request.start_ns + offset_ns,
            )
            token = context.attach(trace.set_span_in_context(span))
            request.span = RequestSpan(self, tracer, span, token, offset_ns)
        except Exception:
            self._service.note_error("spans")
            if self._tracer is None:  # a setting that the SDK refuses: no request would be traced
                self._service.spans = None

    def note_dropped(self, reason: str, count: int) -> None:
        """Count spans that are not delivered."""
        self._dropped.counts[families.SPANS_DROPPED.row.index(reason)] += count

    def _begin_tracer(self) -> Tracer:
        provider = self._provider or _own_or_existing_provider(self)
        tracer: Tracer = provider.get_tracer("tailwatch_tracing")
        self._tracer = tracer
        return tracer

    def _forget_tracer(self) -> None:
        self._tracer = None

    @property
    def service_name(self) -> str:
        """The resource attribute service.name, the same as the label `service`."""
        return self._service.name


# Not baggage: no span uses it, and OpenTelemetry logs each header of it that it cannot read.
_PROPAGATED = frozenset((b"traceparent", b"tracestate"))
_LONGEST_PROPAGATED = 512  # bytes: OpenTelemetry refuses a longer traceparent, and logs it


class RequestSpan:
    """The open server span of one request."""

    __slots__ = ("_offset_ns", "_recorder", "_span", "_token", "_tracer")

    def __init__(
        self, recorder: SpanRecorder, tracer: Tracer, span: Span, token: Any, offset_ns: int
    ) -> None:
        self._recorder = recorder
        self._tracer = tracer
        self._span = span
        self._token = token
        self._offset_ns = offset_ns

    def detach(self) -> None:
        """Make the span current no longer."""
        from opentelemetry import context

        context.detach(self._token)

    def end(
        self,
        request: Request,
        route: RouteCells,
        status: int,
        outcome: str,
        end_ns: int,
        log: Sequence[stage],
    ) -> None:
        """End the span and add its stages; let the duration's bucket point to a sampled trace."""
        from opentelemetry.trace import Status, StatusCode

        span = self._span
        ids = span.get_span_context()
        offset_ns = self._offset_ns
        if span.is_recording():
            span.update_name(f"{request.scope['method']} {route.template}")
            span.set_attribute("http.route", route.template)
            span.set_attribute("http.response.status_code", int(status))
            span.set_attribute("tailwatch.outcome", outcome)
            if outcome in _FAILED:
                span.set_attribute("error.type", str(int(status)))
                span.set_status(Status(StatusCode.ERROR))
            self._add_stages(request, log, end_ns, offset_ns)
        span.end(end_ns + offset_ns)
        if ids.trace_flags.sampled and outcome != "rejected":
            route.duration.keep_exemplar(
                end_ns - request.start_ns,
                Exemplar(
                    f"{ids.trace_id:032x}",
                    f"{ids.span_id:016x}",
                    (end_ns - request.start_ns) / 1e9,
                    (end_ns + offset_ns) / 1e9,
                ),
            )

    def _add_stages(
        self, request: Request, log: Sequence[stage], end_ns: int, offset_ns: int
    ) -> None:
        from opentelemetry.trace import set_span_in_context

        parent = set_span_in_context(self._span)
        for interval in log[:STAGE_SPANS]:
            child = self._tracer.start_span(
                interval.name, parent, start_time=interval.start_ns + offset_ns
            )
            child.end(min(interval.end_ns or end_ns, end_ns) + offset_ns)
        folded = 0 if request.folded is None else request.folded.count
        self._recorder.note_dropped("stage_limit", max(0, len(log) - STAGE_SPANS) + folded)


def _own_or_existing_provider(recorder: SpanRecorder) -> Any:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    existing = trace.get_tracer_provider()
    if isinstance(existing, TracerProvider):
        return existing

    queue_size = _whole_number("OTEL_BSP_MAX_QUEUE_SIZE", 2048)

    class CountingProcessor(BatchSpanProcessor):
        """Knows what the SDK drops with no more than a line in the log, and when it is to end."""

        ended = 0
        exported = 0
        dropped = 0
        is_ending = False

        def shutdown(self) -> None:
            self.is_ending = True
            super().shutdown()  # type: ignore[no-untyped-call]

        def on_end(self, span: ReadableSpan) -> None:
            super().on_end(span)
            if span.context is not None and span.context.trace_flags.sampled:
                self.ended += 1
                # What was neither handed on nor has room in the queue. While that is full, as
                # whenever it drops one, nothing else is missing; while it drains this is too small.
                missing = self.ended - self.exported - queue_size
                if missing > self.dropped:
                    recorder.note_dropped("queue_full", missing - self.dropped)
                    self.dropped = missing

    class CountingExporter(SpanExporter):
        def __init__(self, exporter: SpanExporter) -> None:
            self._exporter = exporter
            self._has_failed = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            processor.exported += len(spans)
            result = SpanExportResult.FAILURE
            try:
                # Each try of a dead collector lasts 10 s, and the process waits for them to end.
                if not (processor.is_ending and self._has_failed):
                    result = self._exporter.export(spans)
            finally:
                self._has_failed = result is not SpanExportResult.SUCCESS
                if self._has_failed:
                    recorder.note_dropped("export_failed", len(spans))
            return result

        def shutdown(self) -> None:
            self._exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return self._exporter.force_flush(timeout_millis)

    provider = TracerProvider(resource=Resource.create({"service.name": recorder.service_name}))
    processor = CountingProcessor(CountingExporter(_exporter_class()()), queue_size)
    provider.add_span_processor(processor)
    return provider


def _whole_number(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable) or default)
    except ValueError:
        return default


def _import_sdk() -> None:
    """Import now what the first request would wait for, up to a second."""
    try:
        importlib.import_module("opentelemetry.sdk.trace.export")
        _exporter_class()
    except Exception:  # counted and said when the first request needs it
        pass


def _exporter_class() -> Any:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter
