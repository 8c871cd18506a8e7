"""The batcher instrument: a batch's stages are its members', wherever it runs.

The clock moves when it is told to, so what each stage must have is added up by hand.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from tailwatch_tracing import BatchPlace, RequestBatcher, StageTimingMiddleware, stage, units
from tailwatch_tracing.service import service_named
from tailwatch_tracing.spans.recorder import SpanRecorder
from tailwatch_tracing.units import NO_UNIT, current_unit
from tests.tracing.asgi import App, Exchange, http_scope, nonzero, outcomes, request, values
from tests.tracing.conftest import Clock
from tests.tracing.test_cuda import Gpu
from tests.tracing.test_stages import exclusive, walls
from tests.tracing.test_stages_cpu import about, burn, used

Scenario = Callable[["Members"], Coroutine[None, None, None]]


def duration_sum() -> float:
    return sum(values("inference_request_duration_seconds_sum").values())


def sizes() -> tuple[float, float]:
    """How many batches have run, and their members together."""
    return (
        values("inference_batch_size_count")[()],
        values("inference_batch_size_sum")[()],
    )


class Members:
    """A service whose requests /NAME join a batcher, and go on when they are answered."""

    def __init__(self, batcher: RequestBatcher, **options: Any) -> None:
        self.batcher = batcher
        self.places: dict[str, BatchPlace[str]] = {}
        self.after: Callable[[], None] = lambda: None
        self._answers: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[Exchange]] = {}
        self.app: App = StageTimingMiddleware(
            Starlette(routes=[Route("/{name}", self._handle)]), service="s", **options
        )

    async def _handle(self, incoming: Request) -> PlainTextResponse:
        name = incoming.path_params["name"]
        self._answers[name] = asyncio.Event()
        async with self.batcher.join(name) as place:
            self.places[name] = place
            await self._answers[name].wait()
        self.after()
        return PlainTextResponse(name)

    async def arrive(self, *names: str) -> None:
        """Let requests come as far as the batcher."""
        for name in names:
            self._tasks[name] = asyncio.create_task(request(self.app, f"/{name}"))
        while not all(name in self.places for name in names):
            await asyncio.sleep(0)

    async def answer(self, *names: str) -> None:
        """Let requests go on to their end."""
        for name in names:
            self._answers[name].set()
            assert (await self._tasks[name]).body == name.encode()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])
        assert self._tasks[name].cancelled()

    def run(self, *names: str) -> Any:
        return self.batcher.run([self.places[name] for name in names])


def play(scenario: Scenario, **options: Any) -> None:
    members = Members(RequestBatcher("b"), **options)
    asyncio.run(scenario(members))
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


# --- what each member has ---


def test_members_wait_and_share_the_stages_of_their_batch(clock: Clock) -> None:
    async def scenario(members: Members) -> None:
        await members.arrive("one")
        clock.advance(0.004)
        await members.arrive("two")
        clock.advance(0.006)
        with members.run("one", "two"):
            with stage("h2d"):
                clock.advance(0.002)
            clock.advance(0.001)
            with stage("inference"):
                clock.advance(0.030)
        members.after = lambda: clock.advance(0.005)
        await members.answer("one")
        await members.answer("two")

    play(scenario)
    assert exclusive() == {
        "batch_wait": pytest.approx(0.010 + 0.006),
        "h2d": pytest.approx(2 * 0.002),
        "unattributed": pytest.approx(2 * 0.001),
        "inference": pytest.approx(2 * 0.030),
        # The second one's answer was 5 ms late, for the first one's work, and had its own 5 ms.
        "postprocess": pytest.approx(0.005 + 0.010),
    }
    assert duration_sum() == pytest.approx(0.048 + 0.049)
    assert walls()["inference"] == (2, pytest.approx(2 * 0.030))
    assert walls()["batch_wait"] == (2, pytest.approx(0.016))
    assert sizes() == (1, 2)
    assert values("inference_batch_wait_seconds_count", "batcher") == {("b",): 2}
    assert values("inference_batch_wait_seconds_sum") == {(): pytest.approx(0.016)}


def test_slow_is_told_for_each_member_by_itself(clock: Clock) -> None:
    async def scenario(members: Members) -> None:
        await members.arrive("early")
        clock.advance(0.480)
        await members.arrive("late")
        with members.run("early", "late"), stage("inference"):
            clock.advance(0.030)
        await members.answer("early", "late")

    play(scenario, slo_seconds=0.5)
    assert exclusive("true") == pytest.approx({"batch_wait": 0.480, "inference": 0.030})
    assert exclusive("false") == pytest.approx({"inference": 0.030})


def test_nested_and_overlapping_stages_of_a_batch(clock: Clock) -> None:
    async def scenario(members: Members) -> None:
        await members.arrive("one", "two")
        with members.run("one", "two"), stage("inference"):
            clock.advance(0.010)
            inner = stage("sampling")
            inner.__enter__()
            clock.advance(0.004)
            with stage("sampling"), inner:  # one object twice
                clock.advance(0.002)
            inner.__exit__(None, None, None)
            clock.advance(0.001)
        await members.answer("one", "two")

    play(scenario)
    assert exclusive() == pytest.approx({"inference": 2 * 0.011, "sampling": 2 * 0.006})
    assert walls()["sampling"] == (6, pytest.approx(2 * (0.006 + 0.002 + 0.002)))


def test_a_member_is_credited_while_it_has_a_stage_of_its_own(clock: Clock) -> None:
    """Every instant is the stage's that was opened last, of the member's or of the batch's."""

    async def handler(incoming: Request) -> PlainTextResponse:
        batcher = RequestBatcher("b")
        place = batcher.join()
        with stage("waiting_for_result"):
            clock.advance(0.010)
            with batcher.run([place]):
                clock.advance(0.001)
                with stage("inference"):
                    clock.advance(0.020)
            clock.advance(0.002)
        return PlainTextResponse()

    app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="s")
    asyncio.run(request(app, "/"))
    assert exclusive() == pytest.approx({"waiting_for_result": 0.013, "inference": 0.020})


