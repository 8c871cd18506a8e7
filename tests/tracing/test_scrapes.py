"""What scrapers share, how large pages are cut, and when the thread that makes them rests."""

from __future__ import annotations

import gzip
import itertools
import os
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from tailwatch_tracing import scrapes
from tailwatch_tracing.scrapes import (
    KEPT_FROM_BYTES,
    KEPT_SECONDS,
    Page,
    Pause,
    Scrapes,
    Turns,
    gzipped,
    in_blocks,
)

SMALL, LARGE = 10, KEPT_FROM_BYTES


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    for thread in threads():
        thread.join(30)
        assert not thread.is_alive()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tailwatch-metrics"]


class Maker:
    """Makes pages that tell which one they are, when it is let."""

    def __init__(self, size: int, is_held: bool = False) -> None:
        self.made: list[bool] = []  # the format of each
        self.go = threading.Event()
        self._size = size
        if not is_held:
            self.go.set()

    def __call__(self, openmetrics: bool, pause: Pause) -> Page:
        self.made.append(openmetrics)
        assert self.go.wait(30)
        return Page([b"%d " % len(self.made), b" " * self._size], "text/plain", False)


class Rest:
    """Lasts until it is let go."""

    def __init__(self) -> None:
        self.asked: SimpleQueue[float] = SimpleQueue()
        self.over = threading.Event()

    def __call__(self, seconds: float) -> None:
        self.asked.put(seconds)
        assert self.over.wait(30)


def number(scrapes: Scrapes, openmetrics: bool = False, is_gzipped: bool = False) -> int:
    """Which page a scrape gets."""
    body = b"".join(scrapes.page(openmetrics, is_gzipped).result(30).blocks)
    return int(gzip.decompress(body) if is_gzipped else body)


def test_those_who_ask_while_a_page_is_made_share_the_next() -> None:
    """Of the one being made they would not know what it has read already."""
    make = Maker(SMALL, is_held=True)
    scrapes = Scrapes(make)
    first, *others = [scrapes.page(False, False) for _ in range(20)]
    others[0].cancel()  # as its scraper may have left
    make.go.set()
    assert int(first.result(30).blocks[0]) == 1
    assert {int(other.result(30).blocks[0]) for other in others} == {2}
    assert make.made == [False, False]
    assert number(scrapes) == 3


def test_those_who_ask_while_a_large_page_is_made_get_it() -> None:
    rest = Rest()
    make = Maker(LARGE, is_held=True)
    scrapes = Scrapes(make, rest)
    futures = [scrapes.page(False, False) for _ in range(20)]
    make.go.set()
    assert {int(future.result(30).blocks[0]) for future in futures} == {1}
    rest.over.set()


def test_each_format_has_a_page_of_its_own() -> None:
    make = Maker(SMALL, is_held=True)
    scrapes = Scrapes(make)
    text, openmetrics = scrapes.page(False, False), scrapes.page(True, False)
    make.go.set()
    assert text.result(30) is not openmetrics.result(30)
    assert sorted(make.made) == [False, True]


