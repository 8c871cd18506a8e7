"""CPU time of stages, against the thread's own CPU clock read around the work.

Work is a loop until that clock has advanced, so what a stage must have is known without a timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio.to_thread
import greenlet
import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, cpu, service, stage
from tests.tracing.asgi import nonzero, request
from tests.tracing.conftest import Clock

ROOM = 0.004
"""Seconds of CPU that the machinery around the work may use."""


def burn(seconds: float) -> None:
    """Use this thread's CPU."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def used() -> dict[str, float]:
    return {
        name: value
        for (name,), value in nonzero("inference_stage_cpu_seconds_total", ["stage"]).items()
    }


def about(**seconds: float) -> dict[str, object]:
    return {name: pytest.approx(value, abs=ROOM) for name, value in seconds.items()}


def in_a_request(
    handler: Callable[[Request], Awaitable[object]], *, driving: bool = False
) -> Callable[[str], Coroutine[object, None, object]]:
    """Return what sends a request to the handler."""
    app = Starlette(routes=[Route("/{path:path}", handler)])
    middleware = StageTimingMiddleware(app, service="s")

    async def driving_app(*args: object) -> None:
        await cpu.drive(app(*args))  # type: ignore[arg-type]

    if driving:
        middleware.app = driving_app
    return lambda path: request(middleware, path)


# --- in an event loop's thread ---


def test_a_stage_that_does_not_await_has_its_cpu_time() -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("preprocess"):
            burn(0.02)
        burn(0.01)
        async with stage("inference"):
            burn(0.03)
            time.sleep(0.02)
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler)("/x"))
    assert used() == about(preprocess=0.02, inference=0.03)


def test_an_await_that_does_not_suspend_changes_nothing() -> None:
    async def at_once() -> None:
        burn(0.01)

    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            await incoming.body()
            await at_once()
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler)("/x"))
    assert used() == about(inference=0.01)


def test_nested_stages_share_the_cpu_time_as_they_share_the_seconds() -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            burn(0.01)
            with stage("h2d"):
                burn(0.02)
                with stage("copy"):
                    burn(0.03)
            burn(0.01)
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler)("/x"))
    assert used() == about(inference=0.02, h2d=0.02, copy=0.03)


def test_crossing_stages_give_the_time_to_the_one_opened_last() -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        outer, first, second = stage("outer"), stage("first"), stage("second")
        with outer:
            first.__enter__()
            burn(0.01)
            second.__enter__()
            burn(0.02)
            first.__exit__(None, None, None)
            burn(0.02)
            second.__exit__(None, None, None)
            burn(0.01)
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler)("/x"))
    assert used() == about(outer=0.01, first=0.01, second=0.04)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("driving", [False, True])
def test_what_others_use_during_an_await_is_never_counted(
    driving: bool, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """One request awaits within a stage while others burn the same thread's CPU."""
    is_waiting = asyncio.Event()
    go_on = asyncio.Event()

    async def handler(incoming: Request) -> PlainTextResponse:
        if incoming.url.path == "/waits":
            with stage("waits"):
                burn(0.01)
                is_waiting.set()
                await go_on.wait()
                burn(0.01)
        else:
            burn(0.05)  # outside any stage, too
            with stage("burns"):
                burn(0.05)
        return PlainTextResponse("ok")

    async def main() -> None:
        send = in_a_request(handler, driving=driving)
        waits = asyncio.ensure_future(send("/waits"))
        await is_waiting.wait()
        await asyncio.gather(*(send("/burns") for _ in range(3)))
        go_on.set()
        await waits

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    expected = about(burns=0.15, waits=0.02) if driving else about(burns=0.15)
    assert used() == expected
    assert service.service_named("s").has_suspended_stages is not driving


@pytest.mark.parametrize("driving", [False, True])
def test_all_stages_together_have_no_more_than_the_process(driving: bool) -> None:
    """Tasks, threads, nesting and awaits at random: the sum is within what the threads used."""

    def in_thread(depth: int) -> None:
        with stage(f"thread{depth}"):
            burn(0.001)
            if depth:
                in_thread(depth - 1)

    async def in_task(depth: int) -> None:
        async with stage(f"task{depth}"):
            burn(0.001)
            await asyncio.sleep(0.001 * (depth % 2))
            with stage("inner"):
                burn(0.001)
            if depth:
                await asyncio.gather(in_task(depth - 1), asyncio.to_thread(in_thread, 2))

    @stage("decorated")
    async def decorated() -> None:
        burn(0.001)
        await asyncio.sleep(0)
        burn(0.001)

    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("before"):
            burn(0.001)
        await asyncio.gather(*(in_task(2) for _ in range(2)), decorated())
        await decorated()
        return PlainTextResponse("ok")

    async def main() -> None:
        send = in_a_request(handler, driving=driving)
        await asyncio.gather(*(send("/x") for _ in range(5)))

    start = time.process_time()
    asyncio.run(main())
    total = time.process_time() - start
    found = used()
    assert sum(found.values()) <= total
    # What is certain whoever runs beside it: 5 requests of 6 tasks, and 4 calls in 3 threads each.
    assert found["inner"] >= 5 * 6 * 0.001
    assert found["decorated"] >= 5 * 2 * 0.002
    assert all(found[f"thread{n}"] >= 5 * 4 * 0.001 for n in range(3))


def test_tasks_of_gather_count_what_they_do_not_await_in() -> None:
    async def part(name: str) -> None:
        with stage(name):
            burn(0.01)
        with stage("waits"):
            burn(0.01)
            await asyncio.sleep(0)

    async def handler(incoming: Request) -> PlainTextResponse:
        await asyncio.gather(part("a"), part("b"))
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler, driving=True)("/x"))
    assert used() == about(a=0.01, b=0.01)


