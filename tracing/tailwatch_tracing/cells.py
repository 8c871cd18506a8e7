"""Hot-path cells: plain integers on a fixed grid, bumped without a lock, rendered elsewhere.

CPython under its global lock switches threads only after a call and at a loop's end. `observe`
therefore makes its one call first and then only adds, so that no increment is lost between threads,
and a renderer in another thread at worst misses the last one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Generic, TypeVar

from tailwatch_tracing.exposition import Exemplar, HistogramSeries

# Hundredths of a millisecond. Neighbours are at most a ratio of 1.2 apart; usual objectives (0.1,
# 0.2, 0.25, 0.5, 1, 2, 2.5, 5, 10, 30 and 60 s) are edges, so that a share under them is exact.
_DECADE = (100, 120, 144, 170, 200, 225, 250, 300, 350, 420, 500, 600, 700, 840)
EDGES_NS: tuple[int, ...] = (
    *(step * 10**decade * 10_000 for decade in range(5) for step in _DECADE),
    100 * 10**9,
    120 * 10**9,
)
"""Upper bounds of the latency buckets in nanoseconds, 1 ms to 120 s."""

EDGES_SECONDS: tuple[float, ...] = tuple(edge / 1e9 for edge in EDGES_NS)

FIRST_EDGE_NS = EDGES_NS[0]
"""Most stages of a light request end below it: no need to search then."""

OVERFLOW = "__other__"
"""The label value of what a cap left without a series of its own."""


def snap_to_grid(seconds: float) -> float:
    """Return the grid edge nearest to `seconds` by ratio, within 1 ms to 120 s."""
    return min(EDGES_SECONDS, key=lambda edge: max(edge / seconds, seconds / edge))


class HistogramCell:
    """One latency histogram series: counts per bucket and the sum, in nanoseconds."""

    __slots__ = ("counts", "exemplars", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(EDGES_NS) + 1)
        self.sum_ns = 0
        self.exemplars: dict[int, Exemplar] | None = None

    def observe(self, duration_ns: int) -> None:
        """Count one duration; an edge belongs to the bucket that it ends."""
        bucket = bisect_left(EDGES_NS, duration_ns)
        self.counts[bucket] += 1
        self.sum_ns += duration_ns

    def keep_exemplar(
        self, duration_ns: int, trace_id: str, span_id: str, timestamp: float
    ) -> None:
        """Let the duration's bucket point to a trace; the newest wins. `timestamp` is Unix time."""
        if self.exemplars is None:
            self.exemplars = {}
        bucket = bisect_left(EDGES_NS, duration_ns)
        self.exemplars[bucket] = Exemplar(trace_id, span_id, duration_ns / 1e9, timestamp)

    def series(self, label_text: str) -> HistogramSeries:
        """Return a copy to render, in seconds."""
        exemplars = dict(self.exemplars) if self.exemplars else None
        return HistogramSeries(label_text, self.counts.copy(), self.sum_ns / 1e9, exemplars)


Cell = TypeVar("Cell")


class CappedTable(Generic[Cell]):
    """Label value -> cell, for at most `limit` values; the rest share the cell of `__other__`."""

    __slots__ = ("_limit", "_make", "cells", "overflowed")

    def __init__(self, limit: int, make: Callable[[], Cell]) -> None:
        self._limit = limit
        self._make = make
        self.cells: dict[str, Cell] = {}
        self.overflowed = 0

    def get(self, value: str) -> Cell:
        """Return the value's cell, made on first use; count the use of an overflow cell."""
        cell = self.cells.get(value)
        if cell is None:
            if len(self.cells) >= self._limit and value != OVERFLOW:
                self.overflowed += 1
                value = OVERFLOW
            cell = self.cells.setdefault(str(value), self._make())
        return cell
