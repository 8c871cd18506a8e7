"""One service of this process: its cells, its configuration, and what it tells of now."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar, cast

from tailwatch_tracing import clock, families
from tailwatch_tracing.cells import (
    OVERFLOW,
    PRIVATE,
    Capped,
    Cell,
    CellStore,
    HistogramCell,
    Memory,
    snap_to_grid,
)
from tailwatch_tracing.families import DEFAULT_SERIES_LIMIT, Metric
from tailwatch_tracing.gpus import visible_gpu_uuids
from tailwatch_tracing.page import PLAIN, STAGED, Level, Snapshot

if TYPE_CHECKING:
    from tailwatch_tracing.request import Request
    from tailwatch_tracing.spans.recorder import SpanRecorder
    from tailwatch_tracing.websockets import Websockets

Part = TypeVar("Part")

logger = logging.getLogger("tailwatch_tracing")

VERSION = version("tailwatch")

METHODS = frozenset(
    ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY")
)
"""Methods of RFC 9110, RFC 5789 and the IETF's QUERY draft; any other is `_OTHER`."""

STAGE_LIMIT = 64
_QUEUE_LIMIT = 64
_TARGET_LIMIT = 64
_REASON_LIMIT = 16

_FOR_EVER_NS = 2**63


class RouteCells:
    """Counts and durations of one route template.

    A request with nothing special about it is counted in one cell of `plain`, or of `staged` if it
    had a stage, from which the page derives what is to be said of it in several families.
    """

    __slots__ = ("_store", "duration", "plain", "requests", "staged", "template")

    def __init__(self, store: CellStore, template: str) -> None:
        self._store = store
        self.template = template
        self.requests: dict[tuple[str, int, str], Cell] = {}  # by method, status, outcome
        self.plain: dict[int, dict[str, Cell]] = {}  # by status, then method
        self.staged: dict[int, dict[str, Cell]] = {}
        self.duration = store.histogram(families.REQUEST_DURATION, template)

    def histogram(self, metric: Metric) -> HistogramCell:
        """Return the cell of a histogram whose only label is the route."""
        return self._store.histogram(metric, self.template)

    def expect_plain(self, method: str, status: int, *, staged: bool) -> None:
        """Have a cell for plain requests, if this label set was admitted as it is."""
        if (method, status, "ok") in self.requests:
            metric, cells = (STAGED, self.staged) if staged else (PLAIN, self.plain)
            cell = self._store.histogram(metric, self.template, method, str(int(status)))
            cells.setdefault(status, {})[method] = cell


class StageCells:
    """Wall time per interval, exclusive nanoseconds of fast and of slow requests, CPU time.

    `cpu` is None until some is known for certain: 0 would mean that none was used.
    """

    __slots__ = ("_name", "_store", "cpu", "exclusive", "wall")

    def __init__(self, store: CellStore, name: str) -> None:
        self._store = store
        self._name = name
        self.cpu: Cell | None = None
        self.wall = store.histogram(families.STAGE_DURATION, name)
        self.exclusive = store.counter(families.STAGE_SECONDS, name)

    def add(self, other: StageCells, slow: int) -> None:
        """Add cells that were filled before it was known whether the request is slow."""
        counts = self.wall.counts
        for index in range(len(counts)):
            counts[index] += other.wall.counts[index]
        self.exclusive.counts[slow] += other.exclusive.counts[0]
        if other.cpu is not None:
            self.add_cpu(other.cpu.counts[0])

    def add_cpu(self, used_ns: int) -> None:
        """Add CPU time."""
        if self.cpu is None:
            self.cpu = self._store.counter(families.STAGE_CPU, self._name)
        self.cpu.counts[0] += used_ns