def test_two_tasks_in_one_turn_of_the_loop_do_not_nest() -> None:
    """The first is suspended in its stage; nothing of the second's is taken from or given to it."""
    order: list[str] = []

    async def first() -> None:
        with stage("first"):
            burn(0.01)
            order.append("first")
            await asyncio.sleep(0)
            order.append("first again")

    async def second() -> None:
        burn(0.02)
        with stage("second"):
            burn(0.01)
            order.append("second")

    async def main() -> None:
        await asyncio.gather(first(), second())

    asyncio.run(main())
    assert order == ["first", "second", "first again"]
    assert used() == about(second=0.01)


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.12")
@pytest.mark.parametrize("driving", [False, True])
def test_a_task_that_starts_eagerly_counts_nothing_of_its_creator(driving: bool) -> None:
    """It is suspended while its creator goes on, in the same turn of the loop."""

    async def eager() -> None:
        with stage("waits"):
            burn(0.01)
            await asyncio.sleep(0)

    async def handler(incoming: Request) -> PlainTextResponse:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        task = asyncio.create_task(eager())
        burn(0.03)
        with stage("creator"):
            burn(0.01)
        await task
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler, driving=driving)("/x"))
    assert used() == about(creator=0.01)


# --- a coroutine that is driven ---


def test_a_decorated_async_function_counts_between_its_suspensions() -> None:
    @stage("ours")
    async def ours() -> int:
        burn(0.01)
        await asyncio.sleep(0)
        burn(0.01)
        await asyncio.sleep(0.001)
        burn(0.01)
        return 7

    async def others(done: asyncio.Event) -> None:
        while not done.is_set():
            burn(0.002)
            await asyncio.sleep(0)

    async def main() -> int:
        done = asyncio.Event()
        noise = asyncio.create_task(others(done))
        result = await ours()
        done.set()
        await noise
        return result

    assert asyncio.run(main()) == 7
    assert used() == about(ours=0.03)


def test_a_decorated_function_within_a_block_is_taken_from_it() -> None:
    @stage("inner")
    async def inner() -> None:
        burn(0.02)

    async def main() -> None:
        with stage("outer"):
            burn(0.01)
            await inner()

    asyncio.run(main())
    assert used() == about(outer=0.01, inner=0.02)


def test_stages_in_a_driven_request_count_between_suspensions() -> None:
    @stage("decorated")
    async def decorated() -> None:
        burn(0.01)
        await asyncio.sleep(0.001)
        burn(0.01)

    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            burn(0.01)
            await asyncio.sleep(0.001)
            burn(0.01)
            await decorated()
            await asyncio.sleep(0)
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler, driving=True)("/x"))
    assert used() == about(inference=0.02, decorated=0.02)


def test_driving_passes_values_exceptions_and_cancellation() -> None:
    log: list[object] = []

    async def inner() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            log.append(error.args)
        loop = asyncio.get_running_loop()
        failed = loop.create_future()
        loop.call_soon(failed.set_exception, LookupError("x"))
        try:
            await failed
        except LookupError as error:
            log.append(str(error))
        return "done"

    async def main() -> str:
        task = asyncio.create_task(driven_result())
        await asyncio.sleep(0)
        task.cancel("why")
        return await task

    async def driven_result() -> str:
        return await cpu.drive(inner())

    assert asyncio.run(main()) == "done"
    assert log == [("why",), "x"]


