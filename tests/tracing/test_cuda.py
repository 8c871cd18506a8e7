"""GPU time of stages, against a torch.cuda whose one stream runs on the test's clock.

The fake does what torch's documentation says of streams and events. Whether a real device agrees
is not tested here.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, cuda, stage
from tests.tracing.asgi import nonzero, request
from tests.tracing.conftest import Clock


class Gpu:
    """One device and its stream: kernels run one after the other, behind the host's back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.idle_from_ns = 0
        self.is_initialized = True
        self.is_capturing = False
        self.has_failed = False
        self.events = 0

    def launch(self, seconds: float) -> None:
        """Return at once, as a launch does."""
        self.idle_from_ns = max(self.idle_from_ns, self._clock.now_ns) + round(seconds * 1e9)

    def wait(self) -> None:
        """What reading a result does."""
        self._clock.now_ns = max(self._clock.now_ns, self.idle_from_ns)

    def module(self) -> ModuleType:
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self._times = enable_timing
                self._reached_ns: int | None = None
                gpu.events += 1

            def record(self) -> None:
                assert not gpu.is_capturing
                self._reached_ns = max(gpu._clock.now_ns, gpu.idle_from_ns)

            def query(self) -> bool:
                if gpu.has_failed:
                    raise RuntimeError("CUDA error: an illegal memory access was encountered")
                return self._reached_ns is None or gpu._clock.now_ns >= self._reached_ns

            def elapsed_time(self, end: Event) -> float:
                if not (self._times and end._times):
                    raise RuntimeError("Both events must be created with argument enable_timing")
                if self._reached_ns is None or end._reached_ns is None:
                    raise RuntimeError("Both events must be recorded before calculating a time")
                if not (self.query() and end.query()):
                    raise RuntimeError("Both events must be completed before calculating a time")
                return (end._reached_ns - self._reached_ns) / 1e6

            def synchronize(self) -> None:
                raise AssertionError("a request waited for the GPU")

        torch = ModuleType("torch")
        torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
            Event=Event,
            is_initialized=lambda: gpu.is_initialized,
            is_current_stream_capturing=lambda: gpu.is_capturing,
        )
        return torch


