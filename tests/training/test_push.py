"""A page pushed over the Pushgateway's protocol, to a server that records."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

import pytest

from tailwatch_tracing import families
from tailwatch_tracing.service import Owner, job_named
from tailwatch_tracing.training.push import PagePush
from tests.tracing.asgi import page_values

Received = tuple[str, str, str]


class Gateway:
    """Answers 202 as a Pushgateway does, and keeps method, path and body."""

    def __init__(self, port: int = 0) -> None:
        self.received: Queue[Received] = Queue()
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                received.put((self.command, self.path, body))
                self.send_response(202)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    yield gateway
    gateway.close()


@pytest.fixture
def job() -> Owner:
    job = job_named("resnet50")
    job.store.counter(families.TRAINING_STEPS, "resnet50", "3").counts[0] = 7
    return job


Push = Callable[..., PagePush]


@pytest.fixture
def push(job: Owner) -> Iterator[Push]:
    started: list[PagePush] = []

    def start(port: int, every_seconds: float = 3600) -> PagePush:
        started.append(
            PagePush(
                f"127.0.0.1:{port}",
                "resnet50",
                {"rank": "3"},
                every_seconds,
                lambda: job.count_error("push"),
            )
        )
        return started[-1]

    yield start
    for each in started:
        each.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def errors(job: Owner) -> int:
    place = families.ERRORS.row.index("push")
    return job.store.counter(families.ERRORS).counts[place]


def test_the_last_page_is_pushed_at_the_end(gateway: Gateway, push: Push, job: Owner) -> None:
    """Once, under the job's name and rank, as the page has it."""
    push(gateway.port).close()
    method, path, body = gateway.received.get(timeout=10)
    assert (method, path) == ("PUT", "/metrics/job/resnet50/rank/3")
    steps = page_values(body, "training_steps_total", ["service", "job_name", "rank"])
    assert steps == {("resnet50", "resnet50", "3"): 7}
    assert gateway.received.empty()
    assert errors(job) == 0


def test_pushes_follow_each_other_until_the_end(gateway: Gateway, push: Push) -> None:
    pusher = push(gateway.port, every_seconds=0.01)
    for _ in range(3):
        gateway.received.get(timeout=10)
    pusher.close()
    while not gateway.received.empty():
        gateway.received.get()
    pusher.close()
    assert gateway.received.empty()


def test_a_gateway_that_is_down_costs_one_warning(
    push: Push, job: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    """Each push that fails is counted; when the gateway is back, the page arrives."""
    port = free_port()
    with caplog.at_level(logging.WARNING, "tailwatch_tracing"):
        pusher = push(port, every_seconds=0.01)
        while errors(job) < 3:
            pass
    (record,) = caplog.records
    assert f"cannot be pushed to 127.0.0.1:{port}" in record.getMessage()
    gateway = Gateway(port)
    try:
        _, _, body = gateway.received.get(timeout=10)
        pusher.close()
    finally:
        gateway.close()
    assert page_values(body, "tailwatch_errors_total", ["where"])[("push",)] >= 3


def test_a_forked_child_pushes_nothing(gateway: Gateway, push: Push) -> None:
    """A data loader's process is no rank: what it knows is of the moment it was forked."""
    pusher = push(gateway.port)
    child = os.fork()
    if child == 0:
        pusher.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert gateway.received.empty()


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_an_interval_is_above_0(push: Push, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"every_seconds=.*: expected seconds above 0"):
        push(1, every_seconds=seconds)
