"""`tailwatch up` as a person runs it, with a real Prometheus and Alertmanager."""

import contextlib
import http.server
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailwatch_stack.native import loopback
from tailwatch_stack.native.ports import STACK_PORTS
from tests.stack.running import Running, free_ports, running, wait_until

PAGE = b"inference_requests_in_flight 0\n"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def service_port() -> Iterator[int]:
    """A service with a metrics page."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def up(
    folder: Path, *flags: str, ports: dict[str, int] | None = None, **env: str
) -> Iterator[Running]:
    chosen = ports or dict(zip(STACK_PORTS, free_ports(len(STACK_PORTS)), strict=True))
    port_flags = [f"--port={name}={port}" for name, port in chosen.items()]
    command = [sys.executable, "-m", "tailwatch_stack", "up", *port_flags]
    data = f"--data-dir={folder / 'data'}"
    with running([*command, data, *flags], folder, **env) as run:
        yield run


def test_up_runs_the_stack_and_stops_without_a_trace(tmp_path: Path, service_port: int) -> None:
    jobs = tmp_path / "jobs.yml"
    jobs.write_text(
        "scrape_configs:\n- job_name: engine\n  static_configs:\n"
        f"  - targets: ['127.0.0.1:{service_port}']\n"
    )
    status_file = tmp_path / "status.json"
    status_file.write_text('{"a run that was killed": {}}')
    flags = [
        f"--target=service=127.0.0.1:{service_port}",
        "--target=service=127.0.0.1:1",
        f"--scrape-config={jobs}",
        f"--status-file={status_file}",
        "--alertmanager.webhook-url=http://127.0.0.1:1/hook",
    ]
    with up(tmp_path, *flags) as run:
        run.wait_for_output("everything runs after")
        wait_until(status_file.exists, "the status file")
        status = json.loads(status_file.read_text())
        assert "a run that was killed" not in status
        assert list(status["pids"]) == ["exporter", "alertmanager", "prometheus", "viewer"]
        prometheus = status["urls"]["Prometheus"]
        api = f"{prometheus}/api/v1"

        def targets() -> dict[str, Any]:
            active = loopback.read_json(f"{api}/targets")["data"]["activeTargets"]
            return {target["labels"]["job"]: target for target in active}

        jobs_expected = {
            "tailwatch-service",
            "tailwatch-exporter",
            "prometheus",
            "alertmanager",
            "engine",
        }
        wait_until(lambda: set(targets()) == jobs_expected, "the targets")
        machine = os.uname().nodename
        assert {target["labels"]["host"] for target in targets().values()} == {machine}

        feature = loopback.read_json(f"{api}/status/flags")["data"]["enable-feature"]
        assert feature == "exemplar-storage"
        groups = loopback.read_json(f"{api}/rules")["data"]["groups"]
        assert {"GpuStarvedUnderLoad", "Watchdog"} <= {
            rule["name"] for group in groups for rule in group["rules"]
        }
        [alertmanager] = loopback.read_json(f"{api}/alertmanagers")["data"]["activeAlertmanagers"]
        assert alertmanager["url"].startswith(status["urls"]["Alertmanager"])
        own = loopback.read_json(f"{status['urls']['Alertmanager']}/api/v2/status")
        assert own["cluster"]["status"] == "disabled"
        assert "http://127.0.0.1:1/hook/page" in own["config"]["original"]
        assert loopback.status(status["urls"]["overview"]) == 200
        run.wait_for_output("; 127.0.0.1:1/metrics: connection refused\n")
        run.send(signal.SIGINT)
        assert run.exit_code() == 0
        run.assert_nothing_left()
        assert not status_file.exists()
        assert loopback.status(prometheus) is None
        kept = {path.name for path in (tmp_path / "data").iterdir()}
        assert kept == {"alertmanager", "prometheus"}


def test_a_port_that_is_taken_is_named_before_anything_is_downloaded(tmp_path: Path) -> None:
    ports = dict(zip(STACK_PORTS, free_ports(len(STACK_PORTS)), strict=True))
    with (
        socket.create_server(("127.0.0.1", ports["alertmanager"])),
        up(tmp_path, ports=ports, PATH="", XDG_CACHE_HOME=str(tmp_path / "cache")) as run,
    ):
        assert run.exit_code() == 1
        assert run.output == (
            f"tailwatch up: port {ports['alertmanager']} for alertmanager is taken: "
            "stop what listens there or choose another with --port alertmanager=PORT\n"
        )
        run.assert_nothing_left()


@pytest.mark.parametrize(
    ("path", "expectation"),
    [
        ("no/such/file", "expected a file in a directory that exists"),
        ("folder", "Is a directory, expected a file"),
    ],
)
def test_a_place_for_the_status_file_is_checked_before_anything_starts(
    tmp_path: Path, path: str, expectation: str
) -> None:
    (tmp_path / "folder").mkdir()
    with up(tmp_path, f"--status-file={tmp_path / path}") as run:
        assert run.exit_code() == 2
        assert run.output == f"tailwatch up: --status-file {tmp_path / path}: {expectation}\n"
        run.assert_nothing_left()


def test_without_prometheus_and_apt_the_error_says_what_to_install(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    with up(tmp_path, PATH=str(empty), XDG_CACHE_HOME=str(tmp_path / "cache")) as run:
        assert run.exit_code() == 1
        assert run.output == (
            "tailwatch up: no prometheus >= 2.42 on PATH: "
            "install it there (https://prometheus.io/download/); "
            "Debian's package could not be used: this machine has no apt-get\n"
        )
        assert not (tmp_path / "cache").exists()
        assert not (tmp_path / "data").exists()


def test_a_signal_during_a_download_leaves_nothing(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("apt-get", "dpkg-deb"):
        (tools / name).write_text("#!/bin/sh\nexec /bin/sleep 60\n")
        (tools / name).chmod(0o755)
    cache = tmp_path / "cache"
    with up(tmp_path, PATH=str(tools), XDG_CACHE_HOME=str(cache)) as run:
        run.wait_for_output("downloading Debian's package prometheus")
        wait_until(lambda: len(run.survivors()) == 2, "apt-get started")
        run.send(signal.SIGTERM)
        assert run.exit_code() == 128 + signal.SIGTERM
        run.assert_nothing_left()
        assert [p.name for p in (cache / "tailwatch/debian").iterdir()] == [".lock"]


FILES = {
    "jobs.yml": "scrape_configs:\n  - job_name: a\n    scrape_interval: soon\n",
    "ours.yml": "scrape_configs:\n  - job_name: prometheus\n",
    "pager.yml": "route: {receiver: phone}\n",
    "plain": "",
}


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ["--target=embedder=:80"],
            2,
            "--target embedder=:80: expected service=HOST:PORT or exporter=HOST:PORT, "
            "then a path if it is not /metrics",
        ),
        (
            ["--port=viewer=http"],
            2,
            "--port viewer=http: expected a port from 1 to 65535 after the =",
        ),
        (
            ["--scrape-config=jobs.yml"],
            2,
            '--scrape-config jobs.yml: not a valid duration string: "soon"',
        ),
        (
            ["--scrape-config=ours.yml"],
            2,
            "--scrape-config: the job name prometheus is tailwatch's own: "
            "expected another one, or --target for its targets",
        ),
        (
            ["--alertmanager.config-file=pager.yml"],
            2,
            '--alertmanager.config-file pager.yml: undefined receiver "phone" used in route',
        ),
        (
            ["--alertmanager.config-file=none.yml"],
            2,
            "--alertmanager.config-file none.yml: path 'none.yml' does not exist",
        ),
        (
            ["--alertmanager.webhook-url=pager:80"],
            2,
            "--alertmanager.webhook-url pager:80: expected http:// or https://",
        ),
        (
            ["--alertmanager.webhook-url=http://a", "--alertmanager.config-file=pager.yml"],
            2,
            "--alertmanager.webhook-url and --alertmanager.config-file exclude each other",
        ),
        (["--data-dir=plain"], 1, "{folder}/plain/alertmanager cannot be made: Not a directory"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    code: int,
    message: str,
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with up(tmp_path, *flags) as run:
        assert run.exit_code() == code
        assert run.output == f"tailwatch up: {message.format(folder=tmp_path)}\n"
        run.assert_nothing_left()


def test_malformed_thresholds_are_refused_before_anything_starts(tmp_path: Path) -> None:
    thresholds = tmp_path / "mine.yaml"
    thresholds.write_text("no_such_threshold: 1\n")
    with up(tmp_path, f"--thresholds={thresholds}") as run:
        assert run.exit_code() == 2
        assert run.output.count("\n") == 1
        assert "no_such_threshold" in run.output
        run.assert_nothing_left()


def test_an_unknown_flag_is_a_usage_error(tmp_path: Path) -> None:
    with up(tmp_path, "--docker") as run:
        assert run.exit_code() == 2
        assert "unrecognized arguments: --docker" in run.output


@pytest.mark.skipif(shutil.which("script") is None, reason="needs script(1) for a terminal")
def test_on_a_terminal_the_status_is_rewritten(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tests.stack.stub_stack quick"
    root = str(Path(__file__).parents[2])
    with running(
        ["script", "-qec", command, "/dev/null"], tmp_path, PYTHONPATH=root, TERM="xterm"
    ) as run:
        run.wait_for_output("\x1b[2K")  # a line is erased to be written anew
        run.send(signal.SIGTERM)
        run.exit_code()
        wait_until(lambda: not run.survivors(), "all processes gone")
        run.assert_nothing_left()
