"""Never run: the public names as a user's type checker sees them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import assert_type

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.types import ASGIApp

from tailwatch_tracing import (
    RequestQueue,
    StageTimingMiddleware,
    downstream,
    metrics_app,
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
