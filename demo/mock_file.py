"""Writes the readings of simulated GPUs into the file that the mock NVML library serves.

The keys are those of `nvml_mock/nvml_mock.c`. The file is replaced by rename, so that a reader
never sees half of one.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from demo.device_model import MIB, DeviceReading, SimulatedGpu

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 0.2
RATE_SAMPLES = 5  # utilisation and rates are those of the last five periods, one second


class MockFileWriter:
    """Renders the devices' counters every 0.2 s on a thread of its own, until `close`.

    Args:
        path: the file that NVML_MOCK_FILE names; its folder must exist.
        gpus: the devices, in index order.
    """

    def __init__(self, path: Path, gpus: Sequence[SimulatedGpu]) -> None:
        self._path = path
        self._gpus = gpus
        self._history = [deque([gpu.read()], maxlen=RATE_SAMPLES + 1) for gpu in gpus]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, name="device-counters")

    def start(self) -> None:
        """Write the file once, so that a reader finds it, then keep it up to date.

        Raises:
            OSError: the file cannot be written.
        """
        self.write()
        self._thread.start()

    def close(self) -> None:
        """Stop writing and remove the file: the simulated devices are gone with the service."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._path.unlink(missing_ok=True)

    def write(self) -> None:
        """Take a reading of every device and replace the file."""
        for gpu, history in zip(self._gpus, self._history, strict=True):
            history.append(gpu.read())
        text = render(self._gpus, [(past[0], past[-1]) for past in self._history])
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_text(text)
        os.replace(fresh, self._path)

    def _write_until_closed(self) -> None:
        while not self._stop.wait(PERIOD_SECONDS):
            try:
                self.write()
            except OSError as error:  # a full disk now must not end the counters for good
                logger.error("%s: device counters not written: %s", self._path, error)


def render(
    gpus: Sequence[SimulatedGpu], spans: Sequence[tuple[DeviceReading, DeviceReading]]
) -> str:
    """Return the mock's file for the devices.

    Args:
        gpus: the devices, in index order.
        spans: an earlier and the latest reading of each; ratios and rates are those between.
    """
    lines = [f"n={len(gpus)}", "driver=simulated"]
    for gpu, (earlier, latest) in zip(gpus, spans, strict=True):
        lines += [f"gpu.{gpu.index}.{key}={value}" for key, value in _values(gpu, earlier, latest)]
    return "\n".join(lines) + "\n"


def _values(
    gpu: SimulatedGpu, earlier: DeviceReading, latest: DeviceReading
) -> list[tuple[str, str | int | float]]:
    spec = gpu.spec
    seconds = latest.at - earlier.at
    busy = (latest.busy_seconds - earlier.busy_seconds) / seconds if seconds > 0 else 0.0
    sent = (latest.sent_bytes - earlier.sent_bytes) / seconds if seconds > 0 else 0.0
    received = (latest.received_bytes - earlier.received_bytes) / seconds if seconds > 0 else 0.0
    watts = spec.idle_watts + busy * (spec.busy_watts - spec.idle_watts)
    return [
        ("uuid", gpu.uuid),
        ("name", spec.name),
        ("util", round(100 * busy)),
        ("memutil", round(100 * busy * spec.dram_active_while_busy)),
        ("mem_total", spec.memory_total_bytes),
        ("mem_reserved", spec.memory_reserved_bytes),
        ("mem_used", latest.memory_used_bytes),
        ("procs", f"{os.getpid()}:{latest.memory_used_bytes}:{round(100 * busy)}:0"),
        ("power", round(1000 * watts)),  # milliwatts
        ("plimit", round(1000 * spec.power_limit_watts)),
        ("energy", round(1000 * gpu.energy_joules(latest))),  # millijoules
        ("temp", round(35 + 30 * busy)),
        # GPM metrics, percent: SM active, SM occupancy, any tensor pipe, DRAM bandwidth.
        ("gpm.2", round(100 * busy * spec.sm_active_while_busy, 2)),
        ("gpm.3", round(100 * busy * spec.sm_occupancy_while_busy, 2)),
        ("gpm.5", round(100 * busy * spec.tensor_active_while_busy, 2)),
        ("gpm.10", round(100 * busy * spec.dram_active_while_busy, 2)),
        # PCIe from the device's side, transmitted and received: GPM in MiB/s, the throughput
        # call in KB/s, the fields in bytes since the start.
        ("gpm.20", round(sent / MIB, 6)),
        ("gpm.21", round(received / MIB, 6)),
        ("pcie_tx_kb", round(sent / 1000)),
        ("pcie_rx_kb", round(received / 1000)),
        ("fi.197", latest.sent_bytes),
        ("fi.198", latest.received_bytes),
    ]
