"""What is on the page: a snapshot of this process's cells and levels, as families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import add
from typing import NamedTuple

from tailwatch_tracing.cells import CellStore, HistogramCell, Labels
from tailwatch_tracing.exposition import (
    Exemplar,
    Family,
    HistogramFamily,
    HistogramSeries,
    labels,
)
from tailwatch_tracing.families import (
    LATENCY,
    METRICS,
    OUTCOMES,
    REQUEST_DURATION,
    REQUESTS,
    STAGE_DURATION,
    STAGE_SECONDS,
    Metric,
)

PROCESS = ""
"""The owner of what belongs to the process."""

PLAIN = Metric(
    "plain",
    "histogram",
    "Duration of requests that were answered with success in one message, within the objective and "
    "the client's timeout, and had no stage. Not on the page: what it says of them is.",
    ("route", "method", "status"),
    grid=LATENCY,
)
STAGED = PLAIN._replace(
    name="staged", help="The same of requests that had a stage, which are credited by themselves."
)


class Level(NamedTuple):
    """What a gauge is now, or a counter that is kept elsewhere, as the kernel's."""

    metric: Metric
    values: Labels
    value: float


class Series(NamedTuple):
    """Which series: of which owner, with which values of the metric's labels."""

    owner: str
    values: Labels


def no_pause() -> None:
    """Go on at once."""


class Snapshot:
    """Numbers read once, of one process or summed over several.

    Counts are tuples, which the garbage collector looks at once: lists of a page of many series
    would make it go through everything that the service has.

    Args:
        pause: Called between two series, here and by whoever goes through them, so that a page of
            many does not hold the interpreter for long.
    """

    def __init__(self, pause: Callable[[], None] = no_pause) -> None:
        self.pause = pause
        self.services: list[str] = []
        self.counts: dict[str, dict[Series, tuple[int, ...]]] = {}
        self.exemplars: dict[str, dict[Series, dict[int, Exemplar]]] = {}
        self.levels: dict[str, dict[Series, float]] = {}

    def add_service(self, name: str) -> None:
        """Have a place on the page for a service."""
        if name not in self.services:
            self.services.append(name)

    def add_store(self, store: CellStore) -> None:
        """Read every cell of a store."""
        for (name, values), cell in list(store.cells.items()):
            self.pause()
            self.add_counts(name, Series(store.owner, values), cell.counts)
            if isinstance(cell, HistogramCell) and cell.exemplars:
                self.add_exemplars(name, Series(store.owner, values), dict(cell.exemplars))

    def add_counts(self, metric: str, series: Series, counts: Iterable[int]) -> None:
        """Add integers to a series; those of another length, as of another version, are not."""
        family = self.counts.setdefault(metric, {})
        counts = tuple(counts)
        known = family.get(series)
        if known is None:
            family[series] = counts
        elif len(known) == len(counts):
            family[series] = tuple(map(add, known, counts))

    def add_exemplars(self, metric: str, series: Series, exemplars: dict[int, Exemplar]) -> None:
        """Let the newest exemplar of each bucket stay."""
        known = self.exemplars.setdefault(metric, {}).setdefault(series, {})
        for bucket, exemplar in exemplars.items():
            if bucket not in known or known[bucket].timestamp <= exemplar.timestamp:
                known[bucket] = exemplar

    def add_levels(self, owner: str, levels: Iterable[Level]) -> None:
        """Add what gauges are now, summed or the largest as the metric says."""
        for metric, values, value in levels:
            family = self.levels.setdefault(metric.name, {})
            series = Series(owner, values)
            known = family.get(series)
            if known is None:
                family[series] = value
            else:
                family[series] = (
                    known + value if metric.across_workers == "sum" else max(known, value)
                )


_COUNTED = {**METRICS, PLAIN.name: PLAIN, STAGED.name: STAGED}


def is_published(name: str, values: Labels, size: int) -> bool:
    """Return whether there is a metric with cells of this name, labels and size."""
    metric = _COUNTED.get(name)
    if metric is None or metric.kind == "gauge":
        return False
    expected = len(metric.row) or 1 if metric.grid is None else len(metric.grid.edges) + 2
    return size == expected and len(values) == len(metric.labels) - bool(metric.row)