def test_cpu_time_of_a_batch_is_counted_once() -> None:
    async def scenario(members: Members) -> None:
        await members.arrive("one", "two", "three")

        def work() -> None:
            with members.run("one", "two", "three"):
                with stage("h2d"):
                    burn(0.010)
                with stage("inference"):
                    burn(0.020)

        with ThreadPoolExecutor(1) as worker:
            await asyncio.get_running_loop().run_in_executor(worker, work)
        await members.answer("one", "two", "three")

    play(scenario)
    assert used() == about(h2d=0.010, inference=0.020)
    count, seconds = walls()["inference"]
    assert count == 3
    assert seconds >= 3 * 0.020


def test_the_gpus_time_is_every_members(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(clock)
    monkeypatch.setitem(sys.modules, "torch", gpu.module())

    async def scenario(members: Members) -> None:
        await members.arrive("one", "two")
        with members.run("one", "two"):
            with stage("inference", cuda=True):
                gpu.launch(0.030)
                clock.advance(0.001)
            with stage("d2h"):
                gpu.wait()
        await members.answer("one", "two")

    play(scenario)
    assert walls()["inference"] == (2, pytest.approx(2 * 0.030))
    assert exclusive() == pytest.approx({"inference": 2 * 0.001, "d2h": 2 * 0.029})


def test_a_members_trace_has_the_stages_of_its_batch() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def scenario(members: Members) -> None:
        service = service_named("s")
        service.spans = SpanRecorder(service, provider)
        await members.arrive("one", "two")
        with members.run("one", "two"), stage("inference"):
            pass
        await members.answer("one", "two")

    play(scenario)
    spans = exporter.get_finished_spans()
    servers = {span.context.span_id for span in spans if span.name == "GET /{name}"}
    for name in ("batch_wait", "inference"):
        parents = {span.parent and span.parent.span_id for span in spans if span.name == name}
        assert parents == servers
    assert len(servers) == 2


# --- members that go ---


def test_a_member_that_gives_up_before_its_batch_is_not_in_it(clock: Clock) -> None:
    async def scenario(members: Members) -> None:
        await members.arrive("gone", "stays")
        clock.advance(0.010)
        await members.cancel("gone")
        clock.advance(0.010)
        with members.run("stays"), stage("inference"):
            clock.advance(0.030)
        await members.answer("stays")

    play(scenario)
    assert outcomes() == {"cancelled": 1, "ok": 1}
    assert exclusive() == pytest.approx({"batch_wait": 0.010 + 0.020, "inference": 0.030})
    assert sizes() == (1, 1)
    # It has waited, too: a batcher that lets everybody wait until they give up is no fast one.
    assert values("inference_batch_wait_seconds_sum") == {(): pytest.approx(0.030)}


@pytest.mark.parametrize("when", ["before", "in_a_stage", "between"])
def test_a_member_that_leaves_while_the_batch_takes_it_along(clock: Clock, when: str) -> None:
    """The batcher does not know, and computes for it all the same; its request has ended."""

    async def scenario(members: Members) -> None:
        await members.arrive("gone", "stays")
        clock.advance(0.010)
        if when == "before":
            await members.cancel("gone")
        with members.run("gone", "stays"):
            with stage("h2d"):
                clock.advance(0.002)
                if when == "in_a_stage":
                    await members.cancel("gone")
                clock.advance(0.002)
            if when == "between":
                await members.cancel("gone")
            with stage("inference"):
                clock.advance(0.030)
        await members.answer("stays")

    play(scenario)
    gone_h2d = {"before": 0, "in_a_stage": 0.002, "between": 0.004}[when]
    assert exclusive() == pytest.approx(
        {"batch_wait": 2 * 0.010, "h2d": 0.004 + gone_h2d, "inference": 0.030}
    )
    assert sizes() == (1, 2)
    assert values("inference_batch_wait_seconds_count") == {(): 2}


def test_a_request_that_goes_on_without_its_batch_is_charged_no_more(clock: Clock) -> None:
    """It has a timeout of its own, and answers something else while the batch still runs."""

    async def handler(incoming: Request) -> PlainTextResponse:
        batcher = RequestBatcher("b")
        place = batcher.join()
        with batcher.run([place]):
            with stage("h2d"):
                clock.advance(0.002)
                place.leave()
                clock.advance(0.100)
            with stage("inference"):
                clock.advance(0.200)
        with stage("fallback"):
            clock.advance(0.001)
        return PlainTextResponse()

    app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="s")
    asyncio.run(request(app, "/"))
    assert exclusive() == pytest.approx({"h2d": 0.002, "unattributed": 0.300, "fallback": 0.001})


