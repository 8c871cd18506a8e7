"""The simulated GPU as the real pynvml sees it through the mock library."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.device_model import SimulatedGpu
from demo.mock_file import MockFileWriter, render

LIBRARY = Path(__file__).parents[2] / "demo" / "nvml_mock" / "build"

READ_BACK = """
import ctypes, json, time
import pynvml as nvml
nvml.nvmlInit()
devices = []
for index in range(nvml.nvmlDeviceGetCount()):
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
    samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        nvml.nvmlGpmSampleGet(device, sample)
    ids = [2, 3, 5, 10, 20, 21]
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(ids)
    request.sample1, request.sample2 = samples
    for slot, metric in enumerate(ids):
        request.metrics[slot].metricId = metric
    nvml.nvmlGpmMetricsGet(request)
    fields = nvml.nvmlDeviceGetFieldValues(device, [197, 198])
    devices.append({
        "uuid": nvml.nvmlDeviceGetUUID(device),
        "name": nvml.nvmlDeviceGetName(device),
        "util": nvml.nvmlDeviceGetUtilizationRates(device).gpu,
        "memory": [memory.total, memory.used, memory.free],
        "watts": nvml.nvmlDeviceGetPowerUsage(device) / 1000,
        "millijoules": nvml.nvmlDeviceGetTotalEnergyConsumption(device),
        "gpm": [request.metrics[slot].value for slot in range(len(ids))],
        "pcie": [field.value.ullVal for field in fields],
        "pids": [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)],
    })
print(json.dumps(devices))
"""


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_pynvml_reads_what_the_batches_did(tmp_path: Path) -> None:
    """One second with three full batches on the second of two devices, nothing on the first."""
    if not (LIBRARY / "libnvidia-ml.so.1").exists():
        pytest.fail(f"{LIBRARY}/libnvidia-ml.so.1 is not built: make mock")
    clock = Clock()
    gpus = [SimulatedGpu(index, weights_bytes=1000, clock=clock) for index in range(2)]
    writer = MockFileWriter(tmp_path / "gpu.txt", gpus)
    for _ in range(3):
        gpus[1].launch(6, 3 * 1024**2, 1024**2)
    clock.now += 1
    writer.write()
    answer = subprocess.run(
        [sys.executable, "-c", READ_BACK],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(LIBRARY),
            "NVML_MOCK_FILE": str(tmp_path / "gpu.txt"),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    idle, busy = json.loads(answer.stdout)
    assert [idle["uuid"], busy["uuid"]] == [gpu.uuid for gpu in gpus]
    assert "simulated" in idle["name"]
    assert "simulated" in busy["name"]
    assert (idle["util"], idle["watts"], idle["gpm"]) == (0, 60, [0] * 6)
    assert idle["pids"] == [os.getpid()]
    # 3 x 125 ms of 1 s; 60 W idle and 290 W busy
    assert busy["util"] == 38
    assert busy["watts"] == pytest.approx(60 + 0.375 * 230)
    assert busy["millijoules"] == round(1000 * (60 + 0.375 * 230))
    assert busy["gpm"] == pytest.approx([31.88, 16.88, 15.0, 13.12, 3.0, 9.0], abs=0.01)
    assert busy["pcie"] == [3 * 1024**2, 9 * 1024**2]
    used = (600 + 6 * 256) * 1024**2 + 1000
    assert busy["memory"] == [24 * 1024**3, used, (24 * 1024 - 512) * 1024**2 - used]


def test_ratios_are_those_of_the_last_second(tmp_path: Path) -> None:
    clock = Clock()
    gpu = SimulatedGpu(clock=clock)
    writer = MockFileWriter(tmp_path / "gpu.txt", [gpu])
    gpu.launch(6, 0, 0)
    for _ in range(5):
        clock.now += 0.2
        writer.write()
    assert "gpu.0.util=12\n" in (tmp_path / "gpu.txt").read_text()
    clock.now += 0.2
    writer.write()
    assert "gpu.0.util=0\n" in (tmp_path / "gpu.txt").read_text()


def test_a_reader_never_sees_half_a_file_and_none_is_left(tmp_path: Path) -> None:
    path = tmp_path / "gpu.txt"
    gpu = SimulatedGpu()
    writer = MockFileWriter(path, [gpu])
    writer.start()
    first = path.stat().st_ino
    writer.write()
    assert path.stat().st_ino != first
    assert path.read_text().endswith("\n")
    assert list(tmp_path.iterdir()) == [path]
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_told_at_the_start(tmp_path: Path) -> None:
    writer = MockFileWriter(tmp_path / "missing" / "gpu.txt", [SimulatedGpu()])
    with pytest.raises(OSError, match="missing"):
        writer.start()


def test_a_moment_without_duration_is_idle() -> None:
    clock = Clock()
    gpu = SimulatedGpu(clock=clock)
    assert "gpu.0.util=0\n" in render([gpu], [(gpu.read(), gpu.read())])
