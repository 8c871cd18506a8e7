"""A queue instrument: depth, waiting time and refusals, whatever the queue is made of."""

from __future__ import annotations

from types import TracebackType

from tailwatch_tracing import clock
from tailwatch_tracing.cells import Capped
from tailwatch_tracing.exemplars import note
from tailwatch_tracing.instruments import Instrument
from tailwatch_tracing.request import REJECTED, Request
from tailwatch_tracing.service import QueueCells, Service
from tailwatch_tracing.units import current_unit


class QueuePlace:
    """One waiting request. Leave by `leave()` or by the end of a `with` block, sync or async.

    A place that is forgotten, as with an item that nobody took out of its queue, leaves, too.
    """

    __slots__ = ("_cells", "_unit")

    def __init__(self, cells: QueueCells) -> None:
        self._cells = cells
        self._unit = current_unit.get()
        cells.waiting[id(self)] = clock.now_ns()

    def leave(self) -> None:
        """End the wait: depth - 1, and the waiting time is observed. Again is harmless."""
        cells = self._cells
        start_ns = cells.waiting.pop(id(self), None)
        if start_ns is not None:
            waited_ns = clock.now_ns() - start_ns
            cells.wait.observe(waited_ns)
            note(cells.wait, waited_ns, self._unit)

    def __del__(self) -> None:
        """Leave, if that was forgotten."""
        try:
            self.leave()
        except Exception:  # the interpreter is ending
            pass

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


class RequestQueue(Instrument[QueueCells]):
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

    Raises:
        ValueError: an empty name.
    """

    def __init__(self, name: str, *, service: str | None = None) -> None:
        super().__init__(name, service)

    @property
    def depth(self) -> int:
        """How many wait now."""
        return len(self._cells.waiting)

    def enter(self) -> QueuePlace:
        """Begin to wait. Keep what is returned: its end is the end of the wait."""
        return QueuePlace(self._cells)

    def reject(self, reason: str = "full") -> None:
        """Count a refusal; within a request its outcome is `rejected`, whatever is answered.

        At most 16 reasons are kept apart.
        """
        counts = self._cells.rejected.get(reason).counts
        counts[0] += 1
        unit = current_unit.get()
        if isinstance(unit, Request):
            unit.events |= REJECTED

    def _table_in(self, service: Service) -> Capped[QueueCells]:
        return service.queues