def families(snapshot: Snapshot) -> Iterator[Family | HistogramFamily]:
    """Yield the families that have a sample, in the order of their declaration."""
    _tell_of_plain_requests(snapshot)
    for metric in METRICS.values():
        if metric.kind == "histogram":
            if snapshot.counts.get(metric.name):
                yield _histogram(metric, snapshot)
            continue
        if metric is OUTCOMES:
            samples = _outcomes(snapshot)
        else:
            samples = _counters(metric, snapshot) + _levels(metric, snapshot)
        if samples:
            yield Family(metric.name, metric.kind, metric.help, samples)


def _tell_of_plain_requests(snapshot: Snapshot) -> None:
    """Add plain requests to the families that count all: none of them was slow."""
    for metric in (PLAIN, STAGED):
        for (owner, values), counts in snapshot.counts.pop(metric.name, {}).items():
            snapshot.pause()
            snapshot.add_counts(REQUESTS.name, Series(owner, (*values, "ok")), [sum(counts[:-1])])
            snapshot.add_counts(REQUEST_DURATION.name, Series(owner, values[:1]), counts)
            if metric is PLAIN:
                unattributed = Series(owner, ("unattributed",))
                snapshot.add_counts(STAGE_DURATION.name, unattributed, counts)
                snapshot.add_counts(STAGE_SECONDS.name, unattributed, [counts[-1], 0])


_label_texts: dict[tuple[str, str, Labels], str] = {}
_LABEL_TEXTS = 100_000  # kept at most; more than the caps of several services allow


def label_text(metric: Metric, owner: str, values: Labels) -> str:
    """Return rendered labels with `service` first, kept for the next scrape."""
    key = (metric.name, owner, values)
    text = _label_texts.get(key)
    if text is None:
        if len(_label_texts) >= _LABEL_TEXTS:
            _label_texts.clear()
        pairs = dict(zip(metric.labels, values, strict=True))
        text = _label_texts[key] = labels(service=owner, **pairs)
    return text


def _under_services(series: Series, snapshot: Snapshot) -> Iterator[Series]:
    if series.owner != PROCESS:
        yield series
        return
    for service in snapshot.services:
        yield Series(service, series.values)


def _outcomes(snapshot: Snapshot) -> list[tuple[str, float]]:
    with_requests = snapshot.counts.get(OUTCOMES.name, {})
    totals = {(each.owner, outcome): 0 for each in with_requests for outcome in OUTCOMES.row}
    for (service, values), counts in snapshot.counts.get(REQUESTS.name, {}).items():
        snapshot.pause()
        if (service, values[-1]) in totals:  # a newer worker may have another outcome
            totals[service, values[-1]] += counts[0]
    return [
        (label_text(OUTCOMES, service, (outcome,)), total)
        for (service, outcome), total in totals.items()
    ]


def _counters(metric: Metric, snapshot: Snapshot) -> list[tuple[str, float]]:
    samples: list[tuple[str, float]] = []
    for series, counts in snapshot.counts.get(metric.name, {}).items():
        snapshot.pause()
        for owner, values in _under_services(series, snapshot):
            for value, count in zip(metric.row or (None,), counts, strict=True):
                label_values = values if value is None else (*values, value)
                text = label_text(metric, owner, label_values)
                samples.append((text, count if metric.unit == 1 else count / metric.unit))
    return samples


def _levels(metric: Metric, snapshot: Snapshot) -> list[tuple[str, float]]:
    return [
        (label_text(metric, owner, values), value)
        for series, value in snapshot.levels.get(metric.name, {}).items()
        for owner, values in _under_services(series, snapshot)
    ]


def _histogram(metric: Metric, snapshot: Snapshot) -> HistogramFamily:
    grid = metric.grid
    assert grid is not None
    series = _series(metric, grid.unit, snapshot)
    return HistogramFamily(metric.name, metric.help, grid.published, series)


def _series(metric: Metric, unit: int, snapshot: Snapshot) -> Iterator[HistogramSeries]:
    exemplars = snapshot.exemplars.get(metric.name, {})
    for each, counts in snapshot.counts[metric.name].items():
        snapshot.pause()
        for owner, values in _under_services(each, snapshot):
            text = label_text(metric, owner, values)
            yield HistogramSeries(text, counts[:-1], counts[-1] / unit, exemplars.get(each))
