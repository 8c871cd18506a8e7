"""How long to wait before a service that ended is started again."""

from __future__ import annotations

_LONGEST_SECONDS = 60
_STEADY_SECONDS = 60.0


class Backoff:
    """The waits of one service: none, then 1, 2, 4 ... 60 seconds as long as it keeps ending."""

    def __init__(self) -> None:
        self._last_seconds: int | None = None

    def next_seconds(self, ran_seconds: float) -> int:
        """Return the wait after a run that lasted `ran_seconds`; a minute or more begins anew."""
        if self._last_seconds is None or ran_seconds >= _STEADY_SECONDS:
            self._last_seconds = 0
        else:
            self._last_seconds = min(max(1, 2 * self._last_seconds), _LONGEST_SECONDS)
        return self._last_seconds
