"""Which of several workers serves the page on a port."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class PortLease:
    """A file that the one that serves on a port holds locked, until it dies.

    Args:
        path: Of the file, the same for all workers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> bool:
        """Return whether it is ours from now on; else a live sibling has it.

        Again is harmless, and needed: who holds a file that was removed holds nothing that a new
        sibling can see.

        Raises:
            OSError: the file cannot be opened.
        """
        if self._is_held():
            return True
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self.drop()
        self._fd = fd
        return True

    def _is_held(self) -> bool:
        try:
            return self._fd >= 0 and os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let a sibling have it."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self.drop()

    def drop(self) -> None:
        """Close the descriptor: in a forked child, so that the lock is the parent's alone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
