"""One process among several: forks, spawns, ports, levels, and what goes wrong."""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.applications import Starlette

from tailwatch_tracing import StageTimingMiddleware, families, render_metrics, service, stage
from tailwatch_tracing.exposition import Exemplar, render_families
from tailwatch_tracing.page import Level, Snapshot
from tailwatch_tracing.page import families as page_families
from tailwatch_tracing.servers import configured_workers
from tailwatch_tracing.worker_directory import is_locked
from tailwatch_tracing.worker_file import Unreadable
from tailwatch_tracing.worker_levels import LevelsFile, exemplar_lines, read_head, read_into
from tailwatch_tracing.workers import Heart
from tests.tracing.asgi import nonzero, page_values, values

ROOT = Path(__file__).parents[2]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Values = dict[tuple[str, ...], float]


def prelude(directory: Path) -> str:
    return f"""
import json, os, signal, sys, threading, time
from tailwatch_tracing import RequestQueue, render_metrics, serve_metrics, stage
from tests.tracing.asgi import page_values

DIRECTORY = {str(directory)!r}

def count(name, times=1):
    for _ in range(times):
        with stage(name):
            pass

def values(name, *labels):
    return page_values(render_metrics()[0].decode(), name, labels)

def stages():
    counts = values("inference_stage_duration_seconds_count", "stage")
    return {{stage: n for (stage,), n in counts.items() if n}}

def say(value):
    print(json.dumps(value), flush=True)
"""


def run(directory: Path, script: str, **environ: str) -> Any:
    """What a process of its own says: the last line that it writes, as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude(directory) + textwrap.dedent(script)],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Process:
    """One that runs on until it is ended; its script says one line first."""

    def __init__(self, directory: Path, script: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", prelude(directory) + textwrap.dedent(script)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def said(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        if process._process.poll() is None:
            process.kill()
        process.end()


# --- fork and spawn ---


def test_a_forked_child_counts_anew_and_the_parents_counts_stay_the_parents(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
        server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
        count("parent", 3)
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                count("parent")
                count("child", 5)
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        say([stages(), stages()])
        """,
    )
    assert said == [{"parent": 6, "child": 15}] * 2


