"""Responses that come in more than one body message: their chunks, and whether they were cut."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING

from tailwatch_tracing.exemplars import observe
from tailwatch_tracing.families import (
    CHUNK_GAP,
    FIRST_CHUNK,
    RESPONSE_START,
    TIME_PER_OUTPUT_TOKEN,
)
from tailwatch_tracing.service import RouteCells

if TYPE_CHECKING:
    from tailwatch_tracing.spans.recorder import AnySpan


class Stream:
    """Times the chunks of one streamed response, each when the server has taken it.

    A chunk is a body message that is not empty. What is in it is never looked at.
    """

    __slots__ = ("_first_ns", "_gaps", "_last_ns", "_route", "_span", "_start_ns", "chunks")

    def __init__(
        self, route: RouteCells, start_ns: int, response_start_ns: int, span: AnySpan | None
    ) -> None:
        self._route = route
        self._start_ns = start_ns
        self._last_ns = 0
        self._span = span
        self.chunks = 0
        observe(route.histogram(RESPONSE_START), response_start_ns - start_ns, span)

    def note_chunk(self, now_ns: int) -> None:
        """Observe the time to the first chunk, or since the one before."""
        if self.chunks == 0:
            self._first_ns = now_ns
            observe(self._route.histogram(FIRST_CHUNK), now_ns - self._start_ns, self._span)
        else:
            if self.chunks == 1:
                self._gaps = self._route.histogram(CHUNK_GAP)
            observe(self._gaps, now_ns - self._last_ns, self._span)
        self.chunks += 1
        self._last_ns = now_ns

    def note_tokens(self, output: int) -> None:
        """Observe the time per token after the first, of a stream that has brought as many."""
        if output > 1 and self.chunks > 1:
            per_token_ns = (self._last_ns - self._first_ns) // (output - 1)
            observe(self._route.histogram(TIME_PER_OUTPUT_TOKEN), per_token_ns, self._span)


def is_resent() -> bool:
    """Return whether the message being sent comes from Starlette's BaseHTTPMiddleware inside us.

    It ends a stream that has failed like one that is complete, and raises the error afterwards.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == "starlette.middleware.base":
            return True
        if module == "tailwatch_tracing.middleware":
            return False
        frame = frame.f_back
    return False


def is_background_error(error: Exception) -> bool:
    """Return whether an error was raised in one of Starlette's background tasks."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") == "starlette.background":
            return True
        traceback = traceback.tb_next
    return False