class Thrown(Exception):
    pass


def test_requests_are_driven_once_a_stage_of_the_service_was_suspended() -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            burn(0.01)
            await asyncio.sleep(0.001)
            burn(0.01)
        return PlainTextResponse("ok")

    async def main() -> None:
        send = in_a_request(handler)
        await send("/x")
        assert used() == {}
        await asyncio.gather(*(send("/x") for _ in range(3)))

    asyncio.run(main())
    assert used() == {"inference": pytest.approx(0.06, abs=ROOM)}


def test_driving_throws_in_what_is_thrown_and_keeps_nothing_alive() -> None:
    @types.coroutine
    def pause() -> Iterator[int]:
        yield 1

    async def inner() -> None:
        with pytest.raises(LookupError):
            await pause()
        await pause()

    async def outer() -> None:
        await cpu.drive(inner())

    coroutine = outer()
    assert coroutine.send(None) == 1
    assert coroutine.throw(LookupError()) == 1
    gc.disable()
    try:
        thrown = Thrown()
        seen = weakref.ref(thrown)
        try:
            coroutine.throw(thrown)
        except Thrown:
            pass
        del coroutine, thrown
        assert seen() is None
    finally:
        gc.enable()


def test_what_is_thrown_in_comes_out_with_the_tracebacks_own_frames() -> None:
    def frames_of(drive: Callable[[Coroutine[object, object, None]], Awaitable[None]]) -> list[str]:
        async def inner() -> None:
            await asyncio.sleep(0)

        async def outer() -> None:
            await drive(inner())

        coroutine = outer()
        coroutine.send(None)
        with pytest.raises(LookupError) as caught:
            coroutine.throw(LookupError())
        return [entry.name for entry in caught.traceback][1:]

    bare, driven = frames_of(lambda coroutine: coroutine), frames_of(cpu.drive)
    assert bare[:2] == ["outer", "inner"]
    assert driven == [bare[0], "_driven", *bare[1:]]


def test_a_driven_coroutine_that_is_closed_closes_what_it_drives() -> None:
    log: list[str] = []

    async def inner() -> None:
        try:
            with stage("x"):
                await asyncio.sleep(0)
        finally:
            log.append("closed")

    async def outer() -> None:
        await cpu.drive(driven)

    driven = inner()
    coroutine = outer()
    coroutine.send(None)
    coroutine.close()
    assert log == ["closed"]
    assert used() == {}


def test_what_is_driven_already_is_not_driven_again() -> None:
    async def inner() -> bool:
        coroutine = asyncio.sleep(0)
        same = cpu.drive(coroutine) is coroutine
        await coroutine
        return same

    async def main() -> bool:
        return await cpu.drive(inner())

    assert asyncio.run(main())


def test_what_is_no_coroutine_is_awaited_as_it_is() -> None:
    class Answer:
        def __await__(self) -> Iterator[None]:
            return iter(())

    answer = Answer()
    assert cpu.drive(answer) is answer  # type: ignore[arg-type, comparison-overlap]


# --- in other threads ---


def test_a_threadpool_endpoint_has_its_own_threads_cpu_time() -> None:
    def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            burn(0.02)
            with stage("copy"):
                burn(0.01)
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler)("/x"))  # type: ignore[arg-type]
    assert used() == about(inference=0.02, copy=0.01)


def test_a_stage_around_a_thread_has_only_what_its_own_thread_used() -> None:
    def work() -> None:
        with stage("thread"):
            burn(0.02)

    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            burn(0.01)
            await asyncio.to_thread(work)
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler, driving=True)("/x"))
    assert used() == about(inference=0.01, thread=0.02)


def test_outside_a_loop_a_block_a_decorator_and_an_exit_stack() -> None:
    @stage("decorated")
    def decorated() -> None:
        burn(0.01)

    @contextlib.contextmanager
    def wrapped() -> Iterator[None]:
        with stage("wrapped"):
            yield

    with stage("block"):
        burn(0.01)
        decorated()
        with wrapped():
            burn(0.01)
        with contextlib.ExitStack() as stack:
            stack.enter_context(stage("stack"))
            burn(0.01)
    assert used() == about(block=0.01, decorated=0.01, wrapped=0.01, stack=0.01)