def test_a_child_of_a_fork_counts_for_itself_without_a_directory_too(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
        server = serve_metrics(0, service="s")
        count("x", 3)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            count("x")
            os.write(write, json.dumps(stages()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        say([json.loads(os.read(read, 1000)), stages()])
        """,
    )
    assert said == [{"x": 1}, {"x": 3}]


def test_what_is_counted_in_a_child_that_is_killed_is_not_lost(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
        server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                count("child", 7)
                os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(pid, 0)
        say(stages())
        """,
    )
    assert said == {"child": 35}


def test_a_fork_while_other_threads_count_and_scrape_hangs_nobody(tmp_path: Path) -> None:
    """The locks that they held at the fork are the parent's."""
    said = run(
        tmp_path,
        """
        server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
        stop = threading.Event()
        queues = []

        def make_cells():
            for i in range(60):
                queues.append(RequestQueue(f"queue-{i}", service="s"))
                if stop.is_set():
                    return

        def scrape():
            while not stop.is_set():
                render_metrics()

        threads = [threading.Thread(target=each) for each in (make_cells, scrape, scrape)]
        for thread in threads:
            thread.start()
        for i in range(20):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                count("child", 2)
                RequestQueue(f"of-child-{i}", service="s").reject()
                render_metrics()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        rejected = values("inference_rejected_total", "service")
        say([stages()["child"], rejected[("s",)], len(os.listdir(DIRECTORY + "/service=s"))])
        """,
    )
    assert said[:2] == [40, 20]
    assert said[2] < 60


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        prelude(tmp_path / "d")
        + textwrap.dedent(
            f"""
            import multiprocessing

            def work(times):
                server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
                count("child", times)

            if __name__ == "__main__":
                server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
                count("main")
                context = multiprocessing.get_context({method!r})
                processes = [context.Process(target=work, args=(n,)) for n in (1, 10, 100)]
                for process in processes:
                    process.start()
                for process in processes:
                    process.join()
                say(stages())
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"main": 1, "child": 111}


def test_what_is_counted_before_the_first_request_is_carried_over(tmp_path: Path) -> None:
    with stage("warm-up"):
        pass
    StageTimingMiddleware(Starlette(), service="s", workers_dir=tmp_path)
    with stage("warm-up"):
        pass
    assert not any(tmp_path.iterdir())  # nothing serves yet
    for _ in range(2):
        counts = values("inference_stage_duration_seconds_count", "service", "stage")
        assert counts[("s", "warm-up")] == 2
    with stage("warm-up"):
        pass
    counts = values("inference_stage_duration_seconds_count", "service", "stage")
    assert counts[("s", "warm-up")] == 3


def test_a_service_that_is_named_late_keeps_its_counts_for_siblings(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
        server = serve_metrics(0, workers_dir=DIRECTORY)
        count("early", 2)
        from tailwatch_tracing.service import service_named
        service_named("late")
        pid = os.fork()
        if pid == 0:
            server = serve_metrics(0)
            say([f"{service} {stage} {n:g}" for (service, stage), n in values(
                "inference_stage_duration_seconds_count", "service", "stage").items() if n])
            os._exit(0)
        os.waitpid(pid, 0)
        """,
    )
    assert said == ["late early 2"]


# --- levels ---


def test_levels_of_siblings_are_summed_or_the_largest(
    tmp_path: Path, processes: list[Process]
) -> None:
    script = """
        server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
        queue = RequestQueue("q", service="s")
        places = [queue.enter() for _ in range(int(sys.stdin.readline()))]
        time.sleep(0.6)
        say(None)
        sys.stdin.readline()
        say([list(values("inference_queue_depth").values()),
             list(values("tailwatch_build_info").values()),
             list(values("python_workers", "state").items())])
        sys.stdin.readline()
    """
    processes += [Process(tmp_path, script) for _ in range(3)]
    for process, depth in zip(processes, (1, 10, 100), strict=True):
        process.tell(str(depth))
    for process in processes:
        process.said()
    for process in processes:
        process.tell("")
        assert process.said() == [[111], [1], [[["alive"], 3]]]
    processes[2].kill()
    survivor = Process(tmp_path, script)
    processes.append(survivor)
    survivor.tell("0")
    survivor.said()
    survivor.tell("")
    assert survivor.said() == [[11], [1], [[["alive"], 3]]]


def snapshot_of(path: Path, monotonic_ns: int) -> Snapshot:
    snapshot = Snapshot()
    read_into(snapshot, path, monotonic_ns)
    return snapshot


def test_the_age_of_the_oldest_request_goes_on_growing_while_its_worker_hangs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "w.levels"
    file = LevelsFile(path)
    file.write([("s", Level(families.OLDEST_IN_FLIGHT, (), 2.5))], "", 10_000_000_000)
    levels = snapshot_of(path, 70_000_000_000).levels[families.OLDEST_IN_FLIGHT.name]
    assert list(levels.values()) == [62.5]
    file.write([("s", Level(families.OLDEST_IN_FLIGHT, (), 0))], "", 10_000_000_000)
    levels = snapshot_of(path, 70_000_000_000).levels[families.OLDEST_IN_FLIGHT.name]
    assert list(levels.values()) == [0]


def test_levels_are_written_when_they_change(tmp_path: Path) -> None:
    path = tmp_path / "w.levels"
    file = LevelsFile(path)
    for value, is_new in ((1, True), (1, False), (2, True)):
        before = path.stat().st_ino if path.exists() else None
        file.write([("s", Level(families.IN_FLIGHT, (), value))], "", 5)
        assert (path.stat().st_ino != before) == is_new


def test_levels_that_cannot_be_written_are_not_those_of_before(tmp_path: Path) -> None:
    """On a full device a request that has ended would else look like one that hangs."""
    path = tmp_path / "worker-1-a.levels"
    levels = LevelsFile(path)
    levels.write([("s", Level(families.OLDEST_IN_FLIGHT, (), 0.1))], "", 0)
    in_the_way = tmp_path / "worker-1-a.new"
    in_the_way.mkdir()
    with pytest.raises(IsADirectoryError):
        levels.write([("s", Level(families.OLDEST_IN_FLIGHT, (), 0.0))], "", 10**9)
    snapshot = Snapshot()
    read_into(snapshot, path, 600 * 10**9)
    assert snapshot.levels == {}
    in_the_way.rmdir()
    levels.write([("s", Level(families.OLDEST_IN_FLIGHT, (), 0.0))], "", 10**9)
    read_into(snapshot, path, 600 * 10**9)
    assert snapshot.levels == {families.OLDEST_IN_FLIGHT.name: {("s", ()): 0.0}}


def test_exemplars_of_siblings_are_on_the_page_the_newest_of_each_bucket(tmp_path: Path) -> None:
    theirs = service.Service("s")
    duration = theirs.route_cells("/x").duration
    duration.keep_exemplar(5_000_000, Exemplar("aa", "bb", 0.005, 100.0))
    duration.keep_exemplar(10**9, Exemplar("cc", "dd", 1.0, 200.0))
    path = tmp_path / "w.levels"
    LevelsFile(path).write([], exemplar_lines([theirs.store]), 0)

    ours = service.Service("s")
    ours.route_cells("/x").duration.keep_exemplar(10**9, Exemplar("ee", "ff", 0.99, 300.0))
    snapshot = Snapshot()
    ours.snapshot_into(snapshot)
    read_into(snapshot, path, 0)
    (found,) = snapshot.exemplars[families.REQUEST_DURATION.name].values()
    assert sorted(each.trace_id for each in found.values()) == ["aa", "ee"]


def test_exemplars_survive_under_several_processes(
    tmp_path: Path, processes: list[Process]
) -> None:
    script = """
        server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
        from tailwatch_tracing.exposition import Exemplar
        from tailwatch_tracing.service import service_named
        duration = service_named("s").route_cells("/x").duration
        me = sys.stdin.readline().strip()
        duration.observe(10**7 * int(me))
        duration.keep_exemplar(10**7 * int(me), Exemplar(me * 32, me * 16, 0.01 * int(me), 1e9))
        time.sleep(1.6)
        say(render_metrics("application/openmetrics-text")[0].decode())
        sys.stdin.readline()
    """
    processes += [Process(tmp_path, script) for _ in range(2)]
    for me, process in enumerate(processes, 1):
        process.tell(str(me))
    for process in processes:
        exemplars = {
            sample.exemplar.labels["trace_id"][0]
            for family in text_string_to_metric_families(process.said())
            for sample in family.samples
            if sample.exemplar
        }
        assert exemplars == {"1", "2"}


def test_damaged_levels_are_torn_and_never_an_error(tmp_path: Path) -> None:
    path = tmp_path / "w.levels"
    theirs = service.Service("s")
    theirs.route_cells("/x").duration.keep_exemplar(10**9, Exemplar("cc", "dd", 1.0, 200.0))
    level = ("s", Level(families.QUEUE_DEPTH, ("q",), 3))
    LevelsFile(path).write([level], exemplar_lines([theirs.store]), 7)
    whole = path.read_bytes()
    noise = random.Random(5)
    damaged = [whole[:length] for length in range(len(whole))]
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] = noise.randrange(256)
        damaged.append(bytes(flipped))
    torn = 0
    for content in damaged:
        path.write_bytes(content)
        snapshot = Snapshot()
        try:
            read_into(snapshot, path, 0)
        except Unreadable as error:
            assert error.reason == "torn"
            torn += 1
        theirs.snapshot_into(snapshot)
        render_families(page_families(snapshot), openmetrics=True)
        try:
            read_head(path)
        except Unreadable as error:
            assert error.reason == "torn"
    assert torn > len(whole) / 2


@pytest.mark.parametrize(
    "line",
    [
        '["level", "inference_queue_depth", "s", ["q"], "x"]',
        '["level", "inference_queue_depth", ["s"], [7], 1]',
        '["level", "inference_queue_depth", "s", "q", {}]',
        '["exemplars", "inference_request_duration_seconds", "s", ["/x"], {"3": [1, 2, "a", 4]}]',
        '["exemplars", "inference_request_duration_seconds", "s", ["/x"], {"900": [1, 2, 3, 4]}]',
        '["exemplars", "inference_request_duration_seconds", "s", ["/x"], [[1, 2, 3, 4]]]',
        "[]",
        "7",
    ],
)
def test_a_strange_line_of_levels_never_spoils_a_page(tmp_path: Path, line: str) -> None:
    path = tmp_path / "w.levels"
    path.write_text(f"[0, []]\n{line}\n")
    ours = service.Service("s")
    ours.route_cells("/x").duration.observe(1)
    snapshot = Snapshot()
    ours.snapshot_into(snapshot)
    try:
        read_into(snapshot, path, 0)
    except Unreadable as error:
        assert error.reason == "torn"
    render_families(page_families(snapshot), openmetrics=True)


def test_levels_of_another_version_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "w.levels"
    newer = families.QUEUE_DEPTH._replace(name="inference_of_the_future", labels=())
    wider = families.QUEUE_DEPTH._replace(labels=("queue", "more"))
    counter = families.REQUESTS
    levels = [Level(newer, (), 1), Level(wider, ("q", "r"), 1), Level(counter, (), 1)]
    LevelsFile(path).write([("s", level) for level in levels], "", 0)
    assert not any(snapshot_of(path, 0).levels.values())


# --- the page ---


def test_cells_of_another_version_are_left_out(tmp_path: Path) -> None:
    StageTimingMiddleware(Starlette(), service="s", workers_dir=tmp_path)
    values("python_workers")
    from tailwatch_tracing.worker_directory import WorkerDirectory

    sibling = WorkerDirectory(tmp_path, "s").join()
    for name, labels, size in (
        ("inference_of_the_future_total", ("x",), 1),
        ("inference_requests_total", ("/x", "GET", "200"), 1),  # a label fewer
        ("inference_requests_total", ("/x", "GET", "200", "melted"), 1),  # an unknown outcome
        ("inference_request_duration_seconds", ("/x",), 12),  # other buckets
        ("inference_stage_seconds_total", ("x",), 3),  # a row of three
        ("inference_queue_depth", ("q",), 1),  # a gauge
    ):
        sibling.allocate("s", name, labels, size)[0] = 1
    assert nonzero("inference_requests_total", ["outcome"]) == {("melted",): 1}
    for name in ("inference_outcomes_total", "inference_request_duration_seconds_count"):
        assert not nonzero(name, [])
    sibling.close()


def test_damaged_files_are_counted_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    StageTimingMiddleware(Starlette(), service="s", workers_dir=tmp_path)
    values("python_workers")
    directory = next(tmp_path.iterdir())
    (directory / "worker-1-zz.cells").write_bytes(b"twcells\0")
    (directory / "core").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "tailwatch_tracing"):
        for scrape in (1, 2, 3):
            assert nonzero("tailwatch_worker_files_skipped_total", ["reason"]) == {
                ("torn",): scrape,
                ("foreign",): scrape,
            }
    assert len(caplog.messages) == 2
    assert f"skipped {directory}/core: not a worker's file" in caplog.messages