def test_a_small_page_is_made_anew_for_the_next_scrape() -> None:
    """Who scrapes, does something and scrapes again must see it."""
    scrapes = Scrapes(Maker(SMALL))
    assert [number(scrapes) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("is_gzipped", [False, True])
def test_a_large_page_is_kept_for_a_second_and_no_longer(is_gzipped: bool) -> None:
    rest = Rest()
    scrapes = Scrapes(Maker(LARGE), rest)
    assert [number(scrapes, is_gzipped=is_gzipped) for _ in range(3)] == [1, 1, 1]
    assert rest.asked.get(timeout=30) == KEPT_SECONDS
    for thread in threads():
        rest.over.set()
        thread.join(30)
    assert number(scrapes, is_gzipped=is_gzipped) == 2


def test_a_large_page_is_not_kept_where_other_workers_answer_too() -> None:
    scrapes = Scrapes(Maker(LARGE), Rest(), may_keep=lambda: False)
    assert [number(scrapes) for _ in range(3)] == [1, 2, 3]


def test_a_page_that_cannot_be_made_fails_its_scrapes_and_not_the_next() -> None:
    failures = [ValueError("once")]
    make = Maker(SMALL)

    def fail_once(openmetrics: bool, pause: Pause) -> Page:
        if failures:
            raise failures.pop()
        return make(openmetrics, pause)

    scrapes = Scrapes(fail_once)
    with pytest.raises(ValueError, match="once"):
        scrapes.page(False, False).result(30)
    assert number(scrapes) == 1


def test_those_who_wait_behind_a_page_that_fails_get_the_next() -> None:
    failing = threading.Event()
    numbers = itertools.count()

    def make(openmetrics: bool, pause: Pause) -> Page:
        if next(numbers) == 0:
            assert failing.wait(30)
            raise ValueError("first")
        return Page([b"1"], "text/plain", False)

    scrapes = Scrapes(make)
    first, second = scrapes.page(False, False), scrapes.page(False, False)
    failing.set()
    with pytest.raises(ValueError, match="first"):
        first.result(30)
    assert second.result(30).blocks == [b"1"]


def test_nobody_waits_for_a_page_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker(SMALL, is_held=True)
    held = Scrapes(make)
    stuck = held.page(False, False)
    waits = held.page(False, False)
    assert len(threads()) == 1
    monkeypatch.setattr(scrapes, "PATIENCE_SECONDS", 0.0)
    assert held.page(False, False) is waits  # a new thread is at it now
    assert len(threads()) == 2
    make.go.set()
    assert stuck.result(30) is not waits.result(30)


def test_a_forked_child_shares_nothing_with_its_parent() -> None:
    rest = Rest()
    make = Maker(LARGE)
    scrapes = Scrapes(make, rest)
    assert number(scrapes) == 1
    pid = os.fork()
    if pid == 0:
        scrapes.forget()
        os._exit(number(scrapes))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    rest.over.set()


# --- turns ---


class Time:
    """Passes only when told to, or slept."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_work_rests_after_each_turn_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    monkeypatch.setattr(scrapes, "time", time)
    turns = Turns()
    for _ in range(100):
        time.now += scrapes.TURN_SECONDS / 10
        turns.pause()
    assert 8 <= len(time.slept) <= 10
    assert set(time.slept) == {scrapes.REST_SECONDS}
    assert min(time.slept) > 0  # a sleep of no time does not let a waiting thread have the lock


def test_rests_do_not_make_a_scraper_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    monkeypatch.setattr(scrapes, "time", time)
    turns = Turns()
    for _ in range(100_000):
        time.now += scrapes.TURN_SECONDS
        turns.pause()
    assert sum(time.slept) == pytest.approx(scrapes.RESTS_SECONDS, rel=0.01)


# --- blocks and gzip ---


def test_blocks_have_the_same_bytes_and_are_neither_small_nor_unbounded() -> None:
    pieces = [bytes([65 + i % 26]) * (1 + i % 9000) for i in range(500)]
    blocks = list(in_blocks(iter(pieces)))
    assert b"".join(blocks) == b"".join(pieces)
    assert all(64 * 1024 <= len(block) < 64 * 1024 + 9000 for block in blocks[:-1])


def test_gzip_is_the_same_text_compressed_with_a_pause_a_block() -> None:
    text = [b"".join(b"m{route=%d} %d\n" % (i, i * i) for i in range(a, a + 3000)) for a in (1, 2)]
    pauses: list[None] = []
    page = gzipped(Page(text, "text/plain", False), lambda: pauses.append(None))
    assert gzip.decompress(b"".join(page.blocks)) == b"".join(text)
    assert (page.is_gzipped, page.content_type) == (True, "text/plain")
    assert page.length == len(b"".join(page.blocks)) < len(b"".join(text)) / 2
    assert len(pauses) == len(text)


def test_a_page_of_a_packet_is_not_compressed() -> None:
    page = Page([b"a 1\n"], "text/plain", False)
    assert gzipped(page, lambda: None) is page
