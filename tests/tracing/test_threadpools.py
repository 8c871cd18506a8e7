"""Thread pools: who works, who waits and how long; a watched pool behaves as any other."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from typing import Any

import anyio.to_thread
import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, middleware, serving, watch_threadpool
from tailwatch_tracing.cells import CellStore
from tailwatch_tracing.page import PROCESS
from tailwatch_tracing.service import service_named
from tailwatch_tracing.threadpools import PoolState, SampledPool, ThreadPools
from tests.tracing.asgi import request, values
from tests.tracing.conftest import Clock

LONG = 20.0  # seconds that nothing here should need

MS = 1_000_000


@pytest.fixture(autouse=True)
def one_service() -> None:
    service_named("s")


def state(pool: str) -> tuple[float | None, ...]:
    """Busy, limit and waiting, as on the page."""
    return tuple(
        values(f"python_threadpool_{name}", "pool").get((pool,))
        for name in ("busy", "limit", "waiting")
    )


def waited(pool: str) -> float:
    return round(values("python_threadpool_wait_seconds_total", "pool")[(pool,)], 6)


class Gate:
    """Work that lasts until it is opened."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.opened = threading.Event()

    def work(self) -> str:
        self.begun.release()
        assert self.opened.wait(LONG)
        return "done"

    def await_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=LONG)


@contextmanager
def watched(threads: int, name: str = "p") -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(threads) as executor:
        yield watch_threadpool(executor, name)


# --- numbers ---


def test_every_call_is_known_from_its_submission_to_its_end(clock: Clock) -> None:
    gate = Gate()
    with watched(2) as executor:
        assert state("p") == (0, 2, 0)
        calls = [executor.submit(gate.work) for _ in range(5)]
        gate.await_begun(2)
        assert state("p") == (2, 2, 3)
        clock.advance(0.5)
        assert waited("p") == 1.5, "three wait, and it shows before they have ended"
        clock.advance(0.25)
        gate.opened.set()
        wait(calls, LONG)
        assert state("p") == (0, 2, 0)
        assert waited("p") == 2.25
        assert waited("p") == 2.25


def test_a_call_that_is_cancelled_in_the_queue_waits_no_longer(clock: Clock) -> None:
    gate = Gate()
    with watched(1) as executor:
        executor.submit(gate.work)
        gate.await_begun(1)
        queued = executor.submit(gate.work)
        clock.advance(1)
        assert queued.cancel()
        assert state("p") == (1, 1, 0)
        clock.advance(1)
        assert waited("p") == 1
        gate.opened.set()


