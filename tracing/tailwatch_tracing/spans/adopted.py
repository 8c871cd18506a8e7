"""Requests whose server span another instrumentation makes: it stays, and gets our stages.

Theirs is current already where their middleware is around ours. Where it is within, its start is
seen by a span processor; one that would only make an internal span below ours, as
opentelemetry-instrumentation-asgi does, is looked for before the first request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry import trace
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind

from tailwatch_tracing.spans.observations import Observations
from tailwatch_tracing.spans.propagation import RemoteParent
from tailwatch_tracing.spans.request_span import RequestSpan
from tailwatch_tracing.units import current_unit

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from tailwatch_tracing.request import Request
    from tailwatch_tracing.service import RouteCells
    from tailwatch_tracing.spans.recorder import SpanRecorder
    from tailwatch_tracing.stages import stage

_DEEPEST = 32  # middlewares that are looked through


class AdoptedSpan(Observations):
    """Stands for the server span of another instrumentation, now or as soon as it starts."""

    def __init__(
        self, recorder: SpanRecorder, span: trace.Span | None, parent: RemoteParent | None
    ) -> None:
        self._recorder = recorder
        self.inner = span
        self.parent_id = _id_of(parent)

    def detach(self) -> None:
        """Do nothing: theirs is made current, and ended, by them."""

    def finish(
        self,
        request: Request,
        route: RouteCells,
        status: int,
        outcome: str,
        end_ns: int,
        log: Sequence[stage],
    ) -> None:
        """Add the stages below the span, if there is one."""
        if self.inner is not None:  # else theirs leaves this request out
            self._recorder.keep_inside(self.inner, self, request, route, outcome, end_ns, log)


def server_span_in(current: Context, parent: RemoteParent | None) -> trace.Span | None:
    """Return the server span that there is already of the request under way, if any.

    Args:
        current: The context in which the request arrives.
        parent: The caller's span, from the request's headers. A server span with another parent is
            that of a request within which this one is made.
    """
    span = trace.get_current_span(current)
    ids = span.get_span_context()
    if not ids.is_valid or ids.is_remote:
        return None
    if isinstance(
        span, trace.NonRecordingSpan
    ):  # a sampler's no, which has neither kind nor parent
        return span if parent is None or parent.trace_id == ids.trace_id else None
    if not span.is_recording():  # it has ended
        return None
    if isinstance(span, RequestSpan):  # of a middleware of ours around this one
        return span if span.parent_id == _id_of(parent) else None
    kind = getattr(span, "kind", None)
    if kind is SpanKind.SERVER:
        return span if _id_of(getattr(span, "parent", None)) == _id_of(parent) else None
    # Below another server span opentelemetry-instrumentation-asgi's are internal ones.
    attributes = getattr(span, "attributes", None) or ()
    is_http = "http.request.method" in attributes or "http.method" in attributes
    return span if is_http and kind is SpanKind.INTERNAL else None


def _id_of(span: RemoteParent | trace.SpanContext | None) -> int:
    return 0 if span is None else span.span_id


class Processors(Protocol):
    """What a span processor can be added to: an SDK provider, or its tracers' processor."""

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        """Let a processor see every span."""
        ...


def telemetry_within(app: object) -> list[Processors] | None:
    """Return where an application's own server spans go; None when it makes none.

    Known are FastAPI's native telemetry and opentelemetry-instrumentation-asgi's middleware, which
    the instrumentations of FastAPI and Starlette add. Neither has a public name to ask for: what is
    not found is only found out later, when its span starts.
    """
    existing = trace.get_tracer_provider()
    found: list[Processors] = []
    is_found = False
    for _ in range(_DEEPEST):
        if app is None:
            break
        native = getattr(getattr(app, "_native_telemetry", None), "config", None) or {}
        tracer = getattr(app, "tracer", None) if _is_contrib(type(app)) else None
        providers: tuple[Any, ...] = ()
        if native.get("tracing"):
            providers = (native.get("tracer_provider") or existing,)
        if tracer is not None:
            providers += (getattr(tracer, "span_processor", existing),)
        elif getattr(app, "_is_instrumented_by_opentelemetry", False) or any(
            _is_contrib(getattr(middleware, "cls", None))
            for middleware in getattr(app, "user_middleware", ())
        ):
            providers += (existing,)
        for provider in providers:
            if hasattr(provider, "add_span_processor"):
                is_found = True
                found.append(provider)
        app = getattr(app, "middleware_stack", None) or getattr(app, "app", None)
    return found if is_found else None


def _is_contrib(kind: object) -> bool:
    return (
        getattr(kind, "__name__", "") == "OpenTelemetryMiddleware"
        and getattr(kind, "__module__", "") == "opentelemetry.instrumentation.asgi"
    )


class InnerSpans(SpanProcessor):
    """Notices the server spans that other instrumentations make of requests of ours."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Let the request under way know, if the span has the same parent as the request."""
        if span.kind is not SpanKind.SERVER:
            return
        unit = current_unit.get()
        ours = getattr(unit, "span", None)
        if ours is None or not unit.is_open or ours.inner is not None:
            return
        if _id_of(span.parent) == ours.parent_id:
            ours.inner = span


_inner_spans = InnerSpans()
_watched: list[Processors] = []


def watch(processors: Processors) -> None:
    """Notice the server spans of a provider, once however often it is asked for."""
    if not any(known is processors for known in _watched):
        _watched.append(processors)
        processors.add_span_processor(_inner_spans)


def provider_of_process() -> TracerProvider | None:
    """Return the SDK's provider that the process has set up, if any."""
    existing = trace.get_tracer_provider()
    return existing if isinstance(existing, TracerProvider) else None
