"""The servers of these tests end with them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.browser import backend

RUN_A_SERVER = """
import sys, time
from tests.browser.backend import running

port = sys.argv[1]
server = [sys.executable, "-m", "http.server", "--bind=127.0.0.1", port]
with running(server, f"http://127.0.0.1:{port}/"):
    print("ready", flush=True)
    time.sleep(60)
"""


def is_answered(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_does_not_outlive_tests_that_are_killed() -> None:
    port = backend.free_port()
    with subprocess.Popen(
        [sys.executable, "-c", RUN_A_SERVER, str(port)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == "ready\n"
        assert is_answered(port)
        tests.kill()
    deadline = time.monotonic() + 10
    while is_answered(port):
        assert time.monotonic() < deadline, "the server still answers"
        time.sleep(0.05)
