"""The dynamic batcher, on a loop whose clock a test moves."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from demo.batcher import DynamicBatcher, Member

WINDOW = 0.010


class Worker:
    """Runs batches when it is told to, and remembers them."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        assert self.go.wait(10)
        if -1 in items:
            raise ValueError("a bad item")
        return [10 * item for item in items]


def run(
    test: Callable[[DynamicBatcher[int, int], Worker], Any],
    *,
    window: float = WINDOW,
    concurrency: int = 1,
) -> Worker:
    """Run the coroutine function `test` with a batcher of at most 4, and close it."""
    worker = Worker()

    async def main() -> None:
        batcher = DynamicBatcher(
            worker, max_batch=4, window_seconds=window, concurrency=concurrency
        )
        try:
            async with asyncio.timeout(20):
                await test(batcher, worker)
        finally:
            worker.go.set()
            await batcher.close()

    asyncio.run(main())
    return worker


async def results(members: Sequence[Member[int, int]]) -> list[int]:
    return [await member.result for member in members]


def test_a_full_batch_starts_at_once() -> None:
    async def test(batcher: DynamicBatcher[int, int], worker: Worker) -> None:
        members = [batcher.submit(item) for item in range(8)]
        assert await results(members) == [10 * item for item in range(8)]

    # With this window the test would time out, if the batches waited for it.
    assert run(test, window=3600).batches == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_part_filled_batch_starts_when_its_first_member_has_waited_for_the_window() -> None:
    async def test(batcher: DynamicBatcher[int, int], worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        submitted_at = loop.time()
        members = [batcher.submit(1), batcher.submit(2)]
        assert not members[0].started.done()
        await members[0].started
        assert loop.time() - submitted_at >= WINDOW
        assert await results(members) == [10, 20]

    assert run(test).batches == [[1, 2]]


def test_a_batch_fills_up_while_the_workers_are_busy() -> None:
    async def test(batcher: DynamicBatcher[int, int], worker: Worker) -> None:
        worker.go.clear()
        first = batcher.submit(1)
        await first.started
        waiting = [batcher.submit(item) for item in (2, 3, 4)]
        await asyncio.sleep(3 * WINDOW)
        assert not any(member.started.done() for member in waiting)
        worker.go.set()
        assert await results([first, *waiting]) == [10, 20, 30, 40]

    assert run(test).batches == [[1], [2, 3, 4]]


def test_two_batches_run_at_once_where_two_may() -> None:
    async def test(batcher: DynamicBatcher[int, int], worker: Worker) -> None:
        worker.go.clear()
        members = [batcher.submit(item) for item in range(12)]
        await asyncio.gather(members[0].started, members[4].started)
        assert not members[8].started.done()
        worker.go.set()
        await results(members)

    run(test, concurrency=2)


def test_an_error_reaches_every_member_and_the_next_batch_runs() -> None:
    async def test(batcher: DynamicBatcher[int, int], worker: Worker) -> None:
        members = [batcher.submit(item) for item in (1, -1, 2, 3, 5)]
        for member in members[:4]:
            with pytest.raises(ValueError, match="a bad item"):
                await member.result
        assert await members[4].result == 50

    run(test)


def test_a_member_that_left_takes_no_place_in_a_batch() -> None:
    async def test(batcher: DynamicBatcher[int, int], worker: Worker) -> None:
        worker.go.clear()
        running = batcher.submit(0)
        await running.started
        members = [batcher.submit(item) for item in (1, 2, 3, 4, 5)]
        members[1].started.cancel()
        worker.go.set()
        assert await results([members[0], *members[2:]]) == [10, 30, 40, 50]

    assert run(test).batches == [[0], [1, 3, 4, 5]]


def test_a_member_that_leaves_during_the_run_harms_nobody() -> None:
    async def test(batcher: DynamicBatcher[int, int], worker: Worker) -> None:
        worker.go.clear()
        members = [batcher.submit(item) for item in (1, 2, 3, 4)]
        await members[0].started
        members[0].result.cancel()
        worker.go.set()
        assert await results(members[1:]) == [20, 30, 40]

    run(test)


def test_a_run_that_loses_results_is_an_error() -> None:
    async def main() -> None:
        batcher: DynamicBatcher[int, int] = DynamicBatcher(
            lambda items: [1], max_batch=2, window_seconds=WINDOW, concurrency=1
        )
        member, other = batcher.submit(1), batcher.submit(2)
        with pytest.raises(RuntimeError, match="a batch of 2 gave 1 results"):
            await member.result
        assert other.result.exception()
        await batcher.close()

    asyncio.run(main())


def test_closing_cancels_who_still_waits() -> None:
    async def main() -> None:
        batcher: DynamicBatcher[int, int] = DynamicBatcher(
            lambda items: list(items), max_batch=2, window_seconds=3600, concurrency=1
        )
        member = batcher.submit(1)
        await batcher.close()
        with pytest.raises(asyncio.CancelledError):
            await member.started

    asyncio.run(main())
