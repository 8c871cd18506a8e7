"""A stage over the `yield` of a generator: open while the consumer works, whoever closes it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, service, stage
from tailwatch_tracing.units import NO_UNIT, current_unit
from tests.tracing.asgi import nonzero, request
from tests.tracing.conftest import Clock


def exclusive() -> dict[str, float]:
    return {k[0]: v for k, v in nonzero("inference_stage_seconds_total", ["stage"]).items()}


def walls() -> dict[str, tuple[float, float]]:
    """Stage -> number of intervals and their sum in seconds."""
    sums = nonzero("inference_stage_duration_seconds_sum", ["stage"])
    counts = nonzero("inference_stage_duration_seconds_count", ["stage"])
    return {name: (count, sums.get((name,), 0.0)) for (name,), count in counts.items()}


def serve(handler: Callable[[Request], object]) -> None:
    app = StageTimingMiddleware(Starlette(routes=[Route("/x", handler)]), service="s")  # type: ignore[arg-type]
    asyncio.run(request(app, "/x"))


def numbers() -> Iterator[int]:
    with stage("spanning"):
        yield 1
        yield 2


async def async_numbers() -> AsyncIterator[int]:
    with stage("spanning"):
        yield 1
        yield 2


def in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("closed", ["run out", "closed", "closed by a thread", "collected"])
def test_a_sync_generator_outside_a_request(clock: Clock, closed: str) -> None:
    generator = numbers()
    next(generator)
    clock.advance(1)
    with stage("consumer"):
        clock.advance(2)
    if closed == "run out":
        assert list(generator) == [2]
    elif closed == "closed":
        generator.close()  # type: ignore[attr-defined]
    elif closed == "closed by a thread":
        in_thread(generator.close)  # type: ignore[attr-defined]
    del generator
    gc.collect()
    assert exclusive() == {"spanning": 1.0, "consumer": 2.0}
    with stage("after"):  # a unit of its own, whatever the generator has left in this context
        clock.advance(4)
    assert walls() == {"spanning": (1, 3.0), "consumer": (1, 2.0), "after": (1, 4.0)}
    if closed != "closed by a thread":  # which cannot reach into this context
        assert current_unit.get() is NO_UNIT


@pytest.mark.parametrize("closed", ["run out", "closed", "closed by a task", "collected"])
def test_an_async_generator_outside_a_request(clock: Clock, closed: str) -> None:
    async def main() -> None:
        generator = async_numbers()
        await anext(generator)
        clock.advance(1)
        if closed == "run out":
            assert [n async for n in generator] == [2]
        elif closed == "closed":
            await generator.aclose()  # type: ignore[attr-defined]
        elif closed == "closed by a task":
            await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
        del generator
        gc.collect()
        await asyncio.sleep(0)  # the loop closes what was collected, in a task
        await asyncio.sleep(0)
        with stage("after"):
            clock.advance(4)

    asyncio.run(main())
    assert walls() == {"spanning": (1, 1.0), "after": (1, 4.0)}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stream_in_a_request(clock: Clock, kind: str) -> None:
    """Starlette steps a sync one in its pool's threads, each step in a copy of the context."""

    def chunks() -> Iterator[bytes]:
        with stage("inference"):
            for _ in range(3):
                clock.advance(1)
                yield b"x"

    async def async_chunks() -> AsyncIterator[bytes]:
        with stage("inference"):
            for _ in range(3):
                clock.advance(1)
                yield b"x"

    async def handler(incoming: Request) -> StreamingResponse:
        clock.advance(0.5)
        return StreamingResponse(chunks() if kind == "sync" else async_chunks())

    serve(handler)
    assert exclusive() == {"ingress": 0.5, "inference": 3.0}
    assert walls()["inference"] == (1, 3.0)
    total_ns = sum(
        sum(cells.exclusive.counts) for cells in service.service_named("s").stages.cells.values()
    )
    assert total_ns == 3_500_000_000


def test_a_generator_that_outlives_its_request_is_cut_and_leaves_the_next_one_alone(
    clock: Clock,
) -> None:
    kept: list[Iterator[int]] = []

    async def handler(incoming: Request) -> PlainTextResponse:
        generator = numbers()
        next(generator)
        kept.append(generator)
        clock.advance(1)
        return PlainTextResponse("ok")

    async def close_in_another(incoming: Request) -> PlainTextResponse:
        kept[0].close()  # type: ignore[attr-defined]
        with stage("inference"):
            clock.advance(2)
        return PlainTextResponse("ok")

    serve(handler)
    clock.advance(100)
    serve(close_in_another)
    assert exclusive() == {"spanning": 1.0, "inference": 2.0}
    assert walls() == {"spanning": (1, 1.0), "inference": (1, 2.0)}


def test_stages_in_a_pool_belong_to_the_request_whose_context_comes_along(clock: Clock) -> None:
    """asyncio.to_thread brings the context; run_in_executor does not, unless it is told to."""

    def work() -> None:
        with stage("work"):
            clock.advance(1)

    async def handler(incoming: Request) -> PlainTextResponse:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            loop.set_default_executor(pool)
            with stage("inference"):
                if how == "to_thread":
                    await asyncio.to_thread(work)
                elif how == "context":
                    await loop.run_in_executor(pool, contextvars.copy_context().run, work)
                else:
                    await loop.run_in_executor(pool, work)
        return PlainTextResponse("ok")

    for how in ("to_thread", "context", "run_in_executor"):
        before = exclusive()
        serve(handler)
        spent = {name: s - before.get(name, 0) for name, s in exclusive().items()}
        # Outside the request it is a unit of its own, beside the request's wait for it.
        wait = 1.0 if how == "run_in_executor" else 0.0
        assert (spent["work"], spent.get("inference", 0.0)) == (1.0, wait), how
    assert walls()["work"] == (3, 3.0)
    assert nonzero("inference_stage_seconds_total", ["service"]) == {("s",): 4.0}


def test_the_context_is_as_it_was(clock: Clock) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        before = contextvars.copy_context()
        with stage("a"), stage("b"):
            pass
        async with stage("c"):
            await asyncio.gather(*(asyncio.sleep(0) for _ in range(2)))
        changed = {
            variable.name
            for variable, value in contextvars.copy_context().items()
            if before.get(variable) is not value
        }
        assert changed == set()
        return PlainTextResponse("ok")

    serve(handler)
    assert nonzero("inference_outcomes_total", ["outcome"]) == {("ok",): 1}