def test_a_member_whose_request_has_ended_is_still_waiting(clock: Clock) -> None:
    """A request that answers at once, and never says that it left."""
    batcher = RequestBatcher("b")
    places = []

    async def run_batch() -> None:
        clock.advance(5)
        with batcher.run(places), stage("inference"):
            clock.advance(1)
        with stage("cleanup"):
            clock.advance(0.5)

    async def handler(incoming: Request) -> PlainTextResponse:
        places.append(batcher.join())
        return PlainTextResponse(background=BackgroundTask(run_batch))

    app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="s")
    asyncio.run(request(app, "/"))
    assert exclusive() == {"cleanup": 0.5}
    assert values("inference_batch_wait_seconds_sum") == {(): 5}


def test_a_batch_that_fails_fails_as_before(clock: Clock) -> None:
    error = LookupError("out of memory")

    async def scenario(members: Members) -> None:
        await members.arrive("one")
        with pytest.raises(LookupError) as raised, members.run("one"):
            with stage("inference"):
                clock.advance(0.030)
                raise error
        assert raised.value is error
        assert current_unit.get() is NO_UNIT
        clock.advance(0.001)
        # Tried again, as a batch of its own.
        with members.run("one"), stage("inference"):
            clock.advance(0.020)
        await members.answer("one")

    play(scenario)
    assert exclusive() == pytest.approx({"inference": 0.050, "unattributed": 0.001})
    assert sizes() == (2, 2)
    assert values("inference_batch_wait_seconds_count") == {(): 1}


