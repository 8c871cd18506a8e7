"""A cache instrument: how often results come from a cache, and how similar a semantic hit was."""

from __future__ import annotations

from tailwatch_tracing import families
from tailwatch_tracing.cells import Capped, Cell, HistogramCell
from tailwatch_tracing.exemplars import note
from tailwatch_tracing.families import CACHE_REQUESTS, RATIO_UNIT
from tailwatch_tracing.instruments import Instrument
from tailwatch_tracing.service import Service
from tailwatch_tracing.units import current_unit

_CACHE_LIMIT = 64

_EXACT, _SEMANTIC, _MISS = range(len(CACHE_REQUESTS.row))


class CacheCells:
    """One cache: its results by kind, and the similarity of those that are semantic."""

    __slots__ = ("_name", "results", "service")

    def __init__(self, service: Service, name: str) -> None:
        self.service = service
        self._name = name
        self.results: Cell = service.store.counter(CACHE_REQUESTS, name)

    @property
    def similarity(self) -> HistogramCell:
        """A cache that only knows exact hits has none."""
        return self.service.store.histogram(families.CACHE_SIMILARITY, self._name)


def _caches(service: Service) -> Capped[CacheCells]:
    return service.store.capped(
        CACHE_REQUESTS, _CACHE_LIMIT, lambda name: CacheCells(service, name)
    )


class ResultCache(Instrument[CacheCells]):
    """A cache of results, told of every lookup once.

        cache = ResultCache("answers")
        cache.exact_hit()
        cache.semantic_hit(0.93)
        cache.miss()

    Args:
        name: The label `cache`; at most 64 in a service.
        service: The service it belongs to. By default that of the first request to use it, or the
            process's only one.

    Raises:
        ValueError: an empty name.
    """

    def __init__(self, name: str, *, service: str | None = None) -> None:
        super().__init__(name, service)

    def exact_hit(self) -> None:
        """Count a result of the very same request."""
        self._count(_EXACT)

    def semantic_hit(self, similarity: float) -> None:
        """Count a result of a similar request.

        Args:
            similarity: As it was compared with the threshold, 0 to 1; what rounding has put outside
                counts as the bound.
        """
        cells = self._cells
        counts = cells.results.counts
        counts[_SEMANTIC] += 1
        try:
            similarity = float(similarity)
            if similarity != similarity:
                raise ValueError(f"cache {self.name}: similarity={similarity!r}, expected 0 to 1")
            value = round(min(1.0, max(0.0, similarity)) * RATIO_UNIT)
            cells.similarity.observe(value)
            note(cells.similarity, value, current_unit.get())
        except Exception:
            cells.service.note_error("metrics")

    def miss(self) -> None:
        """Count a lookup without a result."""
        self._count(_MISS)

    def _count(self, result: int) -> None:
        counts = self._cells.results.counts
        counts[result] += 1

    def _table_in(self, service: Service) -> Capped[CacheCells]:
        return service.part(_caches)
