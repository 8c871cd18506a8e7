"""What a `with` block does, an `async with` block does too: nothing in it waits."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

Entered_co = TypeVar("Entered_co", covariant=True)


class Block(Generic[Entered_co]):
    """A context manager that may be entered either way, with the same effect."""

    __slots__ = ()

    def __enter__(self) -> Entered_co:
        """Begin."""
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End."""
        raise NotImplementedError

    async def __aenter__(self) -> Entered_co:
        """Begin, in an async block."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End, in an async block."""
        self.__exit__(kind, error, traceback)
