"""The queue instrument measures; order and limit are the queue's own."""

from __future__ import annotations

import asyncio
import threading

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tailwatch_tracing import RequestQueue, StageTimingMiddleware
from tests.tracing.asgi import nonzero, request, values
from tests.tracing.conftest import Clock


def test_depth_and_wait(clock: Clock) -> None:
    queue = RequestQueue("preprocess", service="s")
    first, second = queue.enter(), queue.enter()
    clock.advance(0.5)
    assert queue.depth == 2
    first.leave()
    first.leave()
    assert values("inference_queue_depth", "service", "queue") == {("s", "preprocess"): 1}
    clock.advance(1)
    second.leave()
    assert values("inference_queue_wait_seconds_sum", "queue") == {("preprocess",): 2.0}
    assert values("inference_queue_wait_seconds_count", "queue") == {("preprocess",): 2}


def test_a_block_leaves_however_it_ends() -> None:
    queue = RequestQueue("preprocess", service="s")

    async def wait() -> None:
        async with queue.enter():
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert queue.depth == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert queue.depth == 0
    try:
        with queue.enter():
            raise LookupError
    except LookupError:
        assert queue.depth == 0


def test_an_unused_queue_is_on_the_page_with_its_refusals_at_0() -> None:
    RequestQueue("preprocess")
    StageTimingMiddleware(Starlette(), service="s")
    assert values("inference_queue_depth", "service", "queue") == {("s", "preprocess"): 0}
    assert values("inference_rejected_total", "queue", "reason") == {("preprocess", "full"): 0}


def test_a_queue_belongs_to_the_service_whose_request_uses_it() -> None:
    StageTimingMiddleware(Starlette(), service="first")
    queue = RequestQueue("q")

    async def handler(incoming: Request) -> PlainTextResponse:
        with queue.enter():
            return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/x", handler)]), service="second")
    assert values("inference_queue_depth", "service") == {}, "there is a choice, and no use yet"
    asyncio.run(request(app, "/x"))
    assert values("inference_queue_wait_seconds_count", "service") == {("second",): 1}


def test_refusals_outside_a_request_are_counted_by_reason_and_capped() -> None:
    queue = RequestQueue("q", service="s")
    queue.reject()
    for i in range(40):
        queue.reject(f"reason-{i}")
    reasons = nonzero("inference_rejected_total", ["reason"])
    assert len(reasons) == 17
    assert sum(reasons.values()) == 41
    assert reasons[("full",)] == 1
    assert reasons[("__other__",)] == 41 - 16


def test_queues_of_one_name_are_one() -> None:
    RequestQueue("q", service="s").enter()
    assert RequestQueue("q", service="s").depth == 1


def test_threads_lose_nothing() -> None:
    queue = RequestQueue("q", service="s")

    def work() -> None:
        for _ in range(2000):
            with queue.enter():
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.depth == 0
    assert values("inference_queue_wait_seconds_count") == {(): 8000}
