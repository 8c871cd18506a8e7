"""Scrapes: the page is made in a thread, in short turns, once for all who ask at the same time."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from tailwatch_tracing.client_registry import PATIENCE_SECONDS, Pause

TURN_SECONDS = 0.0003
REST_SECONDS = 0.0003
RESTS_SECONDS = 2.0
KEPT_FROM_BYTES = 1_000_000
KEPT_SECONDS = 1.0

_BLOCK_BYTES = 64 * 1024
_GZIP_FROM_BYTES = 1024


class Turns:
    """Works for `TURN_SECONDS` at most, then rests.

    A thread that asks for the interpreter's lock while another computes gets it after 5 ms, and an
    event loop asks several times for each request. One that rests is never asked. Sleeping for no
    time is not enough: the lock is then back before a waiting thread has woken up.

    All rests together take `RESTS_SECONDS` at most, because a scraper waits for 10 s, and a page
    that comes too late is worse than requests that wait.
    """

    def __init__(self) -> None:
        self._end = time.perf_counter() + TURN_SECONDS
        self._rests_left = round(RESTS_SECONDS / REST_SECONDS)

    def pause(self) -> None:
        """Rest if the turn is over."""
        if time.perf_counter() >= self._end and self._rests_left:
            self._rests_left -= 1
            time.sleep(REST_SECONDS)
            self._end = time.perf_counter() + TURN_SECONDS


class Page(NamedTuple):
    """What a scrape is answered with: a body in blocks that are sent one by one."""

    blocks: list[bytes]
    content_type: str
    is_gzipped: bool

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return sum(map(len, self.blocks))


def in_blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in larger blocks."""
    block: list[bytes] = []
    size = 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size >= _BLOCK_BYTES:
            yield b"".join(block)
            block.clear()
            size = 0
    if block:
        yield b"".join(block)


def gzipped(page: Page, pause: Pause) -> Page:
    """Return the page compressed block by block, if it is large enough for that.

    zlib works without the interpreter's lock, but not without a CPU: so this, too, pauses. Its
    higher levels take several times as long for little less.
    """
    if page.length < _GZIP_FROM_BYTES:
        return page
    compressor = zlib.compressobj(level=1, wbits=31)
    compressed: list[bytes] = []
    for block in page.blocks:
        pause()
        compressed.append(compressor.compress(block))
    compressed.append(compressor.flush())
    return Page(list(in_blocks(compressed)), page.content_type, is_gzipped=True)


class _Kind(NamedTuple):
    openmetrics: bool
    is_gzipped: bool


class _Making:
    """A page that a thread makes, and the one after it, for those who came since."""

    __slots__ = ("following", "page", "since")

    def __init__(self, page: Future[Page] | None = None) -> None:
        self.page = page or _future()
        self.since = time.monotonic()
        self.following: Future[Page] | None = None


def _future() -> Future[Page]:
    future: Future[Page] = Future()
    future.set_running_or_notify_cancel()  # no single scraper can cancel it
    return future


class Scrapes:
    """Answers scrapes with pages.

    Those who come while a page of their kind is made share the next one, which is made right after
    it: each has all that happened before it was asked for. A page of `KEPT_FROM_BYTES`, about
    10,000 lines, is also the answer to whoever has come meanwhile or comes up to `KEPT_SECONDS`
    later.

    Args:
        make: Returns the page in a format, pausing on the way.
        rest: Waits for some seconds.
        may_keep: Returns whether pages may be kept. Not where other workers answer, too: after a
            newer page of theirs a kept one would take counters back.
    """

    def __init__(
        self,
        make: Callable[[bool, Pause], Page],
        rest: Callable[[float], None] = time.sleep,
        may_keep: Callable[[], bool] = lambda: True,
    ) -> None:
        self._make = make
        self._rest = rest
        self._may_keep = may_keep
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a forked child whose parent's threads are gone."""
        self._lock = threading.Lock()
        self._makings: dict[_Kind, _Making] = {}

    def page(self, openmetrics: bool, gzip: bool) -> Future[Page]:
        """Return what will be the page.

        Raises:
            RuntimeError: no thread can be started.
        """
        kind = _Kind(openmetrics, gzip)
        with self._lock:
            making = self._makings.get(kind)
            if making is None:
                return self._begin(kind, _Making())
            if making.page.done():
                return making.page
            if time.monotonic() - making.since >= PATIENCE_SECONDS:
                # Scrapers have given up, and what holds up their page will not end soon.
                page, making.following = making.following, None
                return self._begin(kind, _Making(page))
            if making.following is None:
                making.following = _future()
            return making.following

    def _begin(self, kind: _Kind, making: _Making) -> Future[Page]:
        threading.Thread(
            target=self._run, args=(kind, making), name="tailwatch-metrics", daemon=True
        ).start()
        self._makings[kind] = making
        return making.page

    def _run(self, kind: _Kind, making: _Making) -> None:
        next_making: _Making | None = making
        while next_making is not None:
            making = next_making
            try:
                pause = Turns().pause
                page = self._make(kind.openmetrics, pause)
                is_kept = page.length >= KEPT_FROM_BYTES and self._may_keep()
                if kind.is_gzipped:
                    page = gzipped(page, pause)
            except BaseException as error:
                next_making = self._follow(kind, making)
                making.page.set_exception(error)
                continue
            if is_kept:
                self._keep(kind, making, page)
                return
            next_making = self._follow(kind, making)
            making.page.set_result(page)

    def _follow(self, kind: _Kind, making: _Making) -> _Making | None:
        """Return what is to be made for those who came meanwhile, if anybody did."""
        with self._lock:
            following = None if making.following is None else _Making(making.following)
            if self._makings.get(kind) is making:
                if following is None:
                    del self._makings[kind]
                else:
                    self._makings[kind] = following
            return following

    def _keep(self, kind: _Kind, making: _Making, page: Page) -> None:
        with self._lock:
            making.page.set_result(page)
            if making.following is not None:
                making.following.set_result(page)
        self._rest(KEPT_SECONDS)
        with self._lock:
            if self._makings.get(kind) is making:
                del self._makings[kind]
