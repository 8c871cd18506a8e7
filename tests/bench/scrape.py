"""An exporter as a process of its own, scraped as Prometheus does."""

from __future__ import annotations

import gzip
import http.client
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.bench.harness import first_core

# What Prometheus 3 sends: a peer that answers with gzip or OpenMetrics is asked for it.
_HEADERS = {
    "User-Agent": "Prometheus/3.16.0",
    "Accept": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "X-Prometheus-Scrape-Timeout-Seconds": "10",
}
_START_SECONDS = 20.0


class Exporter:
    """A running exporter on a free port of loopback, pinned to one core, ended on exit.

    `{port}` in the command is replaced. The connection is kept alive where the exporter allows it,
    as Prometheus does.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None):
        self.port = _free_port()
        self.command = [part.replace("{port}", str(self.port)) for part in command]
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self.command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        os.sched_setaffinity(self._process.pid, {first_core()})
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def scrape(self) -> tuple[float, str]:
        """Return how many seconds the answer took and its text.

        Raises:
            RuntimeError: a status other than 200.
        """
        start = time.perf_counter()
        self._connection.request("GET", "/metrics", headers=_HEADERS)
        answer = self._connection.getresponse()
        body = answer.read()
        seconds = time.perf_counter() - start
        if answer.status != 200:
            raise RuntimeError(f"{self.command[0]}: status {answer.status}, expected 200")
        if answer.getheader("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        return seconds, body.decode()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.scrape()
                return
            except OSError:
                self._connection.close()
            status = self._process.poll()
            if status is not None:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace").strip()
                raise RuntimeError(f"{' '.join(self.command)}: exit status {status}: {said}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.command[0]}: no answer within {_START_SECONDS:g} s")
            time.sleep(0.05)

    def _stop(self) -> None:
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def samples(page: str) -> int:
    """Return the number of samples on a page."""
    return sum(1 for line in page.splitlines() if line and not line.startswith("#"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
