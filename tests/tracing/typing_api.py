"""Never run: the public names as a user's type checker sees them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import assert_type

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.types import ASGIApp

from tailwatch_tracing import (
    BatchPlace,
    CascadeTier,
    LoadedModel,
    QueuePlace,
    RequestBatcher,
    RequestQueue,
    ResultCache,
    StageTimingMiddleware,
    TrainingMonitor,
    count_tokens,
    downstream,
    metrics_app,
    model_loaded,
    model_loading,
    render_metrics,
    serve_metrics,
    stage,
    watch_largest_free_block,
    watch_threadpool,
)


class Executor(ThreadPoolExecutor):
    """One's own."""


assert_type(watch_threadpool(ThreadPoolExecutor(4), "decode"), ThreadPoolExecutor)
assert_type(watch_threadpool(Executor(4), name="decode"), Executor)
watch_largest_free_block()
watch_largest_free_block(every_seconds=300)

fastapi_app = FastAPI()
fastapi_app.add_middleware(
    StageTimingMiddleware,
    service="s",
    metrics_path="/metrics",
    slo_seconds=0.5,
    gpu_uuids=["GPU-1"],
)
fastapi_app.mount("/metrics", metrics_app())
wrapped: ASGIApp = StageTimingMiddleware(Starlette(), service="s", exclude=["/x"])

assert_type(render_metrics(), tuple[bytes, str])
assert_type(serve_metrics(0, service="s").port, int)


@stage("preprocess")
def sync(x: int) -> str:
    return str(x)


@stage("inference")
async def asynchronous(x: int) -> str:
    return str(x)


async def use() -> None:
    assert_type(sync(1), str)
    assert_type(await asynchronous(1), str)
    with stage("a"):
        async with stage("b"):
            pass
    with stage("inference", cuda=True), downstream("db") as call:
        assert_type(call.headers, dict[str, str])
    queue = RequestQueue("q")
    with queue.enter() as place:
        place.leave()
    async with queue.enter():
        queue.reject(reason="full")
    assert_type(queue.depth, int)
    assert_type(queue.enter(), QueuePlace)
    with model_loading("encoder", version="7") as model:
        assert_type(model, LoadedModel)
    async with model_loading("encoder", version="7", service="s"):
        model_loaded("encoder", version="6", load_seconds=2.5).unload()
    cache = ResultCache("answers")
    cache.exact_hit()
    cache.semantic_hit(0.93)
    cache.miss()
    CascadeTier("small").answered()
    count_tokens(prompt=12)
    count_tokens(output=200, output_seconds=4.1)
    batcher = RequestBatcher("encoder", max_size=32, window_seconds=0.010)
    assert_type(batcher.join(), BatchPlace[None])
    async with batcher.join("text") as text:
        assert_type(text, BatchPlace[str])
        assert_type(text.item, str)
    with batcher.run([text]):
        batcher.note_padding(used=3, total=4)
    async with batcher.run({text}):
        text.leave()
    assert_type(lengths([text]), list[int])
    assert_type(await vectors([text]), list[float])


encoder = RequestBatcher("encoder")


@encoder.wrap
def lengths(texts: Sequence[str]) -> list[int]:
    return [len(text) for text in texts]


@encoder.wrap
async def vectors(texts: list[str]) -> list[float]:
    return [0.0 for _ in texts]


def train() -> None:
    with TrainingMonitor("job", optimizer=None, every_steps=10, rank=0) as monitor:
        for batch in monitor.batches([1, 2], samples=lambda each: each + 1):
            assert_type(batch, int)
            monitor.loss(0.5)
            monitor.grad_norm(1.0, max_norm=2.0)
            with monitor.phase("checkpoint"), monitor.pause(), monitor.optimizer_step():
                pass
        monitor.push_to("127.0.0.1:9091", every_seconds=15)
