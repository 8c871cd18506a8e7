"""Several workers under real servers: sums, deaths, replacements."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.tracing.asgi import page_values

ROOT = Path(__file__).parents[2]
APP = "tests.tracing.workers_app:app"
START_SECONDS = 30.0

UVICORN = ["-m", "uvicorn", APP, "--workers", "2", "--log-level", "warning"]
GUNICORN = ["-m", "gunicorn", APP, "-w", "2", "-k", "asgi", "--log-level", "warning"]
GUNICORN_WRAPPED = [part.replace(":app", ":wrapped") for part in GUNICORN]
GUNICORN_UVICORN = [part.replace("asgi", "uvicorn.workers.UvicornWorker") for part in GUNICORN]


class Service:
    """A server with its workers on a free port, ended on exit."""

    def __init__(self, command: list[str], workers_dir: Path | None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        is_gunicorn = "gunicorn" in command
        place = ["--bind", f"127.0.0.1:{self.port}"] if is_gunicorn else ["--port", str(self.port)]
        self._command = [sys.executable, *command, *place]
        self._environ = {**os.environ, "PYTHONWARNINGS": "ignore"}
        if workers_dir is not None:
            self._environ["TAILWATCH_WORKERS_DIR"] = str(workers_dir)
        self._log = tempfile.TemporaryFile()
        self.answered = 0

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=self._environ,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self.all_pids()
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

    def _stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:  # workers that are just starting do not hear it
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._log.close()

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def get(self, path: str, timeout: float = 30) -> str:
        """One request on a connection of its own, so that any worker may get it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
            assert answer.status == 200, body
            self.answered += path == "/pid"
            return body
        finally:
            connection.close()

    def pids(self) -> set[str]:
        """Who answers; a server that does not yet, or a worker that dies, is nobody."""
        found = set()
        for _ in range(10):
            try:
                found.add(self.get("/pid"))
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
        return found

    def all_pids(self) -> set[str]:
        found: set[str] = set()
        deadline = time.monotonic() + START_SECONDS
        while len(found) < 2:
            assert time.monotonic() < deadline, self.log()
            found |= self.pids()
        return found

    def values(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        return page_values(self.get("/metrics"), name, labels)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def requests_to(service: Service, route: str) -> float:
    return sum(
        count
        for (found, _), count in service.values(
            "inference_requests_total", "route", "outcome"
        ).items()
        if found == route
    )


@pytest.mark.parametrize(
    ("command", "loads"),
    [
        (UVICORN, 2),
        (GUNICORN, 2),
        ([*GUNICORN, "--preload"], 0),  # counted by the parent, before there is a middleware
        ([*GUNICORN_WRAPPED, "--preload"], 1),
        (GUNICORN_UVICORN, 2),
    ],
    ids=["uvicorn", "gunicorn", "preload", "preload-wrapped", "gunicorn-uvicorn"],
)
def test_every_scrape_shows_all_workers(command: list[str], loads: int, tmp_path: Path) -> None:
    with Service(command, tmp_path) as service:
        before = service.answered
        pids = [service.get("/pid") for _ in range(100)]
        assert len(set(pids)) == 2
        # The last one is counted when it has been sent, which its client may see before.
        wait_for(lambda: requests_to(service, "/pid") >= before + 100)
        pages = [service.get("/metrics") for _ in range(10)]

        def values(name: str, *labels: str) -> list[dict[tuple[str, ...], float]]:
            return [page_values(page, name, labels) for page in pages]

        assert values("inference_requests_total", "route") == [{("/pid",): before + 100}] * 10
        assert values("inference_stage_duration_seconds_count", "stage")[0][("inference",)] == (
            before + 100
        )
        assert values("python_workers", "state") == [{("configured",): 2, ("alive",): 2}] * 10
        assert values("tailwatch_build_info") == [{(): 1}] * 10
        assert set(values("process_cpu_seconds_total", "worker")[0]) == {("0",), ("1",)}
        starts = values("python_gc_collections_total", "generation", "worker")[0]
        assert {worker for _, worker in starts} == {"0", "1"}
        assert values("inference_stage_duration_seconds_count", "stage")[0][("warm-up",)] == loads
        assert "tailwatch" not in service.log()


def test_a_server_with_workers_and_no_directory_says_so_once_a_worker() -> None:
    for command in (UVICORN, GUNICORN):
        with Service(command, None) as service:
            assert service.log().count("2 workers, and each counts for itself") == 2
            assert service.log().count("set TAILWATCH_WORKERS_DIR=/dev/shm/NAME") == 2
            alive = service.values("python_workers", "state")
            assert alive == {("configured",): 2}


def test_a_worker_killed_in_a_request_leaves_its_counts_and_no_level(tmp_path: Path) -> None:
    with Service(UVICORN, tmp_path) as service:
        before = requests_to(service, "/pid")
        doomed = service.get("/pid")
        threads = [threading.Thread(target=hang, args=(service,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_for(lambda: service.values("inference_requests_in_flight") == {(): 4})
        wait_for(lambda: service.values("inference_oldest_in_flight_seconds") != {(): 0})
        for pid in service.all_pids():
            os.kill(int(pid), signal.SIGKILL)
        for thread in threads:
            thread.join()
        wait_for(lambda: len(service.pids() - {doomed}) == 2)
        # Not at once: a sibling may just have told of a request that was in flight then.
        wait_for(lambda: service.values("inference_requests_in_flight") == {(): 0})
        wait_for(lambda: service.values("inference_oldest_in_flight_seconds") == {(): 0})
        assert requests_to(service, "/pid") > before


def test_a_worker_that_stands_still_is_seen_by_its_siblings(tmp_path: Path) -> None:
    """Stopped as a whole it tells nothing any more: the age of its request goes on growing."""
    with Service(GUNICORN, tmp_path) as service:
        thread = threading.Thread(target=hang, args=(service,))
        thread.start()
        seen = [{(): 1.0}] * 10  # by its worker at once, and by the sibling
        wait_for(
            lambda: [service.values("inference_requests_in_flight") for _ in range(10)] == seen
        )
        pids = service.all_pids()

        def page_of_a_sibling() -> str:
            """Connections that the stopped one has accepted are never answered."""
            while True:
                try:
                    return service.get("/metrics", timeout=0.5)
                except TimeoutError:
                    continue

        def oldest() -> float:
            return page_values(page_of_a_sibling(), "inference_oldest_in_flight_seconds", [])[()]

        for pid in pids:
            os.kill(int(pid), signal.SIGSTOP)
            time.sleep(0.1)
            begun, first = time.monotonic(), oldest()
            time.sleep(1)
            grown, passed = oldest() - first, time.monotonic() - begun
            in_flight = page_values(page_of_a_sibling(), "inference_requests_in_flight", [])
            os.kill(int(pid), signal.SIGCONT)
            assert 1 <= grown <= passed + 0.5
            assert in_flight == {(): 1}
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)
        thread.join()


def test_workers_that_the_server_recycles_count_on(tmp_path: Path) -> None:
    """Each worker of gunicorn ends itself after 20 requests."""
    with Service([*GUNICORN_UVICORN, "--max-requests", "20"], tmp_path) as service:
        answered: list[str] = []
        sizes: list[int] = []
        deadline = time.monotonic() + START_SECONDS
        while (workers := len(set(answered))) < 8:
            assert time.monotonic() < deadline
            try:
                answered.append(service.get("/pid"))
            except (OSError, http.client.HTTPException):  # it ended with the connection accepted
                time.sleep(0.02)
            with contextlib.suppress(FileNotFoundError):  # merged while it was looked at
                sizes.append(sum(path.stat().st_size for path in tmp_path.glob("*/*")))
        counted = 0.0
        while True:
            try:
                counted = requests_to(service, "/pid")
                stages = service.values("inference_stage_duration_seconds_count", "stage")
                break
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
        # More were sent while the server started, and some answers were cut off.
        assert len(answered) <= counted <= len(answered) + 200
        assert stages[("warm-up",)] >= workers
        assert max(sizes) <= 8 * 65536, sizes


def hang(service: Service) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        service.get("/hang")


def test_counters_never_go_back_while_workers_are_killed_under_load(tmp_path: Path) -> None:
    """What was answered is counted, whoever is killed and whoever answers the scrape."""
    answered = 0
    stop = threading.Event()

    def load() -> None:
        nonlocal answered
        while not stop.is_set():
            try:
                service.get("/pid")
                answered += 1
            except (OSError, http.client.HTTPException, AssertionError):
                pass

    with Service([*GUNICORN, "--preload"], tmp_path) as service:
        before = requests_to(service, "/pid")
        assert before
        thread = threading.Thread(target=load)
        thread.start()
        seen: list[float] = [before]
        files: list[int] = []
        for _ in range(12):
            victim = next(iter(service.pids()))
            os.kill(int(victim), signal.SIGKILL)
            for _ in range(10):
                try:
                    seen.append(requests_to(service, "/pid"))
                except (OSError, http.client.HTTPException):
                    continue
            files.append(len(list(tmp_path.glob("*/*"))))
        stop.set()
        thread.join()
        last = requests_to(service, "/pid")
        assert seen == sorted(seen)
        # One may be killed between an answer and its count.
        assert last - before >= answered - len(files)
        assert max(files) <= 2 * (3 + 2) + 3, files
        assert set(service.values("process_cpu_seconds_total", "worker")) <= {("0",), ("1",)}


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """Nothing of this process is used."""
    yield
