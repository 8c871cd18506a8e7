"""The counters and gauges of one rank of a job."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from tailwatch_tracing.cells import Cell
from tailwatch_tracing.families import Metric
from tailwatch_tracing.page import Level
from tailwatch_tracing.service import Owner


class RankRecord:
    """What the page shows of one rank.

    Args:
        job: Has the label `service`.
        job_name: A label.
        rank: A label.
    """

    def __init__(self, job: Owner, job_name: str, rank: int) -> None:
        self.job = job
        self._labels = (job_name, str(rank))
        self._gauges: dict[tuple[Metric, tuple[str, ...]], float] = {}
        job.report(self._levels)

    def count(self, metric: Metric, *values: str, by: int = 1) -> None:
        """Add to a counter; with 0 it is on the page from now on."""
        self.cell(metric, *values).counts[0] += by

    def cell(self, metric: Metric, *values: str) -> Cell:
        """Return a counter's cell."""
        return self.job.store.counter(metric, *self._labels, *values)

    def show(self, metric: Metric, value: float, *values: str) -> None:
        """Set a gauge; a value that is not finite takes it off the page."""
        key = (metric, (*self._labels, *values))
        if math.isfinite(value):
            self._gauges[key] = value
        else:
            self._gauges.pop(key, None)

    def clear_gauges(self) -> None:
        """Take all gauges off the page."""
        self._gauges = {}

    def note_error(self) -> None:
        """Count an error of the monitor itself, from an `except`."""
        self.job.note_error("training")

    def _levels(self) -> list[Level]:
        return [
            Level(metric, values, value) for (metric, values), value in list(self._gauges.items())
        ]


class _Noting(Protocol):
    def note_error(self) -> None: ...


Self = TypeVar("Self", bound=_Noting)
Arguments = ParamSpec("Arguments")


def harmless(
    method: Callable[Concatenate[Self, Arguments], None],
) -> Callable[Concatenate[Self, Arguments], None]:
    """Count what a method raises: the training has not asked for it, and goes on."""

    @functools.wraps(method)
    def guarded(self: Self, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            self.note_error()

    return guarded
