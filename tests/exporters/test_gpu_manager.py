"""What the manager does while the library hangs or refuses."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pynvml
import pytest

from tailwatch_exporters._nvml import Library, NvmlError
from tailwatch_exporters.gpu import GpuCollector
from tailwatch_exporters.gpu_events import XidCounts, XidWatcher
from tailwatch_exporters.gpu_manager import GpuManager
from tests.exporters.support import GPU0, Clock, NvmlMock, scrape, wait_until


class SlowLibrary(Library):
    """Initialising takes longer than anyone waits; what is told meanwhile is kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.manager: GpuManager | None = None
        self.told: list[str] = []

    def init(self) -> None:
        assert self.manager is not None
        for _ in range(4):
            self.told.append(self.manager.status().reason)
            self._clock.now += 10.5

    def driver_version(self) -> str:
        return "1"

    def device_count(self) -> int:
        return 0


class RefusingLibrary(Library):
    """Refuses to be initialised with the codes of its list, one after the other."""

    def __init__(self, code: int) -> None:
        self.code = code

    def init(self) -> None:
        raise NvmlError("nvmlInitWithFlags", self.code, "refused")


def test_a_call_that_does_not_return_is_told() -> None:
    clock = Clock()
    library = SlowLibrary(clock)
    manager = GpuManager(library, 1.0, Path("/proc"), clock)
    library.manager = manager
    manager.tick()
    assert library.told == ["starting", "starting", "starting", "hung"]
    assert manager.status() == (True, "ok", 0)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (4, "no_permission"),
        (9, "driver_not_loaded"),
        (12, "library_not_found"),
        (13, "library_not_found"),
        (15, "gpu_lost"),
        (16, "gpu_lost"),
        (18, "version_mismatch"),
        (999, "error"),
        (28, "error"),
    ],
)
def test_every_refusal_has_its_reason(code: int, reason: str) -> None:
    collector = GpuCollector(library=RefusingLibrary(code))
    collector._manager.tick()
    page = scrape(collector)
    assert page.of("nvml_up") == {frozenset({("reason", reason)}): 0}
    assert page("gpu_nvml_errors_total", call="nvmlInitWithFlags", code=str(code)) == 1


def test_a_library_that_refuses_is_asked_less_and_less_often() -> None:
    manager = GpuManager(RefusingLibrary(9), 1.0, Path("/proc"), Clock())
    assert [manager.tick() for _ in range(8)] == [2, 4, 8, 16, 32, 60, 60, 60]


def test_listening_goes_on_when_a_start_was_prevented_by_a_call_that_returned_later(
    nvml: NvmlMock,
) -> None:
    nvml.replace("n=1")
    manager = GpuManager(Library(), 0.05, Path("/proc"))
    manager.tick()
    hung = manager.devices[GPU0]
    nvml.set("fail.*.0=15", "delay_us.nvmlDeviceGetHandleByUUID.0=60000000")
    wait_until(lambda: hung.is_lost)
    time.sleep(0.5)  # its next look, after a rest of two intervals, hangs
    manager.tick()
    assert manager.status().reason == "hung"
    nvml.replace("n=1", "unhang=1")
    assert hung.join(5.0)
    wait_until(lambda: not any(t.name == "gpu-events" for t in threading.enumerate()))
    manager.tick()
    assert manager.devices[GPU0] is not hung
    nvml.replace("n=1", "xid_seq=1", "xid=31")
    wait_until(lambda: dict(manager.xids.totals(GPU0)) != {})
    assert manager.stop(5.0)


def test_an_event_set_that_no_gpu_needed_is_freed_once(
    nvml: NvmlMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[object] = []
    monkeypatch.setattr(pynvml, "nvmlEventSetFree", freed.append)
    nvml.replace("n=1", "events=0")
    library = Library()
    library.init()
    watcher = XidWatcher(library, XidCounts(), count_error=lambda error: None)
    watcher.watch(GPU0, library.device_by_index(0))
    watcher.signal_stop()
    assert watcher.join(1.0)
    assert watcher.join(1.0)
    assert len(freed) == 1