class QueueCells:
    """One queue: who waits and since when, how long they waited, who was refused and why."""

    __slots__ = ("rejected", "wait", "waiting")

    def __init__(self, store: CellStore, name: str) -> None:
        self.waiting: dict[int, int] = {}  # by the id of its place
        self.wait = store.histogram(families.QUEUE_WAIT, name)
        self.rejected = store.capped(
            families.REJECTED,
            _REASON_LIMIT,
            lambda reason: store.counter(families.REJECTED, name, reason),
        )
        self.rejected.get("full")


class Owner:
    """What has metrics on the page under a label `service`: a service, or a training job."""

    def __init__(self, name: str) -> None:
        self.store = CellStore(name, _memory)
        self._gpu_uuids: Sequence[str] | None = None
        self._errors = self.store.counter(families.ERRORS)
        self._reporters: list[Callable[[], Iterable[Level]]] = []

    @property
    def name(self) -> str:
        """The label `service`."""
        return self.store.owner

    def note_error(self, where: str) -> None:
        """Count an error of our own, from an `except`; the first of each place is logged."""
        if self.count_error(where):
            logger.warning("%s: an error in the instrumentation", self.name, exc_info=True)

    def count_error(self, where: str) -> bool:
        """Count an error of our own; return whether it is the first of its place."""
        place = families.ERRORS.row.index(where)
        self._errors.counts[place] += 1
        return self._errors.counts[place] == 1

    def report(self, reporter: Callable[[], Iterable[Level]]) -> None:
        """Ask `reporter` for levels at every scrape."""
        self._reporters.append(reporter)

    def snapshot_into(self, snapshot: Snapshot) -> None:
        """Add the owner's cells and levels."""
        snapshot.add_service(self.name)
        snapshot.add_store(self.store)
        snapshot.add_levels(self.name, self.levels())

    def levels(self) -> Iterator[Level]:
        """Yield what the owner's gauges are now."""
        if self._gpu_uuids is None:  # asked here, off the event loop: NVML may answer slowly
            self._gpu_uuids = visible_gpu_uuids(os.environ)
        for uuid in self._gpu_uuids:
            yield Level(families.GPU_INFO, (uuid,), 1)
        yield Level(families.BUILD_INFO, (VERSION,), 1)
        for reporter in self._reporters:
            yield from reporter()


