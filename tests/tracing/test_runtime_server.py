"""Time before the handler, on a real server: clients wait it, no request's duration has it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

from tests.tracing.asgi import page_values

LOOPS = ("asyncio", "uvloop")


class Server:
    """A running server; `get` returns what a client waited in seconds, and the body."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> tuple[float, str]:
        start = time.perf_counter()
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", path)
            body = connection.getresponse().read().decode()
        finally:
            connection.close()
        return time.perf_counter() - start, body

    def value(self, name: str, *labels: str, of: tuple[str, ...] = ()) -> float:
        return page_values(self.get("/metrics")[1], name, labels)[of]


@pytest.fixture(params=LOOPS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    command = f"-m uvicorn tests.tracing.runtime_app:app --port 0 --loop {request.param}"
    process = subprocess.Popen(
        [sys.executable, *command.split()], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"running on http://127.0.0.1:(\d+)", line):
                yield Server(int(found[1]))
                return
        raise AssertionError("the server did not start")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_blocked_loop_and_a_full_thread_pool_show(server: Server) -> None:
    server.get("/quick")
    time.sleep(0.1)
    with ThreadPoolExecutor(80) as clients:
        # The loop is blocked for a second while requests arrive.
        blocking = clients.submit(server.get, "/block")
        time.sleep(0.2)
        waits = [each[0] for each in clients.map(server.get, ["/quick"] * 10)]
        blocking.result()
        assert min(waits) > 0.6, "the clients did wait"
        told = server.value("inference_request_duration_seconds_sum", "route", of=("/quick",))
        assert told < sum(waits) / 2, "and their durations do not say so"
        lost = server.value("python_event_loop_lost_seconds_total")
        assert 0.95 < lost < 3
        assert 0.95 < server.value("python_event_loop_lag_max_seconds") <= lost

        # 80 sync endpoints over 40 threads.
        requests = [clients.submit(server.get, "/work") for _ in range(80)]
        time.sleep(0.3)
        page = server.get("/metrics")[1]
        state = [
            page_values(page, f"python_threadpool_{name}", ["pool"])[("anyio",)]
            for name in ("busy", "limit", "waiting")
        ]
        assert state == [40, 40, 40]
        clients_waited = sum(each.result()[0] - 0.5 for each in requests)
    waited = server.value("python_threadpool_wait_seconds_total", "pool", of=("anyio",))
    assert 0.65 * 40 * 0.5 < waited < 1.1 * clients_waited
    assert server.value("python_threadpool_waiting", "pool", of=("anyio",)) == 0