# --- several batches ---


def test_a_request_in_two_batches_at_once(clock: Clock) -> None:
    async def handler(incoming: Request) -> PlainTextResponse:
        text, image = RequestBatcher("text"), RequestBatcher("image")
        text_place, image_place = text.join(), image.join()
        clock.advance(0.010)
        with text.run([text_place]), stage("inference"):
            clock.advance(0.005)
            context = contextvars.Context()  # another worker, which knows nothing of this one

            def run_image() -> None:
                with image.run([image_place]), stage("inference"):
                    clock.advance(0.020)

            context.run(run_image)
            clock.advance(0.001)
        return PlainTextResponse()

    app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="s")
    asyncio.run(request(app, "/"))
    # The image's wait was opened last, and goes on until its batch.
    assert exclusive() == pytest.approx({"batch_wait": 0.010, "inference": 0.026})
    assert duration_sum() == pytest.approx(0.036)
    assert values("inference_batch_wait_seconds_sum", "batcher") == pytest.approx(
        {("text",): 0.010, ("image",): 0.015}
    )
    assert walls()["inference"] == (2, pytest.approx(0.026 + 0.020))


def test_a_batch_that_joins_a_batch(clock: Clock) -> None:
    reranker = RequestBatcher("reranker")

    async def scenario(members: Members) -> None:
        await members.arrive("one", "two")
        with members.run("one", "two"):
            with stage("inference"):
                clock.advance(0.010)
            place = reranker.join()
            clock.advance(0.003)

            def rerank() -> None:
                with reranker.run([place]), stage("rerank"):
                    clock.advance(0.005)

            contextvars.Context().run(rerank)
            clock.advance(0.001)
        await members.answer("one", "two")

    play(scenario)
    assert exclusive() == pytest.approx(
        {
            "inference": 2 * 0.010,
            "batch_wait": 2 * 0.003,
            "rerank": 2 * 0.005,
            "postprocess": 2 * 0.001,
        }
    )
    assert values("inference_batch_size_sum", "batcher") == {("b",): 2, ("reranker",): 1}


def test_a_batch_within_a_batch_gives_it_back(clock: Clock) -> None:
    inner = RequestBatcher("inner")

    async def scenario(members: Members) -> None:
        await members.arrive("one", "two")
        with members.run("one"):
            with inner.run([members.places["two"]]), stage("inference"):
                clock.advance(0.010)
            with stage("d2h"):
                clock.advance(0.002)
        assert current_unit.get() is NO_UNIT
        await members.answer("one", "two")

    play(scenario)
    assert walls()["inference"][0] == 1
    assert walls()["d2h"][0] == 1


def test_very_many_stages_in_a_batch(clock: Clock) -> None:
    count = units.FOLD_AT * 2 + 10

    async def scenario(members: Members) -> None:
        await members.arrive("one", "two")
        with members.run("one", "two"):
            for _ in range(count):
                with stage("inference"):
                    clock.burn(0.001)
            assert len(current_unit.get().log or ()) <= units.FOLD_AT
        await members.answer("one", "two")

    play(scenario)
    assert exclusive() == pytest.approx({"inference": 2 * 0.001 * count})
    assert walls()["inference"][0] == 2 * count
    assert used() == pytest.approx({"inference": 0.001 * count})