class Service(Owner):
    """Everything one service counts. One per name in a process, whatever asks for it again."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        store = self.store
        store.counter(families.OUTCOMES)  # stays 0: it tells that there are requests to count
        self.slo_seconds: float | None = None
        self.slo_ns: int | None = None
        self.client_timeout_seconds: float | None = None
        self.client_timeout_ns: int | None = None
        self.plain_ns = _FOR_EVER_NS  # a plain request takes no longer
        self.in_flight: dict[Request, None] = {}  # in order of arrival
        self.websockets: Websockets | None = None  # before the first one
        self.stages: Capped[StageCells] = store.capped(
            families.STAGE_DURATION, STAGE_LIMIT, lambda stage: StageCells(store, stage)
        )
        self.ingress = self.stages.get("ingress")
        self.postprocess = self.stages.get("postprocess")
        self.unattributed = self.stages.get("unattributed")
        self.downstream: Capped[HistogramCell] = store.capped(
            families.DOWNSTREAM,
            _TARGET_LIMIT,
            lambda target: store.histogram(families.DOWNSTREAM, target),
        )
        self.queues: Capped[QueueCells] = store.capped(
            families.QUEUE_WAIT, _QUEUE_LIMIT, lambda queue: QueueCells(store, queue)
        )
        self.routes: dict[str, RouteCells] = {}
        self._series_limit = DEFAULT_SERIES_LIMIT
        self._request_series = 0
        self._overflowed_requests = store.counter(families.SERIES_OVERFLOW, families.REQUESTS.name)
        self._overflowed_routes = store.counter(
            families.SERIES_OVERFLOW, families.REQUEST_DURATION.name
        )
        self.spans: SpanRecorder | None = None
        self._is_configured = False
        self.has_several_middlewares = False
        self.has_suspended_stages = False  # then CPU time is known if its requests are driven
        self._parts: dict[Callable[[Service], object], object] = {}

    def part(self, make: Callable[[Service], Part]) -> Part:
        """Return what `make` has made for this service, as its batchers, once for all callers."""
        if make not in self._parts:
            self._parts.setdefault(make, make(self))
        return cast("Part", self._parts[make])

    def rename(self, name: str) -> None:
        """Go on under another name."""
        self.store.rename(name)

    def configure(
        self,
        *,
        slo_seconds: float | None,
        client_timeout_seconds: float | None,
        series_limit: int,
        gpu_uuids: Sequence[str] | None,
    ) -> None:
        """Set what a middleware was given; the last one of a service decides."""
        self.has_several_middlewares = self._is_configured
        self._is_configured = True
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
        self.plain_ns = min(self.slo_ns or _FOR_EVER_NS, self.client_timeout_ns or _FOR_EVER_NS)

    def route_cells(self, template: str) -> RouteCells:
        """Return the cells of a route template, those of `__other__` beyond the series limit."""
        cells = self.routes.get(template)
        if cells is None:
            if len(self.routes) >= self._series_limit and template != OVERFLOW:
                self._overflowed_routes.counts[0] += 1
                return self.route_cells(OVERFLOW)
            cells = self.routes.setdefault(template, RouteCells(self.store, template))
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
                self._overflowed_requests.counts[0] += 1
                route = self.route_cells(OVERFLOW)
            else:
                self._request_series += 1
        cell = route.requests.get(key)
        if cell is None:
            method, status, outcome = key
            cell = self.store.counter(
                families.REQUESTS, route.template, method, str(status), outcome
            )
            route.requests[key] = cell
        cell.counts[0] += 1

    def levels(self) -> Iterator[Level]:
        """Yield what the service's gauges are now."""
        yield from super().levels()
        yield Level(families.IN_FLIGHT, (), len(self.in_flight))
        yield Level(families.OLDEST_IN_FLIGHT, (), self._oldest_seconds())
        for name, cells in list(self.queues.cells.items()):
            yield Level(families.QUEUE_DEPTH, (name,), len(cells.waiting))
        if self.slo_seconds is not None:
            yield Level(families.SLO, (), self.slo_seconds)
        if self.client_timeout_seconds is not None:
            yield Level(families.CLIENT_TIMEOUT, (), self.client_timeout_seconds)

    def _oldest_seconds(self) -> float:
        while True:
            try:
                oldest = next(iter(self.in_flight))
            except StopIteration:
                return 0.0
            except RuntimeError:  # a request came or went in another thread: look again
                continue
            return max(0, clock.now_ns() - oldest.start_ns) / 1e9


_memory = PRIVATE
_services: dict[str, Service] = {}
_jobs: dict[str, Owner] = {}
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
    for service in list(_services.values()):
        return service
    with _lock:
        if not _services:
            _services[_NAMELESS] = Service(os.environ.get("OTEL_SERVICE_NAME") or "unnamed")
        return next(iter(_services.values()))


def services() -> list[Owner]:
    """Return the process's services in the order they were made, then its training jobs."""
    return [*_services.values(), *_jobs.values()]


def process_name() -> str:
    """Return what names this process: its first service, else its first training job."""
    for owner in services():
        return owner.name
    return default_service().name


def job_named(name: str) -> Owner:
    """Return the process's one training job of this label `service`, made on first use."""
    with _lock:
        return _jobs.setdefault(name, Owner(name))


def use_memory(memory: Memory) -> None:
    """Let services that are made from now on count there."""
    global _memory
    _memory = memory


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _begin_child() -> None:
    """After a fork: locks that another thread held, and requests under way, are the parent's."""
    global _lock
    _lock = threading.Lock()
    for service in _services.values():
        service.in_flight.clear()
        if service.websockets is not None:
            service.websockets.forget()
        for cells in service.queues.cells.values():
            cells.waiting.clear()


os.register_at_fork(after_in_child=_begin_child)
