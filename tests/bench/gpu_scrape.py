"""A scrape of the GPU collector against nvitop-exporter, on the same sixteen mock GPUs."""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.bench.harness import Interval, Result, median_interval
from tests.bench.scrape import Exporter, samples

GPUS = 16
SCRAPES = 40  # a slot and exporter
WARM_SCRAPES = 40
SPACING_SECONDS = 0.05
SAMPLING_SECONDS = 1.0  # the default of both exporters

GOAL = 0.1
AGE_GOAL = 1.5  # sampling intervals

OURS, PEER = "tailwatch", "nvitop-exporter"

_MOCK = Path(__file__).parents[2] / "demo" / "nvml_mock" / "build"
_BASE_WATTS = 100
_POWER = {
    OURS: re.compile(r"^gpu_power_watts\{.*?\} ([0-9.e+]+)$", re.MULTILINE),
    PEER: re.compile(r"^gpu_power_usage_W\{.*?\} ([0-9.e+]+)$", re.MULTILINE),
}


class Slot(NamedTuple):
    """What one exporter did in one slot: median seconds of a scrape, oldest value, samples."""

    seconds: float
    oldest_seconds: float
    samples: int


def run(slots: int) -> list[Result]:
    """Run one exporter at a time: a sampling loop on the same core would slow the other's answers.

    The order turns with every slot (A B, B A, ...).
    """
    measured: dict[str, list[Slot]] = {OURS: [], PEER: []}
    for slot in range(slots):
        for name in (OURS, PEER) if slot % 2 == 0 else (PEER, OURS):
            measured[name].append(_slot(name))
    ratios = [
        ours.seconds / peer.seconds
        for ours, peer in zip(measured[OURS], measured[PEER], strict=True)
    ]
    return [
        *(
            Result(
                "gpu_scrape",
                f"{name}, {values[-1].samples} samples, p50",
                "ms",
                median_interval([value.seconds * 1e3 for value in values]),
            )
            for name, values in measured.items()
        ),
        Result(
            "gpu_scrape", f"{OURS} / {PEER}, p50 of a scrape", "x", median_interval(ratios), GOAL
        ),
        _oldest(PEER, measured[PEER], None),
        _oldest(OURS, measured[OURS], AGE_GOAL),
    ]


def _oldest(name: str, slots: list[Slot], limit: float | None) -> Result:
    """Report the median of the slots' oldest values, and as bounds the extremes of all slots."""
    ages = [slot.oldest_seconds / SAMPLING_SECONDS for slot in slots]
    interval = Interval(statistics.median(ages), min(ages), max(ages))
    return Result("gpu_scrape", f"{name}, oldest value", "intervals", interval, limit)


def _slot(name: str) -> Slot:
    with tempfile.TemporaryDirectory(prefix="tailwatch-bench-") as folder:
        mock = _MockFile(Path(folder) / "gpus")
        mock.step()
        environment = {"LD_LIBRARY_PATH": str(_MOCK), "NVML_MOCK_FILE": str(mock.path)}
        with Exporter(_COMMANDS[name], environment) as exporter:
            return _scrape(name, exporter, mock)


def _scrape(name: str, exporter: Exporter, mock: _MockFile) -> Slot:
    seconds, oldest, page = [], 0.0, ""
    for i in range(WARM_SCRAPES + SCRAPES):
        mock.step()
        time.sleep(SPACING_SECONDS)
        took, page = exporter.scrape()
        answered = time.monotonic()
        if i < WARM_SCRAPES:
            continue
        seconds.append(took)
        oldest = max(oldest, answered - min(mock.written(watts) for watts in _watts(name, page)))
    return Slot(statistics.median(seconds), oldest, samples(page))


def _watts(name: str, page: str) -> list[float]:
    found = [float(watts) for watts in _POWER[name].findall(page)]
    if len(found) != GPUS:
        raise RuntimeError(f"{name}: power of {len(found)} GPUs, expected {GPUS}")
    return found


class _MockFile:
    """The mock GPUs' state; the power tells which writing of it an exporter has seen.

    A value that carries its own time does not depend on what an exporter says of its freshness.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._times: list[float] = []

    def step(self) -> None:
        """Write the next state, at once for every reader."""
        watts = _BASE_WATTS + len(self._times)
        partial = self.path.with_suffix(".partial")
        partial.write_text(_STATE.format(pid=os.getpid(), milliwatts=watts * 1000))
        partial.rename(self.path)
        self._times.append(time.monotonic())

    def written(self, watts: float) -> float:
        """Return when the state with this power was written: a value of it is not older."""
        return self._times[round(watts) - _BASE_WATTS]


# A full H100: NVLink, GPM, a process. PCIe traffic is to be had by the 20 ms call only.
_STATE = f"""n={GPUS}
name=NVIDIA H100 80GB HBM3
delay_us.nvmlDeviceGetPcieThroughput=20000
util=57
nvlinks=18
fi.91=18
fi.138=1000+2e6/s
fi.139=1000+2e6/s
gpm.2=55
gpm.3=30
gpm.5=20
gpm.10=40
procs={{pid}}:1073741824:50:20
power={{milliwatts}}
"""

_COMMANDS = {
    OURS: [
        str(Path(sys.executable).with_name("tailwatch")),
        "exporter",
        "--web.listen-address=127.0.0.1:{port}",
        "--no-collector.host",
        "--no-collector.threads",
    ],
    PEER: [str(Path(sys.executable).with_name("nvitop-exporter")), "--port={port}"],
}
