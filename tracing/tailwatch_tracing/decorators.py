"""Functions that are timed at every call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def timed(
    function: Function,
    interval: Callable[[], AbstractContextManager[object]],
    what: str,
    run: Callable[[Awaitable[Any]], Awaitable[Any]] | None = None,
) -> Function:
    """Return `function` with a new `interval()` around every call, sync or async.

    Args:
        function: A function, a method, a classmethod, a staticmethod, or any callable.
        interval: Makes what times one call.
        what: What the caller wrote, for the message.
        run: Through which the coroutine of an async function is awaited.

    Raises:
        TypeError: a generator function, whose call does not run it, or what is not callable.
    """
    if isinstance(function, classmethod | staticmethod):
        kind = type(function)
        return cast("Function", kind(timed(function.__func__, interval, what, run)))
    name = getattr(function, "__qualname__", repr(function))
    if not callable(function):
        raise TypeError(f"{what} cannot decorate {name}: expected a function")
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise TypeError(
            f"{what} cannot decorate the generator function {name}: use `with {what}:` inside it"
        )
    if is_async(function):

        async def timed_call(*args: Any, **kwargs: Any) -> Any:
            with interval():
                return await function(*args, **kwargs)

        @functools.wraps(function)
        async def timed_coroutine(*args: Any, **kwargs: Any) -> Any:
            call = timed_call(*args, **kwargs)
            return await (call if run is None else run(call))

        return cast("Function", timed_coroutine)

    @functools.wraps(function)
    def timed_function(*args: Any, **kwargs: Any) -> Any:
        with interval():
            return function(*args, **kwargs)

    return cast("Function", timed_function)


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call returns a coroutine."""
    return _is(inspect.iscoroutinefunction, function)


def _is(kind: Callable[[object], bool], function: Callable[..., Any]) -> bool:
    """Return whether it is a function of a kind, or an object that is called like one."""
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004 - not whether
