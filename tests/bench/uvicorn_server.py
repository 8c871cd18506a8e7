"""Uvicorn with one worker, as a process of its own, pinned to one core."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.bench.harness import first_core

ASYNCIO_H11 = ("--loop", "asyncio", "--http", "h11")
UVLOOP_HTTPTOOLS = ("--loop", "uvloop", "--http", "httptools")

_START_SECONDS = 30.0


class UvicornServer:
    """Serves an application of the benchmarks on a free port of loopback; ended on exit.

    Args:
        factory: `module:function` that returns the application.
        path: What it answers with 200.
        options: Of uvicorn.
        environment: Added to the process's.
    """

    def __init__(
        self,
        factory: str,
        path: str,
        options: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        self._path = path
        self._command = [sys.executable, "-m", "uvicorn", "--factory", factory, *options]
        self._command += ["--port", str(self.port), "--no-access-log", "--log-level", "warning"]
        self._environment = {**os.environ, **(environment or {})}

    @property
    def url(self) -> str:
        """What to ask for."""
        return f"http://127.0.0.1:{self.port}{self._path}"

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
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

    def get(self, path: str) -> bytes:
        """Return a body.

        Raises:
            RuntimeError: a status other than 200.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: status {answer.status}, expected 200")
        return body

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.get(self._path)
                return
            except OSError:
                pass
            status = self._process.poll()
            if status is not None or time.monotonic() > deadline:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace").strip()
                state = "no answer" if status is None else f"exit status {status}"
                raise RuntimeError(f"{' '.join(self._command)}: {state}: {said}")
            time.sleep(0.05)


def other_cores() -> set[int]:
    """Return the cores that are left to clients; the server's, where there is no other."""
    cores = os.sched_getaffinity(0)
    return cores - {first_core()} or cores