def test_outside_a_loop_a_class_of_ones_own_counts_nothing() -> None:
    """Its functions are over when the work is done: another job may have run between them."""

    class Timed:
        def __enter__(self) -> None:
            self.interval = stage("outer").__enter__()

        def __exit__(self, *error: object) -> None:
            self.interval.__exit__(None, None, None)

    with Timed(), stage("inner"):
        burn(0.01)
    assert used() == about(inner=0.01)


def test_a_loop_run_within_a_block_is_taken_from_it() -> None:
    async def work() -> None:
        with stage("inner"):
            burn(0.02)

    with stage("outer"):
        burn(0.01)
        asyncio.run(work())
    found = used()
    assert found["inner"] == pytest.approx(0.02, abs=ROOM)
    assert 0.01 <= found["outer"] < 0.02


def test_a_driven_coroutines_pauses_stay_with_the_block_around_its_loop() -> None:
    @stage("driven")
    async def driven() -> None:
        burn(0.01)
        await asyncio.sleep(0)
        burn(0.01)

    async def other() -> None:
        burn(0.03)

    async def main() -> None:
        await asyncio.gather(driven(), other())

    with stage("outer"):
        asyncio.run(main())
    found = used()
    assert found["driven"] == pytest.approx(0.02, abs=ROOM)
    assert 0.03 <= found["outer"] < 0.045


def chunks(name: str, count: int, seconds: float) -> Generator[bytes, None, None]:
    """Hold a stage open over every yield, and open one that ends before it."""
    with stage(f"{name}-over"):
        for _ in range(count):
            with stage(f"{name}-within"):
                burn(seconds)
            yield b"x"


def test_a_generator_stepped_by_a_pool_counts_within_its_steps_only() -> None:
    """Between two steps the pool's one thread works for another request."""

    async def handler(incoming: Request) -> StreamingResponse:
        return StreamingResponse(chunks(incoming.url.path[1:], 5, 0.004))

    async def main() -> None:
        send = in_a_request(handler)
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        await asyncio.gather(send("/a"), send("/b"))

    asyncio.run(main())
    assert used() == {
        "a-within": pytest.approx(0.02, abs=ROOM),
        "b-within": pytest.approx(0.02, abs=ROOM),
    }


def test_a_generator_stepped_by_several_threads_counts_within_its_steps_only() -> None:
    generator = chunks("g", 6, 0.004)
    pools = [ThreadPoolExecutor(1) for _ in range(3)]
    for pool in pools:  # their CPU clocks differ by far
        pool.submit(burn, 0.01).result()
    for step in range(6):
        pools[step % 3].submit(next, generator).result()
    pools[1].submit(generator.close).result()
    for pool in pools:
        pool.shutdown()
    assert used() == {"g-within": pytest.approx(0.024, abs=ROOM)}


def test_a_job_of_a_thread_does_not_count_into_the_stage_of_an_earlier_one() -> None:
    """As run_in_executor does it: no context tells one job from the next."""
    interval = stage("left-open")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(interval.__enter__).result()
        pool.submit(burn, 0.02).result()
        pool.submit(interval.__exit__, None, None, None).result()
    assert used() == {}


def test_stages_left_open_in_a_thread_do_not_pile_up() -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        await asyncio.to_thread(enter)
        return PlainTextResponse("ok")

    def enter() -> None:
        depths.append(_depth())
        for _ in range(3):
            stage("open").__enter__()

    async def main() -> None:
        send = in_a_request(handler)
        for _ in range(5):
            await send("/x")

    depths: list[int] = []
    with ThreadPoolExecutor(1) as pool:

        async def in_one_thread() -> None:
            asyncio.get_running_loop().set_default_executor(pool)
            await main()

        asyncio.run(in_one_thread())
    assert max(depths) <= 3


def _depth() -> int:
    depth, interval = 0, None if cpu.here.own is None else cpu.here.own.innermost
    while interval is not None:
        depth, interval = depth + 1, interval.outer
    return depth


