"""Who gets which instant: the sweep that credits a service with the stages of a unit of work.

A unit keeps its intervals in the order of opening. When it ends, one sweep gives every instant to
exactly one stage: the one opened last among those open, or an implicit one when none is. So the
shares of a request add up to its duration, whatever overlaps whatever, and none is negative.

CPU time comes with each interval, less that of the stages within it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailwatch_tracing import clock, cpu
from tailwatch_tracing.cells import FIRST_EDGE_NS, SUM_NS, Capped, CellStore, as_text
from tailwatch_tracing.cuda import PendingTimes, pending_times
from tailwatch_tracing.families import EDGES_NS, STAGE_DURATION
from tailwatch_tracing.service import STAGE_LIMIT, Service, StageCells

if TYPE_CHECKING:
    from tailwatch_tracing.stages import stage
    from tailwatch_tracing.units import Unit

INFERENCE = "inference"

Swept = tuple[int, int, int, int, bool]
"""How far a sweep has come, and what it met outside any stage, in nanoseconds: until, ingress
(before the first stage, -1 when there is none yet), between, tail (after the last inference stage,
or after ingress when there is none), and whether there was an inference stage."""


def sweep(
    intervals: Sequence[stage],
    until_ns: int,
    swept: Swept,
    table: Capped[StageCells],
    slow: int,
    pending: PendingTimes = pending_times,
) -> Swept:
    """Credit stages with the time since `swept` until `until_ns`, and return where that leaves it.

    `intervals` come in order of opening; one that has no end yet is cut. Every interval's wall time
    is observed, the GPU's where it has one, and every instant is exclusive time of the interval
    opened last among those open.
    """
    mark_ns, ingress_ns, between_ns, tail_ns, saw_inference = swept
    outer: list[tuple[StageCells, int]] = []  # open below the top one, with their ends
    top: StageCells | None = None
    top_end_ns = 0
    for interval in intervals:
        start_ns = interval.start_ns
        until_ns = max(until_ns, start_ns)  # it may have opened in a thread since that was read
        while top is not None:
            if top_end_ns > start_ns:
                if start_ns > mark_ns:
                    top.exclusive.counts[slow] += start_ns - mark_ns
                    mark_ns = start_ns
                outer.append((top, top_end_ns))
                break
            if top_end_ns > mark_ns:
                top.exclusive.counts[slow] += top_end_ns - mark_ns
                mark_ns = top_end_ns
            top, top_end_ns = outer.pop() if outer else (None, 0)
        if ingress_ns < 0:
            ingress_ns = max(0, start_ns - mark_ns)
            mark_ns += ingress_ns
        elif start_ns > mark_ns:  # nothing was open
            tail_ns += start_ns - mark_ns
            mark_ns = start_ns
        interval.name = as_text(interval.name)
        if interval.name == INFERENCE:
            saw_inference = True
            between_ns += tail_ns
            tail_ns = 0
        top = table.get(interval.name)
        top_end_ns = interval.end_ns if 0 < interval.end_ns < until_ns else until_ns
        gpu = interval.gpu
        if interval.end_ns <= 0:
            cpu.stop(interval)
            gpu = None  # another thread may be marking its end
        if gpu is not None and gpu.is_timed:
            pending.add(top.wall, gpu, top_end_ns - start_ns)
        else:
            top.wall.observe(top_end_ns - start_ns)
        if interval.cpu_ns > 0:
            top.add_cpu(interval.cpu_ns)
    while top is not None:
        if top_end_ns > mark_ns:
            top.exclusive.counts[slow] += top_end_ns - mark_ns
            mark_ns = top_end_ns
        top, top_end_ns = outer.pop() if outer else (None, 0)
    return until_ns, ingress_ns, between_ns, tail_ns + until_ns - mark_ns, saw_inference


class Folded:
    """Sums of the intervals that a unit of very many stages no longer keeps one by one."""

    def __init__(self, start_ns: int) -> None:
        self.swept: Swept = (start_ns, -1, 0, 0, False)
        self.count = 0
        self.due_at = 0  # intervals in the log before the next time
        self._pending = PendingTimes()
        store = CellStore("")
        self._table: Capped[StageCells] = store.capped(
            STAGE_DURATION, STAGE_LIMIT, lambda name: StageCells(store, name)
        )

    def add(self, log: list[stage]) -> None:
        """Sweep a log up to now and leave in it only what is still open."""
        now_ns = clock.now_ns()
        # Copies, because stages go on closing in other threads.
        intervals = [interval.copy() for interval in log]
        still_open = [i for i, interval in enumerate(intervals) if interval.end_ns <= 0]
        self.swept = sweep(intervals, now_ns, self.swept, self._table, 0, self._pending)
        for i in still_open:  # their wall time is observed once, at their end
            self._table.get(intervals[i].name).wall.forget(now_ns - intervals[i].start_ns)
        log[: len(intervals)] = [log[i] for i in still_open]
        self.count += len(intervals) - len(still_open)

    def credit(self, service: Service, slow: int) -> Swept:
        """Add the sums to a service's cells, and return where the sweep goes on."""
        for name, cells in self._table.cells.items():
            into = service.stages.get(name)
            into.add(cells, slow)
            self._pending.move(cells.wall, into.wall, pending_times)
        return self.swept


