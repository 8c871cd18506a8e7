"""Registries of prometheus_client on our page: the client's own text, whatever is in them."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Enum,
    Gauge,
    Histogram,
    Info,
    Metric,
    Summary,
    generate_latest,
)
from prometheus_client.core import GaugeHistogramMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from tailwatch_tracing import client_registry
from tailwatch_tracing.client_registry import ClientRegistry
from tailwatch_tracing.page import no_pause

FEW, MANY = 3, 130  # within one piece, and over several


class Families(Collector):
    def __init__(self, *families: Metric | Exception) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            if isinstance(family, Exception):
                raise family
            yield family

    def describe(self) -> list[Metric]:
        return []


def registry_of_everything(count: int) -> CollectorRegistry:
    """Every type of the client's, with labels, comments in values, exemplars and timestamps."""
    registry = CollectorRegistry()
    counter = Counter("of_calls", "Calls.\nTwo lines.", ["a"], registry=registry)
    gauge = Gauge("a_level", "", ["a"], registry=registry)
    histogram = Histogram("took_seconds", 'It "took".', ["a"], registry=registry, unit="seconds")
    summary = Summary("size_bytes", "Size.", ["a"], registry=registry)
    info = Info("build", "Build.", ["a"], registry=registry)
    state = Enum("state", "State.", ["a"], states=["on", "off"], registry=registry)
    for i in range(count):
        counter.labels(f"{i}").inc(i)
        gauge.labels(f'#"{i}\\').set(float("nan") if i % 2 else float("-inf"))
        histogram.labels(f"\n# TYPE {i}").observe(i / 50, {"trace_id": f"{i}"})
        summary.labels(f"{i}é").observe(i)
        info.labels(f"{i}").info({"version": "1"})
        state.labels(f"{i}").state("off")
    waits = GaugeHistogramMetricFamily("waits", "Waits.", labels=["a"])
    at = Metric("at", "With time stamps.", "gauge")
    for i in range(count):
        waits.add_metric([f"{i}"], [("1", 1), ("+Inf", 2)], 3.0, timestamp=1)
        at.add_sample("at", {"a": f"{i}"}, i, timestamp=1700000000.5)
    registry.register(Families(waits, Metric("nothing", "None.", "unknown"), at))
    return registry


def page(registry: CollectorRegistry, openmetrics: bool) -> list[bytes]:
    return list(ClientRegistry(lambda: registry, unexpected).pieces(openmetrics, no_pause))


def unexpected() -> None:
    pytest.fail("an error was noted")


@pytest.mark.parametrize("count", [FEW, MANY])
def test_the_text_is_the_clients_own_in_both_formats(count: int) -> None:
    registry = registry_of_everything(count)
    assert b"".join(page(registry, False)) == generate_latest(registry)
    expected: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    assert b"".join(page(registry, True)) + b"# EOF\n" == expected


def test_a_registry_comes_in_small_pieces() -> None:
    """Each is half a millisecond of the client's work, between which others have their turn."""
    for openmetrics in (False, True):
        pieces = page(registry_of_everything(MANY), openmetrics)
        assert max(piece.count(b"\n") for piece in pieces) <= 50 + 4


class Errors:
    def __init__(self) -> None:
        self.noted = 0

    def __call__(self) -> None:
        self.noted += 1


def family(name: str, value: object) -> Metric:
    made = Metric(name, "Help.", "gauge")
    made.add_sample(name, {}, value)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("openmetrics", [False, True])
def test_what_cannot_be_rendered_takes_only_itself_away(openmetrics: bool) -> None:
    registry, errors = CollectorRegistry(), Errors()
    registry.register(Families(family("first", 1), family("broken", "text"), family("last", 2)))
    text = b"".join(ClientRegistry(lambda: registry, errors).pieces(openmetrics, no_pause))
    assert b"first 1.0\n" in text
    assert b"broken" not in text
    assert b"last 2.0\n" in text
    assert errors.noted == 1


def test_a_collector_that_raises_leaves_those_before_it() -> None:
    registry, errors = CollectorRegistry(), Errors()
    registry.register(Families(family("first", 1)))
    registry.register(Families(family("second", 2), RuntimeError("theirs"), family("third", 3)))
    text = b"".join(ClientRegistry(lambda: registry, errors).pieces(False, no_pause))
    assert b"first 1.0\n" in text
    assert b"second 2.0\n" in text
    assert errors.noted == 1


def test_a_registry_that_cannot_be_had_is_an_empty_page() -> None:
    def broken() -> CollectorRegistry:
        raise OSError("gone")

    errors = Errors()
    assert list(ClientRegistry(broken, errors).pieces(False, no_pause)) == []
    assert errors.noted == 1


class Steps(Collector):
    """Takes a hundred steps, none of which it has in common with us."""

    def collect(self) -> Iterator[Metric]:
        yield family("steps", sum(map(self._step, range(100))))

    def _step(self, number: int) -> int:
        return number

    def describe(self) -> list[Metric]:
        return []


def test_within_a_collector_that_was_slow_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric of 100,000 series is collected at one go, for which no request may wait."""
    collectors = CollectorRegistry()
    collectors.register(Steps())
    registry = ClientRegistry(lambda: collectors, unexpected)
    pauses: list[None] = []

    def scrape() -> int:
        pauses.clear()
        text = b"".join(registry.pieces(False, lambda: pauses.append(None)))
        assert b"steps 4950.0\n" in text
        assert sys.getprofile() is None
        return len(pauses)

    monkeypatch.setattr(client_registry, "_SLOW_SECONDS", math.inf)
    assert (scrape(), scrape()) == (0, 0)
    monkeypatch.setattr(client_registry, "_SLOW_SECONDS", -1)
    assert scrape() == 0  # nothing is known of it yet
    assert scrape() >= 100
    monkeypatch.setattr(client_registry, "_SLOW_SECONDS", math.inf)
    scrape()
    assert scrape() == 0


def test_somebody_elses_profiler_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_registry, "_SLOW_SECONDS", -1)
    collectors = CollectorRegistry()
    collectors.register(Steps())
    registry = ClientRegistry(lambda: collectors, unexpected)
    list(registry.pieces(False, no_pause))

    def theirs(frame: object, event: str, arg: object) -> None:
        pass

    sys.setprofile(theirs)
    try:
        list(registry.pieces(False, pytest.fail))
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)


class Hangs(Collector):
    def __init__(self) -> None:
        self.asked = threading.Event()
        self.over = threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.asked.set()
        assert self.over.wait(30)
        yield family("late", 1)

    def describe(self) -> list[Metric]:
        return []


def test_a_collector_that_hangs_is_asked_by_no_second_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs, errors, got = Hangs(), Errors(), list[bytes]()
    collectors = CollectorRegistry()
    collectors.register(hangs)
    registry = ClientRegistry(lambda: collectors, errors)
    first = threading.Thread(target=lambda: got.extend(registry.pieces(False, no_pause)))
    first.start()
    assert hangs.asked.wait(30)
    monkeypatch.setattr(client_registry, "PATIENCE_SECONDS", 0.0)
    assert list(registry.pieces(False, no_pause)) == []
    assert errors.noted == 1
    hangs.over.set()
    first.join(30)
    assert b"late 1.0\n" in b"".join(got)
    assert b"late 1.0\n" in b"".join(
        registry.pieces(False, no_pause)
    )  # it answers again, and is asked
    assert errors.noted == 1
