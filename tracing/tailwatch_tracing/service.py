"""The cells of one service, and the families they become on the page."""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_left
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from tailwatch_tracing import clock
from tailwatch_tracing.cells import (
    EDGES_NS,
    EDGES_SECONDS,
    OVERFLOW,
    CappedTable,
    HistogramCell,
    snap_to_grid,
)
from tailwatch_tracing.exposition import Family, HistogramFamily, HistogramSeries, labels
from tailwatch_tracing.gpus import visible_gpu_uuids

if TYPE_CHECKING:
    from tailwatch_tracing.request import Request
    from tailwatch_tracing.spans import SpanRecorder

logger = logging.getLogger("tailwatch_tracing")

VERSION = version("tailwatch")

OUTCOMES = (
    "ok",
    "client_error",
    "error",
    "error_midstream",
    "client_disconnect",
    "timeout",
    "cancelled",
    "rejected",
)
"""Every outcome that a request can have; each has a series from the start."""

METHODS = frozenset(
    ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY")
)
"""Methods of RFC 9110, RFC 5789 and the IETF's QUERY draft; any other is `_OTHER`."""

ERRORS = ("request", "route", "metrics", "stage", "spans", "registry")
"""Places where an error of our own is caught; each has a series from the start."""

DEFAULT_SERIES_LIMIT = 2000
STAGE_LIMIT = 64
_QUEUE_LIMIT = 64
_REASON_LIMIT = 16


class RouteCells:
    """Counts and durations of one route template."""

    __slots__ = ("duration", "requests", "template")

    def __init__(self, template: str) -> None:
        self.template = template
        self.requests: dict[tuple[str, int, str], list[int]] = {}  # counts, to be bumped in place
        self.duration = HistogramCell()


