"""`tailwatch demo` as a person runs it."""

import json
import os
import re
import signal
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from demo import service, settings
from tailwatch_stack import cli, demo
from tailwatch_stack.native import loopback
from tests.stack.running import free_ports, running, wait_until

ROOT = Path(__file__).parents[2]
NAMES = ("prometheus", "alertmanager", "exporter", "viewer", "demo", "webhook")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--fault=rain"],
            "--fault rain: expected one of slow-preprocess, unbounded-queue, overload, stalls",
        ),
        (
            ["--fault=overload", "--simulate-gpu=0"],
            "--simulate-gpu 0: --fault overload needs at least 1",
        ),
        (["--simulate-gpu=-1"], "--simulate-gpu -1: expected 0 to 8"),
        (["--simulate-gpu=9"], "--simulate-gpu 9: expected 0 to 8"),
        (["--port=demo=9090"], "port 9090 is given to both prometheus and demo"),
    ],
)
def test_wrong_usage_is_one_line(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert cli.main(["demo", *flags]) == 2
    assert capsys.readouterr().err == f"tailwatch demo: {message}\n"


@pytest.mark.parametrize(
    ("has_gpu", "fault", "simulated"),
    [(False, None, 1), (True, None, 0), (True, "stalls", 0), (True, "slow-preprocess", 1)],
)
def test_gpus_are_simulated_where_there_are_none_and_for_faults_that_need_one(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, fault: str | None, simulated: int
) -> None:
    monkeypatch.setattr(demo, "_machine_has_gpu", lambda: has_gpu)
    assert demo._gpus(None, ROOT, fault) == simulated


def test_the_packages_looked_for_are_those_of_the_group_demo() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert [requirement.partition(">=")[0] for requirement in groups["demo"]] == [*demo.PACKAGES]


def test_an_installed_wheel_has_no_demo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "checkout_dir", lambda: None)
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == (
        "tailwatch demo: runs from a checkout of tailwatch only: git clone it, then make demo\n"
    )


def test_a_mock_library_that_is_not_built_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "checkout_dir", lambda: tmp_path)
    assert cli.main(["demo", "--simulate-gpu=1"]) == 1
    assert capsys.readouterr().err == (
        f"tailwatch demo: needs {tmp_path}/demo/nvml_mock/build/libnvidia-ml.so.1 "
        "for simulated GPUs: make mock\n"
    )


def test_limits_and_ports_are_those_of_the_demo_s_own_programs() -> None:
    assert demo.MOST_GPUS == service.MAX_GPUS
    assert demo.PORTS["demo"] == settings.SERVICE_PORT
    assert demo.PORTS["webhook"] == settings.WEBHOOK_PORT


def post(url: str, body: Any) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as response:
        assert response.status == 200


def test_the_demo_runs_shows_live_data_and_leaves_nothing(tmp_path: Path) -> None:
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    flags = [f"--port={name}={port}" for name, port in ports.items()]
    command = [sys.executable, "-m", "tailwatch_stack", "demo", "--simulate-gpu=2", *flags]
    with running(command, tmp_path) as run:
        run.wait_for_output("everything runs after")
        [took] = re.findall(r"everything runs after ([\d.]+) s", run.output)
        assert float(took) < 15
        assert run.output.startswith("2 simulated GPUs\n")
        assert f"overview      http://127.0.0.1:{ports['viewer']}/d/tailwatch-ov" in run.output

        post(
            f"http://127.0.0.1:{ports['webhook']}/page",
            {"alerts": [{"status": "firing", "labels": {"alertname": "RehearsalAlert"}}]},
        )
        run.wait_for_output("PAGE FIRING RehearsalAlert")
        assert re.search(r"^demo-webhook \| .*RehearsalAlert", run.output, re.MULTILINE)

        api = f"http://127.0.0.1:{ports['prometheus']}/api/v1/query?query="

        def value(expression: str) -> float:
            answer = loopback.read_json(api + expression)
            samples = answer["data"]["result"] if answer else []
            return float(samples[0]["value"][1]) if samples else 0.0

        wait_until(lambda: value("sum(up)") == 4, "all targets up")
        assert value("sum(inference_requests_total)") > 0
        assert value("count(gpu_info)") == 2
        # Service, exporter and their GPUs are joined by these two.
        assert value("count(gpu_info*on(uuid)group_left(service)inference_gpu_info)") == 2
        assert value("count(count%20by(host)(up))") == 1

        run.send(signal.SIGINT)
        assert run.exit_code() == 0
        run.assert_nothing_left()


def test_the_library_path_of_the_person_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/cuda")
    assert demo._before("LD_LIBRARY_PATH", Path("/mock")) == f"/mock{os.pathsep}/opt/cuda"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert demo._before("LD_LIBRARY_PATH", Path("/mock")) == "/mock"
