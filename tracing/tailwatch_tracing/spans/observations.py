"""What a request has observed, until it is known whether its trace is kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailwatch_tracing.cells import FIRST_EDGE_NS
from tailwatch_tracing.exposition import Exemplar
from tailwatch_tracing.families import EDGES_NS
from tailwatch_tracing.shares import INFERENCE
from tailwatch_tracing.spans.kept import STAGE_SPANS, calls_of

if TYPE_CHECKING:
    from tailwatch_tracing.cells import HistogramCell
    from tailwatch_tracing.request import Request
    from tailwatch_tracing.service import RouteCells
    from tailwatch_tracing.stages import stage

MOST_HISTOGRAMS = 64
"""Histogram series that one request may point to, beside those of its duration and stages."""


class Observations:
    """What a request observes: forgotten, or pointed to, when it is known whether it is kept.

    Of those that are noted, the largest in each histogram is pointed to.
    """

    _largest: dict[HistogramCell, int] | None = None
    _ids: tuple[str, str, float] | None = None

    def observed(self, cell: HistogramCell, value: int) -> None:
        """Note a value that the request's histogram has counted, in the unit of its grid."""
        if self._ids is not None:  # after the end, as of a background task
            _point(cell, value, self._ids)
        else:
            largest = self._largest
            if largest is None:
                self._largest = {cell: value}
            elif cell in largest:
                if value > largest[cell]:
                    largest[cell] = value
            elif len(largest) < MOST_HISTOGRAMS:
                largest[cell] = value

    def point_to(
        self,
        trace_id: int,
        span_id: int,
        request: Request,
        route: RouteCells,
        outcome: str,
        end_ns: int,
        offset_ns: int,
        log: Sequence[stage],
    ) -> None:
        """Let the histograms that have counted the request point to its trace."""
        self._ids = ids = (f"{trace_id:032x}", f"{span_id:016x}", (end_ns + offset_ns) / 1e9)
        if outcome != "rejected":  # which is in no duration and in no stage
            service = request.service
            _point_latency(route.duration, end_ns - request.start_ns, ids)
            stages = service.stages.cells
            for interval in log[:STAGE_SPANS]:
                cells = stages.get(interval.name)
                if cells is not None:
                    gpu = interval.gpu
                    if gpu is not None and gpu.is_timed and interval.end_ns > 0:
                        gpu.point(cells.wall, ids)
                        continue
                    stop_ns = interval.end_ns if 0 < interval.end_ns < end_ns else end_ns
                    _point_latency(cells.wall, stop_ns - interval.start_ns, ids)
            if request.folded is None:
                implicit = (service.ingress, service.unattributed, service.postprocess)
                times = _outside_stages(log, request.start_ns, end_ns)
                for cells, wall_ns in zip(implicit, times, strict=True):
                    if wall_ns > 0:
                        _point_latency(cells.wall, wall_ns, ids)
        for call in calls_of(request):
            cell = request.service.downstream.get(call.target)
            _point_latency(cell, call.end_ns - call.start_ns, ids)
        if self._largest is not None:
            for cell, value in list(self._largest.items()):  # threads may add
                _point(cell, value, ids)


def _outside_stages(log: Sequence[stage], start_ns: int, end_ns: int) -> tuple[int, int, int]:
    """Return the times before the first stage, outside any, and after the last inference stage.

    As `shares.credit_request` has them, which has no time to tell.
    """
    mark_ns = start_ns
    ingress_ns = outside_ns = tail_ns = 0
    saw_inference = False
    for position, interval in enumerate(log):
        gap_ns = max(0, interval.start_ns - mark_ns)
        if position == 0:
            ingress_ns = gap_ns
        else:
            tail_ns += gap_ns
        if interval.name == INFERENCE:
            saw_inference = True
            outside_ns += tail_ns
            tail_ns = 0
        mark_ns = max(mark_ns, interval.end_ns if 0 < interval.end_ns < end_ns else end_ns)
    tail_ns += max(0, end_ns - mark_ns)
    if saw_inference:
        return ingress_ns, outside_ns, tail_ns
    return ingress_ns, outside_ns + tail_ns, 0


def _point(cell: HistogramCell, value: int, ids: tuple[str, str, float]) -> None:
    trace_id, span_id, at = ids
    cell.keep_exemplar(value, Exemplar(trace_id, span_id, value / cell.unit, at))


def _point_latency(cell: HistogramCell, wall_ns: int, ids: tuple[str, str, float]) -> None:
    """Do the same to a histogram of the latency grid, at half the cost: a request has many."""
    exemplars = cell.exemplars
    if exemplars is None:
        exemplars = cell.exemplars = {}
    bucket = bisect_left(EDGES_NS, wall_ns) if wall_ns > FIRST_EDGE_NS else 0
    trace_id, span_id, at = ids
    exemplars[bucket] = _new(Exemplar, (trace_id, span_id, wall_ns / 1e9, at))


_new = tuple.__new__  # what a NamedTuple's own constructor ends in
