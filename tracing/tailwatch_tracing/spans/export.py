"""Kept traces on their way to an OTLP endpoint: a bounded queue and one thread per process.

The thread starts with the first kept trace of a process, so that it survives pre-forking servers;
a forked child begins with an empty queue. Whatever is not delivered is counted. A collector that is
down costs no request anything: a full queue is one comparison.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from opentelemetry import context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from tailwatch_tracing.service import VERSION
from tailwatch_tracing.spans.conventions import SCHEMA_URL, call_attributes, span_text
from tailwatch_tracing.spans.kept import KeptTrace
from tailwatch_tracing.spans.request_span import (
    ERROR,
    UNSET,
    child_of,
    remote_context,
    trace_state_of,
)

logger = logging.getLogger("tailwatch_tracing")

EXIT_SECONDS = 5.0
"""A process that ends waits that long for its last spans; not at all after a failed export."""

_QUIET_SECONDS = 600.0  # between two warnings, however often a collector comes and goes

# A trace's encoding holds the interpreter; the event loop gets a turn between such pieces.
_SPANS_AT_ONCE = 16
_TURN_SECONDS = 50e-6

NoteDropped = Callable[[str, int], None]
"""Called with a reason, `queue_full` or `export_failed`, and a number of spans."""


class ExportQueue:
    """Takes kept traces from any thread; exports them in batches from its own.

    Sizes and delay are those of OpenTelemetry's batch processor, OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE and OTEL_BSP_SCHEDULE_DELAY, with its defaults.
    """

    def __init__(
        self,
        service_name: str,
        note_dropped: NoteDropped,
        note_broken: Callable[[], None],
        make_exporter: Callable[[], SpanExporter],
    ) -> None:
        self._service_name = service_name
        self._note_dropped = note_dropped
        self._note_broken = note_broken
        self._make_exporter = make_exporter
        self._capacity = _whole_number("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
        self._batch = min(_whole_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512), self._capacity)
        self._delay_seconds = _whole_number("OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000
        self._last_warning: float | None = None
        self._begin()
        _queues.add(self)

    def _begin(self) -> None:
        """Be empty and without a thread, as at first and in a forked child."""
        self._traces: deque[KeptTrace] = deque()
        # Spans that came and that went. Each is written by one side only, so none gets lost.
        self._came = 0
        self._went = 0
        self._done = 0  # of those that went: exported, or dropped
        self._wake = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._exporter: SpanExporter | None = None
        self._is_ending = False
        self._is_failing = False

    def add(self, trace: KeptTrace) -> bool:
        """Queue a trace and return True; drop it when it has no room."""
        count = trace.span_count
        waiting = self._came - self._went + count
        if waiting > self._capacity:
            self._note_dropped("queue_full", count)
            return False
        self._came += count
        self._traces.append(trace)
        if self._thread is None:
            self._start()
        if waiting >= self._batch:
            self._wake.set()
        return True

    def flush(self, seconds: float) -> bool:
        """Export what is queued now; return whether that was done within so many seconds."""
        deadline = time.monotonic() + seconds
        came = self._came
        while self._done < came:
            self._wake.set()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def close(self) -> None:
        """Export what is queued, within `EXIT_SECONDS`; what comes later is not exported."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        self._is_ending = True
        if self._is_failing:
            self._end_exporter()
        self._wake.set()
        thread.join(EXIT_SECONDS)
        if thread.is_alive():
            self._is_failing = True
            self._end_exporter()
            thread.join(1.0)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                # Not in the thread: finding the resource starts threads, too late for that at exit.
                spans = SpanMaker(self._service_name)
                thread = threading.Thread(
                    target=self._run, args=(spans,), name="tailwatch-spans", daemon=True
                )
                self._thread = thread
                thread.start()
                atexit.register(self.close)

    def _end_exporter(self) -> None:
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.shutdown()  # also ends its waiting for another try

    def _run(self, spans: SpanMaker) -> None:
        _first_words.of_thread[threading.get_ident()] = ""
        try:
            # As the SDK's own exporting threads do: an export is not to be traced.
            context.attach(context.set_value(_SUPPRESS_INSTRUMENTATION, True))
            exporter = self._exporter = self._make_exporter()
        except Exception:  # a setting that the exporter refuses
            self._note_broken()
            self._capacity = 0
            self._drop_all()
            return
        while True:
            self._wake.wait(self._delay_seconds)
            self._wake.clear()
            while self._traces:
                if self._is_ending and self._is_failing:
                    self._drop_all()
                    break
                self._export(exporter, spans)
            if self._is_ending:
                if not self._is_failing:
                    self._end_exporter()
                return

    def _export(self, exporter: SpanExporter, spans: SpanMaker) -> None:
        traces: list[KeptTrace] = []
        count = 0
        while self._traces and count < self._batch:
            trace = self._traces.popleft()
            traces.append(trace)
            count += trace.span_count
        self._went += count
        result = SpanExportResult.FAILURE
        thread = threading.get_ident()
        _first_words.of_thread[thread] = ""
        try:
            result = exporter.export(Batch(spans, traces, count))
        except Exception as error:
            _first_words.of_thread[thread] = repr(error)
        self._done += count
        if result is SpanExportResult.SUCCESS:
            if self._is_failing:
                self._is_failing = False
                logger.info("%s: spans are exported again", self._service_name)
            return
        self._note_dropped("export_failed", count)
        if not self._is_failing:
            self._is_failing = True
            self._warn(_first_words.of_thread[thread])

    def _warn(self, reason: str) -> None:
        now = time.monotonic()
        if self._last_warning is not None and now - self._last_warning < _QUIET_SECONDS:
            return
        self._last_warning = now
        logger.warning(
            "%s: spans cannot be exported to %s, tailwatch_spans_dropped_total counts them: %s",
            self._service_name,
            _endpoint(),
            reason,
        )

    def _drop_all(self) -> None:
        count = sum(trace.span_count for trace in self._traces)
        self._traces.clear()
        self._went += count
        self._done += count
        self._note_dropped("export_failed", count)


