"""The page of a service that uses everything, under a clock that stands still between steps."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from tailwatch_stack.native.binaries import locate
from tailwatch_tracing import (
    CascadeTier,
    RequestBatcher,
    RequestQueue,
    ResultCache,
    StageTimingMiddleware,
    count_tokens,
    downstream,
    model_loading,
    service,
    serving,
    stage,
    upstream,
)
from tailwatch_tracing.exposition import render_families
from tailwatch_tracing.runtime import watch_largest_free_block, watch_threadpool
from tailwatch_tracing.serving import collect
from tailwatch_tracing.spans.recorder import SpanRecorder
from tailwatch_tracing.torch_memory import TorchMemory
from tests.tracing.asgi import Exchange, http_scope, request
from tests.tracing.conftest import Clock
from tests.tracing.fake_torch import GIB, FakeCuda, memory_stats, segment, torch_with

CONTAINER = Path(__file__).parents[1] / "fixtures/cgroup/container"


@pytest.fixture
def page(clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(service, "VERSION", "0.0.0")
    monkeypatch.setattr(upstream, "time_ns", lambda: 1_700_000_000_020_000_000)
    queue = RequestQueue("preprocess")
    encoder = RequestBatcher("encoder", max_size=32, window_seconds=0.010)
    cache = ResultCache("labels")
    small, large = CascadeTier("small"), CascadeTier("large")
    started = asyncio.Event()
    with model_loading("encoder", version="7"):
        clock.advance(12.5)

    async def classify(incoming: Request) -> PlainTextResponse:
        clock.advance(0.002)
        if incoming.path_params["model"] == "full":
            queue.reject()
            return PlainTextResponse("full", 503)
        with queue.enter():
            clock.advance(0.010)
        with stage("preprocess"):
            clock.burn(0.030)
        with downstream("labels"):
            clock.advance(0.004)
        place = encoder.join()
        clock.advance(0.008)
        with encoder.run([place]):
            encoder.note_padding(used=1536, total=2048)
            with stage("inference"):
                clock.advance(0.7 if incoming.path_params["model"] == "big" else 0.05)
        (large if incoming.path_params["model"] == "big" else small).answered()
        clock.advance(0.001)
        return PlainTextResponse("label")

    async def hang(incoming: Request) -> PlainTextResponse:
        with queue.enter():
            started.set()
            await asyncio.Event().wait()
        return PlainTextResponse("never")

    async def answer(incoming: Request) -> StreamingResponse:
        cache.semantic_hit(0.93)
        count_tokens(prompt=12)

        async def tokens() -> AsyncIterator[str]:
            for seconds in (0.2, 0.03, 0.03):
                clock.advance(seconds)
                count_tokens(output=1)
                yield "token"

        return StreamingResponse(tokens(), background=BackgroundTask(clock.advance, 0.25))

    async def chat(websocket: WebSocket) -> None:
        await websocket.close(1008)

    app = StageTimingMiddleware(
        Starlette(
            routes=[
                Route("/classify/{model}", classify),
                Route("/hang", hang),
                Route("/answer", answer),
                WebSocketRoute("/chat", chat),
            ]
        ),
        service="content-type",
        slo_seconds=0.5,
        client_timeout_seconds=5,
        gpu_uuids=["GPU-11111111-2222-3333-4444-555555555555"],
        workers_dir=tmp_path,
        trust_request_start=True,
    )

    content_type = service.service_named("content-type")
    content_type.spans = SpanRecorder(content_type, TracerProvider())

    async def main() -> str:
        for path in ("/classify/small", "/classify/big", "/classify/full", "/nothing/7"):
            await request(app, path)
        await request(app, "/answer", headers=[(b"x-request-start", b"t=1700000000")])
        exchange = Exchange()
        await app(
            http_scope("/chat", type="websocket", subprotocols=[]), exchange.receive, exchange.send
        )
        hanging = asyncio.create_task(app(http_scope("/hang"), exchange.receive, exchange.send))
        await started.wait()
        clock.advance(1.5)
        serving.runtime.note_lag(250_000_000, clock())
        serving.runtime.gil.note(90_000_000, 15_000_000, clock())
        serving.runtime.collector.on_collection("start", {})
        clock.advance(0.3)
        serving.runtime.collector.on_collection("stop", {})
        with ThreadPoolExecutor(1) as executor:
            wait_for_a_thread(watch_threadpool(executor, "decode"), clock)
            text = render_families(collect()).decode()
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        return text

    serving.runtime.root = CONTAINER
    serving.runtime.torch_memory = TorchMemory(serving.runtime.store, lambda: torch_with(cuda()))
    watch_largest_free_block()
    return asyncio.run(main())


def wait_for_a_thread(executor: ThreadPoolExecutor, clock: Clock) -> None:
    """Let one call run to its end, while another waits 0.2 s for its thread."""
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(10)

    calls = [executor.submit(work), executor.submit(clock)]
    begun.wait(10)
    clock.advance(0.2)
    go_on.set()
    for call in calls:
        call.result(10)


def cuda() -> FakeCuda:
    device = FakeCuda(
        memory_stats(
            allocated=9 * GIB,
            reserved=11 * GIB,
            active=9 * GIB,
            inactive_split=GIB,
            retries=2,
            ooms=1,
        )
    )
    device.fraction = 0.5
    device.segments = [segment(0, ("inactive", GIB // 2), ("active_allocated", GIB))]
    return device


def test_service_page(golden: Callable[[str, str], None], page: str) -> None:
    golden("service.prom", page)


def test_promtool_finds_no_fault_with_the_page(page: str) -> None:
    checked = subprocess.run(
        [locate("promtool"), "check", "metrics"], input=page, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
