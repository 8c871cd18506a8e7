"""A server as a process of its own, pinned to one core, that is waited for and ended."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.bench.harness import first_core

_START_SECONDS = 30.0


class ServerProcess:
    """Runs a command from `with` to its end; entered once the server answers.

    Args:
        command: What is run.
        environment: Added to the process's.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None) -> None:
        self.command = command
        self._environment = {**os.environ, **(environment or {})}

    def ask(self) -> None:
        """Ask the server for an answer.

        Raises:
            OSError: it does not answer yet.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self.command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=lambda: os.sched_setaffinity(0, {first_core()}),
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.ask()
                return
            except OSError:
                pass
            status = self._process.poll()
            if status is not None or time.monotonic() > deadline:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace").strip()
                state = "no answer" if status is None else f"exit status {status}"
                raise RuntimeError(f"{' '.join(self.command)}: {state}: {said}")
            time.sleep(0.05)


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