def test_shares_add_up_whatever_members_do(clock: Clock) -> None:
    """Members join, leave, end and are batched at random, one or several times at once."""
    rng = random.Random(7)

    def idle() -> None:
        clock.advance(rng.randrange(20) / 1000)

    async def scenario(members: Members) -> None:
        waiting: list[str] = []
        running: list[tuple[Any, Any, list[str]]] = []
        for step in range(400):
            idle()
            what = rng.choice(("arrive", "begin", "stage", "stage", "end", "cancel", "leave"))
            if what == "arrive":
                await members.arrive(f"r{step}")
                waiting.append(f"r{step}")
            elif what == "begin" and waiting and len(running) < 3:
                batch = rng.sample(waiting, rng.randint(1, len(waiting)))
                waiting = [name for name in waiting if name not in batch]
                context = contextvars.Context()
                manager = members.run(*batch)
                context.run(manager.__enter__)
                running.append((context, manager, batch))
            elif what == "stage" and running:
                context, _, _ = rng.choice(running)
                interval = stage(rng.choice(("h2d", "inference", "d2h")))
                context.run(interval.__enter__)
                idle()
                context.run(interval.__exit__, None, None, None)
            elif what == "end" and running:
                context, manager, batch = running.pop(rng.randrange(len(running)))
                context.run(manager.__exit__, None, None, None)
                await members.answer(*batch)
            elif what == "cancel" and running and rng.random() < 0.5:
                _, _, batch = rng.choice(running)
                if batch:
                    await members.cancel(batch.pop())
            elif what == "cancel" and waiting:
                await members.cancel(waiting.pop(rng.randrange(len(waiting))))
            elif what == "leave" and running and running[0][2]:
                members.places[rng.choice(running[0][2])].leave()
        for context, manager, batch in running:
            context.run(manager.__exit__, None, None, None)
            waiting += batch
        await members.answer(*waiting)

    play(scenario)
    assert sum(exclusive().values()) == pytest.approx(duration_sum(), abs=1e-9)
    assert duration_sum() > 1
    assert {"batch_wait", "inference"} <= exclusive().keys()


# --- where it runs, and for whom ---


def test_a_batch_begun_from_one_members_context_is_all_members(clock: Clock) -> None:
    """As where the member that fills the batch runs it, or a task that was made for its request."""

    async def scenario(members: Members) -> None:
        ready = asyncio.Event()

        async def dispatch() -> None:
            await ready.wait()
            assert current_unit.get() is not NO_UNIT  # of the request that it was made in
            async with members.run("one", "two"):
                with stage("h2d"):
                    clock.advance(0.002)
                await asyncio.to_thread(infer)

        def infer() -> None:
            with stage("inference"):
                clock.advance(0.030)

        join = members.batcher.join
        tasks: list[asyncio.Task[None]] = []

        def join_and_dispatch(item: Any) -> Any:
            if not tasks:
                tasks.append(asyncio.create_task(dispatch()))
            return join(item)

        members.batcher.join = join_and_dispatch  # type: ignore[method-assign,assignment]
        await members.arrive("one", "two", "bystander")
        ready.set()
        await tasks[0]
        await members.answer("one", "two", "bystander")

    play(scenario)
    assert walls()["inference"] == (2, pytest.approx(2 * 0.030))
    assert exclusive()["h2d"] == pytest.approx(2 * 0.002)
    assert exclusive()["batch_wait"] == pytest.approx(0.032)  # the bystander's


def test_a_batch_that_awaits_does_not_have_requests_driven(clock: Clock) -> None:
    """That helps stages of a request's own task, and costs every request of the service."""

    async def scenario(members: Members) -> None:
        await members.arrive("one")
        async with members.run("one"), stage("inference"):
            await asyncio.sleep(0)
            clock.advance(0.010)
        await members.answer("one")

    play(scenario)
    assert not service_named("s").has_suspended_stages
    assert exclusive() == pytest.approx({"inference": 0.010})


