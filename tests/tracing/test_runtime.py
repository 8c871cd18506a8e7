"""Stops of the process: what is lost is counted, the longest one is kept for a minute."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvloop
from starlette.responses import PlainTextResponse

from tailwatch_tracing import StageTimingMiddleware, middleware, runtime, serving
from tailwatch_tracing.page import Snapshot
from tailwatch_tracing.runtime import LoopWatch, Runtime
from tailwatch_tracing.service import service_named
from tailwatch_tracing.window import WINDOW_SECONDS, WindowMaximum
from tests.tracing.asgi import request, values
from tests.tracing.conftest import Clock


def runtime_values() -> dict[str, float]:
    return {
        name: values(name)[()]
        for name in (
            "python_event_loop_lost_seconds_total",
            "python_event_loop_lag_max_seconds",
            "python_gc_pause_seconds_total",
            "python_gc_pause_max_seconds",
        )
    }


def test_the_maximum_is_of_the_last_minute_and_reading_does_not_reset_it(clock: Clock) -> None:
    maximum = WindowMaximum()
    maximum.note(300, clock())
    clock.advance(20)
    maximum.note(100, clock())
    assert [maximum.read(clock()) for _ in range(3)] == [300] * 3
    clock.advance(WINDOW_SECONDS - 21)
    assert maximum.read(clock()) == 300, "a pause is seen for a whole minute"
    clock.advance(6)
    assert maximum.read(clock()) == 100
    clock.advance(WINDOW_SECONDS)
    assert maximum.read(clock()) == 0


def test_the_window_stays_small(clock: Clock) -> None:
    maximum = WindowMaximum()
    for _ in range(1000):
        clock.advance(1)
        maximum.note(1, clock())
    assert len(maximum._slots) <= WINDOW_SECONDS / 5 + 1


def test_a_blocked_loop_is_counted_once_it_runs_again() -> None:
    service_named("s")

    async def main() -> None:
        serving.runtime.watch_loop()
        await asyncio.sleep(0.05)
        time.sleep(0.3)
        await asyncio.sleep(0.05)

    asyncio.run(main())
    found = runtime_values()
    # A timer comes due within one tick of the beginning of the block.
    assert 0.27 <= found["python_event_loop_lag_max_seconds"] < 30
    assert (
        found["python_event_loop_lost_seconds_total"] >= found["python_event_loop_lag_max_seconds"]
    )


class BusyLoop:
    """A loop that works in blocks of 22 ms without a pause, and runs what is due between two."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.begun_ns = clock()
        self.due_ns = 0
        self.tick: Callable[[], None] = lambda: None

    def call_later(self, seconds: float, tick: Callable[[], None]) -> None:
        passed_ns = self.clock() + seconds * 1e9 - self.begun_ns
        self.due_ns = self.begun_ns + math.ceil(passed_ns / 22e6) * 22_000_000
        self.tick = tick

    def is_running(self) -> bool:
        return True

    def run(self, ticks: int) -> int:
        for _ in range(ticks):
            self.clock.now_ns = self.due_ns
            self.tick()
        return self.clock() - self.begun_ns


def test_no_rhythm_of_short_blocks_hides_between_the_ticks(clock: Clock) -> None:
    """A tick each 20 ms would come 2 ms late each time, within the noise, and tell of nothing."""
    watched = Runtime()
    loop = BusyLoop(clock)
    LoopWatch(watched, cast("Any", loop))
    blocked_ns = loop.run(ticks=1000)
    snapshot = Snapshot()
    watched.snapshot_into(snapshot)
    ((lost_ns,),) = snapshot.counts["python_event_loop_lost_seconds_total"].values()
    # Each waits 10 ms in the mean, to the end of the first block of 22: 12 ms late.
    assert 0.4 * blocked_ns < lost_ns < 0.6 * blocked_ns


