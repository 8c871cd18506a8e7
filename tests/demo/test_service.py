"""The demo service as a process of its own, under its own traffic, by its own metrics."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import magika
import pytest
from prometheus_client.parser import text_string_to_metric_families

from demo.faults import QUEUE_LIMIT
from demo.mock_file import MockFileWriter
from demo.service import main
from demo.traffic import Traffic

ROOT = Path(__file__).parents[2]


@dataclass
class DemoService:
    """A running `python -m demo.service` with one simulated GPU."""

    process: subprocess.Popen[str]
    url: str
    mock_file: Path

    def request(
        self, path: str, method: str = "GET", body: bytes | None = None
    ) -> tuple[int, bytes]:
        request = urllib.request.Request(
            self.url + path, body, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def switch(self, name: str) -> tuple[int, Any]:
        status, body = self.request("/faults", "POST", json.dumps({"name": name}).encode())
        return status, json.loads(body)

    def metrics(self) -> dict[str, float]:
        """Samples by name and the values of their labels but `service`, "name|value|value"."""
        page = self.request("/metrics")[1].decode()
        return {
            "|".join([sample.name, *(v for k, v in sample.labels.items() if k != "service")]): (
                sample.value
            )
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    def send(self, seconds: float) -> Traffic:
        """Send the healthy load with patient clients: a busy machine must not change counts."""
        traffic = Traffic(self.url, timeout_seconds=60, report_seconds=3600)
        asyncio.run(traffic.run(seconds))
        return traffic

    def send_together(self, count: int) -> Counter[int]:
        """Send `count` requests at once; return the statuses of the answers."""

        async def post(session: aiohttp.ClientSession) -> int:
            async with session.post(f"{self.url}/classify", data=b"import os\n" * 9) as response:
                return response.status

        async def post_all() -> list[int]:
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(60)
            ) as session:
                return await asyncio.gather(*(post(session) for _ in range(count)))

        return Counter(asyncio.run(post_all()))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoService]:
    mock_file = tmp_path_factory.mktemp("gpu") / "gpu.txt"
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "demo.service", "--port", str(port)),
            *("--simulate-gpu", "1", "--nvml-mock-file", str(mock_file)),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = DemoService(process, f"http://127.0.0.1:{port}", mock_file)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                assert running.request("/healthz")[0] == 200
                break
            except OSError:
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=30)[1]
    # The end of the process is a test too: it leaves nothing, and what it did was no error.
    assert process.returncode == 0
    assert all(line.startswith("fault ") for line in errors.splitlines()), errors
    assert not mock_file.exists()


def grown(before: dict[str, float], after: dict[str, float], key: str) -> float:
    return after[key] - before.get(key, 0.0)


def test_a_file_gets_the_label_that_magika_gives_it(service: DemoService) -> None:
    content = (ROOT / "Makefile").read_bytes()
    status, body = service.request("/classify", "POST", content)
    expected = magika.Magika().identify_bytes(content).prediction
    assert status == 200
    assert json.loads(body) == {
        "label": str(expected.output.label),
        "score": pytest.approx(expected.score, abs=1e-4),
    }
    assert json.loads(service.request("/classify", "POST", b"")[1])["label"] == "empty"


def test_traffic_shows_in_every_family(service: DemoService) -> None:
    before = service.metrics()
    traffic = service.send(5.0)
    after = service.metrics()
    sent = traffic.outcomes["ok"]
    assert traffic.outcomes == {"ok": sent}
    assert 30 <= sent <= 70
    for key in (
        "inference_outcomes_total|ok",
        "inference_requests_total|/classify|POST|200|ok",
        "inference_request_duration_seconds_count|/classify",
        "inference_queue_wait_seconds_count|preprocess",
        "inference_batch_size_sum|inference",
        "inference_batch_wait_seconds_count|inference",
        *(
            f"inference_stage_duration_seconds_count|{stage}"
            for stage in ("ingress", "preprocess", "batch_wait", "inference")
        ),
    ):
        assert grown(before, after, key) == sent, key
    # A lone request takes 25 ms of the device, a full batch 125 ms.
    inference = "inference_stage_duration_seconds_sum|inference"
    assert 0.025 < grown(before, after, inference) / sent < 0.5
    assert after["inference_queue_depth|preprocess"] == 0
    assert after["inference_batch_max_size|inference"] == 6
    assert after["inference_batch_window_seconds|inference"] == 0.01
    assert after["inference_model_info|magika|standard_v3_3"] == 1
    assert after["inference_slo_seconds"] == 0.5
    assert after["inference_client_timeout_seconds"] == 5
    assert after["inference_gpu_info|GPU-00000000-0000-0000-0000-000000000000"] == 1


def test_the_stages_add_up_to_the_requests_time(service: DemoService) -> None:
    before = service.metrics()
    service.send(1.5)
    after = service.metrics()
    stages = sum(
        grown(before, after, key)
        for key in after
        if key.startswith("inference_stage_seconds_total|")
    )
    duration = grown(before, after, "inference_request_duration_seconds_sum|/classify")
    assert stages == pytest.approx(duration, rel=1e-6)


def test_the_device_is_busy_as_long_as_its_batches_take(service: DemoService) -> None:
    """Seen from outside, in the file for the mock library: PCIe bytes and energy agree."""

    def counters() -> tuple[float, int, float]:
        """When the file was written, bytes received, joules."""
        with service.mock_file.open() as file:
            values = dict(line.strip().split("=", 1) for line in file)
            written_at = os.fstat(file.fileno()).st_mtime
        return written_at, int(values["gpu.0.fi.198"]), float(values["gpu.0.energy"]) / 1000

    def settled() -> tuple[float, int, float]:
        """The counters with all that was done up to now."""
        now = time.time()
        while (found := counters())[0] < now + 0.1:  # read before they are written
            time.sleep(0.05)
        return found

    began_at, bytes_before, joules_before = settled()
    requests = 10
    for _ in range(requests):  # one after the other, so in batches of one
        assert service.request("/classify", "POST", b"import os\n" * 50)[0] == 200
    ended_at, bytes_after, joules_after = settled()
    assert bytes_after - bytes_before == requests * 2048 * 4
    # 60 W always, 230 W more for 25 ms a request.
    joules = 60 * (ended_at - began_at) + 230 * 0.025 * requests
    assert joules_after - joules_before == pytest.approx(joules, abs=12)


def test_the_preprocess_thread_has_a_name_the_kernel_shows(service: DemoService) -> None:
    tasks = Path(f"/proc/{service.process.pid}/task")
    assert "preprocess\n" in [comm.read_text() for comm in tasks.glob("*/comm")]


def test_slow_preprocess_is_one_hot_thread(service: DemoService) -> None:
    def cpu_seconds() -> float:
        for task in Path(f"/proc/{service.process.pid}/task").iterdir():
            if (task / "comm").read_text() == "preprocess\n":
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / 100
        return 0.0  # it starts with the first request

    assert service.switch("slow-preprocess")[0] == 200
    before, used = service.metrics(), cpu_seconds()
    assert service.send_together(10) == {200: 10}
    service.request("/faults", "DELETE")
    after, used = service.metrics(), cpu_seconds() - used
    count = grown(before, after, "inference_stage_duration_seconds_count|preprocess")
    assert count == 10
    assert 0.1 < used < 1.2 * 0.07 * count  # a busy machine cuts the work short
    assert grown(before, after, "inference_stage_duration_seconds_sum|preprocess") >= 0.07 * count
    # Nine of ten requests that come together wait for those before them.
    waited = grown(before, after, "inference_queue_wait_seconds_sum|preprocess")
    assert waited >= 0.07 * sum(range(10))


def test_a_full_queue_rejects_until_the_limit_is_off(service: DemoService) -> None:
    before = service.metrics()
    statuses = service.send_together(100)
    after = service.metrics()
    assert set(statuses) == {200, 429}
    assert statuses[200] >= QUEUE_LIMIT
    for key in (
        "inference_outcomes_total|rejected",
        "inference_rejected_total|preprocess|full",
        "inference_requests_total|/classify|POST|429|rejected",
    ):
        assert grown(before, after, key) == statuses[429], key

    status, state = service.switch("unbounded-queue")
    assert (status, state["active"]) == (200, "unbounded-queue")
    assert state["load"] == {"rate_per_second": pytest.approx(72), "burst": 6}
    try:
        assert service.send_together(100) == {200: 100}
    finally:
        service.request("/faults", "DELETE")


def test_faults_are_refused_with_a_reason(service: DemoService) -> None:
    status, body = service.switch("sabotage")
    assert status == 404
    assert body["detail"].startswith("no fault 'sabotage', there are: slow-preprocess,")
    assert service.request("/faults", "POST", b"{}")[0] == 422
    assert json.loads(service.request("/faults")[1])["active"] is None


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_no_page_loads_from_elsewhere(service: DemoService, path: str) -> None:
    assert service.request(path)[0] == 404


def test_neither_faults_nor_probes_are_counted(service: DemoService) -> None:
    before = service.metrics()
    for _ in range(3):
        service.request("/faults")
        service.request("/healthz")
    after = service.metrics()
    assert after["inference_outcomes_total|ok"] == before["inference_outcomes_total|ok"]
    assert not any("/faults" in key or "/healthz" in key for key in after)


def test_a_body_that_is_too_large_is_refused(service: DemoService) -> None:
    status, body = service.request("/classify", "POST", bytes((1 << 20) + 1))
    assert status == 413
    assert json.loads(body)["detail"] == "a file has at most 1048576 bytes here"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--simulate-gpu", "1"], "--simulate-gpu needs --nvml-mock-file or NVML_MOCK_FILE"),
        (["--simulate-gpu", "9"], "--simulate-gpu is 9, expected 0 to 8"),
        (
            ["--simulate-gpu", "1", "--nvml-mock-file", "/nowhere/x"],
            "--nvml-mock-file /nowhere/x: expected a file in a writable folder",
        ),
        (["--simulate-gpu", "1", "--nvml-mock-file", "/"], "/: expected a file in a writable"),
        (["--port", "65536"], "--port: 65536 is no port, expected 1 to 65535"),
        (["--port", "0"], "--port: 0 is no port, expected 1 to 65535"),
        (["--fault", "sabotage"], "invalid choice: 'sabotage'"),
        (["--fault", "overload"], "fault overload needs a simulated GPU"),
    ],
)
def test_bad_usage_is_told(
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NVML_MOCK_FILE", raising=False)
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


def test_a_start_that_fails_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_writer: MockFileWriter) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(MockFileWriter, "start", start)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of the tests stay
    flags = ["--simulate-gpu", "1", "--nvml-mock-file", str(tmp_path / "gpu.txt")]
    assert main(["--port", str(free_port()), *flags]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert main(["--port", str(port)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in error