def test_members_outside_any_request_are_units_of_their_own(clock: Clock) -> None:
    """As in a worker that takes jobs from a broker, or a gRPC server."""
    batcher = RequestBatcher("b", service="s")
    places = [batcher.join(), batcher.join()]
    clock.advance(0.010)
    with batcher.run(places):
        clock.advance(0.001)
        with stage("inference"):
            clock.advance(0.030)
    assert exclusive() == pytest.approx({"batch_wait": 0.020, "inference": 0.060})
    assert walls()["inference"] == (2, pytest.approx(0.060))
    with batcher.join():
        clock.advance(0.005)
    assert exclusive()["batch_wait"] == pytest.approx(0.025)


def test_a_batcher_knows_its_service_where_there_is_no_request(clock: Clock) -> None:
    service_named("first")
    batcher = RequestBatcher("b", service="second")
    with batcher.run([batcher.join()]), stage("inference"):
        clock.burn(0.030)
    for name in ("inference_stage_seconds_total", "inference_stage_cpu_seconds_total"):
        assert nonzero(name, ["service", "stage"]) == {
            ("second", "inference"): pytest.approx(0.030)
        }


def test_a_member_within_a_stage_outside_any_request(clock: Clock) -> None:
    batcher = RequestBatcher("b", service="s")
    with stage("rpc"):
        clock.advance(0.001)
        place = batcher.join()
        clock.advance(0.010)

        def work() -> None:
            with batcher.run([place]), stage("inference"):
                clock.advance(0.030)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        clock.advance(0.002)
    assert exclusive() == pytest.approx({"rpc": 0.003, "batch_wait": 0.010, "inference": 0.030})


def test_a_member_in_a_websocket(clock: Clock) -> None:
    batcher = RequestBatcher("b", service="first")

    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        with batcher.join() as place:
            clock.advance(0.010)
            with batcher.run([place]), stage("inference"):
                clock.advance(0.030)
        await websocket.close()

    async def main() -> None:
        exchange = Exchange()
        scope = http_scope("/chat", type="websocket", subprotocols=[])

        async def receive() -> dict[str, str]:
            return {"type": "websocket.connect"}

        app = StageTimingMiddleware(
            Starlette(routes=[WebSocketRoute("/chat", chat)]), service="second"
        )
        await app(scope, receive, exchange.send)

    StageTimingMiddleware(Starlette(), service="first")
    asyncio.run(main())
    assert nonzero("inference_stage_seconds_total", ["service", "stage"]) == pytest.approx(
        {("second", "batch_wait"): 0.010, ("second", "inference"): 0.030}
    )


def test_a_batch_of_nobody_is_none(clock: Clock) -> None:
    batcher = RequestBatcher("b", service="s")
    with batcher.run([]), stage("inference"):
        clock.advance(0.030)
    assert sizes() == (0, 0)
    assert exclusive() == pytest.approx({"inference": 0.030})


def test_threads_lose_nothing() -> None:
    batcher = RequestBatcher("b", service="s")
    rounds, size = 300, 4

    def work() -> None:
        for _ in range(rounds):
            with batcher.run([batcher.join() for _ in range(size)]), stage("inference"):
                pass

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sizes() == (4 * rounds, 4 * rounds * size)
    assert values("inference_batch_wait_seconds_count") == {(): 4 * rounds * size}


# --- wrap, and a dynamic batcher ---


