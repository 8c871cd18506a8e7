"""Which traces are kept: a share decided at the beginning, and some more by how they ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

logger = logging.getLogger("tailwatch_tracing")

KEPT_PER_SECOND = 10
"""Slow or failed requests of a service and process that are kept without having been sampled."""

_RATIO_BITS = 64  # of a trace id's low bits, as the SDK's samplers decide by
LOW_BITS = (1 << _RATIO_BITS) - 1

_SAMPLERS = {  # name -> does a parent decide, share (None: OTEL_TRACES_SAMPLER_ARG)
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}


class Sampling(NamedTuple):
    """What OTEL_TRACES_SAMPLER says.

    A root is sampled when the low 64 bits of its trace id are below `bound`: every service that
    uses the same ratio decides alike. `keeps_late` is whether slow or failed ones are kept as well.
    """

    follows_parent: bool
    bound: int
    keeps_late: bool


def sampling_from(environ: Mapping[str, str]) -> Sampling:
    """Return what the variables say; a value out of its range is said and taken as the default."""
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    if name not in _SAMPLERS:
        logger.warning("OTEL_TRACES_SAMPLER=%s: expected one of %s", name, ", ".join(_SAMPLERS))
        name = "parentbased_always_on"
    follows_parent, share = _SAMPLERS[name]
    if share is None:
        share = _ratio(environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1")
    return Sampling(follows_parent, round(share * (1 << _RATIO_BITS)), name != "always_off")


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if 0 <= ratio <= 1:
        return ratio
    logger.warning("OTEL_TRACES_SAMPLER_ARG=%s: expected a ratio from 0 to 1", text)
    return 1.0


class KeepBudget:
    """Lets `KEPT_PER_SECOND` traces of a second through, so that an outage is no flood."""

    __slots__ = ("_left", "_until_ns")

    def __init__(self) -> None:
        self._left = 0
        self._until_ns = 0

    def take(self, now_ns: int) -> bool:
        """Return whether one more may be kept."""
        if now_ns >= self._until_ns:
            self._until_ns = now_ns + 1_000_000_000
            self._left = KEPT_PER_SECOND
        self._left -= 1
        return self._left >= 0
