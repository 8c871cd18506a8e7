"""The sampling thread: short real intervals, since its subject is time itself."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from tailwatch_exporters.sampler_thread import SamplerThread


def test_samples_until_stopped() -> None:
    taken = threading.Semaphore(0)
    ended = threading.Event()
    thread = SamplerThread("t", lambda: taken.release() or 0.0, 0.01, on_end=ended.set)
    assert thread.join(0.0)  # it was never started
    thread.start()
    for _ in range(5):
        assert taken.acquire(timeout=5)
    assert thread.is_running()
    thread.signal_stop()
    assert not thread.is_running()
    assert thread.join(5)
    assert ended.is_set()


def test_a_fault_is_logged_once_and_sampling_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    taken = threading.Semaphore(0)

    def fail() -> float:
        taken.release()
        raise ValueError("no good")

    thread = SamplerThread("t", fail, 0.01)
    thread.start()
    for _ in range(5):
        assert taken.acquire(timeout=5)
    thread.signal_stop()
    assert thread.join(5)
    assert [record.message for record in caplog.records] == ["sampler t failed"]


def test_a_longer_rest_than_the_interval_holds() -> None:
    times: list[float] = []
    thread = SamplerThread("t", lambda: times.append(time.monotonic()) or 0.2, 0.01)
    thread.start()
    time.sleep(0.5)
    thread.signal_stop()
    assert thread.join(5)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps and min(gaps) >= 0.19


def test_phases_spread_the_samples_of_threads_that_start_together() -> None:
    times: list[float] = []
    thread = SamplerThread("t", lambda: times.append(time.monotonic()) or 0.0, 0.4, phase=0.75)
    thread.start()
    deadline = time.monotonic() + 5
    while len(times) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    thread.signal_stop()
    assert thread.join(5)
    first, second, third = times[:3]
    assert second - first < 0.3 < third - second
