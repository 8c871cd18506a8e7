"""Stages against an interval sweep of its own: every instant to the one opened last."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import functools
import gc
import os
import random
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import tailwatch_tracing.clock
from tailwatch_tracing import (
    RequestQueue,
    StageTimingMiddleware,
    render_metrics,
    service,
    shares,
    stage,
    units,
)
from tailwatch_tracing.units import NO_UNIT, current_unit
from tests.tracing.asgi import App, nonzero, request
from tests.tracing.conftest import Clock

NAMES = ("preprocess", "inference", "batch_wait", "h2d", "db")


def exclusive(slow: str | None = None) -> dict[str, float]:
    found = nonzero("inference_stage_seconds_total", ["stage", "slow"])
    return {name: value for (name, is_slow), value in found.items() if slow in (None, is_slow)}


def walls() -> dict[str, tuple[float, float]]:
    """Stage -> number of intervals and their sum in seconds."""
    sums = nonzero("inference_stage_duration_seconds_sum", ["stage"])
    counts = nonzero("inference_stage_duration_seconds_count", ["stage"])
    return {name: (count, sums.get((name,), 0.0)) for (name,), count in counts.items()}


def app_of(handler: Callable[[Request], object], **options: object) -> App:
    app = Starlette(routes=[Route("/{path:path}", handler)])  # type: ignore[arg-type]
    return StageTimingMiddleware(app, service="s", **options)  # type: ignore[arg-type]


def serve(handler: Callable[..., object], **options: object) -> None:
    async def main() -> None:
        await request(app_of(handler, **options), "/x")

    asyncio.run(main())


# --- the sweep ---


Interval = tuple[str, int, int]


def expected_shares(
    start: int, end: int, intervals: list[Interval]
) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Exclusive time and wall times by looking at every unit of time by itself."""
    shares: dict[str, int] = {}
    wall: dict[str, list[int]] = {}
    for name, begin, stop in intervals:
        wall.setdefault(name, []).append(min(stop, end) - begin)
    inference_ends = [min(stop, end) for name, _, stop in intervals if name == "inference"]
    first = min((begin for _, begin, _ in intervals), default=None)
    for instant in range(start, end):
        covering = [i for i, (_, a, b) in enumerate(intervals) if a <= instant < min(b, end)]
        if covering:
            # opened last: the latest beginning, of equals the one later in order of opening
            name = intervals[max(covering, key=lambda i: (intervals[i][1], i))][0]
        elif first is None:
            name = "unattributed"
        elif instant < first:
            name = "ingress"
        elif inference_ends and instant >= max(inference_ends):
            name = "postprocess"
        else:
            name = "unattributed"
        shares[name] = shares.get(name, 0) + 1
    return shares, wall


