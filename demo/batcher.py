"""A dynamic batcher: requests that arrive close together run through the model in one batch.

It lives on one event loop and calls `run` on worker threads. A batch starts when it is full, or
when its first member has waited for the window, and one of the `concurrency` workers is free;
while none is, the batch keeps filling.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Member(Generic[Item, Result]):
    """One item on its way through a batch; await `started`, then `result`."""

    __slots__ = ("due", "item", "result", "started")

    def __init__(self, item: Item, due: float, loop: asyncio.AbstractEventLoop) -> None:
        self.item = item
        self.due = due  # loop time at which its window ends
        self.started: asyncio.Future[None] = loop.create_future()
        self.result: asyncio.Future[Result] = loop.create_future()

    @property
    def gone(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.started.cancelled() or self.result.cancelled()


class DynamicBatcher(Generic[Item, Result]):
    """Collects items and runs them together on worker threads.

    Args:
        run: takes the items of a batch, returns one result each, in the same order.
        max_batch: most items in a batch, at least 1.
        window_seconds: longest time an item waits for others while a worker is free.
        concurrency: batches in `run` at the same time; more than 1 keep a device busy while
            the host prepares the next launch.
        thread_name: name of the worker threads.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        max_batch: int,
        window_seconds: float,
        concurrency: int,
        thread_name: str = "inference",
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch is {max_batch}, expected at least 1")
        self._run = run
        self._max_batch = max_batch
        self._window = window_seconds
        self._free_workers = concurrency
        self._executor = ThreadPoolExecutor(concurrency, thread_name_prefix=thread_name)
        self._pending: deque[Member[Item, Result]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._batches: set[asyncio.Task[None]] = set()

    def submit(self, item: Item) -> Member[Item, Result]:
        """Add an item to the batch being collected. Call it on the event loop."""
        loop = asyncio.get_running_loop()
        member: Member[Item, Result] = Member(item, loop.time() + self._window, loop)
        self._pending.append(member)
        self._start_due_batches()
        return member

    async def close(self) -> None:
        """Wait for the batches that run, end the worker threads; pending items are cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        for member in self._pending:
            member.started.cancel()
        self._pending.clear()
        await asyncio.gather(*self._batches)
        self._executor.shutdown()

    def _start_due_batches(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._free_workers and self._pending:
            now = loop.time()
            if len(self._pending) < self._max_batch and self._pending[0].due > now:
                self._timer = loop.call_at(self._pending[0].due, self._start_due_batches)
                return
            batch = self._take()
            if batch:
                task = loop.create_task(self._execute(batch))
                self._batches.add(task)
                task.add_done_callback(self._batches.discard)

    def _take(self) -> list[Member[Item, Result]]:
        batch: list[Member[Item, Result]] = []
        while self._pending and len(batch) < self._max_batch:
            member = self._pending.popleft()
            if not member.gone:
                member.started.set_result(None)
                batch.append(member)
        if batch:
            self._free_workers -= 1
        return batch

    async def _execute(self, batch: list[Member[Item, Result]]) -> None:
        items = [member.item for member in batch]
        try:
            results = await asyncio.get_running_loop().run_in_executor(
                self._executor, self._run, items
            )
            if len(results) != len(items):
                raise RuntimeError(f"a batch of {len(items)} gave {len(results)} results")
        except Exception as error:  # a failed batch fails each of its requests
            for member in batch:
                if not member.result.done():
                    member.result.set_exception(error)
        else:
            for member, result in zip(batch, results, strict=True):
                if not member.result.done():
                    member.result.set_result(result)
        finally:
            self._free_workers += 1
            self._start_due_batches()
