"""Every test has a process without services, and a clock that it sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tailwatch_tracing.clock
from tailwatch_tracing import instruments, middleware, runtime, service, serving
from tailwatch_tracing.cells import PRIVATE
from tailwatch_tracing.runtime import Runtime
from tailwatch_tracing.scrapes import Scrapes
from tailwatch_tracing.workers import Heart, Workers


class Clock:
    """Nanoseconds of the wall and of this thread's CPU that pass only when told to."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self.cpu_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def burn(self, seconds: float) -> None:
        self.advance(seconds)
        self.cpu_ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stands still unless told otherwise; a test without it runs on the real clock."""
    clock = Clock()
    monkeypatch.setattr(tailwatch_tracing.clock, "now_ns", clock)
    monkeypatch.setattr(tailwatch_tracing.clock, "cpu_ns", lambda: clock.cpu_ns)
    return clock


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(service, "_services", {})
    monkeypatch.setattr(service, "_jobs", {})
    monkeypatch.setattr(instruments, "_unbound", [])
    process = Runtime(root=Path("/dev/null"))  # without a control group
    monkeypatch.setattr(serving, "runtime", process)
    monkeypatch.setattr(runtime, "runtime", process)
    workers = Workers(serving.runtime)
    monkeypatch.setattr(serving, "workers", workers)
    monkeypatch.setattr(middleware, "workers", workers)
    monkeypatch.setattr(serving, "_scrapes", Scrapes(serving._page))
    monkeypatch.setattr(service, "_memory", PRIVATE)
    monkeypatch.setattr(Heart, "start", Heart.beat)  # once, and without the thread
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "OTEL_SERVICE_NAME",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "PROMETHEUS_MULTIPROC_DIR",
        "TAILWATCH_METRICS_AUTH",
        "TAILWATCH_WORKERS_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
    yield