def test_process_metrics_are_left_alone_without_a_directory() -> None:
    page = render_metrics()[0].decode()
    assert "worker=" not in page
    assert page_values(page, "process_cpu_seconds_total", []) != {}


def test_own_metrics_of_a_service_are_of_all_workers_in_the_clients_multiprocess_mode(
    tmp_path: Path,
) -> None:
    """And none is on the page twice, whichever of client and we know it."""
    (tmp_path / "client").mkdir()
    said = run(
        tmp_path / "ours",
        """
        from prometheus_client import REGISTRY, Counter
        from prometheus_client.core import GaugeMetricFamily

        class Custom:
            def collect(self):
                yield GaugeMetricFamily("custom_depth", "Theirs.", value=4)

        REGISTRY.register(Custom())
        theirs = Counter("theirs", "Theirs.", ["kind"])
        server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                theirs.labels("a").inc(5)
                os._exit(0)
            os.waitpid(pid, 0)
        theirs.labels("a").inc(1)
        page = render_metrics()[0].decode()
        say([values("theirs_total")[()], values("custom_depth")[()],
             len([l for l in page.splitlines() if l.startswith("# TYPE theirs_total")]),
             [l for l in page.splitlines() if l.startswith("process_max_fds{")]])
        """,
        PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "client"),
    )
    assert said[:3] == [11, 4, 1]
    assert [line.partition("}")[0] for line in said[3]] == ['process_max_fds{worker="0"']


