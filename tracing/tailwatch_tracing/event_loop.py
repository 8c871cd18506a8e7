"""What an answer needs of the event loop that it runs on: asyncio's, also uvloop's, or Trio's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


async def result_of(future: Future[Result]) -> Result:
    """Return what a thread comes to, while the event loop goes on."""
    trio = _trio()
    if trio is not None:
        result: Result = await trio.to_thread.run_sync(future.result)
        return result
    if is_asyncio():
        return await asyncio.wrap_future(future)
    return future.result()  # an event loop that we do not know


async def give_way() -> None:
    """Let the event loop do what else is ready."""
    trio = _trio()
    if trio is not None:
        await trio.lowlevel.checkpoint()
    elif is_asyncio():
        await asyncio.sleep(0)


async def within(seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    """Do something, or give it up.

    Raises:
        TimeoutError: it took longer, on asyncio or Trio.
    """
    trio = _trio()
    if trio is not None:
        with trio.move_on_after(seconds) as scope:
            await act()
        if scope.cancelled_caught:
            raise TimeoutError
    elif is_asyncio():
        async with asyncio.timeout(seconds):
            await act()
    else:
        await act()


def is_asyncio() -> bool:
    """Return whether an asyncio event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _trio() -> Any:
    """Return the module if the caller is a task of Trio's.

    Asked before asyncio, in whose event loop Trio may run as a guest.
    """
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return None
    return trio