def credit_request(unit: Unit, end_ns: int, slow: int) -> int:
    """Credit a request's service with its stages and its time outside any; return its end.

    An implicit stage is one interval per request, the sum of its pieces. The end is later than
    `end_ns` when a stage in another thread closed after that was read.
    """
    service = unit.service
    log = unit.log
    if not log or unit.folded is not None:
        end_ns, ingress_ns, between_ns, tail_ns, saw_inference = unit.end(end_ns, slow)
    else:
        unit.log = None
        known = service.stages.cells
        inference = INFERENCE
        mark_ns = unit.start_ns
        ingress_ns = log[0].start_ns - mark_ns
        between_ns = 0
        tail_ns = -ingress_ns
        saw_inference = False
        # Most requests go through one stage after the other: nothing is to be sorted out then. The
        # differences are compared because CPython does that faster for integers of one digit.
        for interval in log:
            start_ns = interval.start_ns
            stop_ns = interval.end_ns
            gap_ns = start_ns - mark_ns
            wall_ns = stop_ns - start_ns
            # It overlaps the one before, is open, or its time may not be known yet.
            if gap_ns < 0 or wall_ns < 0 or interval.gpu is not None:
                swept = (mark_ns, ingress_ns, between_ns, tail_ns, saw_inference)
                rest, swept = _rewind(unit, log, interval, swept, slow)
                end_ns, ingress_ns, between_ns, tail_ns, saw_inference = sweep(
                    rest, end_ns, swept, service.stages, slow
                )
                break
            mark_ns = stop_ns
            tail_ns += gap_ns
            name = interval.name
            if name == inference:
                saw_inference = True
                between_ns += tail_ns
                tail_ns = 0
            try:
                cells = known[name]
            except (KeyError, TypeError):  # a new name, or one that is no text
                interval.name = as_text(name)
                cells = service.stages.get(interval.name)
            counts = cells.wall.counts
            counts[bisect_left(EDGES_NS, wall_ns) if wall_ns > FIRST_EDGE_NS else 0] += 1
            counts[SUM_NS] += wall_ns
            cells.exclusive.counts[slow] += wall_ns
            cpu_ns = interval.cpu_ns
            if cpu_ns > 0:
                used = cells.cpu
                if used is None:
                    cells.add_cpu(cpu_ns)
                else:
                    used.counts[0] += cpu_ns
        else:
            rest_ns = end_ns - mark_ns
            if rest_ns > 0:
                tail_ns += rest_ns
            else:
                end_ns = mark_ns
    if not saw_inference:
        between_ns += tail_ns
        tail_ns = 0
    if ingress_ns > 0:
        _credit_implicit(service.ingress, ingress_ns, slow)
    if between_ns > 0:
        _credit_implicit(service.unattributed, between_ns, slow)
    if tail_ns > 0:
        _credit_implicit(service.postprocess, tail_ns, slow)
    return end_ns


def _credit_implicit(cells: StageCells, wall_ns: int, slow: int) -> None:
    counts = cells.wall.counts
    counts[bisect_left(EDGES_NS, wall_ns) if wall_ns > FIRST_EDGE_NS else 0] += 1
    counts[SUM_NS] += wall_ns
    cells.exclusive.counts[slow] += wall_ns


def _rewind(
    unit: Unit, log: list[stage], interval: stage, swept: Swept, slow: int
) -> tuple[list[stage], Swept]:
    """Go back to the interval before this one, which may reach below it, to look at every piece."""
    position = log.index(interval)
    if position == 0:
        return log, (unit.start_ns, -1, 0, 0, False)
    before = log[position - 1]
    cells = unit.service.stages.get(before.name)
    cells.wall.forget(before.end_ns - before.start_ns)
    cells.exclusive.counts[slow] -= before.end_ns - before.start_ns
    if before.cpu_ns > 0:
        cells.add_cpu(-before.cpu_ns)
    return log[position - 1 :], (before.start_ns, *swept[1:])