class StageCells:
    """Wall time per interval, and exclusive nanoseconds of fast and of slow requests.

    The sum of wall times is not kept: it is the exclusive time and what other stages covered.
    """

    __slots__ = ("counts", "covered_ns", "exclusive_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(EDGES_NS) + 1)
        self.exclusive_ns = [0, 0]
        self.covered_ns = 0

    def observe(self, wall_ns: int) -> None:
        """Count an interval, all of it covered by others so far."""
        bucket = bisect_left(EDGES_NS, wall_ns)
        self.counts[bucket] += 1
        self.covered_ns += wall_ns

    def forget(self, wall_ns: int) -> None:
        """Take back an `observe`."""
        bucket = bisect_left(EDGES_NS, wall_ns)
        self.counts[bucket] -= 1
        self.covered_ns -= wall_ns

    def take_back(self, wall_ns: int, slow: int) -> None:
        """Forget an interval that was all its own."""
        self.counts[bisect_left(EDGES_NS, wall_ns)] -= 1
        self.exclusive_ns[slow] -= wall_ns

    def uncover(self, duration_ns: int, slow: int) -> None:
        """Make a piece of an observed interval its own."""
        self.exclusive_ns[slow] += duration_ns
        self.covered_ns -= duration_ns

    def add(self, other: StageCells, slow: int) -> None:
        """Add cells that were filled before it was known whether the request is slow."""
        for bucket, count in enumerate(other.counts):
            self.counts[bucket] += count
        self.exclusive_ns[slow] += other.exclusive_ns[0]
        self.covered_ns += other.covered_ns

    def series(self, label_text: str) -> HistogramSeries:
        """Return the histogram of wall times to render, in seconds."""
        sum_ns = sum(self.exclusive_ns) + self.covered_ns
        return HistogramSeries(label_text, self.counts.copy(), sum_ns / 1e9)


class QueueCells:
    """One queue: who came and went, how long they waited, who was refused and why."""

    __slots__ = ("entered", "left", "lock", "rejected", "wait")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entered = 0
        self.left = 0
        self.wait = HistogramCell()
        self.rejected: CappedTable[list[int]] = CappedTable(_REASON_LIMIT, lambda: [0])
        self.rejected.get("full")


class Service:
    """Everything one service counts. One per name in a process, whatever asks for it again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.slo_seconds: float | None = None
        self.slo_ns: int | None = None
        self.client_timeout_seconds: float | None = None
        self.client_timeout_ns: int | None = None
        self._gpu_uuids: Sequence[str] | None = None
        self.in_flight: dict[Request, None] = {}  # in order of arrival
        self.errors: dict[str, int] = dict.fromkeys(ERRORS, 0)
        self.stages: CappedTable[StageCells] = CappedTable(STAGE_LIMIT, StageCells)
        self.ingress = self.stages.get("ingress")
        self.postprocess = self.stages.get("postprocess")
        self.unattributed = self.stages.get("unattributed")
        self.queues: CappedTable[QueueCells] = CappedTable(_QUEUE_LIMIT, QueueCells)
        self.routes: dict[str, RouteCells] = {}
        self._series_limit = DEFAULT_SERIES_LIMIT
        self._request_series = 0
        self._overflowed = {
            "inference_requests_total": 0,
            "inference_request_duration_seconds": 0,
        }
        self.spans: SpanRecorder | None = None
        self._label_texts: dict[tuple[str, ...], str] = {}

    def rename(self, name: str) -> None:
        """Go on under another name."""
        self.name = name
        self._label_texts = {}

    def configure(
        self,
        *,
        slo_seconds: float | None,
        client_timeout_seconds: float | None,
        series_limit: int,
        gpu_uuids: Sequence[str] | None,
    ) -> None:
        """Set what a middleware was given; the last one of a service decides."""
        self._series_limit = series_limit
        self._gpu_uuids = None if gpu_uuids is None else tuple(gpu_uuids)
        self.client_timeout_seconds = client_timeout_seconds
        self.client_timeout_ns = _nanoseconds(client_timeout_seconds)
        snapped = None if slo_seconds is None else snap_to_grid(slo_seconds)
        if snapped != slo_seconds and snapped != self.slo_seconds:
            logger.warning(
                "%s: slo_seconds=%s is counted as %s, the nearest edge of the latency buckets",
                self.name,
                slo_seconds,
                snapped,
            )
        self.slo_seconds = snapped
        self.slo_ns = _nanoseconds(snapped)

    def route_cells(self, template: str) -> RouteCells:
        """Return the cells of a route template, those of `__other__` beyond the series limit."""
        cells = self.routes.get(template)
        if cells is None:
            if len(self.routes) >= self._series_limit and template != OVERFLOW:
                self._overflowed["inference_request_duration_seconds"] += 1
                return self.route_cells(OVERFLOW)
            cells = self.routes.setdefault(template, RouteCells(template))
        return cells

    def count_request(self, route: RouteCells, method: str, status: int, outcome: str) -> None:
        """Count a request whose label set may be new: bound the method, status and series."""
        key = (
            method if method in METHODS else "_OTHER",
            int(status) if 100 <= status <= 599 else 0,
            outcome,
        )
        if key not in route.requests:
            if self._request_series >= self._series_limit and route.template != OVERFLOW:
                self._overflowed["inference_requests_total"] += 1
                route = self.routes.setdefault(OVERFLOW, RouteCells(OVERFLOW))
            else:
                self._request_series += 1
        route.requests.setdefault(key, [0])[0] += 1

    def note_error(self, where: str) -> None:
        """Count an error of our own, from an `except`; the first of each place is logged."""
        self.errors[where] += 1
        if self.errors[where] == 1:
            logger.warning("%s: an error in the instrumentation", self.name, exc_info=True)

    def families(self) -> list[Family | HistogramFamily]:
        """Return this service's families, in the order of the page."""
        return [
            *self._request_families(),
            *self._stage_families(),
            *self._queue_families(),
            *self._configuration_families(),
            *self._self_families(),
        ]

    def label_text(self, **pairs: str) -> str:
        """Return rendered labels with `service` first, kept for the next scrape."""
        key = (*pairs, *pairs.values())
        text = self._label_texts.get(key)
        if text is None:
            text = self._label_texts[key] = labels(service=self.name, **pairs)
        return text

    def plain(
        self, name: str, kind: Literal["counter", "gauge"], help_text: str, value: float | None
    ) -> Family:
        """Return a family of one sample with no label but `service`; None is no sample."""
        samples = [] if value is None else [(self.label_text(), value)]
        return Family(name, kind, help_text, samples)

    def counter(self, name: str, help_text: str, label: str, counts: dict[str, int]) -> Family:
        """Return a counter family with one label beside `service`."""
        samples = [(self.label_text(**{label: key}), count) for key, count in counts.items()]
        return Family(name, "counter", help_text, samples)

    def _request_families(self) -> list[Family | HistogramFamily]:
        routes = list(self.routes.values())
        requests: list[tuple[str, float]] = []
        # Outcomes are summed from the same numbers: the two families cannot disagree.
        outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        for route in routes:
            for (method, status, outcome), count in list(route.requests.items()):
                outcomes[outcome] += count[0]
                label_text = self.label_text(
                    route=route.template, method=method, status=str(status), outcome=outcome
                )
                requests.append((label_text, count[0]))
        durations = [
            route.duration.series(self.label_text(route=route.template)) for route in routes
        ]
        return [
            Family(
                "inference_requests_total",
                "counter",
                "Finished requests by route template, method, status sent and outcome.",
                requests,
            ),
            self.counter(
                "inference_outcomes_total",
                "Finished requests by outcome; errors for an objective are error, "
                "error_midstream, timeout and rejected.",
                "outcome",
                outcomes,
            ),
            HistogramFamily(
                "inference_request_duration_seconds",
                "Time from the request to its last body message, of admitted requests.",
                EDGES_SECONDS,
                durations,
            ),
            self.plain(
                "inference_requests_in_flight",
                "gauge",
                "Requests that have arrived and not finished.",
                len(self.in_flight),
            ),
            self.plain(
                "inference_oldest_in_flight_seconds",
                "gauge",
                "Age of the oldest request in flight, 0 without one.",
                self._oldest_seconds(),
            ),
        ]

    def _oldest_seconds(self) -> float:
        while True:
            try:
                oldest = next(iter(self.in_flight))
            except StopIteration:
                return 0.0
            except RuntimeError:  # a request came or went in another thread: look again
                continue
            return max(0, clock.now_ns() - oldest.start_ns) / 1e9

    def _stage_families(self) -> list[Family | HistogramFamily]:
        stages = list(self.stages.cells.items())
        walls: list[HistogramSeries] = []
        seconds: list[tuple[str, float]] = []
        for name, cells in stages:
            walls.append(cells.series(self.label_text(stage=name)))
            for slow, exclusive_ns in zip(("false", "true"), cells.exclusive_ns, strict=True):
                seconds.append((self.label_text(stage=name, slow=slow), exclusive_ns / 1e9))
        return [
            HistogramFamily(
                "inference_stage_duration_seconds",
                "Wall time of each interval of a stage.",
                EDGES_SECONDS,
                walls,
            ),
            Family(
                "inference_stage_seconds_total",
                "counter",
                "Exclusive time per stage: stages add up to request time. "
                "slow is true for requests over the objective.",
                seconds,
            ),
        ]

    def _queue_families(self) -> list[Family | HistogramFamily]:
        depths: list[tuple[str, float]] = []
        waits: list[HistogramSeries] = []
        rejected: list[tuple[str, float]] = []
        for name, cells in list(self.queues.cells.items()):
            label_text = self.label_text(queue=name)
            depths.append((label_text, cells.entered - cells.left))
            waits.append(cells.wait.series(label_text))
            for reason, count in list(cells.rejected.cells.items()):
                rejected.append((self.label_text(queue=name, reason=reason), count[0]))
        return [
            Family("inference_queue_depth", "gauge", "Requests waiting in a queue.", depths),
            HistogramFamily(
                "inference_queue_wait_seconds",
                "Time that requests waited in a queue.",
                EDGES_SECONDS,
                waits,
            ),
            Family(
                "inference_rejected_total", "counter", "Requests that a queue refused.", rejected
            ),
        ]

    def _configuration_families(self) -> list[Family]:
        if self._gpu_uuids is None:  # asked here, off the event loop: NVML may answer slowly
            self._gpu_uuids = visible_gpu_uuids(os.environ)
        gpus = [(self.label_text(uuid=uuid), 1) for uuid in self._gpu_uuids]
        return [
            self.plain(
                "inference_slo_seconds",
                "gauge",
                "Configured latency objective, on an edge of the latency buckets.",
                self.slo_seconds,
            ),
            self.plain(
                "inference_client_timeout_seconds",
                "gauge",
                "Configured time after which clients give up.",
                self.client_timeout_seconds,
            ),
            Family("inference_gpu_info", "gauge", "GPUs that this service computes on.", gpus),
        ]

    def _self_families(self) -> list[Family]:
        build = [(self.label_text(version=VERSION), 1)]
        overflowed = {
            **self._overflowed,
            "inference_stage_duration_seconds": self.stages.overflowed,
            "inference_queue_wait_seconds": self.queues.overflowed,
        }
        spans = [] if self.spans is None else [self.spans.family()]
        return [
            Family("tailwatch_build_info", "gauge", "Version of tailwatch in this process.", build),
            self.counter(
                "tailwatch_errors_total",
                "Errors of the instrumentation itself; none of them failed a request.",
                "where",
                self.errors,
            ),
            self.counter(
                "tailwatch_series_overflow_total",
                "Uses of an overflow series because a cap was reached.",
                "metric",
                overflowed,
            ),
            *spans,
        ]


_services: dict[str, Service] = {}
_NAMELESS = ""  # the key of what has counted before any service was named
_lock = threading.Lock()


def service_named(name: str) -> Service:
    """Return the process's one service of this name, made on first use.

    The first one takes over what was counted before it was named, as in a model's warm-up.
    """
    with _lock:
        service = _services.get(name)
        if service is None:
            service = _services.pop(_NAMELESS, None) or Service(name)
            service.rename(name)
            _services[name] = service
        return service


def default_service() -> Service:
    """Return the service for what happens outside any request.

    That is the first one of the process; without any, one named by OTEL_SERVICE_NAME, else
    `unnamed`, until there is one.
    """
    for service in services():
        return service
    with _lock:
        if not _services:
            _services[_NAMELESS] = Service(os.environ.get("OTEL_SERVICE_NAME") or "unnamed")
        return next(iter(_services.values()))


def services() -> list[Service]:
    """Return the process's services in the order they were made."""
    return list(_services.values())


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _begin_child() -> None:
    """After a fork: locks that another thread held, and requests under way, are the parent's."""
    global _lock
    _lock = threading.Lock()
    for service in _services.values():
        service.in_flight.clear()
        for cells in service.queues.cells.values():
            cells.lock = threading.Lock()
            cells.left = cells.entered


os.register_at_fork(after_in_child=_begin_child)
