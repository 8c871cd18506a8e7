"""The wait for the lock: there beside who keeps it, absent beside who only computes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tailwatch_tracing import StageTimingMiddleware, middleware, serving
from tailwatch_tracing.cells import CellStore
from tailwatch_tracing.gil import GilProbe
from tailwatch_tracing.page import PROCESS
from tailwatch_tracing.service import service_named
from tests.tracing.asgi import request, values
from tests.tracing.conftest import Clock

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell run delays"
)

SECONDS = 2.5

MEASURE = """
import hashlib, json, os, sys, threading, time
from tailwatch_tracing.cells import CellStore
from tailwatch_tracing.gil import GilProbe

seconds = float(sys.argv[1])
if sys.argv[2]:  # on this processor, after everybody else
    os.sched_setaffinity(0, {int(sys.argv[2])})
    os.nice(19)
over = False
longest_call = 0.0

def compute_in_python():
    number = 0
    while not over:
        number += 1

def compute_outside_the_lock():
    data = bytes(4 << 20)
    while not over:
        hashlib.sha256(data).digest()

def call_c_that_keeps_the_lock():
    global longest_call
    numbers = range(2_000_000)
    while not over:
        start = time.perf_counter()
        sum(numbers)
        longest_call = max(longest_call, time.perf_counter() - start)
        time.sleep(0.01)

threads = [threading.Thread(target=globals()[name]) for name in sys.argv[3:]]
sys.setswitchinterval(0.02)
probe = GilProbe(CellStore(""))
probe.start()
for thread in threads:
    thread.start()
late = 0.0
end = time.monotonic() + seconds
while not threads and time.monotonic() < end:
    start = time.perf_counter()
    time.sleep(0.15)
    late += max(0, time.perf_counter() - start - 0.151)
time.sleep(max(0, end - time.monotonic()))
waited = probe.waited.counts[0] / 1e9
longest = probe.longest.read(time.perf_counter_ns()) / 1e9
over = True
print(json.dumps([waited, longest, longest_call, late]))
"""


def measure(*threads: str, cpu: str = "") -> tuple[float, float, float, float]:
    """Return seconds: waited, the longest wait, the workload's longest call, a timer's lateness.

    The last is of another thread that sleeps as the probe does; without a workload only.
    """
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(SECONDS), cpu, *threads],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    waited, longest, longest_call, late = json.loads(ran.stdout)
    return waited, longest, longest_call, late


def test_beside_python_code_each_question_waits_for_the_switch_interval() -> None:
    waited, longest, _, _ = measure("compute_in_python")
    questions = SECONDS / (0.15 + 0.02)
    assert 0.5 < waited / (questions * 0.02) < 1.6
    assert 0.018 < longest


def test_a_c_call_that_keeps_the_lock_shows_with_its_length() -> None:
    waited, longest, longest_call, _ = measure("call_c_that_keeps_the_lock")
    assert longest <= longest_call + 0.02
    assert longest > longest_call / 4, "asked at some moment of each call"
    assert waited > 0.02 * SECONDS


def test_a_thread_that_computes_without_the_lock_is_no_wait() -> None:
    keeper, *_ = measure("compute_in_python")
    waited, *_ = measure("compute_outside_the_lock", "compute_outside_the_lock")
    assert waited < keeper / 5


def test_a_busy_processor_is_no_wait_for_the_lock() -> None:
    cpu = min(os.sched_getaffinity(0))
    burn = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    burners = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2)]
    try:
        waited, _, _, late = measure(cpu=str(cpu))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert late > 0.02, "the processor was not busy enough to tell"
    assert waited < late / 5


def test_the_wait_for_a_processor_and_the_timers_grain_are_taken_off(clock: Clock) -> None:
    service_named("s")
    probe = serving.runtime.gil
    probe.note(late_ns=25_000_000, run_delay_ns=5_000_000, now_ns=clock())
    probe.note(late_ns=25_000_000, run_delay_ns=24_500_000, now_ns=clock())
    probe.note(late_ns=900_000, run_delay_ns=0, now_ns=clock())
    assert values("python_gil_wait_seconds_total") == {(): 0.02}
    assert values("python_gil_wait_max_seconds") == {(): 0.02}


def probes() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tailwatch-gil"]


def test_the_thread_begins_with_the_first_request_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "runtime", serving.runtime)
    monkeypatch.setattr(serving.runtime, "watch_collector", lambda: None)
    before = len(probes())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    wrapped = StageTimingMiddleware(app, service="s")
    assert len(probes()) == before
    assert values("python_gil_wait_seconds_total") == {}

    async def main() -> None:
        for _ in range(3):
            serving.runtime.look_again_ns = 0
            await request(wrapped, "/")

    try:
        asyncio.run(main())
        assert len(probes()) == before + 1
        assert values("python_gil_wait_seconds_total").keys() == {()}, "0 from the start"
    finally:
        serving.runtime.gil.stop()
    assert len(probes()) == before


def test_a_forked_child_asks_with_a_thread_of_its_own() -> None:
    probe = serving.runtime.gil
    probe.start()
    try:
        pid = os.fork()
        if pid == 0:
            inherited = len(probes())
            probe.start()
            os._exit(0 if (inherited, len(probes())) == (0, 1) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        probe.stop()


@pytest.mark.parametrize("missing", ["the lock", "the run delay"])
def test_without_the_lock_or_the_run_delay_nothing_is_measured(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "the lock":
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    else:
        monkeypatch.setattr(Path, "exists", lambda self: False)
    before = len(probes())
    probe = GilProbe(CellStore(PROCESS))
    probe.start()
    assert (len(probes()), probe.is_known) == (before, False)
