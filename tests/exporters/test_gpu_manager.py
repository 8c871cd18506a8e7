"""What the manager tells while the library hangs or refuses: a library of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailwatch_exporters._nvml import Library, NvmlError
from tailwatch_exporters.gpu import GpuCollector
from tailwatch_exporters.gpu_manager import GpuManager
from tests.exporters.support import Clock, scrape


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
