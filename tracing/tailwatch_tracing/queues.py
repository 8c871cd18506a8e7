"""A queue instrument: depth, waiting time and refusals, whatever the queue is made of."""

from __future__ import annotations

from types import TracebackType

from tailwatch_tracing import clock
from tailwatch_tracing.exemplars import note
from tailwatch_tracing.request import REJECTED, Request
from tailwatch_tracing.service import (
    QueueCells,
    Service,
    default_service,
    service_named,
    services,
)
from tailwatch_tracing.units import NO_UNIT, current_unit

_unbound: list[RequestQueue] = []


class QueuePlace:
    """One waiting request. Leave by `leave()` or by the end of a `with` block, sync or async."""

    __slots__ = ("_cells", "_has_left", "_start_ns", "_unit")

    def __init__(self, cells: QueueCells) -> None:
        self._cells = cells
        self._has_left = False
        self._unit = current_unit.get()
        self._start_ns = clock.now_ns()
        with cells.lock:
            cells.entered += 1

    def leave(self) -> None:
        """End the wait: depth - 1, and the waiting time is observed. Again is harmless."""
        with self._cells.lock:
            if not self._has_left:
                self._has_left = True
                self._cells.left += 1
                waited_ns = clock.now_ns() - self._start_ns
                self._cells.wait.observe(waited_ns)
                note(self._cells.wait, waited_ns, self._unit)

    def __enter__(self) -> QueuePlace:
        """Wait within a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the queue."""
        self.leave()

    async def __aenter__(self) -> QueuePlace:
        """Wait within an async block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the queue."""
        self.leave()


class RequestQueue:
    """What waits in front of a bottleneck.

        queue = RequestQueue("preprocess")
        place = queue.enter()       # depth + 1
        ...                         # when its turn has come, in any thread:
        place.leave()               # depth - 1, the wait is observed
        queue.reject()              # full: counted, and the current request's outcome is rejected

    It only measures: order and limit are the queue's own. Queues of one name in one service are
    one.

    Args:
        name: The label `queue`; at most 64 in a service.
        service: The service it belongs to. By default that of the first request to use it, or the
            process's only one.
    """

    def __init__(self, name: str, *, service: str | None = None) -> None:
        self.name = name
        self._service: Service | None = None
        if service is None:
            _unbound.append(self)
        else:
            self._bind(service_named(service))

    @property
    def depth(self) -> int:
        """How many wait now."""
        cells = self._cells()
        return cells.entered - cells.left

    def enter(self) -> QueuePlace:
        """Begin to wait."""
        cells = self._cells()
        return QueuePlace(cells)

    def reject(self, reason: str = "full") -> None:
        """Count a refusal; within a request its outcome is `rejected`, whatever is answered.

        At most 16 reasons are kept apart.
        """
        cells = self._cells()
        with cells.lock:
            cells.rejected.get(reason).counts[0] += 1
        unit = current_unit.get()
        if isinstance(unit, Request):
            unit.events |= REJECTED

    def _cells(self) -> QueueCells:
        if self._service is None:
            unit = current_unit.get()
            self._bind(default_service() if unit is NO_UNIT else unit.service)
        assert self._service is not None
        return self._service.queues.get(self.name)

    def _bind(self, service: Service) -> None:
        self._service = service
        service.queues.get(self.name)
        if self in _unbound:
            _unbound.remove(self)


def bind_idle_queues() -> None:
    """Give unused queues to the process's only service, so that their 0 is on the page."""
    if len(services()) == 1:
        for queue in list(_unbound):
            queue._bind(default_service())