def test_a_block_under_way_is_told_before_its_end_and_the_counter_never_falls(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    service_named("s")
    monkeypatch.setattr(runtime, "_TICK_SECONDS", (0.02, 0.02))  # nothing awaits: none comes

    async def main() -> list[dict[str, float]]:
        serving.runtime.watch_loop()
        seen = []
        for _ in range(2):
            clock.advance(1)
            seen.append(runtime_values())
        return seen

    first, second = asyncio.run(main())
    assert first["python_event_loop_lost_seconds_total"] == 0.98
    assert second["python_event_loop_lag_max_seconds"] == 1.98
    after = runtime_values()
    assert after["python_event_loop_lost_seconds_total"] == 1.98, "the loop is gone, not its loss"
    assert after["python_event_loop_lag_max_seconds"] == 0


def test_lateness_within_the_timers_grain_is_not_a_loss(clock: Clock) -> None:
    process = Runtime()
    process.note_lag(4_900_000, clock())
    process.note_lag(-1, clock())
    snapshot = Snapshot()
    process.snapshot_into(snapshot)
    assert snapshot.counts["python_event_loop_lost_seconds_total"] == {("", ()): (0,)}
    assert snapshot.levels["python_event_loop_lag_max_seconds"] == {("", ()): 0}


def test_the_first_request_begins_the_watch_and_loading_before_it_is_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(middleware, "runtime", serving.runtime)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await asyncio.sleep(0.03)
            time.sleep(0.1)
            await asyncio.sleep(0.03)
        else:
            await PlainTextResponse("ok")(scope, receive, send)

    wrapped = StageTimingMiddleware(app, service="s")

    async def main() -> list[int]:
        await wrapped({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
        watched = [len(serving.runtime._watches)]
        await request(wrapped, "/x")
        return [*watched, len(serving.runtime._watches)]

    try:
        assert asyncio.run(main()) == [0, 1]
    finally:
        gc.callbacks.remove(serving.runtime.collector.on_collection)


def test_a_loop_is_watched_once_and_the_next_one_too() -> None:
    async def main() -> None:
        for _ in range(3):
            serving.runtime.watch_loop()
        assert len(serving.runtime._watches) == 1

    asyncio.run(main())
    asyncio.run(main())


def test_loops_of_two_threads_are_both_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's ticks do not keep a request on the second from looking."""
    monkeypatch.setattr(middleware, "runtime", serving.runtime)
    monkeypatch.setattr(serving.runtime.gil, "start", lambda: None)
    app = StageTimingMiddleware(PlainTextResponse("ok"), service="s")
    done = threading.Event()

    async def first() -> None:
        while not done.is_set():
            await request(app, "/x")
            await asyncio.sleep(0.01)

    async def second() -> None:
        for _ in range(1000):
            await request(app, "/x")
            if len(serving.runtime._watches) == 2:
                break
            await asyncio.sleep(0.011)
        await asyncio.sleep(0.05)
        time.sleep(0.2)
        await asyncio.sleep(0.05)

    thread = threading.Thread(target=asyncio.run, args=(first(),))
    thread.start()
    try:
        asyncio.run(second())
        assert runtime_values()["python_event_loop_lost_seconds_total"] > 0.1
    finally:
        done.set()
        thread.join()
        gc.callbacks.remove(serving.runtime.collector.on_collection)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_did_not_run_lost_nothing(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter runs one loop for each of its events, and is idle or frozen between them."""
    service_named("s")
    monkeypatch.setattr(serving.runtime, "watch_process", lambda: None)

    async def handle() -> None:
        serving.runtime.watch_loop()
        await asyncio.sleep(0.05)

    loop = new_loop()
    try:
        loop.run_until_complete(handle())
        time.sleep(1)
        loop.run_until_complete(handle())
    finally:
        loop.close()
    assert runtime_values()["python_event_loop_lost_seconds_total"] < 0.9


def test_garbage_collection_is_timed() -> None:
    service_named("s")
    serving.runtime.watch_collector()
    try:
        gc.collect()
        found = runtime_values()
    finally:
        gc.callbacks.remove(serving.runtime.collector.on_collection)
    assert 0 < found["python_gc_pause_max_seconds"] <= found["python_gc_pause_seconds_total"]


def test_pauses_are_summed_and_their_maximum_kept(clock: Clock) -> None:
    service_named("s")
    for pause in (0.1, 0.4, 0.2):
        serving.runtime.collector.on_collection("start", {})
        clock.advance(pause)
        serving.runtime.collector.on_collection("stop", {})
        clock.advance(1)
    found = runtime_values()
    assert round(found["python_gc_pause_seconds_total"], 9) == 0.7
    assert found["python_gc_pause_max_seconds"] == 0.4


def test_a_forked_child_forgets_the_loops_of_its_parent() -> None:
    async def main() -> int:
        serving.runtime.watch_loop()
        pid = os.fork()
        if pid == 0:
            os._exit(len(serving.runtime._watches))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert asyncio.run(main()) == 0
