"""What every benchmark shares: interleaving, isolation, and what may be said of the numbers.

A slot is one pass over all variants. Slots see different moments of the machine and, where they
run in fresh processes, different memory layouts; a ratio is taken inside a slot, so what all its
variants shared cancels, and the spread over slots is the spread of the answer.
"""

from __future__ import annotations

import enum
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

MINIMUM_SLOTS = 6  # below that no 95 % interval of a median exists: 2 * 0.5**5 = 6.25 %

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Interval:
    """A median and the bounds that hold the true median with at least 95 % confidence."""

    median: float
    low: float
    high: float


class Verdict(enum.Enum):
    """What a run may say about a goal."""

    MET = "met"
    MISSED = "MISSED"
    NOISY = "SPREAD EXCEEDS MARGIN"
    INFORMATION = ""


@dataclass(frozen=True)
class Result:
    """One line of the report; `limit` is the goal, an upper bound, or None for information."""

    bench: str
    what: str
    unit: str
    interval: Interval
    limit: float | None = None

    @property
    def verdict(self) -> Verdict:
        """Met only when the whole interval is within the goal."""
        if self.limit is None:
            return Verdict.INFORMATION
        if self.interval.median > self.limit:
            return Verdict.MISSED
        return Verdict.MET if self.interval.high <= self.limit else Verdict.NOISY


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median with its distribution-free 95 % interval, from order statistics.

    The number of values below the true median is binomial with p = 1/2, whatever the values'
    distribution, so the k-th smallest and k-th largest hold it with 1 - 2 P(X < k).

    Raises:
        ValueError: fewer than six values, for which no pair of them is 95 % certain.
    """
    count = len(values)
    if count < MINIMUM_SLOTS:
        raise ValueError(f"{count} slots, need {MINIMUM_SLOTS} for a 95 % interval")
    outside, rank = 0.0, 0
    while True:
        outside += math.comb(count, rank) * 0.5**count
        if 2 * outside > 0.05:
            break
        rank += 1
    ordered = sorted(values)
    return Interval(statistics.median(ordered), ordered[rank - 1], ordered[count - rank])


def mirrored(variants: Sequence[T]) -> list[T]:
    """Return A B C C B A: over the pass, a linear drift costs every variant the same."""
    return [*variants, *reversed(variants)]


def added_ratio(slots: Sequence[Mapping[str, float]], ours: str, peer: str, base: str) -> Interval:
    """Return (ours - base) / (peer - base), slot by slot.

    Raises:
        ValueError: a slot in which the peer cost nothing: the benchmark does not measure it.
    """
    ratios = []
    for slot in slots:
        cost = slot[peer] - slot[base]
        if cost <= 0:
            raise ValueError(f"{peer} added {cost:.3g} to {base}, expected more than 0")
        ratios.append((slot[ours] - slot[base]) / cost)
    return median_interval(ratios)


def added(slots: Sequence[Mapping[str, float]], variant: str, base: str) -> Interval:
    """Return variant - base, slot by slot."""
    return median_interval([slot[variant] - slot[base] for slot in slots])


def first_core() -> int:
    """Return the lowest core this process may run on: what is timed is pinned to it."""
    return min(os.sched_getaffinity(0))


def in_fresh_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what the function returns in a new interpreter pinned to one core."""
    with ProcessPoolExecutor(
        max_workers=1,
        mp_context=get_context("spawn"),
        initializer=os.sched_setaffinity,
        initargs=(0, {first_core()}),
    ) as pool:
        return pool.submit(function, *args, **kwargs).result()


def table(results: Sequence[Result]) -> str:
    """Return the results as a Markdown table."""
    head = ["benchmark", "what", "median", "95 % interval", "goal", "verdict"]
    rows = [
        [
            result.bench,
            result.what,
            f"{result.interval.median:.3g} {result.unit}",
            f"{result.interval.low:.3g} .. {result.interval.high:.3g}",
            "" if result.limit is None else f"<= {result.limit:g} {result.unit}",
            result.verdict.value,
        ]
        for result in results
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