@pytest.fixture
def gpu(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu(clock)
    monkeypatch.setitem(sys.modules, "torch", gpu.module())
    cuda.pending_times.forget()
    return gpu


def serve(handler: Callable[[Request], object], times: int = 1) -> None:
    app = StageTimingMiddleware(Starlette(routes=[Route("/x", handler)]), service="s")  # type: ignore[arg-type]

    async def main() -> None:
        for _ in range(times):
            await request(app, "/x")

    asyncio.run(main())


def observed() -> dict[str, tuple[float, float]]:
    """Stage -> number of intervals and the sum of their seconds."""
    sums = nonzero("inference_stage_duration_seconds_sum", ["stage"])
    counts = nonzero("inference_stage_duration_seconds_count", ["stage"])
    return {name: (count, sums.get((name,), 0.0)) for (name,), count in counts.items()}


def exclusive() -> dict[str, float]:
    return {k[0]: v for k, v in nonzero("inference_stage_seconds_total", ["stage"]).items()}


def test_the_duration_is_the_gpus_and_the_seconds_are_the_hosts(clock: Clock, gpu: Gpu) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference", cuda=True):
            clock.advance(0.001)
            gpu.launch(0.2)
            clock.advance(0.002)
        gpu.wait()
        return PlainTextResponse("ok")

    serve(handler)
    # The GPU reaches the first mark at once and the second one when the kernel is done.
    assert observed() == {"inference": (1, 0.201), "postprocess": (1, 0.198)}
    assert exclusive() == {"inference": 0.003, "postprocess": 0.198}


def test_what_was_launched_before_is_not_the_stages(clock: Clock, gpu: Gpu) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        gpu.launch(5)
        with stage("inference", cuda=True):
            gpu.launch(0.2)
        gpu.wait()
        return PlainTextResponse("ok")

    serve(handler)
    assert observed()["inference"] == (1, 0.2)


def test_a_request_that_ends_first_is_observed_at_a_later_scrape(clock: Clock, gpu: Gpu) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference", cuda=True):
            gpu.launch(0.2)
        return PlainTextResponse("ok")

    serve(handler)
    assert "inference" not in observed()
    clock.advance(0.1)
    assert "inference" not in observed()
    clock.advance(0.1)
    assert observed()["inference"] == (1, 0.2)
    assert observed()["inference"] == (1, 0.2)


def test_a_later_request_observes_what_is_done(clock: Clock, gpu: Gpu) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        clock.advance(1)
        with stage("inference", cuda=True):
            gpu.launch(0.2)
        return PlainTextResponse("ok")

    serve(handler, times=3)
    assert len(cuda.pending_times.entries) == 1


@pytest.mark.parametrize("used_as", ["decorator", "async", "again", "nested", "outside"])
def test_every_way_to_use_it(clock: Clock, gpu: Gpu, used_as: str) -> None:
    shared = stage("inference", cuda=True)

    @stage("inference", cuda=True)
    async def predict() -> None:
        gpu.launch(0.2)

    async def use() -> None:
        if used_as == "decorator":
            await predict()
        elif used_as == "async":
            async with stage("inference", cuda=True):
                gpu.launch(0.2)
        elif used_as == "again":
            with shared:
                gpu.launch(0.1)
            with shared:
                gpu.launch(0.1)
        else:
            with stage("outer"), stage("inference", cuda=True), stage("inner"):
                gpu.launch(0.2)

    async def handler(incoming: Request) -> PlainTextResponse:
        await use()
        gpu.wait()
        return PlainTextResponse("ok")

    if used_as == "outside":
        asyncio.run(use())
        gpu.wait()
    else:
        serve(handler)
    assert observed()["inference"] == (2 if used_as == "again" else 1, 0.2)


def test_an_outermost_stage_outside_a_request_is_timed_too(clock: Clock, gpu: Gpu) -> None:
    with stage("inference", cuda=True):
        gpu.launch(0.2)
    gpu.wait()
    assert observed() == {"inference": (1, 0.2)}


def test_a_stage_cut_by_its_requests_end_has_the_hosts_time(clock: Clock, gpu: Gpu) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        stage("inference", cuda=True).__enter__()
        gpu.launch(5)
        clock.advance(0.1)
        return PlainTextResponse("ok")

    serve(handler)
    assert observed() == {"inference": (1, 0.1)}


@pytest.mark.parametrize("without", ["torch", "CUDA", "a stream that is not captured"])
def test_the_hosts_time_without(
    clock: Clock, gpu: Gpu, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without == "torch":
        monkeypatch.delitem(sys.modules, "torch")
    gpu.is_initialized = without != "CUDA"
    gpu.is_capturing = without not in ("CUDA", "torch")
    with stage("inference", cuda=True):
        clock.advance(0.1)
    assert observed() == {"inference": (1, 0.1)}
    assert gpu.events == 0
    assert ("torch" in sys.modules) == (without != "torch")


def test_cuda_that_begins_within_the_stage_leaves_the_hosts_time(clock: Clock, gpu: Gpu) -> None:
    gpu.is_initialized = False
    with stage("inference", cuda=True):
        gpu.is_initialized = True
        clock.advance(0.1)
    assert observed() == {"inference": (1, 0.1)}


def test_a_device_that_fails_fails_no_request(clock: Clock, gpu: Gpu) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference", cuda=True):
            gpu.launch(0.2)
            clock.advance(0.1)
        gpu.has_failed = True
        return PlainTextResponse("ok")

    serve(handler)
    assert observed()["inference"] == (1, 0.1)
    assert nonzero("tailwatch_errors_total", ["where"]) == {("stage",): 1}


def test_a_torch_without_events_fails_no_block(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_initialized=lambda: True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    with stage("inference", cuda=True):
        clock.advance(0.1)
    assert observed() == {"inference": (1, 0.1)}
    assert nonzero("tailwatch_errors_total", ["where"]) == {("stage",): 1}


def test_a_gpu_that_hangs_keeps_no_more_than_the_limit(clock: Clock, gpu: Gpu) -> None:
    gpu.launch(1e6)
    for _ in range(cuda.PENDING_LIMIT + 10):
        with stage("inference", cuda=True):
            clock.advance(0.1)
    assert len(cuda.pending_times.entries) == cuda.PENDING_LIMIT
    assert observed() == {"inference": (10, 1.0)}


def test_a_request_of_very_many_stages_has_the_gpus_time_of_each(
    clock: Clock, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailwatch_tracing.units.FOLD_AT", 3)

    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference", cuda=True):
            for _ in range(20):
                with stage("token", cuda=True):
                    gpu.launch(0.02)
                clock.advance(0.01)
        return PlainTextResponse("ok")

    serve(handler)
    gpu.wait()
    assert observed()["token"] == (20, pytest.approx(0.4))
    assert observed()["inference"] == (1, pytest.approx(0.4))
    assert exclusive() == {"inference": pytest.approx(0.2)}


def test_a_rejected_request_is_not_observed(clock: Clock, gpu: Gpu) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference", cuda=True):
            gpu.launch(0.1)
        return PlainTextResponse("busy", 429)

    serve(handler)
    gpu.wait()
    assert observed() == {}


def test_threads_observe_each_interval_once(clock: Clock, gpu: Gpu) -> None:
    def work() -> None:
        for _ in range(300):
            with stage("inference", cuda=True):
                pass

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(work,)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for _ in range(20):
        observed()
    for thread in threads:
        thread.join()
    assert observed() == {"inference": (1200, 0.0)}


def test_a_forked_child_leaves_the_gpu_to_its_parent(clock: Clock, gpu: Gpu) -> None:
    gpu.launch(1)
    with stage("inference", cuda=True):
        pass
    with cuda.pending_times._lock:
        pid = os.fork()
        if pid == 0:
            is_free = cuda.pending_times._lock.acquire(blocking=False)
            os._exit(0 if is_free and not cuda.pending_times.entries else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
