"""A cascade instrument: which of several models, from the cheapest one on, answered a request."""

from __future__ import annotations

from tailwatch_tracing.cells import Capped, Cell
from tailwatch_tracing.families import CASCADE_REQUESTS
from tailwatch_tracing.instruments import Instrument
from tailwatch_tracing.service import Service

_TIER_LIMIT = 64


def _tiers(service: Service) -> Capped[Cell]:
    store = service.store
    return store.capped(
        CASCADE_REQUESTS, _TIER_LIMIT, lambda tier: store.counter(CASCADE_REQUESTS, tier)
    )


class CascadeTier(Instrument[Cell]):
    """One tier of a cascade, which answers a request or leaves it to the next one.

        small, large = CascadeTier("small"), CascadeTier("large")
        ...
        small.answered()

    Args:
        name: The label `tier`; at most 64 in a service.
        service: The service it belongs to. By default that of the first request to use it, or the
            process's only one.

    Raises:
        ValueError: an empty name.
    """

    def __init__(self, name: str, *, service: str | None = None) -> None:
        super().__init__(name, service)

    def answered(self) -> None:
        """Count a request whose answer is this tier's, once and whoever was asked before."""
        counts = self._cells.counts
        counts[0] += 1

    def _table_in(self, service: Service) -> Capped[Cell]:
        return service.part(_tiers)
