"""What ranks tell each other, through the key-value store they have met in.

No collective operation is used: a rank that tells nothing, or runs late, holds nobody up. Each rank
overwrites one key of a kilobyte or two, and reads that of one other rank, by turns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tailwatch_tracing.training.sample_order import Order


class Report(NamedTuple):
    """What one rank tells of one step: the order of its epoch, BatchNorm's means and variances."""

    step: int
    order: Order | None
    means: list[float]
    variances: list[float]


class Ranks:
    """This rank's part in it.

    Args:
        store: torch.distributed's store, of which `set`, `get` and `check` are used.
        prefix: Of the keys; ranks of one prefix are compared.
        rank: This one.
        world_size: How many there are.
    """

    def __init__(self, store: Any, prefix: str, rank: int, world_size: int) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._world_size = world_size
        self._turn = 0
        self.own: Report | None = None

    def tell(self, report: Report) -> None:
        """Overwrite what this rank has told before."""
        self.own = report
        self._store.set(f"{self._prefix}/{self._rank}", json.dumps(report))

    def other(self) -> Report | None:
        """Return what another rank tells of the step of this rank's own report, if it does yet."""
        if self.own is None or self._world_size < 2:
            return None
        distance = self._turn % (self._world_size - 1) + 1
        self._turn += 1
        key = f"{self._prefix}/{(self._rank + distance) % self._world_size}"
        if not self._store.check([key]):
            return None
        step, order, means, variances = json.loads(self._store.get(key))
        if step != self.own.step:
            return None
        return Report(step, None if order is None else Order(*order), means, variances)


def spread(a: Report, b: Report) -> float | None:
    """Return how far the statistics of two ranks differ, in standard deviations; None of none.

    That is the standard deviation between the two ranks: of the means, in units of the running
    standard deviation, or of the logarithm of the latter, whichever is larger; as root mean square
    over channels.
    """
    if not a.means or len(a.means) != len(b.means):
        return None
    channels = [
        each
        for each in zip(a.means, b.means, a.variances, b.variances, strict=True)
        if _sound(each)
    ]
    if not channels:
        return None
    of_means = [(m - n) ** 2 / (v + w) for m, n, v, w in channels]  # (m-n)²/2 over (v+w)/2
    of_deviations = [math.log(v / w) ** 2 / 8 for _, _, v, w in channels]  # ln(sqrt(v/w))²/2
    return max(_root_mean(of_means), _root_mean(of_deviations))


def _sound(channel: Sequence[float]) -> bool:
    return all(map(math.isfinite, channel)) and channel[2] > 0 and channel[3] > 0


def _root_mean(squares: Sequence[float]) -> float:
    return math.sqrt(sum(squares) / len(squares))