# --- what goes wrong ---


def test_a_directory_that_cannot_be_used_stops_the_middleware(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is not a directory"):
        StageTimingMiddleware(Starlette(), service="s", workers_dir=tmp_path / "file")


def test_a_directory_that_is_no_path_is_one_clear_line() -> None:
    with pytest.raises(TypeError, match=r"^workers_dir=3: expected a path$"):
        StageTimingMiddleware(Starlette(), service="s", workers_dir=3)  # type: ignore[arg-type]


def test_a_process_counts_in_one_directory(tmp_path: Path) -> None:
    """A second one would be silently left empty."""
    one = tmp_path / "one"
    (tmp_path / "link").symlink_to(one)
    StageTimingMiddleware(Starlette(), service="s", workers_dir=one)
    StageTimingMiddleware(Starlette(), service="s", workers_dir=tmp_path / "link")
    StageTimingMiddleware(Starlette(), service="s")
    with pytest.raises(ValueError, match=r"^workers_dir='\S*/two': .* counts in '\S*/one'$"):
        StageTimingMiddleware(Starlette(), service="s", workers_dir=tmp_path / "two")


def test_a_process_that_may_not_have_a_thread_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As under a container's limit of pids: the request that comes first is not to fail for it."""

    def refuse(heart: Heart) -> None:
        heart.beat()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Heart, "start", refuse)
    StageTimingMiddleware(Starlette(), service="s", workers_dir=tmp_path)
    assert values("python_workers", "state") == {("alive",): 1}
    assert values("tailwatch_errors_total", "where")[("workers",)] == 1
    assert "can't start new thread" in caplog.text


