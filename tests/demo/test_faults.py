"""The faults are real: they cost what their table says."""

import gc
import itertools
import threading
import time

import pytest

from demo.faults import FAULTS, HEALTHY, QUEUE_LIMIT, FaultSwitch, LiveObjects, burn_cpu


def test_slow_preprocess_costs_cpu_of_the_calling_thread() -> None:
    switch = FaultSwitch()
    switch.in_preprocess()
    switch.set(FAULTS["slow-preprocess"])
    before, start = time.thread_time(), time.monotonic()
    switch.in_preprocess()
    used = time.thread_time() - before
    assert used > 0.069 or time.monotonic() - start >= 0.087  # cut short on a busy machine
    assert 0.005 < used < 0.15
    switch.set(HEALTHY)
    before = time.thread_time()
    switch.in_preprocess()
    assert time.thread_time() - before < 0.01


def test_burning_is_work_and_not_waiting() -> None:
    start = time.perf_counter()
    burn_cpu(0.02)
    assert time.perf_counter() - start >= 0.02


def test_work_that_gets_no_cpu_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that gives the thread no CPU keeps it for 1.25 times its work, not for ever."""
    now = itertools.count(100.0, 0.001)
    monkeypatch.setattr(time, "thread_time", lambda: 5.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    burn_cpu(0.070)
    assert next(now) - 100.0 == pytest.approx(0.0875, abs=0.003)


def test_only_the_unbounded_queue_has_no_limit() -> None:
    limits = {name: fault.queue_limit for name, fault in FAULTS.items()}
    assert limits.pop("unbounded-queue") is None
    assert set(limits.values()) == {HEALTHY.queue_limit} == {QUEUE_LIMIT}


@pytest.mark.parametrize(
    ("name", "capacity", "rate"),
    [("unbounded-queue", 48.0, 72.0), ("overload", 96.0, 100.8), ("stalls", 48.0, 10.0)],
)
def test_the_load_follows_the_capacity_where_it_must(
    name: str, capacity: float, rate: float
) -> None:
    assert FAULTS[name].load.rate_per_second(capacity) == pytest.approx(rate)


def test_a_full_collection_runs_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """While stalls are on, in the thread that answers requests, and not before or after."""
    monkeypatch.setattr(LiveObjects, "grow_until_a_collection_takes", lambda *_: None)
    now = itertools.count(100.0, 2.5)
    switch = FaultSwitch(clock=lambda: next(now))
    full: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append(threading.current_thread().name)

    gc.collect()
    gc.callbacks.append(note)
    try:
        switch.in_postprocess()
        switch.set(FAULTS["stalls"])
        for _ in range(12):  # 30 s
            switch.in_postprocess()
        switch.set(HEALTHY)
        switch.in_postprocess()
    finally:
        gc.callbacks.remove(note)
    assert full == [threading.current_thread().name] * 3


def test_live_objects_keep_the_collector_busy_and_go_without_it() -> None:
    objects = LiveObjects()
    objects.grow_until_a_collection_takes(0.05)
    start = time.perf_counter()
    gc.collect()
    assert time.perf_counter() - start > 0.02
    assert len(objects) >= 100_000
    gc.disable()
    try:
        count = len(gc.get_objects())
        nodes = len(objects)
        objects.clear()
        assert count - len(gc.get_objects()) >= nodes
    finally:
        gc.enable()
    assert len(objects) == 0
