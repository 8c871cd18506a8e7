"""Run a server of the stack for a test, on a free loopback port, and ask its HTTP API."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 30.0


def free_port() -> int:
    """Return a port on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(condition: Callable[[], Any], what: Callable[[], str]) -> Any:
    """Return the condition's first true value; fail after PATIENCE_SECONDS with what it was."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)
    return value


class Server:
    """A started server and its API."""

    def __init__(self, port: int, log: Path) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._log = log

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Return the condition's first true value; a failure shows the server's log."""
        return wait_for(condition, self._log.read_text)

    def get(self, path: str) -> Any:
        """Return the JSON at a path, or None while the server is not ready."""
        try:
            with urllib.request.urlopen(self._url + path, timeout=5) as response:
                return json.load(response)
        except (OSError, ValueError):  # nothing listens yet, or it is not that server
            return None

    def post(self, path: str, document: object) -> None:
        """Post a JSON document."""
        request = urllib.request.Request(
            self._url + path, json.dumps(document).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10):
            pass


@contextmanager
def server(command: Callable[[int], list[str | Path]], ready: str, log: Path) -> Iterator[Server]:
    """Run a server until the block ends. It has answered at the path `ready` when it is yielded.

    `command` is given a free port; when another process takes that first, a next one is tried.
    """
    for _ in range(3):
        port = free_port()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command(port), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            started = Server(port, log)
            if _is_up(process, started, ready):
                yield started
                return
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)
    raise AssertionError(log.read_text())


def _is_up(process: subprocess.Popen[bytes], started: Server, ready: str) -> bool:
    started.wait_for(lambda: process.poll() is not None or started.get(ready))
    return process.poll() is None