def test_a_page_without_a_free_descriptor_is_whole_or_an_error(
    tmp_path: Path, processes: list[Process]
) -> None:
    """One with this worker's counts alone would look as if every counter began anew."""
    processes.append(
        Process(
            tmp_path,
            """
            serve_metrics(0, service="s", workers_dir=DIRECTORY)
            count("x", 5)
            say(None)
            sys.stdin.readline()
            """,
        )
    )
    processes[0].said()
    said = run(
        tmp_path,
        """
        import resource
        from tailwatch_tracing.workers import Heart, workers
        Heart._go_on = lambda heart: None
        serve_metrics(0, service="s", workers_dir=DIRECTORY)
        count("x", 2)
        before = stages()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        pages, errors = [], 0
        for free in range(12):
            held = []
            while True:
                try:
                    held.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    break
            for fd in held[:free]:
                os.close(fd)
            try:
                pages.append(stages())
            except OSError:
                errors += 1
            workers._heart.compact()
            for fd in held[free:]:
                os.close(fd)
        say([before, pages, errors, stages()])
        """,
    )
    before, pages, errors, after = said
    assert before == after == {"x": 7}
    assert errors > 0
    assert pages == [{"x": 7}] * len(pages) != []


def test_the_variable_is_read_when_the_middleware_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILWATCH_WORKERS_DIR", str(tmp_path))
    StageTimingMiddleware(Starlette(), service="s")
    assert values("python_workers", "state") == {("alive",): 1}
    assert [path.name for path in tmp_path.iterdir()] == ["service=s"]


def test_a_worker_without_room_counts_in_its_own_memory_and_says_so_once(tmp_path: Path) -> None:
    """A file may have 64 KiB here; a device that is full refuses at the same call."""
    said = run(
        tmp_path,
        """
        import io, logging, resource
        log = io.StringIO()
        logging.basicConfig(stream=log)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
        server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
        for i in range(60):
            RequestQueue(f"queue-{i}", service="s").reject()
            count(f"stage-{i}", 2)
        skipped = values("tailwatch_worker_files_skipped_total", "reason")
        say([list(stages().values()), sum(values("inference_rejected_total", "queue").values()),
             skipped[("unwritable",)] > 0,
             log.getvalue()])
        """,
    )
    assert said[:3] == [[2] * 60, 60, True]
    assert said[3].count("\n") == 1
    assert "what is not written there is on this worker's page alone" in said[3]


