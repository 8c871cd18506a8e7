"""Ctrl-C, SIGTERM and SIGHUP as something to wait for, so that no step is cut in half."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import NoReturn, Self

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def unwind_on_termination() -> None:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that clean-up runs.

    For the time before the first child is started, when `StopSignals` takes over.
    """

    def unwind(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, unwind)


class StopSignals:
    """Holds the stopping signals back while in the `with` block; `wait` sleeps until one comes.

    The signals are blocked, not handled: none can interrupt between the start of a child and
    the note that it was started. Children must be started with `inherited_mask`.
    """

    def __init__(self) -> None:
        self._watched = {s for s in _STOPPING if signal.getsignal(s) is not signal.SIG_IGN}
        self.inherited_mask: set[int] = set()
        self.received: int | None = None

    def __enter__(self) -> Self:
        """Block the signals."""
        self.inherited_mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._watched))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let signals through again; those that came meanwhile are done with."""
        while signal.sigtimedwait(self._watched, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self.inherited_mask)

    def wait(self, seconds: float) -> bool:
        """Sleep, at most `seconds`; return whether a signal to stop came in that time."""
        signal_info = signal.sigtimedwait(self._watched, seconds)
        if signal_info is None:
            return False
        if signal_info.si_signo == self.received == signal.SIGHUP:
            return False  # a terminal that closes tells twice, by the kernel and by the shell
        self.received = self.received or signal_info.si_signo
        return True
