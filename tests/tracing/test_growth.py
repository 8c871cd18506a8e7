"""No request leaves anything behind; `make bench` says the same of ten million."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from tailwatch_tracing import StageTimingMiddleware
from tests.bench import growth
from tests.bench.harness import in_fresh_process
from tests.tracing.asgi import http_scope


def test_neither_objects_nor_memory_grow_with_requests() -> None:
    kib, objects = in_fresh_process(growth.measure, 20_000, 40_000, 5_000)
    assert objects <= growth.GOAL_OBJECTS
    assert kib <= growth.GOAL_KIB


def test_the_requests_are_of_every_kind() -> None:
    """Else their not growing would say little."""
    kinds = [growth._kind(number) for number in range(1000, 1200)]
    assert len({path for path, _, _ in kinds}) >= 6
    assert {path for path, _, _ in kinds}.isdisjoint(
        path for path, _, _ in map(growth._kind, range(1200, 1400)) if path.count("/") > 1
    )
    assert len({send for _, _, send in kinds}) == 2


class Cycle:
    """A server's request, which sets a timer when it is answered, as uvicorn's does."""

    timers: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self.scope = http_scope("/")

    async def receive(self) -> Any:
        return {"type": "http.request"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            Cycle.timers.append(asyncio.get_running_loop().call_later(1000, print))


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_a_servers_timers_do_not_keep_its_requests_by_us() -> None:
    """A timer has the context it was set in; asyncio keeps a hundred that were cancelled."""

    async def main() -> None:
        Cycle.timers = []
        app = StageTimingMiddleware(answer, service="s")

        async def serve() -> weakref.ref[Cycle]:
            cycle = Cycle()
            await app(cycle.scope, cycle.receive, cycle.send)
            return weakref.ref(cycle)

        gc.disable()
        try:
            kept = [await asyncio.create_task(serve()) for _ in range(5)]
            assert len(Cycle.timers) == 5
            assert [ref for ref in kept if ref() is not None] == []
        finally:
            gc.enable()

    asyncio.run(main())


def test_a_task_that_outlives_its_request_finds_the_client_gone() -> None:
    tasks: list[asyncio.Task[None]] = []
    ended = asyncio.Event()

    async def outlived(scope: Any, receive: Any, send: Any) -> None:
        async def stay() -> None:
            await ended.wait()
            assert await receive() == {"type": "http.disconnect"}
            with pytest.raises(RuntimeError, match=r"http.response.body.*has returned"):
                await send({"type": "http.response.body", "body": b"late"})

        tasks.append(asyncio.create_task(stay()))
        await answer(scope, receive, send)

    async def main() -> None:
        cycle, Cycle.timers = Cycle(), []
        app = StageTimingMiddleware(outlived, service="s")
        await app(cycle.scope, cycle.receive, cycle.send)
        ended.set()
        await tasks[0]

    asyncio.run(main())