def test_a_file_that_vanishes_is_made_again_with_what_it_had(
    tmp_path: Path, processes: list[Process]
) -> None:
    """As by a cleaner of old files in /tmp."""
    script = """
        from tailwatch_tracing import workers
        workers._BEATS_TO_COMPACTION = 2
        server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
        count("x", 2)
        sys.stdin.readline()
        count("x", 3)
        count("y")
        say(stages())
        sys.stdin.readline()
        say(stages())
        sys.stdin.readline()
    """
    processes += [Process(tmp_path / "d", script) for _ in range(2)]
    directory = tmp_path / "d" / "service=s"
    wait_for(lambda: len(list(directory.glob("*.levels"))) == 2)
    shutil.rmtree(directory)
    for process in processes:
        process.tell("")
        assert process.said()["x"] >= 5  # its own at least, before the next look
    wait_for(lambda: len(list(directory.glob("*.levels"))) == 2)
    for process in processes:
        process.tell("")
        assert process.said() == {"x": 10, "y": 2}


def test_a_daemon_that_closes_all_descriptors_counts_on_and_writes_into_no_other_file(
    tmp_path: Path,
) -> None:
    said = run(
        tmp_path,
        """
        serve_metrics(0, service="s", workers_dir=DIRECTORY)
        count("x", 2)
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.dup2(writer, 1)
            os.closerange(3, 256)
            count("x", 3)
            others = [open(f"{DIRECTORY}/other-{i}", "w+b") for i in range(40)]
            for i in range(60):  # more than a segment has room for
                RequestQueue(f"queue-{i}", service="s").reject()
                count(f"stage-{i}")
            serve_metrics(0, service="s", workers_dir=DIRECTORY)
            count("x", 5)
            say([stages()["x"], [os.fstat(each.fileno()).st_size for each in others],
                 values("python_workers", "state")[("alive",)]])
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(writer)
        with open(reader) as answer:
            child = json.loads(answer.readline())
        os.wait()
        before = stages()["x"]
        from tailwatch_tracing.workers import workers
        workers._heart.compact()
        say([*child, before, stages()["x"]])
        """,
    )
    assert said == [10, [0] * 40, 2, 10, 10]


# --- a port of its own ---


