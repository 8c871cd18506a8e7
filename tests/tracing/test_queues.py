"""The queue instrument measures; order and limit are the queue's own."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from contextlib import AsyncExitStack

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tailwatch_tracing import QueuePlace, RequestQueue, StageTimingMiddleware
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
    with RequestQueue("q", service="s").enter():
        assert RequestQueue("q", service="s").depth == 1


def test_a_queue_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"RequestQueue\(''\): expected a name that is not empty"):
        RequestQueue("")


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


def test_the_places_of_a_threads_queue_leave_where_they_are_taken(clock: Clock) -> None:
    """A bounded queue.Queue, put into by one thread and emptied by another."""
    instrument = RequestQueue("q", service="s")
    items: queue.Queue[QueuePlace | None] = queue.Queue(maxsize=2)

    def put() -> None:
        try:
            items.put_nowait(instrument.enter())
        except queue.Full:
            instrument.reject()

    def consume() -> None:
        while (place := items.get()) is not None:
            place.leave()

    for _ in range(3):
        put()
        clock.advance(1)
    # The third one was refused: its place is forgotten, so it waits no longer.
    assert instrument.depth == 2
    consumer = threading.Thread(target=consume)
    consumer.start()
    items.put(None)
    consumer.join()
    assert values("inference_queue_depth") == {(): 0}
    assert values("inference_queue_wait_seconds_sum") == {(): 3 + 2 + 0}
    assert nonzero("inference_rejected_total", ["reason"]) == {("full",): 1}


def test_the_places_of_an_asyncio_queue(clock: Clock) -> None:
    instrument = RequestQueue("q", service="s")

    async def main() -> None:
        items: asyncio.Queue[QueuePlace] = asyncio.Queue()

        async def consume() -> None:
            while True:
                (await items.get()).leave()
                items.task_done()

        for _ in range(3):
            items.put_nowait(instrument.enter())
        assert instrument.depth == 3
        clock.advance(0.25)
        consumer = asyncio.create_task(consume())
        await items.join()
        consumer.cancel()

    asyncio.run(main())
    assert instrument.depth == 0
    assert values("inference_queue_wait_seconds_sum") == {(): 0.75}


def test_a_wait_for_a_semaphore(clock: Clock) -> None:
    instrument = RequestQueue("q", service="s")

    async def main() -> None:
        room = asyncio.Semaphore(1)

        async def work() -> None:
            async with AsyncExitStack() as turn:
                with instrument.enter():
                    await turn.enter_async_context(room)
                await asyncio.sleep(0)
                clock.advance(0.5)

        await asyncio.gather(work(), work(), work())

    asyncio.run(main())
    assert values("inference_queue_wait_seconds_sum") == {(): 0 + 0.5 + 1}
    assert values("inference_queue_wait_seconds_count") == {(): 3}


def test_a_forked_child_has_an_empty_queue_and_waits_for_none_of_its_parents_places() -> None:
    instrument = RequestQueue("q", service="s")
    place = instrument.enter()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        was = instrument.depth
        place.leave()
        place = instrument.enter()
        counts = values("inference_queue_wait_seconds_count")
        os._exit(0 if (was, instrument.depth, counts) == (0, 1, {(): 0}) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert instrument.depth == 1
    place.leave()
