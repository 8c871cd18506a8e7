"""Keeps per-core CPU times from going back where the kernel's numbers do."""

from __future__ import annotations

from collections.abc import Mapping

_GARBAGE_SECONDS = 100 * 365 * 86400
_RESET_SECONDS = 3


class CpuClock:
    """Per core and mode, ticks that only grow until the core itself starts anew.

    The kernel's iowait, idle and steal go back by a little when a core's accounting is read while
    it changes, and steal has been seen near 2^64. A drop below three seconds (the limit that
    node_exporter settled on) is jitter: the earlier value holds. A larger one is a core that went
    offline and came back: that core, in all modes, continues from what is read, which Prometheus
    sees as a reset. A value below zero or above a century is garbage: the earlier value holds, if
    there is one.
    """

    def __init__(self, ticks_per_second: int) -> None:
        self._reset_ticks = _RESET_SECONDS * ticks_per_second
        self._garbage_ticks = _GARBAGE_SECONDS * ticks_per_second
        self._last: dict[str, list[int | None]] = {}

    def advance(self, cpus: Mapping[str, list[int]]) -> Mapping[str, list[int | None]]:
        """Take the ticks just read; return cpu -> ticks to publish, None for unknown.

        A core that is not in `cpus` (offline) is forgotten.
        """
        last = self._last
        self._last = {cpu: self._next(last.get(cpu), ticks) for cpu, ticks in cpus.items()}
        return self._last

    def _next(self, last: list[int | None] | None, ticks: list[int]) -> list[int | None]:
        valid = [None if t > self._garbage_ticks or t < 0 else t for t in ticks]
        if last is None or self._is_reset(last, valid):
            return valid
        return [
            old if new is None or (old is not None and new < old) else new
            for old, new in zip(last, valid, strict=True)
        ]

    def _is_reset(self, last: list[int | None], valid: list[int | None]) -> bool:
        return any(
            old is not None and new is not None and old - new >= self._reset_ticks
            for old, new in zip(last, valid, strict=True)
        )