def test_a_shutdown_that_cancels_leaves_nobody_waiting(clock: Clock) -> None:
    gate = Gate()
    with watched(1) as executor:
        calls = [executor.submit(gate.work) for _ in range(4)]
        gate.await_begun(1)
        clock.advance(0.1)
        executor.shutdown(wait=False, cancel_futures=True)
        assert (state("p"), waited("p")) == ((1, 1, 0), 0.3)
        gate.opened.set()
        assert calls[0].result(LONG) == "done"
    assert state("p") == (0, 1, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pool_that_breaks_leaves_nobody_waiting() -> None:
    gate = Gate()

    def initializer() -> None:
        gate.opened.wait(LONG)
        raise ValueError("no thread")

    with ThreadPoolExecutor(1, initializer=initializer) as executor:
        watch_threadpool(executor, "p")
        calls = [executor.submit(int) for _ in range(3)]
        assert state("p") == (0, 1, 3)
        gate.opened.set()
        for call in calls:
            with pytest.raises(BrokenExecutor):
                call.result(LONG)
        with pytest.raises(BrokenExecutor):
            executor.submit(int)
        assert state("p") == (0, 1, 0)


def test_executors_of_one_name_are_added_up(clock: Clock) -> None:
    gate = Gate()
    with watched(1) as first, watched(2) as second:
        for executor in (first, second):
            for _ in range(3):
                executor.submit(gate.work)
        gate.await_begun(3)
        clock.advance(1)
        assert (state("p"), waited("p")) == ((3, 3, 3), 3)
        gate.opened.set()


def test_names_are_capped(clock: Clock) -> None:
    pools = ThreadPools(CellStore(PROCESS))
    executors = [pools.watch(ThreadPoolExecutor(1), f"p{i}") for i in range(70)]
    names = {level.values[0] for level in pools.levels()}
    assert len(names) == 65
    assert "__other__" in names
    assert len(executors) == 70


def test_map_and_the_event_loop_submit_too(clock: Clock) -> None:
    with watched(2) as executor:
        assert list(executor.map(str.upper, "abc")) == ["A", "B", "C"]

        async def main() -> str:
            return await asyncio.get_running_loop().run_in_executor(executor, "x".upper)

        assert asyncio.run(main()) == "X"
        assert state("p") == (0, 2, 0)


def test_an_awaited_call_that_is_cancelled_waits_no_longer(clock: Clock) -> None:
    gate = Gate()

    async def main(executor: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor(executor, gate.work)
        await asyncio.to_thread(gate.await_begun, 1)
        queued = loop.run_in_executor(executor, gate.work)
        assert state("p") == (1, 1, 1)
        queued.cancel()
        await asyncio.sleep(0)
        assert state("p") == (1, 1, 0)
        gate.opened.set()

    with watched(1) as executor:
        asyncio.run(main(executor))


def test_a_forked_child_has_no_calls_of_its_parent() -> None:
    gate = Gate()
    with watched(1) as executor:
        calls = [executor.submit(gate.work) for _ in range(3)]
        gate.await_begun(1)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if state("p") == (0, 1, 0) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert state("p") == (1, 1, 2)
        gate.opened.set()
        wait(calls, LONG)


@pytest.mark.parametrize(
    ("executor", "name", "error", "message"),
    [
        (object(), "p", TypeError, "expected a concurrent.futures.ThreadPoolExecutor"),
        (ProcessPoolExecutor(1), "p", TypeError, "expected a concurrent.futures.ThreadPool"),
        (ThreadPoolExecutor(1), "", ValueError, "name='': expected a name that is not empty"),
        (ThreadPoolExecutor(1), 3, ValueError, "name=3: expected a name that is not empty"),
    ],
)
def test_what_is_no_executor_or_no_name_is_refused(
    executor: Any, name: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        watch_threadpool(executor, name)


def test_watched_twice_is_watched_once_and_a_second_name_is_refused(clock: Clock) -> None:
    gate = Gate()
    with watched(1) as executor:
        watch_threadpool(executor, "p")
        with pytest.raises(ValueError, match="name='q': the executor is watched as 'p'"):
            watch_threadpool(executor, "q")
        executor.submit(gate.work)
        gate.await_begun(1)
        assert state("p") == (1, 1, 0)
        gate.opened.set()


# --- it is as without it ---


def plain(executor: ThreadPoolExecutor) -> ThreadPoolExecutor:
    return executor


def watching(executor: ThreadPoolExecutor) -> ThreadPoolExecutor:
    return watch_threadpool(executor, "p")


class Labelled(ThreadPoolExecutor):
    """Somebody's own executor."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        future.label = "mine"  # type: ignore[attr-defined]
        return future


def behaviour(prepare: Callable[[ThreadPoolExecutor], ThreadPoolExecutor]) -> list[object]:
    """What a user can see of an executor."""
    seen: list[object] = []
    error = KeyError("mine")

    def fail() -> None:
        raise error

    def tell(*args: object, **kwargs: object) -> object:
        return args, kwargs

    with prepare(Labelled(1)) as executor:
        assert isinstance(executor, Labelled)
        seen += [type(executor).__name__, type(executor).__module__, type(executor).__qualname__]
        seen.append(executor.submit(tell, 1, fn=2, self=3).result(LONG))
        failed = executor.submit(fail)
        seen.append(failed.exception(LONG) is error)
        seen.append(failed.label)  # type: ignore[attr-defined]
        gate = Gate()
        running = executor.submit(gate.work)
        gate.await_begun(1)
        queued = executor.submit(gate.work)
        seen += [running.cancel(), running.running(), queued.cancel(), queued.cancelled()]
        with pytest.raises(CancelledError):
            queued.result()
        gate.opened.set()
        seen.append(running.result(LONG))
        for wrong in (lambda: executor.submit(), lambda: executor.submit(fn=int)):  # type: ignore[call-arg]
            with pytest.raises(TypeError):
                wrong()
    with pytest.raises(RuntimeError) as after:
        executor.submit(int)
    seen.append(str(after.value))
    return seen


def test_results_errors_cancellation_and_subclasses_are_as_without_it() -> None:
    assert behaviour(watching) == behaviour(plain)


def threads_of(prefix: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


@pytest.mark.parametrize("prepare", [plain, watching])
def test_an_executor_that_nobody_refers_to_ends_its_threads(
    prepare: Callable[[ThreadPoolExecutor], ThreadPoolExecutor],
) -> None:
    gc.disable()  # by counting references, not by a collection
    try:
        executor = prepare(ThreadPoolExecutor(1, thread_name_prefix="lost"))
        executor.submit(int).result(LONG)
        threads = threads_of("lost")
        assert len(threads) == 1
        del executor
        threads[0].join(LONG)
        assert not threads[0].is_alive()
        assert state("p") == (None, None, None)
    finally:
        gc.enable()


@pytest.mark.parametrize("prepare", [plain, watching])
@pytest.mark.parametrize("ending", ["returns", "is cancelled"])
def test_a_kept_future_does_not_keep_the_function(
    prepare: Callable[[ThreadPoolExecutor], ThreadPoolExecutor], ending: str
) -> None:
    class Large:
        def __call__(self) -> None:
            pass

    large = Large()
    reference = weakref.ref(large)
    gate = Gate()
    with prepare(ThreadPoolExecutor(1)) as executor:
        executor.submit(gate.work)
        future = executor.submit(large)
        del large
        if ending == "is cancelled":
            assert future.cancel()
        gate.opened.set()
    assert future.done()
    assert reference() is None


# --- looked at ---


class Shown:
    """A pool whose state a test sets."""

    def __init__(self) -> None:
        self.waiting = 0
        store = CellStore(PROCESS)
        self.cells = ThreadPools(store).cells("p")
        self.pool = SampledPool(self.cells, lambda: PoolState(1, 1, self.waiting))

    def sample(self, waiting: int, passed_ms: int, late_ms: int = 0) -> float:
        self.waiting = waiting
        self.pool.sample(passed_ms * MS, late_ms * MS)
        return self.cells.waited.counts[0] / 1e9


def test_waiting_is_integrated_over_time() -> None:
    shown = Shown()
    shown.sample(0, 20)
    assert shown.sample(40, 20) == 0.4, "they came in the middle, as far as one knows"
    assert shown.sample(40, 20) == 1.2
    assert shown.sample(0, 20) == 1.6


def test_while_the_loop_stands_still_nobody_comes_or_goes() -> None:
    shown = Shown()
    shown.sample(0, 20)
    assert shown.sample(40, 1020, late_ms=1000) == 40.4
    assert shown.sample(0, 1020, late_ms=1000) == 40.8


def test_a_pool_that_cannot_be_looked_at_any_more_has_no_sample() -> None:
    shown = Shown()
    shown.sample(4, 20)

    def fail() -> PoolState:
        raise AttributeError("_max_workers")

    shown.pool.look = fail
    shown.sample(4, 20)
    shown.sample(4, 20)
    assert list(shown.pool.levels()) == []


def test_no_limit_is_no_sample() -> None:
    shown = Shown()
    shown.pool.look = lambda: PoolState(1, float("inf"), 0)
    shown.sample(0, 20)
    names = [level.metric.name for level in shown.pool.levels()]
    assert names == ["python_threadpool_busy", "python_threadpool_waiting"]


ENDPOINTS, TOKENS, WORK_SECONDS = 80, 40, 0.5


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A real application with a `def` endpoint, watched as in a process of its own."""
    monkeypatch.setattr(middleware, "runtime", serving.runtime)
    monkeypatch.setattr(serving.runtime, "watch_process", lambda: None)

    def endpoint(incoming: Request) -> PlainTextResponse:
        time.sleep(WORK_SECONDS)
        return PlainTextResponse("done")

    async def to_thread(incoming: Request) -> PlainTextResponse:
        await asyncio.to_thread(time.sleep, WORK_SECONDS)
        return PlainTextResponse("done")

    async def nothing(incoming: Request) -> PlainTextResponse:
        return PlainTextResponse("done")

    routes = [Route("/sync", endpoint), Route("/thread", to_thread), Route("/", nothing)]
    return StageTimingMiddleware(Starlette(routes=routes), service="s")


async def half_way(app: Any, path: str, count: int) -> list[asyncio.Task[Any]]:
    """Begin requests, and come back when half of the first round's work is done."""
    await request(app, "/")
    await asyncio.sleep(0.05)
    requests = [asyncio.create_task(request(app, path)) for _ in range(count)]
    await asyncio.sleep(WORK_SECONDS / 2)
    return requests


def test_eighty_sync_endpoints_over_forty_tokens(app: Any) -> None:
    """The requests' own durations say two times the work; here is where the half of it went."""

    started = time.perf_counter()

    async def main() -> None:
        requests = await half_way(app, "/sync", ENDPOINTS)
        assert state("anyio") == (TOKENS, TOKENS, ENDPOINTS - TOKENS)
        await asyncio.gather(*requests)
        await asyncio.sleep(0.05)
        assert state("anyio") == (0, TOKENS, 0)

    asyncio.run(main())
    # Those that waited had still their own work before them when the wait ended.
    longest = time.perf_counter() - started - WORK_SECONDS
    assert (
        0.9 * (ENDPOINTS - TOKENS) * WORK_SECONDS
        < waited("anyio")
        < 1.1 * (ENDPOINTS - TOKENS) * longest
    )


def test_a_limit_that_is_changed_shows(app: Any) -> None:
    async def main() -> None:
        await request(app, "/")
        anyio.to_thread.current_default_thread_limiter().total_tokens = 7
        await asyncio.sleep(0.05)
        assert state("anyio") == (0, 7, 0)

    asyncio.run(main())


def test_the_loops_default_executor_is_found_and_left_as_it_is(app: Any) -> None:
    threads = 4
    started = time.perf_counter()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(threads)
        loop.set_default_executor(executor)
        requests = await half_way(app, "/thread", 2 * threads)
        assert type(executor) is ThreadPoolExecutor
        assert state("asyncio") == (threads, threads, threads)
        await asyncio.sleep(WORK_SECONDS)
        assert state("asyncio") == (threads, threads, 0)
        await asyncio.gather(*requests)
        await asyncio.sleep(0.05)
        assert state("asyncio") == (0, threads, 0)

    asyncio.run(main())
    # Those that waited had still their own work before them when the wait ended.
    longest = time.perf_counter() - started - WORK_SECONDS
    assert 0.9 * threads * WORK_SECONDS < waited("asyncio") < 1.1 * threads * longest


def test_a_registered_default_executor_is_under_its_name_alone(app: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(watch_threadpool(ThreadPoolExecutor(3), "mine"))
        await request(app, "/")
        await asyncio.to_thread(int)
        await asyncio.sleep(0.05)
        assert (state("mine"), state("asyncio")) == ((0, 3, 0), (None, None, None))

    asyncio.run(main())


def test_under_uvloop_anyios_limiter_is_found(app: Any) -> None:
    async def main() -> None:
        requests = await half_way(app, "/sync", TOKENS + 5)
        assert state("anyio") == (TOKENS, TOKENS, 5)
        await asyncio.gather(*requests)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_anyio_that_is_imported_later_is_found_by_the_next_request(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules.pop("anyio.to_thread")

    async def main() -> None:
        await request(app, "/")
        await asyncio.sleep(0.03)
        assert state("anyio") == (None, None, None)
        sys.modules["anyio.to_thread"] = module
        await asyncio.sleep(0.1)
        await request(app, "/")
        await asyncio.sleep(0.05)
        assert state("anyio") == (0, TOKENS, 0)

    try:
        asyncio.run(main())
    finally:
        sys.modules["anyio.to_thread"] = module


def test_an_anyio_that_is_not_as_known_fails_no_request_and_is_asked_once(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def changed() -> None:
        asked.append(1)
        raise AttributeError("no limiter any more")

    monkeypatch.setattr(anyio.to_thread, "current_default_thread_limiter", changed)

    async def main() -> None:
        for _ in range(3):
            assert (await request(app, "/")).body == b"done"
            await asyncio.sleep(0.05)
        assert state("anyio") == (None, None, None)

    asyncio.run(main())
    assert len(asked) == 1


def test_a_loop_that_has_ended_has_no_threads_on_the_page(app: Any) -> None:
    async def main() -> None:
        await request(app, "/")
        await asyncio.sleep(0.05)
        assert state("anyio") == (0, TOKENS, 0)

    asyncio.run(main())
    assert state("anyio") == (None, None, None)
    assert waited("anyio") == 0, "what was counted stays"


def test_looking_leaves_no_trace_in_the_application(app: Any) -> None:
    """No task, no context, no limiter of ours."""

    async def main() -> None:
        await request(app, "/")
        limiter = anyio.to_thread.current_default_thread_limiter()
        await asyncio.sleep(0.1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert anyio.to_thread.current_default_thread_limiter() is limiter
        assert getattr(asyncio.get_running_loop(), "_default_executor", None) is None

    asyncio.run(main())