@pytest.mark.parametrize("seed", range(150))
def test_random_overlaps_are_credited_as_an_independent_sweep_does(
    seed: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nested, crossing, cut and touching intervals; also when the log is folded meanwhile."""
    rng = random.Random(seed)
    if seed % 3 == 0:
        monkeypatch.setattr(units, "FOLD_AT", rng.choice((1, 2, 5)))
    begun: list[tuple[stage, str, int]] = []
    intervals: dict[int, Interval] = {}
    start = clock.now_ns
    cut: list[int] = []

    async def handler(incoming: Request) -> PlainTextResponse:
        for _ in range(rng.randrange(14)):
            clock.now_ns += rng.choice((0, 0, 1, 2, 5))
            is_open = [i for i in range(len(begun)) if i not in intervals]
            if is_open and rng.random() < 0.5:
                i = rng.choice((is_open[-1], rng.choice(is_open)))
                begun[i][0].__exit__(None, None, None)
                intervals[i] = (begun[i][1], begun[i][2], clock.now_ns)
            else:
                name = rng.choice(NAMES)
                begun.append((stage(name).__enter__(), name, clock.now_ns))
        clock.now_ns += rng.choice((0, 3))
        cut.append(clock.now_ns)
        return PlainTextResponse("ok")

    serve(handler)
    end = cut[0]
    for i, (_, name, begin) in enumerate(begun):
        intervals.setdefault(i, (name, begin, end))
    shares, wall = expected_shares(start, end, [intervals[i] for i in range(len(begun))])
    assert {k: round(v * 1e9) for k, v in exclusive().items()} == shares
    assert sum(shares.values()) == end - start
    explicit = {k: v for k, v in walls().items() if k in wall}
    assert {k: (len(v), sum(v)) for k, v in wall.items()} == {
        k: (count, round(total * 1e9)) for k, (count, total) in explicit.items()
    }


def test_concurrent_tasks_and_threads_add_up_and_are_never_negative() -> None:
    """asyncio.gather and to_thread on the real clock: the shares are the duration, to the ns."""
    rng = random.Random(7)

    def in_thread(depth: int) -> None:
        with stage(rng.choice(NAMES)):
            sum(range(rng.randrange(3000)))
            if depth:
                in_thread(depth - 1)

    async def in_task(depth: int) -> None:
        async with stage(rng.choice(NAMES)):
            await asyncio.sleep(rng.random() / 1000)
            if depth:
                await asyncio.gather(in_task(depth - 1), asyncio.to_thread(in_thread, 3))

    async def handler(incoming: Request) -> PlainTextResponse:
        await asyncio.gather(*(in_task(2) for _ in range(3)))
        return PlainTextResponse("ok")

    async def main() -> None:
        app = app_of(handler)
        await asyncio.gather(*(request(app, "/x") for _ in range(8)))

    asyncio.run(main())
    ours = service.service_named("s")
    total_ns = sum(sum(cells.exclusive.counts) for cells in ours.stages.cells.values())
    (duration,) = nonzero("inference_request_duration_seconds_sum", ["route"]).values()
    assert total_ns == round(duration * 1e9)
    assert all(ns >= 0 for cells in ours.stages.cells.values() for ns in cells.exclusive.counts)
    assert all(n >= 0 for cells in ours.stages.cells.values() for n in cells.wall.counts)


# --- implicit stages ---


def test_time_around_stages_is_ingress_unattributed_and_postprocess(clock: Clock) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        clock.advance(0.001)
        with stage("preprocess"):
            clock.advance(0.010)
        clock.advance(0.002)
        with stage("inference"):
            clock.advance(0.100)
        clock.advance(0.004)
        return PlainTextResponse("ok")

    serve(handler)
    assert exclusive() == {
        "ingress": 0.001,
        "preprocess": 0.010,
        "unattributed": 0.002,
        "inference": 0.100,
        "postprocess": 0.004,
    }
    assert walls()["postprocess"] == (1, 0.004)


def test_without_an_inference_stage_the_rest_is_unattributed(clock: Clock) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        clock.advance(0.001)
        with stage("preprocess"):
            clock.advance(0.010)
        clock.advance(0.004)
        return PlainTextResponse("ok")

    serve(handler)
    assert exclusive() == {"ingress": 0.001, "preprocess": 0.010, "unattributed": 0.004}


def test_a_request_without_stages_is_all_unattributed(clock: Clock) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        clock.advance(0.25)
        return PlainTextResponse("ok")

    serve(handler)
    assert exclusive() == {"unattributed": 0.25}
    assert walls() == {"unattributed": (1, 0.25)}


def test_a_stage_open_at_the_last_body_message_is_cut_there(clock: Clock) -> None:
    async def app(scope: object, receive: object, send: Callable[..., object]) -> None:
        with stage("inference"):
            clock.advance(0.5)
            await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[misc]
            await send({"type": "http.response.body", "body": b"x"})  # type: ignore[misc]
            clock.advance(9)

    asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x"))  # type: ignore[arg-type]
    assert exclusive() == {"inference": 0.5}
    assert walls() == {"inference": (1, 0.5)}


def test_slow_requests_are_split_off_at_the_objective(clock: Clock) -> None:
    durations = iter((0.5, 0.500000001))

    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            clock.now_ns += round(next(durations) * 1e9)
        return PlainTextResponse("ok")

    async def main() -> None:
        app = app_of(handler, slo_seconds=0.5)
        await request(app, "/x")
        await request(app, "/x")

    asyncio.run(main())
    assert exclusive("false") == {"inference": 0.5}
    assert exclusive("true") == {"inference": 0.500000001}


# --- ways to use it ---


def test_decorates_sync_and_async_functions_and_keeps_their_names(clock: Clock) -> None:
    @stage("preprocess")
    def sync(seconds: float) -> str:
        """Doc."""
        clock.advance(seconds)
        return "a"

    @stage("inference")
    async def asynchronous(seconds: float) -> str:
        clock.advance(seconds)
        return "b"

    async def main() -> str:
        return sync(0.1) + sync(0.2) + await asynchronous(0.4)

    assert asyncio.run(main()) == "ab"[0] * 2 + "b"
    assert (sync.__name__, sync.__doc__, asynchronous.__name__) == ("sync", "Doc.", "asynchronous")
    assert walls() == {"preprocess": (2, 0.3), "inference": (1, 0.4)}


def test_decorates_class_and_static_methods_on_either_side(clock: Clock) -> None:
    class Model:
        @stage("outside")
        @classmethod
        def of_class(cls) -> type:
            clock.advance(1)
            return cls

        @classmethod
        @stage("inside")
        def of_class_too(cls) -> type:
            clock.advance(1)
            return cls

        @stage("static")
        @staticmethod
        async def static(word: str) -> str:
            await asyncio.sleep(0)
            clock.advance(1)
            return word

    assert Model.of_class() is Model().of_class() is Model.of_class_too() is Model
    assert asyncio.run(Model.static("a")) + asyncio.run(Model().static("b")) == "ab"
    assert exclusive() == {"outside": 2, "inside": 1, "static": 2}


def test_refuses_what_is_not_called() -> None:
    with pytest.raises(
        TypeError, match=r"stage\('x'\) cannot decorate <property .*expected a func"
    ):
        stage("x")(property(lambda self: 1))  # type: ignore[type-var]


def test_refuses_generator_functions() -> None:
    def numbers():  # type: ignore[no-untyped-def]
        yield 1

    async def async_numbers():  # type: ignore[no-untyped-def]
        yield 1

    class Numbers:
        def __call__(self):  # type: ignore[no-untyped-def]
            yield 1

    for function in (numbers, async_numbers, functools.partial(numbers), Numbers()):
        with pytest.raises(TypeError, match=r"stage\('x'\) cannot decorate the generator function"):
            stage("x")(function)


def test_threadpool_endpoints_belong_to_their_request(clock: Clock) -> None:
    def handler(incoming: Request) -> PlainTextResponse:
        assert threading.current_thread() is not threading.main_thread()
        with stage("inference"):
            clock.advance(0.3)
        return PlainTextResponse("ok")

    serve(handler)
    assert exclusive() == {"inference": 0.3}


def test_an_error_in_a_stage_closes_it_and_passes() -> None:
    with pytest.raises(LookupError), stage("preprocess"):
        raise LookupError
    assert walls()["preprocess"][0] == 1
    assert current_unit.get() is NO_UNIT


def test_outside_a_request_nested_stages_share_the_time(clock: Clock) -> None:
    with stage("inference"):
        clock.advance(0.1)
        with stage("h2d"):
            clock.advance(0.02)
        clock.advance(0.1)
    assert exclusive() == {"inference": 0.2, "h2d": 0.02}
    assert walls() == {"inference": (1, 0.22), "h2d": (1, 0.02)}


def test_outside_a_request_many_threads_lose_nothing() -> None:
    def work() -> None:
        for _ in range(2000):
            with stage("inference"), stage("h2d"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {k: v[0] for k, v in walls().items()} == {"inference": 8000, "h2d": 8000}


def test_a_background_task_after_the_response_is_outside_the_request(clock: Clock) -> None:
    async def app(scope: object, receive: object, send: Callable[..., object]) -> None:
        clock.advance(0.5)
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[misc]
        await send({"type": "http.response.body", "body": b"x"})  # type: ignore[misc]
        with stage("cleanup"):
            clock.advance(2)

    asyncio.run(request(StageTimingMiddleware(app, service="s"), "/x"))  # type: ignore[arg-type]
    assert exclusive() == {"unattributed": 0.5, "cleanup": 2.0}
    assert nonzero("inference_request_duration_seconds_sum", ["route"]) == {("__unmatched__",): 0.5}


def test_one_object_used_again_times_every_use(clock: Clock) -> None:
    shared = stage("preprocess")

    async def handler(incoming: Request) -> PlainTextResponse:
        for _ in range(3):
            with shared:
                clock.advance(0.1)
        with shared:
            clock.advance(0.1)
            with shared:
                clock.advance(0.1)
        return PlainTextResponse("ok")

    async def main() -> None:
        app = app_of(handler)
        await request(app, "/x")
        await request(app, "/x")

    asyncio.run(main())
    with shared:
        clock.advance(1)
    assert exclusive()["preprocess"] == pytest.approx(2.0)
    assert walls()["preprocess"] == (11, pytest.approx(2.2))


def test_one_object_shared_by_overlapping_requests_times_each(clock: Clock) -> None:
    shared = stage("preprocess")
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(incoming: Request) -> PlainTextResponse:
        with shared:
            if incoming.url.path == "/first":
                entered.set()
                await leave.wait()
            clock.advance(1)
        return PlainTextResponse("ok")

    async def main() -> None:
        app = app_of(handler)
        first = asyncio.create_task(request(app, "/first"))
        await entered.wait()
        await request(app, "/second")
        leave.set()
        await first

    asyncio.run(main())
    assert walls() == {"preprocess": (2, 3.0)}


def test_one_object_entered_twice_and_left_open_is_cut_twice(clock: Clock) -> None:
    shared = stage("preprocess")

    async def handler(incoming: Request) -> PlainTextResponse:
        shared.__enter__()
        clock.advance(1)
        shared.__enter__()
        clock.advance(1)
        return PlainTextResponse("ok")

    serve(handler)
    assert exclusive() == {"preprocess": 2.0}
    assert walls() == {"preprocess": (2, 3.0)}


@pytest.mark.parametrize("late_start", [False, True])
@pytest.mark.parametrize("before", [(), (2,), (2, 1)], ids=str)
def test_a_stage_that_closed_after_the_end_was_read_adds_up(
    before: tuple[int, ...], late_start: bool
) -> None:
    """As another thread may do: nothing is negative and nothing counted twice."""
    ours = service.service_named("s")
    unit = units.Unit(ours, 1_000)
    intervals = []
    for start, end in (*((1_000 + n, 1_010) for n in before), (1_050 + 100 * late_start, 1_180)):
        interval = stage("db")
        interval.start_ns, interval.end_ns = start, end
        intervals.append(interval)
    unit.log = intervals
    end_ns = shares.credit_request(unit, 1_100, slow=0)
    assert end_ns >= 1_100
    credited = [ns for cells in ours.stages.cells.values() for ns in cells.exclusive.counts]
    assert sum(credited) == end_ns - 1_000
    assert min(credited) >= 0
    assert all(
        cells.wall.counts[-1] >= sum(cells.exclusive.counts) for cells in ours.stages.cells.values()
    )
    assert all(n >= 0 for cells in ours.stages.cells.values() for n in cells.wall.counts)


def test_a_stage_that_outlives_its_task_ends_with_the_request(clock: Clock) -> None:
    """A task left behind must not write into a request that has been counted."""
    release = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def left_behind() -> None:
        with stage("db"):
            await release.wait()
            clock.advance(5)

    async def handler(incoming: Request) -> PlainTextResponse:
        tasks.append(asyncio.create_task(left_behind()))
        await asyncio.sleep(0)
        clock.advance(1)
        return PlainTextResponse("ok")

    async def main() -> None:
        await request(app_of(handler), "/x")
        release.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert exclusive() == {"db": 1.0}
    assert walls() == {"db": (1, 1.0)}


def test_a_request_of_very_many_stages_keeps_few(clock: Clock) -> None:
    sizes: list[int] = []

    async def handler(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            for _ in range(5000):
                with stage("token"):
                    clock.now_ns += 10
                log = current_unit.get().log
                assert log is not None
                sizes.append(len(log))
        return PlainTextResponse("ok")

    serve(handler)
    assert max(sizes) <= 1025
    assert walls() == {"inference": (1, 5e-05), "token": (5000, 5e-05)}
    assert exclusive() == {"token": 5e-05}


@pytest.mark.parametrize("begin", ["one after the other", "nested"])
def test_stages_that_stay_open_are_not_looked_at_again_and_again(
    begin: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of tasks of one request, each of them waiting in a stage."""
    copies: list[None] = []
    copy = stage.copy

    def counted(interval: stage) -> stage:
        copies.append(None)
        return copy(interval)

    monkeypatch.setattr(stage, "copy", counted)

    async def handler(incoming: Request) -> PlainTextResponse:
        async def wait() -> None:
            with stage("inference"):
                clock.now_ns += 10
                await asyncio.sleep(0)

        if begin == "nested":
            with ExitStack() as stack:
                for _ in range(5000):
                    stack.enter_context(stage("inference"))
                    clock.now_ns += 10
        else:
            await asyncio.gather(*(wait() for _ in range(5000)))
        return PlainTextResponse("ok")

    serve(handler)
    assert len(copies) < 3 * 5000
    assert exclusive() == {"inference": 5e-05}
    assert walls()["inference"][0] == 5000


class Step(str, enum.Enum):  # noqa: UP042 - the text of the other kind is its value
    PREDICT = "inference"


@pytest.mark.parametrize(
    ("name", "label"),
    [(Step.PREDICT, "inference"), (5, "5"), (None, "None"), (["a"], "['a']"), ("", "")],
)
@pytest.mark.parametrize("slo_seconds", [None, 0.1])
def test_a_name_that_is_no_plain_text_counts_as_its_text(
    name: str, label: str, slo_seconds: float | None, clock: Clock
) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        with stage(name):
            clock.advance(1)
        return PlainTextResponse("ok")

    serve(handler, slo_seconds=slo_seconds)
    serve(handler, slo_seconds=slo_seconds)
    assert exclusive() == {label: 2}
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def test_a_name_without_a_text_costs_no_request_its_count(clock: Clock) -> None:
    class Nameless:
        def __str__(self) -> str:
            raise ValueError

    async def handler(incoming: Request) -> PlainTextResponse:
        with stage(Nameless()):  # type: ignore[arg-type]
            clock.advance(1)
        return PlainTextResponse("ok")

    for _ in range(3):
        serve(handler, slo_seconds=0.1)
    assert nonzero("inference_outcomes_total", ["outcome"]) == {("ok",): 3}
    assert nonzero("tailwatch_errors_total", ["where"]) == {("request",): 3}


def test_a_reason_that_is_no_plain_text_counts_as_its_text() -> None:
    queue = RequestQueue("q", service="s")
    queue.reject(Step.PREDICT)
    queue.reject("inference")
    page = render_metrics("")[0].decode()
    assert re.findall(r'rejected_total{.*reason="inference"} (.*)', page) == ["2"]


def test_a_known_name_that_is_no_plain_text_does_not_overflow(clock: Clock) -> None:
    for i in range(64):
        with stage(str(i)):
            clock.advance(1)
    with stage(5):  # type: ignore[arg-type]
        clock.advance(1)
    assert exclusive()["5"] == 2


def test_stage_names_are_capped_with_an_overflow_series(clock: Clock) -> None:
    for i in range(200):
        with stage(f"name-{i}"):
            clock.advance(1)
    names = {name for name in exclusive() if name.startswith("name-")}
    assert len(names) <= 64
    assert sum(exclusive().values()) == 200
    overflow = nonzero("tailwatch_series_overflow_total", ["metric"])
    assert overflow[("inference_stage_duration_seconds",)] == exclusive()["__other__"]


def test_a_stage_closed_in_another_context_is_counted_and_over(clock: Clock) -> None:
    """A generator may be closed by another task than the one that began it."""

    async def numbers() -> AsyncIterator[int]:
        with stage("postprocess"):
            clock.advance(1)
            yield 1

    async def main() -> None:
        generator = numbers()
        await anext(generator)
        with suppress(StopAsyncIteration):
            await asyncio.create_task(anext_of(generator))
        with stage("inference"):
            clock.advance(2)

    async def anext_of(generator: AsyncIterator[int]) -> int:
        return await anext(generator)

    asyncio.run(main())
    assert exclusive() == {"postprocess": 1.0, "inference": 2.0}


def test_closing_a_stage_of_elsewhere_leaves_the_request_its_own(clock: Clock) -> None:
    async def numbers() -> AsyncIterator[int]:
        with stage("postprocess"):
            yield 1

    generator = numbers()

    async def handler(incoming: Request) -> PlainTextResponse:
        with suppress(StopAsyncIteration):
            await anext(generator)
        with stage("inference"):
            clock.advance(2)
        return PlainTextResponse("ok")

    async def main() -> None:
        await anext(generator)
        await request(app_of(handler), "/x")

    asyncio.run(main())
    assert exclusive() == {"inference": 2.0}


def test_one_object_first_entered_by_two_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = stage("x")
    read_clock = tailwatch_tracing.clock.now_ns
    entered, may_leave = threading.Event(), threading.Event()

    def use() -> None:
        with shared:
            entered.set()
            may_leave.wait(10)

    other = threading.Thread(target=use)

    def switch_threads() -> int:
        monkeypatch.setattr(tailwatch_tracing.clock, "now_ns", read_clock)
        other.start()
        entered.wait(10)
        return read_clock()

    monkeypatch.setattr(tailwatch_tracing.clock, "now_ns", switch_threads)
    with shared:
        pass
    may_leave.set()
    other.join()
    assert current_unit.get() is NO_UNIT
    assert nonzero("inference_stage_duration_seconds_count", ["stage"]) == {("x",): 2}


def test_stages_that_end_elsewhere_leave_no_chain_behind() -> None:
    """A worker that breaks out of generators has each of them closed in a task of its own."""

    def worker() -> None:
        for _ in range(10):
            interval = stage("x")
            interval.__enter__()
            contextvars.copy_context().run(interval.__exit__, None, None, None)

    def count() -> int:
        gc.collect()
        return sum(type(thing) is units.OutermostUnit for thing in gc.get_objects())

    before = count()
    context = contextvars.copy_context()
    context.run(worker)
    assert count() - before <= 1


def test_a_forked_child_waits_for_none_of_its_parents_threads() -> None:
    queue = RequestQueue("q", service="s")
    with service._lock, units._folding:
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)
            queue.enter().leave()
            service.service_named("t")
            NO_UNIT.fold()
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_process_that_leaves_its_parents_stage_counts_nothing_of_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "FOLD_AT", 2)
    outer = stage("parent")
    with outer:
        for _ in range(10):
            with stage("part"):
                clock.advance(1)
        pid = os.fork()
        if pid == 0:
            outer.__exit__(None, None, None)
            os._exit(len(exclusive()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert exclusive() == {"part": 10}


@pytest.mark.parametrize("of_a_request", [False, True])
def test_a_process_that_is_forked_within_a_stage_counts_its_own(
    of_a_request: bool, clock: Clock
) -> None:
    """As a pool of processes is by its first use, in the context of a request."""
    told: list[object] = []

    async def handler(incoming: Request) -> PlainTextResponse:
        reading, writing = os.pipe()
        with stage("parent"):
            clock.advance(1)
            pid = os.fork()
            if pid == 0:
                signal.alarm(10)
                with stage("child"):
                    clock.advance(2)
                os.write(writing, repr(exclusive()).encode())
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            told.append(os.read(reading, 1000))
        os.close(reading)
        os.close(writing)
        return PlainTextResponse("ok")

    if of_a_request:
        serve(handler)
    else:
        asyncio.run(handler(None))  # type: ignore[arg-type]
    assert told == [b"{'child': 2.0}"]
    assert exclusive() == {"parent": 1}
