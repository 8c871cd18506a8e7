"""The simulated GPU's arithmetic, against a list of intervals."""

import ast
import random
from pathlib import Path

import pytest

from demo import device_model
from demo.device_model import DeviceSpec, SimulatedGpu


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def gpu_on(clock: Clock) -> SimulatedGpu:
    return SimulatedGpu(weights_bytes=3_000_000, clock=clock, sleep=clock.sleep)


def test_full_batches_give_the_capacity_and_a_lone_request_its_latency() -> None:
    spec = DeviceSpec()
    assert 6 / spec.kernel_seconds(6) == pytest.approx(48.0)
    assert spec.kernel_seconds(1) == pytest.approx(0.025)


def test_a_batch_runs_behind_the_ones_launched_before() -> None:
    clock = Clock()
    gpu = gpu_on(clock)
    assert gpu.launch(6, 0, 0) == pytest.approx(1000.125)
    assert gpu.launch(1, 0, 0) == pytest.approx(1000.150)
    clock.now = 1010.0
    assert gpu.launch(1, 0, 0) == pytest.approx(1010.025)


def test_waiting_takes_until_the_batch_is_done_and_not_longer() -> None:
    clock = Clock()
    gpu = gpu_on(clock)
    gpu.wait_until(gpu.launch(2, 0, 0))
    assert clock.now == pytest.approx(1000.045)
    gpu.wait_until(1000.0)
    assert clock.now == pytest.approx(1000.045)


def test_busy_time_is_the_union_of_the_batches_intervals() -> None:
    """Whenever it is read, however batches overlap: compared with a walk over intervals."""
    generator = random.Random(3)
    clock = Clock()
    gpu = gpu_on(clock)
    intervals: list[tuple[float, float]] = []
    free = clock.now
    for _ in range(2000):
        clock.now += generator.choice([0.0, 0.001, 0.03, 0.2])
        if generator.random() < 0.5:
            items = generator.randint(1, 6)
            begin = max(clock.now, free)
            free = begin + 0.005 + items * 0.020
            intervals.append((begin, free))
            gpu.launch(items, 0, 0)
        busy = sum(max(0.0, min(end, clock.now) - begin) for begin, end in intervals)
        assert gpu.read().busy_seconds == pytest.approx(busy)


def test_bytes_memory_and_energy_follow_the_batches() -> None:
    clock = Clock()
    gpu = gpu_on(clock)
    idle = gpu.read()
    gpu.launch(2, 16_384, 1_712)
    gpu.launch(1, 8_192, 856)
    clock.now += 10
    reading = gpu.read()
    assert (reading.received_bytes, reading.sent_bytes) == (24_576, 2_568)
    assert idle.memory_used_bytes == 600 * 1024**2 + 3_000_000
    assert reading.memory_used_bytes - idle.memory_used_bytes == 2 * 256 * 1024**2
    # 10 s at 60 W, of which 0.045 s + 0.025 s at 290 W
    assert gpu.energy_joules(reading) == pytest.approx(600 + 0.070 * 230)


def test_the_model_knows_nothing_but_batches() -> None:
    """No fault can reach it: its module imports nothing of the demo."""
    tree = ast.parse(Path(device_model.__file__).read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"threading", "time", "collections.abc", "dataclasses"}