_queues: weakref.WeakSet[ExportQueue] = weakref.WeakSet()


_left_behind: list[SpanExporter | None] = []  # closing a parent's connection is not for a child


def _begin_child() -> None:
    """After a fork: queued spans are the parent's, its thread and its connection stay there."""
    _first_words.of_thread.clear()
    for queue in list(_queues):
        _left_behind.append(queue._exporter)
        queue._begin()


os.register_at_fork(after_in_child=_begin_child)

_SUPPRESS_INSTRUMENTATION: str = getattr(
    context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation"
)


class _OneResource(Resource):
    """A resource that is hashed once; the SDK's writes itself as JSON for every span's hash."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource.attributes, resource.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        """Return the hash of the resource."""
        return self._hash


class SpanMaker:
    """Makes the spans of kept traces, as OpenTelemetry's exporters take them."""

    def __init__(self, service_name: str) -> None:
        self._resource = _OneResource(Resource.create({"service.name": service_name}))
        self._scope = InstrumentationScope("tailwatch_tracing", VERSION, SCHEMA_URL)
        self._random = random.Random()  # not the global one, which a service may seed

    def spans(self, trace: KeptTrace) -> Iterator[ReadableSpan]:
        """Yield the server span, if it is ours, and one for each stage and call."""
        flags = TraceFlags(trace.flags)
        state = trace_state_of(trace.state)
        own = SpanContext(trace.trace_id, trace.span_id, False, flags, state)
        server = trace.server
        if server is not None:
            yield ReadableSpan(
                server.name,
                own,
                None if server.parent is None else remote_context(server.parent),
                self._resource,
                server.attributes,
                server.events,
                server.links,
                SpanKind.SERVER,
                status=server.status,
                start_time=server.start_ns,
                end_time=server.end_ns,
                instrumentation_scope=self._scope,
            )
        for name, start_ns, end_ns in trace.stages:
            yield ReadableSpan(
                name,
                child_of(own, self._random.getrandbits(64) or 1),
                own,
                self._resource,
                start_time=start_ns,
                end_time=end_ns,
                instrumentation_scope=self._scope,
            )
        for call in trace.calls:
            yield ReadableSpan(
                span_text(call.target),
                child_of(own, call.span_id or self._random.getrandbits(64) or 1),
                child_of(own, call.parent_id or own.span_id),
                self._resource,
                call_attributes(call),
                kind=SpanKind.CLIENT,
                status=UNSET if call.error is None else ERROR,
                start_time=call.start_ns + trace.offset_ns,
                end_time=call.end_ns + trace.offset_ns,
                instrumentation_scope=self._scope,
            )


class Batch(Sequence[ReadableSpan]):
    """Spans that are made while they are encoded, with a pause for other threads now and then."""

    def __init__(self, maker: SpanMaker, traces: Sequence[KeptTrace], count: int) -> None:
        self._maker = maker
        self._traces = traces
        self._count = count

    def __len__(self) -> int:
        """Return the number of spans."""
        return self._count

    def __iter__(self) -> Iterator[ReadableSpan]:
        """Yield the spans, anew at each try."""
        made = 0
        for trace in self._traces:
            for span in self._maker.spans(trace):
                yield span
                made += 1
                if made % _SPANS_AT_ONCE == 0:
                    time.sleep(_TURN_SECONDS)

    @overload
    def __getitem__(self, index: int) -> ReadableSpan: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ReadableSpan]: ...
    def __getitem__(self, index: int | slice) -> ReadableSpan | Sequence[ReadableSpan]:
        """Return some of the spans."""
        return list(self)[index]


class _FirstWords(logging.Filter):
    """Keeps an exporter's lines about each try out of the log, but for the first: it has the cause.

    Only those of our own threads: others may export with the same classes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.of_thread: dict[int, str] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record may pass."""
        words = self.of_thread.get(threading.get_ident())
        if words is None:
            return True
        self.of_thread[threading.get_ident()] = words or record.getMessage()
        return False


_first_words = _FirstWords()

for _name in (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
):
    logging.getLogger(_name).addFilter(_first_words)


def exporter_class() -> Callable[[], SpanExporter]:
    """Return the exporter that OTEL_EXPORTER_OTLP_PROTOCOL asks for, http/protobuf or grpc.

    It reads the other OTEL_EXPORTER_OTLP_* variables itself. Imports what it needs, and makes no
    connection.
    """
    variable = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
    if not os.environ.get(variable):
        variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = os.environ.get(variable, "").strip().lower() or "http/protobuf"
    # The constructors import some more. A process that forks while a thread imports leaves the
    # child with a lock that nobody holds; so that happens here, before there is a thread.
    if protocol == "grpc":
        importlib.import_module("grpc._channel")
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter
    if protocol != "http/protobuf":
        logger.warning("%s=%s: expected grpc or http/protobuf", variable, protocol)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    OTLPSpanExporter().shutdown()  # type: ignore[no-untyped-call]
    return OTLPSpanExporter


def _endpoint() -> str:
    """Return host and port of the endpoint, without what else its URL may have."""
    url = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT", ""
    )
    return url.rpartition("//")[2].rpartition("@")[2].partition("/")[0]


def _whole_number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip() or str(default)
    if text.isdecimal() and int(text) > 0:
        return int(text)
    logger.warning("%s=%s: expected a whole number above 0", variable, text)
    return default