def page_of(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_survivor_takes_over_the_port_of_a_killed_sibling(
    tmp_path: Path, processes: list[Process]
) -> None:
    port = free_port()
    script = f"""
        server = serve_metrics({port}, service="s", workers_dir=DIRECTORY)
        count("x")
        say(server.port)
        sys.stdin.readline()
    """
    for _ in range(3):
        processes.append(Process(tmp_path, script))
        assert processes[-1].said() == port
    for dead in range(3):
        page = page_of_someone(port)
        counts = page_values(page, "inference_stage_duration_seconds_count", ["stage"])
        assert counts[("x",)] == 3
        alive = {("alive",): 3 - dead}
        assert page_values(page, "python_workers", ["state"]) == alive
        processes[dead].kill()


def test_a_port_stays_with_its_worker_when_its_files_are_removed(
    tmp_path: Path, processes: list[Process]
) -> None:
    """As by a cleaner of old files: a worker that starts later is no error, and takes over."""
    port = free_port()
    script = f"""
        from tailwatch_tracing import workers
        workers._BEATS_TO_COMPACTION = 1_000_000  # not waited for: a new worker may start any time
        server = serve_metrics({port}, service="s", workers_dir=DIRECTORY)
        say(None)
        sys.stdin.readline()
    """
    processes.append(Process(tmp_path, script))
    processes[0].said()
    lease = tmp_path / "service=s" / f"port-127.0.0.1-{port}"
    for remove in (lease.unlink, lambda: shutil.rmtree(lease.parent)):
        remove()
        wait_for(lease.exists)
        wait_for(lambda: is_locked(lease))
        processes.append(Process(tmp_path, script))
        processes[-1].said()
    processes[0].kill()
    assert page_values(page_of_someone(port), "python_workers", ["state"]) == {("alive",): 2}


def test_a_forked_child_does_not_keep_its_parents_port(
    tmp_path: Path, processes: list[Process]
) -> None:
    """A pool's process that outlives the worker holds neither the socket nor the lease."""
    port = free_port()
    holder = Process(
        tmp_path,
        f"""
        server = serve_metrics({port}, service="s", workers_dir=DIRECTORY)
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        say(pid)
        sys.stdin.readline()
        """,
    )
    processes.append(holder)
    orphan = holder.said()
    try:
        survivor = Process(
            tmp_path,
            f"""
            server = serve_metrics({port}, service="s", workers_dir=DIRECTORY)
            say(None)
            sys.stdin.readline()
            """,
        )
        processes.append(survivor)
        survivor.said()
        holder.kill()
        assert "python_workers" in page_of_someone(port)
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_port_of_a_foreign_program_stays_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        said = run(
            tmp_path,
            f"""
            try:
                serve_metrics({port}, service="s", workers_dir=DIRECTORY)
            except OSError as error:
                say(str(error))
            """,
        )
    assert said.endswith(f"metrics port 127.0.0.1:{port} cannot be had: Address already in use")


def test_a_closed_server_leaves_the_port_to_a_sibling(
    tmp_path: Path, processes: list[Process]
) -> None:
    port = free_port()
    script = f"""
        server = serve_metrics({port}, service="s", workers_dir=DIRECTORY)
        say(os.getpid())
        sys.stdin.readline()
        server.close()
        say("closed")
        sys.stdin.readline()
    """
    processes += [Process(tmp_path, script) for _ in range(3)]
    for process in processes:
        process.said()
    for process in processes:
        page_of_someone(port)
        process.tell("")
        assert process.said() == "closed"
    with pytest.raises(ConnectionRefusedError):
        page_of(port)


def page_of_someone(port: int) -> str:
    pages = []

    def is_served() -> bool:
        try:
            pages.append(page_of(port))
        except (OSError, http.client.HTTPException):
            return False
        return True

    wait_for(is_served)
    return pages[0]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nothing_is_threaded_before_something_is_served(tmp_path: Path) -> None:
    before = threading.active_count()
    StageTimingMiddleware(Starlette(), service="s", workers_dir=tmp_path)
    assert threading.active_count() == before
    assert not any(tmp_path.iterdir())


# --- how many there should be ---


class Config:
    def __init__(self, workers: int) -> None:
        self.workers = workers


def called_from(module: str, **variables: Any) -> int | None:
    """As a server's code would call an application's."""
    names = ", ".join(variables)
    namespace = {"__name__": module, "configured_workers": configured_workers}
    exec(f"def serve({names}): return configured_workers()", namespace)
    found: int | None = namespace["serve"](**variables)  # type: ignore[operator]
    return found


class Worker:
    cfg = Config(4)


@pytest.mark.parametrize(
    ("module", "variables", "expected"),
    [
        ("gunicorn.arbiter", {"self": Worker()}, 4),
        ("gunicorn.workers.base", {"self": Worker()}, 4),
        ("uvicorn._subprocess", {"config": Config(3)}, 3),
        ("uvicorn.server", {"config": Config(8)}, 1),  # of WEB_CONCURRENCY, which it does not heed
        ("hypercorn.asyncio.run", {"config": Config(2)}, 2),
        ("gunicorn.util", {}, None),
        ("gunicorn.util", {"self": object()}, None),
        ("uvicornish", {"config": Config(3)}, None),
        ("an.application", {"self": Worker(), "config": Config(9)}, None),
    ],
)
def test_the_configured_workers_are_those_of_the_server(
    module: str, variables: dict[str, Any], expected: int | None
) -> None:
    assert called_from(module, **variables) == expected


def test_the_example_of_the_page_serves(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/several-workers.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert "12161" in example
    assert "/dev/shm/embedder" in example
    example = example.replace("12161", "0").replace("/dev/shm/embedder", str(tmp_path))
    assert run(tmp_path, example + "say(list(values('python_workers', 'state').items()))") == [
        [["alive"], 1]
    ]
