"""What one sample of one GPU is made with: the values gathered, and the calls that gather them."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

from tailwatch_exporters._nvml import LIFECYCLE_CODES, SETTLED_CODES, NvmlError
from tailwatch_tracing.exposition import labels

logger = logging.getLogger(__name__)

T = TypeVar("T")
Samples = dict[str, list[tuple[str, float]]]
"""Family name -> (rendered label text, value)."""

Key = tuple[object, ...]
"""What is asked for: a call's name and arguments, or a field and its scope."""

COUNTER_LIMIT = 2.0**62
U32_LIMIT = 2.0**32 - 2
"""Largest believable answers: NVML's "not available" is the largest number of the type."""

SETTLED_SAMPLES = 60
"""A call that answered "not supported" rests for so many samples."""


@lru_cache(maxsize=8192)
def device_labels(uuid: str, *pairs: tuple[str, str]) -> str:
    """Return the label text of a GPU's series."""
    return labels(uuid=uuid, **dict(pairs))


class SampleBuilder:
    """Gathers one sample's values; what cannot be true is counted, not published.

    Args:
        uuid: of the GPU.
        rejected: counts per NVML field, kept over samples.
    """

    def __init__(self, uuid: str, rejected: Counter[str]) -> None:
        self._uuid = uuid
        self._rejected = rejected
        self.samples: Samples = {}

    def add(self, family: str, value: float, *pairs: tuple[str, str]) -> None:
        """Add a value with its labels beside uuid."""
        self.samples.setdefault(family, []).append((device_labels(self._uuid, *pairs), value))

    def reject(self, field: str) -> None:
        """Count an answer that is not published."""
        self._rejected[field] += 1

    def is_plausible(self, field: str, value: float, limit: float) -> bool:
        """Return whether a value lies in 0..limit; count it as rejected otherwise.

        Drivers answer "unknown" with the largest number of the type, and with worse.
        """
        if math.isfinite(value) and 0 <= value <= limit:
            return True
        self.reject(field)
        return False

    def add_percent(
        self, family: str, percent: float, field: str, *pairs: tuple[str, str]
    ) -> float | None:
        """Add a percentage as a ratio; return the ratio, None when it was rejected."""
        if not self.is_plausible(field, percent, 101.0):  # GPM rounds above 100
            return None
        ratio = min(1.0, percent / 100)
        self.add(family, ratio, *pairs)
        return ratio


class _Settled(NamedTuple):
    code: int
    until_sample: int


class DeviceCalls:
    """Makes the NVML calls of one device; an error is counted and concerns that call alone.

    Args:
        device_name: how the log names the device.
        errors: counts per (NVML function, code), kept over samples.
    """

    def __init__(self, device_name: str, errors: Counter[tuple[str, int]]) -> None:
        self._device_name = device_name
        self._errors = errors
        self._sample = 0
        self._settled: dict[Key, _Settled] = {}
        self._answered = 0
        self._lost = 0

    def begin_sample(self) -> None:
        """Start counting answers for `is_lost` anew."""
        self._sample += 1
        self._answered = self._lost = 0

    def is_lost(self) -> bool:
        """Return whether this sample's calls say that the device or its driver is gone.

        A driver goes on to answer some calls from memory, so not every call need fail.
        """
        return self._lost >= self._answered

    def attempt(self, call: Callable[..., T], *arguments: object, key: Key = ()) -> T | None:
        """Return the call's answer, None when it failed or rests.

        Args:
            call: raises NvmlError.
            arguments: of the call.
            key: what tells it from other calls, by default its name and arguments.
        """
        key = key or (call.__name__, *arguments)
        if self.rests(key):
            return None
        try:
            answer = call(*arguments)
        except NvmlError as error:
            self.count_error(error)
            if error.code in SETTLED_CODES:
                self.settle(key, error.code)
            return None
        self._answered += 1
        return answer

    def rests(self, key: Key) -> bool:
        """Return whether what was asked for was settled not long ago."""
        settled = self._settled.get(key)
        return settled is not None and self._sample < settled.until_sample

    def settled_code(self, *key: object) -> int:
        """Return the code that settled a call, 0 when it was not settled lately."""
        return self._settled[key].code if self.rests(key) else 0

    def settle(self, key: Key, code: int) -> None:
        """Do not ask for `key` in the next samples."""
        self._settled[key] = _Settled(code, self._sample + SETTLED_SAMPLES)

    def forget_settled(self) -> None:
        """Ask for everything again: the handle is new."""
        self._settled.clear()

    def count_error(self, error: NvmlError) -> None:
        """Count an error; the first of its kind is logged."""
        if error.code in LIFECYCLE_CODES:
            self._lost += 1
        if (error.call, error.code) not in self._errors:
            level = logging.INFO if error.code in SETTLED_CODES else logging.WARNING
            logger.log(level, "%s: %s", self._device_name, error)
        self._errors[error.call, error.code] += 1
