"""What a worker tells its siblings of now: gauges, exemplars, and its garbage collector.

One small text, a JSON value a line, which is replaced as a whole.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tailwatch_tracing.cells import CellStore, HistogramCell, Labels
from tailwatch_tracing.exposition import Exemplar
from tailwatch_tracing.families import METRICS, OLDEST_IN_FLIGHT
from tailwatch_tracing.page import Level, Series, Snapshot
from tailwatch_tracing.worker_file import Unreadable


class Head(NamedTuple):
    """When the text was written, on the clock that all processes share, and gc.get_stats() then."""

    monotonic_ns: int
    collector: list[dict[str, int]]


class LevelsFile:
    """This worker's text; written only when something has changed, removed if it cannot be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_suffix(".new")
        self._body = ""

    def write(self, levels: Iterable[tuple[str, Level]], exemplars: str, monotonic_ns: int) -> None:
        """Replace the text.

        Args:
            levels: Owner and level.
            exemplars: As from `exemplar_lines`.
            monotonic_ns: Now, by CLOCK_MONOTONIC.

        Raises:
            OSError: the file cannot be written.
        """
        body = exemplars + "".join(
            _line("level", level.metric.name, owner, level.values, float(level.value))
            for owner, level in levels
            if level.metric.kind == "gauge"  # counters that are no cells are the kernel's, for all
        )
        if body != self._body:
            head = json.dumps(Head(monotonic_ns, gc.get_stats()))
            try:
                self._unfinished.write_text(f"{head}\n{body}")
                os.replace(self._unfinished, self._path)
            except OSError:
                self._retract()
                raise
            self._body = body

    def _retract(self) -> None:
        """Say nothing rather than what was: a request that has ended would grow older for ever."""
        self._body = ""
        for path in (self._path, self._unfinished):
            with suppress(OSError):
                path.unlink()


def exemplar_lines(stores: Iterable[CellStore]) -> str:
    """Return a line for each histogram series that has exemplars."""
    lines = []
    for store in stores:
        for (name, values), cell in list(store.cells.items()):
            if isinstance(cell, HistogramCell) and cell.exemplars:
                lines.append(_line("exemplars", name, store.owner, values, dict(cell.exemplars)))
    return "".join(lines)


def read_head(path: Path) -> Head | None:
    """Return a worker's head, None if it has not written yet.

    Raises:
        Unreadable: the line is damaged.
    """
    try:
        with open(path) as text:
            return _head(text.readline())
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as error:
        raise Unreadable(path, "torn", f"the first line is damaged: {error}") from None


def read_into(snapshot: Snapshot, path: Path, monotonic_ns: int) -> None:
    """Add a worker's levels and exemplars to a snapshot.

    The age of its oldest request goes on growing while the worker hangs and writes nothing.

    Raises:
        Unreadable: a line is damaged; those before it are in.
    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:  # it has just begun, or ended
        return
    except ValueError as error:  # not UTF-8
        raise Unreadable(path, "torn", str(error)) from None
    try:
        passed_seconds = max(0, monotonic_ns - _head(lines[0]).monotonic_ns) / 1e9
        for line in lines[1:]:
            kind, name, owner, values, content = json.loads(line)
            series = Series(str(owner), tuple(map(str, values)))
            if kind == "level":
                level = _level(name, series.values, float(content), passed_seconds)
                snapshot.add_levels(series.owner, level)
            elif kind == "exemplars":
                exemplars = {int(bucket): _exemplar(*each) for bucket, each in content.items()}
                snapshot.add_exemplars(name, series, exemplars)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise Unreadable(path, "torn", f"a line is damaged: {error}") from None


def _level(name: str, values: Labels, value: float, passed_seconds: float) -> Iterator[Level]:
    metric = METRICS.get(name)
    if metric is None or metric.kind != "gauge" or len(values) != len(metric.labels):
        return  # another version's
    if metric is OLDEST_IN_FLIGHT and value > 0:
        value += passed_seconds
    yield Level(metric, values, value)


def _exemplar(trace_id: str, span_id: str, value: float, timestamp: float) -> Exemplar:
    return Exemplar(str(trace_id), str(span_id), float(value), float(timestamp))


def _head(line: str) -> Head:
    monotonic_ns, collector = json.loads(line)
    return Head(
        int(monotonic_ns),
        [{key: int(value) for key, value in generation.items()} for generation in collector],
    )


def _line(kind: str, *content: Any) -> str:
    return json.dumps([kind, *content]) + "\n"
