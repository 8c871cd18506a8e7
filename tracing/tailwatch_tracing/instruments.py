"""What the instruments share: a name, the service they count for, and a table of cells in it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Generic, TypeVar

from tailwatch_tracing.cells import Capped
from tailwatch_tracing.service import Service, default_service, service_named, services
from tailwatch_tracing.units import current_service

Cells = TypeVar("Cells")


class Instrument(Generic[Cells]):
    """A named thing of one service that counts: the instruments of one name in it are one.

    Args:
        name: A label's value.
        service: The service it belongs to. By default that of the first request to use it, or the
            process's only one.

    Raises:
        ValueError: an empty name.
    """

    def __init__(self, name: str, service: str | None) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{type(self).__name__}({name!r}): expected a name that is not empty")
        self.name = name
        self._table: Capped[Cells] | None = None
        if service is None:
            _unbound.append(self)
        else:
            self._bind(service_named(service))

    @property
    def _cells(self) -> Cells:
        table = self._table
        if table is None:
            table = self._bind(current_service())
        return table.get(self.name)

    def _table_in(self, service: Service) -> Capped[Cells]:
        """Return the service's cells of all instruments of this kind, by name."""
        raise NotImplementedError

    def _bind(self, service: Service) -> Capped[Cells]:
        self._table = table = self._table_in(service)
        table.get(self.name)
        with suppress(ValueError):  # it was bound, by another thread at the same time
            _unbound.remove(self)
        return table


_unbound: list[Instrument[Any]] = []


def bind_idle() -> None:
    """Give unused instruments to the process's only service, so that their 0 is on the page."""
    if sum(isinstance(owner, Service) for owner in services()) == 1:
        for instrument in list(_unbound):
            instrument._bind(default_service())
