"""Run a server of the stack for a test, on a free loopback port, and ask its HTTP API."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
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


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Return the condition's first true value; fail after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return value


class Server:
    """A started server and its API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        """Return the JSON at a path, or None while the server is not ready."""
        try:
            with urllib.request.urlopen(self._url + path, timeout=10) as response:
                return json.load(response)
        except (urllib.error.URLError, ConnectionError):
            return None

    def post(self, path: str, document: object) -> None:
        """Post a JSON document."""
        request = urllib.request.Request(
            self._url + path, json.dumps(document).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10):
            pass


@contextmanager
def server(port: int, log: Path, command: list[str | Path]) -> Iterator[Server]:
    """Run a server that listens on `port`; it ends with the block."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield Server(port)
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)