class DynamicBatcher:
    """Runs a batch when it is full, or when its first item has waited for the window."""

    def __init__(self, run: Callable[[list[Any]], list[Any]], size: int, window: float) -> None:
        self._run = run
        self._size = size
        self._window = window
        self._pending: list[tuple[Any, asyncio.Future[Any]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, item: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._pending.append((item, answer))
        if len(self._pending) == self._size:
            self._begin()
        elif len(self._pending) == 1:
            self._timer = loop.call_later(self._window, self._begin)
        return await answer

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        batch, self._pending = self._pending, []
        task = asyncio.get_running_loop().create_task(self._execute(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, batch: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        batch = [(item, answer) for item, answer in batch if not answer.done()]
        items = [item for item, _ in batch]
        answers = await asyncio.get_running_loop().run_in_executor(None, self._run, items)
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def test_a_dynamic_batcher_that_knows_nothing_of_us() -> None:
    """Its tasks are made in the context of some member's request, its function runs in a thread."""
    encoder = RequestBatcher("encoder", max_size=4, window_seconds=0.010)

    @encoder.wrap
    def encode(texts: Sequence[str]) -> list[int]:
        with stage("h2d"):
            time.sleep(0.002)
        with stage("inference"):
            time.sleep(0.010)
        return [len(text) for text in texts]

    async def handler(incoming: Request) -> PlainTextResponse:
        async with encoder.join(incoming.path_params["text"]) as place:
            return PlainTextResponse(str(await batcher.submit(place)))

    app = StageTimingMiddleware(Starlette(routes=[Route("/{text}", handler)]), service="s")
    batcher = DynamicBatcher(encode, size=4, window=0.010)

    async def main() -> None:
        left = asyncio.create_task(request(app, "/left"))
        texts = ["x" * n for n in range(1, 10)]
        several = [asyncio.create_task(request(app, f"/{text}")) for text in texts]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        left.cancel()
        answers = await asyncio.gather(*several)
        assert [exchange.body for exchange in answers] == [b"%d" % n for n in range(1, 10)]

    asyncio.run(main())
    assert outcomes() == {"ok": 9, "cancelled": 1}
    batches, members = sizes()
    assert members in (9, 10)  # the one that has left was in a batch, or was not
    assert batches == 3
    count, seconds = walls()["inference"]
    assert count >= 9
    assert seconds >= 9 * 0.010
    assert walls()["batch_wait"][0] == values("inference_batch_wait_seconds_count")[()] == 10
    assert sum(exclusive().values()) == pytest.approx(duration_sum(), abs=1e-9)


def test_a_wrapped_function_is_given_the_items(clock: Clock) -> None:
    batcher = RequestBatcher("b", service="s")

    @batcher.wrap
    def lengths(texts: Sequence[str]) -> list[int]:
        """Lengths."""
        with stage("inference"):
            clock.advance(0.010)
        return [len(text) for text in texts]

    @batcher.wrap
    async def upper(texts: Sequence[str]) -> list[str]:
        with stage("inference"):
            await asyncio.sleep(0)
        return [text.upper() for text in texts]

    class Model:
        async def __call__(self, texts: Sequence[str]) -> list[str]:
            with stage("inference"):
                await asyncio.sleep(0)
            return [text.upper() for text in texts]

    assert asyncio.run(batcher.wrap(Model())([batcher.join("b")])) == ["B"]
    assert lengths([batcher.join("a"), batcher.join("bcd")]) == [1, 3]
    assert (lengths.__name__, lengths.__doc__) == ("lengths", "Lengths.")
    assert asyncio.run(upper([batcher.join("a")])) == ["A"]
    assert sizes() == (3, 4)
    assert walls()["inference"][0] == 4


def test_what_is_no_place_is_refused() -> None:
    batcher = RequestBatcher("b", service="s")
    with pytest.raises(
        TypeError, match=r"batcher b: run\(\) of a str, expected places that join\(\) has returned"
    ):
        batcher.run(["a"])  # type: ignore[list-item]


# --- padding, configuration, limits ---


def test_padding_is_a_share_of_all_elements() -> None:
    batcher = RequestBatcher("b", service="s")
    batcher.note_padding(used=3, total=4)
    batcher.note_padding(used=np.int64(4), total=np.int64(4))  # type: ignore[arg-type]
    batcher.note_padding(used=0, total=0)  # an empty batch has none, and none that is not
    assert values("inference_batch_padding_ratio_sum", "batcher") == {("b",): 0.25}
    buckets = values("inference_batch_padding_ratio_bucket", "le")
    assert (buckets["0.0",], buckets["0.2",], buckets["0.25",]) == (1, 1, 2)


@pytest.mark.parametrize(("given", "total"), [(5, 4), (-1, 4), (float("nan"), 4), ("many", 4)])
def test_padding_of_nonsense_harms_nobody(given: Any, total: Any) -> None:
    RequestBatcher("b", service="s").note_padding(used=given, total=total)
    assert values("inference_batch_padding_ratio_count") == {}
    assert nonzero("tailwatch_errors_total", ["where"]) == {("metrics",): 1}


def test_an_unused_batcher_shows_what_is_configured() -> None:
    batcher = RequestBatcher("b", max_size=32, window_seconds=0.010)
    RequestBatcher("plain")
    StageTimingMiddleware(Starlette(), service="s")
    assert values("inference_batch_size_count", "batcher") == {("b",): 0, ("plain",): 0}
    assert values("inference_batch_max_size", "batcher") == {("b",): 32}
    assert values("inference_batch_window_seconds", "batcher") == {("b",): 0.010}
    with RequestBatcher("b").run([]):  # another object of the same name, without
        pass
    batcher.window_seconds = 0.020  # one that adapts
    assert values("inference_batch_window_seconds", "batcher") == {("b",): 0.020}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, r"RequestBatcher\(''\): expected a name that is not empty"),
        ({"name": "b", "max_size": 0}, "batcher b: max_size=0: expected 1 or more"),
        ({"name": "b", "max_size": "32"}, "batcher b: max_size='32': expected 1 or more"),
        (
            {"name": "b", "window_seconds": -1},
            "batcher b: window_seconds=-1: expected seconds, 0 or more",
        ),
        (
            {"name": "b", "window_seconds": float("nan")},
            "batcher b: window_seconds=nan: expected seconds, 0 or more",
        ),
        (
            {"name": "b", "window_seconds": float("inf")},
            "batcher b: window_seconds=inf: expected seconds, 0 or more",
        ),
    ],
)
def test_what_cannot_be_configured_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RequestBatcher(**options)


def test_nonsense_cannot_be_set_later_either() -> None:
    batcher = RequestBatcher("b", max_size=8, service="s")
    with pytest.raises(ValueError, match="max_size=nan: expected 1 or more"):
        batcher.max_size = float("nan")  # type: ignore[assignment]
    assert values("inference_batch_max_size") == {(): 8}


def test_numbers_of_numpy_can_be_configured() -> None:
    RequestBatcher("b", max_size=np.int64(8), window_seconds=np.float32(0.25), service="s")  # type: ignore[arg-type]
    assert values("inference_batch_max_size") == {(): 8}
    assert values("inference_batch_window_seconds") == {(): 0.25}


def test_a_padding_error_is_that_of_the_service_that_has_the_batcher() -> None:
    StageTimingMiddleware(Starlette(), service="first")
    RequestBatcher("b", service="s").note_padding(used=2, total=1)
    assert nonzero("tailwatch_errors_total", ["service"]) == {("s",): 1}


def test_batchers_are_capped() -> None:
    for i in range(70):
        batcher = RequestBatcher(f"b{i}", max_size=8, service="s")
        with batcher.run([batcher.join()]):
            pass
    counts = values("inference_batch_size_count", "batcher")
    assert len(counts) == 65
    assert counts[("__other__",)] == 6
    assert len(values("inference_batch_max_size", "batcher")) == 64


@pytest.mark.parametrize("size", [1, 2, 5, 32, 33, 1024, 1025])
def test_sizes_have_buckets_of_their_own(size: int) -> None:
    batcher = RequestBatcher("b", service="s")
    with batcher.run([batcher.join() for _ in range(size)]):
        pass
    buckets = values("inference_batch_size_bucket", "le")
    below = [float(le) for (le,), count in buckets.items() if count == 0 and le != "+Inf"]
    assert max(below, default=0) < size
    assert buckets["+Inf",] == 1
