"""The largest of what happened lately."""

from __future__ import annotations

WINDOW_SECONDS = 60
_SLOT_SECONDS = 5


class WindowMaximum:
    """The largest value of the last minute, to within a slot of 5 s; reading changes nothing."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}

    def note(self, value: int, now_ns: int) -> None:
        """Take a value in, and drop the slots that have left the window."""
        slot = now_ns // (_SLOT_SECONDS * 10**9)
        if value > self._slots.get(slot, 0):
            self._slots[slot] = value
        for old in list(self._slots):
            if old < slot - WINDOW_SECONDS // _SLOT_SECONDS:
                self._slots.pop(old, None)

    def read(self, now_ns: int) -> int:
        """Return the largest value, 0 when the window is empty."""
        oldest = now_ns // (_SLOT_SECONDS * 10**9) - WINDOW_SECONDS // _SLOT_SECONDS
        return max(
            (value for slot, value in list(self._slots.items()) if slot >= oldest), default=0
        )
