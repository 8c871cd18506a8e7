"""CPU time of stages: of its thread's CPU clock, what certainly belongs to the stage.

A thread's CPU clock goes on while a stage awaits and the thread works for others. So a difference
of it counts only where nothing else can have run between: each is read from a `CpuClock`, and is
thrown away unless the same one is still good when the stage ends. There are three kinds.

In a thread of an event loop it is good until the loop's next turn. A task that is suspended goes
on in a later turn only, and what a loop is told to call soon it calls in that order (asyncio's
contract), so a callback that has not been called yet proves that no task was suspended.

Of a coroutine that is driven here, it stops while the coroutine is suspended and is good for as
long as that runs.

In any other thread it is the thread's, and good if the stage ends in the activation of the function
that opened it: a plain function is not suspended, and a pool's next job is another activation.
"""

from __future__ import annotations

import os
import sys
import threading
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Generator
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from types import CoroutineType, FrameType, coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from tailwatch_tracing import clock

if TYPE_CHECKING:
    from tailwatch_tracing.stages import stage

Result = TypeVar("Result")

_TASK_CODE = CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR
# Frames between a stage and the function that a `with` stands in.
_BETWEEN = frozenset(("contextlib", "tailwatch_tracing.stages", __name__))
_GREEN = ("gevent", "eventlet")  # what suspends plain functions, too


class CpuClock:
    """What the CPU time of some stages is read by, for as long as nothing else can have run.

    `innermost` is the open stage that was opened last by it.
    """

    __slots__ = ("innermost", "is_good")

    def __init__(self, is_good: Callable[[], bool], innermost: stage | None) -> None:
        self.is_good = is_good
        self.innermost = innermost

    def expire(self) -> None:
        """Be good no longer: the loop has turned."""
        self.is_good = _never
        if here.clock is self:
            here.clock = None


def _always() -> bool:
    return True


def _never() -> bool:
    return False


class _Here(threading.local):
    """This thread's clocks: of what runs now, None where that is not known yet, and its own."""

    clock: CpuClock | None = None
    own: CpuClock | None = None


here = _Here()


def _forget_parent() -> None:
    """In a forked child: its CPU clock begins at 0, and the parent's loop never turns again."""
    here.clock = None
    here.own = None


os.register_at_fork(after_in_child=_forget_parent)


def find_clock(interval: stage) -> CpuClock | None:
    """Return the clock for a stage that is being entered, None where none can be relied on."""
    own = here.own
    loop = _get_running_loop()
    if loop is not None:
        found = CpuClock(loop.is_running, None if own is None else own.innermost)
        loop.call_soon(found.expire)
        here.clock = found
        return found
    frame = _activation()
    if frame is None:
        return None
    interval.frame = frame
    if own is None:
        own = here.own = CpuClock(_always, None)
    while own.innermost is not None and own.innermost.cpu_clock is None:  # it ended elsewhere
        own.innermost = own.innermost.outer
    return own


def stop(interval: stage) -> bool:
    """Stop an open stage's CPU time; return False if others may have run since it began."""
    cpu_clock = interval.cpu_clock
    if cpu_clock is None:
        return True
    interval.cpu_clock = None
    if cpu_clock is here.own:
        frame = interval.frame
        del interval.frame
        is_good = frame is _activation()
    else:
        is_good = cpu_clock is here.clock and cpu_clock.is_good()
        if cpu_clock is here.clock and not is_good:
            here.clock = None
    if not is_good:
        return False
    above = None
    opened = cpu_clock.innermost
    while opened is not None and opened is not interval:
        above, opened = opened, opened.outer
    if opened is None:
        return False
    outer = interval.outer
    if above is None:
        used_ns = clock.cpu_ns() - interval.cpu_start_ns
        cpu_clock.innermost = outer
    else:  # from there on time is that of the one opened later, which is still open
        used_ns = above.cpu_start_ns - interval.cpu_start_ns
        above.outer = outer
    interval.cpu_ns += used_ns
    if outer is not None:
        outer.cpu_ns -= used_ns
    return True


def _activation() -> FrameType | None:
    """Return the activation of the plain function that runs the calling code; None in a task."""
    modules = sys.modules
    if "greenlet" in modules and (
        any(name in modules for name in _GREEN)
        or modules["greenlet"].getcurrent().parent is not None
    ):
        return None
    frame = sys._getframe(1)
    while True:
        flags = frame.f_code.co_flags
        if not flags & CO_GENERATOR and frame.f_globals.get("__name__") not in _BETWEEN:
            return None if flags & _TASK_CODE else frame
        if frame.f_back is None:
            return None
        frame = frame.f_back


def drive(awaitable: Awaitable[Result]) -> Awaitable[Result]:
    """Return what to await instead, so that stages in it know when it is suspended.

    Nothing else changes: it runs in the same task and context, and every value and exception
    passes. What is driven already, and what is no coroutine, is returned as it is.
    """
    now = here.clock
    if (now is not None and now.is_good is _always) or type(awaitable) is not CoroutineType:
        return awaitable
    return _driven(awaitable)


@coroutine
def _driven(driven: Coroutine[Any, Any, Result]) -> Generator[Any, Any, Result]:
    around = here.clock or here.own
    enclosing = None if around is None else around.innermost
    cpu_clock = CpuClock(_always, enclosing)
    send, throw = driven.send, driven.throw
    sent: Any = None
    error: BaseException | None = None
    stopped_ns = 0
    while True:
        before = here.clock
        if cpu_clock.innermost is not enclosing:
            away_ns = clock.cpu_ns() - stopped_ns
            interval = cpu_clock.innermost
            while interval is not enclosing and interval is not None:
                interval.cpu_start_ns += away_ns
                interval = interval.outer
        here.clock = cpu_clock
        try:
            awaited = send(sent) if error is None else throw(error)
        except StopIteration as stopped:
            result: Result = stopped.value
            return result
        finally:
            here.clock = before
            if cpu_clock.innermost is not enclosing:
                stopped_ns = clock.cpu_ns()
            error = None  # it would keep this frame alive, which is in its traceback
        try:
            sent = yield awaited
        except GeneratorExit:  # nobody knows from where: its open stages count no CPU time
            driven.close()
            raise
        except BaseException as thrown:
            # Less the entry for this frame, which would stay below those of the application.
            error = thrown.with_traceback(thrown.__traceback__ and thrown.__traceback__.tb_next)
        finally:
            awaited = None
