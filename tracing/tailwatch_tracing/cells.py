"""Hot-path cells: plain integers, bumped without a lock, rendered elsewhere.

CPython under its global lock switches threads only after a call and at a loop's end. `observe`
therefore makes its one call first and then only adds, so that no increment is lost between threads,
and a renderer in another thread at worst misses the last one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from tailwatch_tracing.exposition import Exemplar
from tailwatch_tracing.families import EDGES_NS, SERIES_OVERFLOW, Grid, Metric

FIRST_EDGE_NS = EDGES_NS[0]
"""Most stages of a light request end below it: no need to search then."""

SUM_NS = len(EDGES_NS) + 1
"""Index of the sum in a latency histogram's cell, behind its buckets."""

OVERFLOW = "__other__"
"""The label value of what a cap left without a series of its own."""


def snap_to_grid(seconds: float) -> float:
    """Return the latency edge nearest to `seconds` by ratio, within 1 ms to 120 s."""
    edges = (edge / 1e9 for edge in EDGES_NS)
    return min(edges, key=lambda edge: max(edge / seconds, seconds / edge))


class Counts(Protocol):
    """Where a cell's integers are: a list, or shared memory that other workers read."""

    def __getitem__(self, index: int, /) -> int:
        """Return one."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Set one."""
        ...

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def __iter__(self) -> Iterator[int]:
        """Iterate over them."""
        ...


def as_text(value: object) -> str:
    """Return a label's value: of a member of an enumeration of strings the string, not its name."""
    if type(value) is str:
        return value
    return str.__str__(value) if isinstance(value, str) else str(value)


Labels = tuple[str, ...]
"""Values of a metric's labels, those of a row left out."""


class Memory(Protocol):
    """Where cells are allocated."""

    def allocate(self, owner: str, metric: str, values: Labels, size: int, /) -> Counts:
        """Return that many zeros for a cell."""
        ...

    def rename(self, old: str, new: str, /) -> None:
        """Let an owner's cells go on under another name."""
        ...


class _PrivateMemory:
    def allocate(self, owner: str, metric: str, values: Labels, size: int) -> Counts:
        return [0] * size

    def rename(self, old: str, new: str) -> None:
        pass


PRIVATE: Memory = _PrivateMemory()
"""This process's alone."""


class Cell:
    """The integers of one series, or of the series of one row.

    `counts` may be replaced while nothing counts; code on the hot path reads it each time.
    """

    __slots__ = ("counts",)

    def __init__(self, counts: Counts) -> None:
        self.counts = counts


class HistogramCell(Cell):
    """One histogram series: a count per bucket, then the sum, in the unit of its grid."""

    __slots__ = ("_edges", "exemplars", "unit")

    def __init__(self, counts: Counts, grid: Grid) -> None:
        super().__init__(counts)
        self._edges = grid.edges
        self.unit = grid.unit
        self.exemplars: dict[int, Exemplar] | None = None

    def observe(self, value: int) -> None:
        """Count one value; an edge belongs to the bucket that it ends."""
        edges = self._edges
        bucket = bisect_left(edges, value)
        counts = self.counts
        counts[bucket] += 1
        counts[-1] += value

    def forget(self, value: int) -> None:
        """Take back an `observe`."""
        bucket = bisect_left(self._edges, value)
        counts = self.counts
        counts[bucket] -= 1
        counts[-1] -= value

    def keep_exemplar(self, value: int, exemplar: Exemplar) -> None:
        """Let the value's bucket point to a trace; the newest wins."""
        if self.exemplars is None:
            self.exemplars = {}
        self.exemplars[bisect_left(self._edges, value)] = exemplar


class CellStore:
    """All cells of one owner, a service or the process, by metric and labels."""

    def __init__(self, owner: str, memory: Memory = PRIVATE) -> None:
        self.owner = owner
        self._memory = memory
        self.cells: dict[tuple[str, Labels], Cell] = {}

    def counter(self, metric: Metric, *values: str) -> Cell:
        """Return the counter's cell, made on first use; with a row one integer per value of it."""
        key = (metric.name, values)
        cell = self.cells.get(key)
        if cell is None:
            size = len(metric.row) or 1
            counts = self._memory.allocate(self.owner, metric.name, values, size)
            cell = self.cells.setdefault(key, Cell(counts))
        return cell

    def histogram(self, metric: Metric, *values: str) -> HistogramCell:
        """Return the histogram's cell, made on first use."""
        assert metric.grid is not None
        key = (metric.name, values)
        cell = self.cells.get(key)
        if cell is None:
            size = len(metric.grid.edges) + 2
            counts = self._memory.allocate(self.owner, metric.name, values, size)
            cell = self.cells.setdefault(key, HistogramCell(counts, metric.grid))
        assert isinstance(cell, HistogramCell)
        return cell

    def capped(self, metric: Metric, limit: int, make: Callable[[str], Cached]) -> Capped[Cached]:
        """Return a capped table whose overflow is counted under the metric's name."""
        return Capped(limit, make, self.counter(SERIES_OVERFLOW, metric.name))

    def rename(self, owner: str) -> None:
        """Give all cells to another owner."""
        self._memory.rename(self.owner, owner)
        self.owner = owner

    def move(self, memory: Memory, *, carry: bool) -> None:
        """Allocate every cell anew, with what it has counted or from zero."""
        self._memory = memory
        for (name, values), cell in list(self.cells.items()):
            before = cell.counts
            cell.counts = counts = memory.allocate(self.owner, name, values, len(before))
            if carry:  # added, as another thread may have counted already
                for index in range(len(counts)):
                    counts[index] += before[index]
            elif isinstance(cell, HistogramCell):
                cell.exemplars = None


Cached = TypeVar("Cached")


class Capped(Generic[Cached]):
    """Label value -> what counts for it, for at most `limit` values; the rest share `__other__`."""

    __slots__ = ("_limit", "_make", "_overflow", "cells")

    def __init__(self, limit: int, make: Callable[[str], Cached], overflow: Cell) -> None:
        self._limit = limit
        self._make = make
        self._overflow = overflow
        self.cells: dict[str, Cached] = {}

    def get(self, value: str) -> Cached:
        """Return the value's, made on first use; count the use of the overflow."""
        value = as_text(value)
        cell = self.cells.get(value)
        if cell is None:
            if len(self.cells) >= self._limit and value != OVERFLOW:
                self._overflow.counts[0] += 1
                value = OVERFLOW
                cell = self.cells.get(value)
                if cell is not None:
                    return cell
            cell = self.cells.setdefault(value, self._make(value))
        return cell
