"""Child processes: started with a log file, ended by pid, never outliving this process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tailwatch_stack.errors import TailwatchError

_PR_SET_PDEATHSIG = 1  # prctl(2)
_prctl = ctypes.CDLL(None, use_errno=True).prctl

LOG_TAIL_LINES = 10


@dataclass(frozen=True)
class Service:
    """A program of the stack and how to see that it works.

    Attributes:
        name: shown to the person, and the name of its log file.
        command: program and arguments.
        ready_url: answers 200 when the service is ready; None: ready as soon as it runs.
        environment: added to ours.
        working_directory: ours if None.
        detail: one short phrase on its state, asked every few seconds while it runs.
        echo: print its log lines too.
    """

    name: str
    command: Sequence[str | Path]
    ready_url: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: Path | None = None
    detail: Callable[[], str] | None = None
    echo: bool = False


class ServiceFailed(TailwatchError):
    """A service ended, or never became ready; `child` has its log."""

    def __init__(self, child: Child, failure: str) -> None:
        super().__init__(f"{child.service.name} {failure}")
        self.child = child


class Child:
    """A running service.

    Args:
        service: what to start.
        log: the file that gets its standard output and error.
        temporary: where its temporary files go, to be removed with ours.
        signal_mask: the signals it starts with blocked.

    Raises:
        TailwatchError: the program cannot be started.
    """

    def __init__(
        self, service: Service, log: Path, temporary: Path, signal_mask: Collection[int]
    ) -> None:
        self.service = service
        self.log = log
        try:
            with open(log, "ab") as output:
                # Its own session: a Ctrl-C on the terminal reaches us only, and we stop it.
                self._process = subprocess.Popen(
                    service.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "TMPDIR": str(temporary), **service.environment},
                    cwd=service.working_directory,
                    start_new_session=True,
                    preexec_fn=_before_exec(os.getpid(), signal_mask),
                )
        except OSError as error:
            what = error.filename or service.command[0]
            raise TailwatchError(
                f"{service.name} cannot be started: {what}: {error.strerror}"
            ) from error
        self.pid = self._process.pid
        self.started = time.monotonic()

    def ending(self) -> str | None:
        """Return how the process ended ("ended with exit code 1"), None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code < 0:
            return f"was killed by signal {-code} ({signal.strsignal(-code)})"
        return f"ended with exit code {code}"

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM)."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process at once (SIGKILL) and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def log_tail(self) -> list[str]:
        """Return the last lines of its log that are not empty, at most LOG_TAIL_LINES."""
        text = self.log.read_bytes()[-64 * 1024 :].decode(errors="replace")
        return [line for line in text.splitlines() if line.strip()][-LOG_TAIL_LINES:]


def _before_exec(parent: int, signal_mask: Collection[int]) -> Callable[[], None]:
    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
        # SIGKILL, since what must be gone with us cannot be asked to be.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # we were killed before the line above
            os._exit(1)

    return prepare