def test_a_green_thread_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain function is suspended there as well."""

    def green() -> None:
        with stage("green"):
            burn(0.005)
            greenlet.getcurrent().parent.switch()
            burn(0.005)

    spawned = greenlet.greenlet(green)
    spawned.switch()
    with stage("main"):
        burn(0.005)
    burn(0.01)
    spawned.switch()
    assert used() == about(main=0.005)
    monkeypatch.setitem(sys.modules, "gevent", types.ModuleType("gevent"))
    with stage("patched"):
        burn(0.005)
    assert "patched" not in used()


def test_a_green_thread_of_a_task_is_suspended_with_it() -> None:
    """As SQLAlchemy's asyncio extension runs a plain function that awaits."""

    def plain() -> None:
        with stage("waits"):
            burn(0.005)
            greenlet.getcurrent().parent.switch(asyncio.sleep(0.001))
            burn(0.005)
        with stage("computes"):
            burn(0.005)

    async def handler(incoming: Request) -> PlainTextResponse:
        green = greenlet.greenlet(plain)
        green.gr_context = contextvars.copy_context()
        await green.switch()
        burn(0.01)
        green.switch()
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler)("/x"))
    assert used() == about(computes=0.005)
    asyncio.run(in_a_request(handler, driving=True)("/x"))
    assert used() == {
        "waits": pytest.approx(0.02, abs=ROOM),
        "computes": pytest.approx(0.01, abs=ROOM),
    }


def test_an_instrument_that_fails_does_not_fail_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "greenlet", types.ModuleType("greenlet"))
    with stage("x"):
        pass
    assert nonzero("inference_stage_duration_seconds_count", ["stage"]) == {("x",): 1}
    assert nonzero("tailwatch_errors_total", ["where"]) == {("stage",): 1}


# --- generators in a loop's thread ---


def test_an_async_generator_closed_by_another_task_counts_nothing_of_others() -> None:
    async def numbers() -> AsyncIterator[int]:
        with stage("spanning"):
            burn(0.005)
            yield 1

    async def close(generator: AsyncIterator[int]) -> None:
        burn(0.02)
        await generator.aclose()  # type: ignore[attr-defined]

    async def main() -> None:
        generator = numbers()
        await anext(generator)
        await asyncio.create_task(close(generator))

    asyncio.run(main())
    assert used() == {}


# --- the ends of things ---


@pytest.mark.parametrize("driving", [False, True])
def test_a_stage_cut_by_the_end_of_its_request_has_what_it_used_until_then(driving: bool) -> None:
    async def app(scope: object, receive: object, send: Callable[..., Awaitable[None]]) -> None:
        with stage("outer"), stage("inner"):
            burn(0.01)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if driving:
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b"x"})
            burn(0.02)

    middleware = StageTimingMiddleware(app, service="s")  # type: ignore[arg-type]
    if driving:

        async def driving_app(*args: object) -> None:
            await cpu.drive(app(*args))  # type: ignore[arg-type]

        middleware.app = driving_app
    asyncio.run(request(middleware, "/x"))
    assert used() == about(inner=0.01, outer=0.0) or used() == about(inner=0.01)


def test_folding_loses_no_cpu_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailwatch_tracing.units.FOLD_AT", 3)

    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            for _ in range(10):
                clock.burn(0.5)
                with stage("token"):
                    clock.burn(1)
        return PlainTextResponse("ok")

    asyncio.run(in_a_request(handler)("/x"))
    assert used() == {"inference": 5.0, "token": 10.0}


def test_a_rejected_request_counts_none(clock: Clock) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            clock.burn(1)
        return PlainTextResponse("busy", 429)

    asyncio.run(in_a_request(handler)("/x"))
    assert used() == {}


def test_a_loop_that_stopped_before_its_next_turn_proves_nothing() -> None:
    interval = stage("x")
    loop = asyncio.new_event_loop()
    loop.call_soon(interval.__enter__)
    loop.call_soon(loop.stop)
    loop.run_forever()
    burn(0.01)
    contextvars.copy_context().run(interval.__exit__, None, None, None)
    assert used() == {}
    with stage("next"):  # what is left here of the stopped loop is forgotten
        burn(0.01)
    assert used() == about(next=0.01)
    loop.close()


def test_a_block_left_after_its_loop_stopped_counts_nothing() -> None:
    entered: list[stage] = []
    loop = asyncio.new_event_loop()
    with stage("outermost"):
        loop.call_soon(lambda: entered.append(stage("x").__enter__()))
        loop.call_soon(loop.stop)
        loop.run_forever()
        burn(0.01)
        entered[0].__exit__(None, None, None)
    assert "x" not in used()
    loop.close()


def test_a_forked_child_forgets_its_parents_clocks() -> None:
    async def main() -> int:
        with stage("x"):
            pid = os.fork()
            if pid == 0:
                forgotten = cpu.here.clock is None and cpu.here.own is None
                os._exit(0 if forgotten else 1)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    with stage("outer"):
        assert asyncio.run(main()) == 0


def test_threads_have_clocks_of_their_own() -> None:
    seen: list[object] = []

    def look() -> None:
        with stage("x"):
            seen.append(cpu.here.own)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    assert seen[0] is not seen[1]
