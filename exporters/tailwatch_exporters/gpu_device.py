"""Samples one GPU in a thread of its own and leaves immutable snapshots for the scrapes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tailwatch_exporters._nvml import Device, Library, NvmlError
from tailwatch_exporters.gpu_engines import EngineProbe
from tailwatch_exporters.gpu_fields import FieldProbe
from tailwatch_exporters.gpu_gpm import GpmProbe, MigProbe
from tailwatch_exporters.gpu_memory import read_memory
from tailwatch_exporters.gpu_pcie import PcieProbe
from tailwatch_exporters.gpu_processes import ProcessProbe
from tailwatch_exporters.gpu_readings import take_readings
from tailwatch_exporters.gpu_sample import DeviceCalls, SampleBuilder, Samples, device_labels
from tailwatch_exporters.sampler_thread import STALE_INTERVALS, SamplerThread
from tailwatch_tracing.exposition import render_samples

_LONGEST_REST_INTERVALS = 30


class Snapshot(NamedTuple):
    """One sample: when it was begun (seconds of the sampler's clock), and its lines per family.

    The lines are made here, once per sample, and not at each scrape.
    """

    at: float
    lines: Mapping[str, str]


class DeviceState(NamedTuple):
    """What a scrape needs of a GPU. Replaced as a whole, never changed.

    `snapshot` is None while the GPU does not answer; `answered_at` is the Unix time at which the
    last sample was begun that it answered; `errors` are the lines of gpu_nvml_errors_total.
    """

    snapshot: Snapshot | None
    answered_at: float | None
    errors: str


@dataclass
class DeviceTotals:
    """What is kept of a GPU beyond its sampler: a driver reload does not set it back."""

    errors: Counter[tuple[str, int]] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    busy_seconds: dict[str, float] = field(default_factory=dict)
    answered_at: float | None = None


@dataclass(frozen=True)
class Identity:
    """What the enumeration knows of a GPU."""

    uuid: str
    index: int
    driver: str


class DeviceSampler:
    """The sampler of one GPU. A call that hangs or fails concerns this GPU alone.

    Args:
        library: to find the device again when it was lost.
        device: the handle found by the enumeration.
        identity: what the enumeration knows.
        totals: counts from an earlier sampler of the same GPU.
        interval_seconds: between samples.
        procfs_path: for the names of processes.
        clock: seconds; wall_clock: Unix time.
    """

    def __init__(
        self,
        library: Library,
        device: Device,
        identity: Identity,
        totals: DeviceTotals,
        interval_seconds: float,
        procfs_path: Path,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.identity = identity
        self.totals = totals
        self.state = DeviceState(None, totals.answered_at, _error_lines(identity.uuid, totals))
        self.is_lost = False
        self._library = library
        self._device = device
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._calls = DeviceCalls(f"GPU {identity.uuid}", totals.errors)
        self._engines = EngineProbe(totals.busy_seconds, STALE_INTERVALS * interval_seconds)
        self._gpm = GpmProbe(device)
        self._mig = MigProbe(device)
        self._fields = FieldProbe()
        self._pcie = PcieProbe()
        self._processes = ProcessProbe(procfs_path)
        self._model: str | None = None
        self._pci_bus_id: str | None = None
        self._rest_intervals = 1
        self._thread = SamplerThread(
            f"gpu-{identity.index}",
            self.sample,
            interval_seconds,
            # Up to half an interval: GPM's means need 100 ms between two samples.
            phase=(identity.index % 16) / 32,
            on_end=self.close,
        )

    def start(self) -> None:
        """Begin sampling."""
        self._thread.start()

    def signal_stop(self) -> None:
        """Ask the thread to end after the sample it is taking."""
        self._thread.signal_stop()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread; return whether it has ended. It has not while a call hangs."""
        return self._thread.join(timeout_seconds)

    def is_running(self) -> bool:
        """Return whether the thread samples, and was not asked to end."""
        return self._thread.is_running()

    def fresh_snapshot(self, now: float) -> Snapshot | None:
        """Return the latest snapshot, None when the GPU does not answer or is late."""
        snapshot = self.state.snapshot
        if snapshot is None or now - snapshot.at > STALE_INTERVALS * self._interval_seconds:
            return None
        return snapshot

    def sample(self) -> float:
        """Take one sample; return how many seconds to rest at least (0: the interval holds)."""
        if self.is_lost:
            self._resolve()
        at, wall_at = self._clock(), self._wall_clock()
        self._calls.begin_sample()
        samples = self._read(at)
        errors = _error_lines(self.identity.uuid, self.totals)
        self.is_lost = self._calls.is_lost()
        if self.is_lost:
            self.state = DeviceState(None, self.totals.answered_at, errors)
            self._rest_intervals = min(2 * self._rest_intervals, _LONGEST_REST_INTERVALS)
            return self._rest_intervals * self._interval_seconds
        self._rest_intervals = 1
        self.totals.answered_at = wall_at
        label_text = device_labels(self.identity.uuid)
        samples["gpu_up"] = [(label_text, 1)]
        samples["gpu_last_sample_timestamp_seconds"] = [(label_text, wall_at)]
        lines = {family: render_samples(family, values) for family, values in samples.items()}
        self.state = DeviceState(Snapshot(at, lines), wall_at, errors)
        return 0.0

    def close(self) -> None:
        """Free what NVML holds for this sampler; before the library's shutdown."""
        self._gpm.close()
        self._mig.close()

    def _resolve(self) -> None:
        """Look the device up again: after a reset its old handle stays dead."""
        try:
            self._device = self._library.device_by_uuid(self.identity.uuid)
        except NvmlError as error:
            self._calls.count_error(error)
            return
        self._calls.forget_settled()
        self.close()
        self._gpm = GpmProbe(self._device)
        self._mig = MigProbe(self._device)

    def _read(self, at: float) -> Samples:
        device, calls = self._device, self._calls
        builder = SampleBuilder(self.identity.uuid, self.totals.rejected)
        self._engines.read(at, device, calls, builder)
        gpm_rates = self._gpm.read(calls, builder)
        memory_api = read_memory(device, calls, builder)
        fields_at = self._clock()
        byte_counters = self._fields.read(device, calls, builder)
        take_readings(device, calls, builder)
        self._mig.read(calls, builder)
        self._processes.read(device, calls, builder)
        self._pcie.read(fields_at, device, calls, builder, byte_counters, gpm_rates)
        self._add_info(builder, memory_api)
        for name, count in sorted(self.totals.rejected.items()):
            builder.add("gpu_rejected_values_total", count, ("field", name))
        return builder.samples

    def _add_info(self, builder: SampleBuilder, memory_api: str) -> None:
        self._model = self._model or self._calls.attempt(self._device.model)
        self._pci_bus_id = self._pci_bus_id or self._calls.attempt(self._device.pci_bus_id)
        builder.add(
            "gpu_info",
            1,
            ("index", str(self.identity.index)),
            ("name", self._model or ""),
            ("pci_bus_id", self._pci_bus_id or ""),
            ("driver", self.identity.driver),
            ("memory_api", memory_api),
        )


def _error_lines(uuid: str, totals: DeviceTotals) -> str:
    samples = [
        (device_labels(uuid, ("call", call), ("code", str(code))), count)
        for (call, code), count in sorted(totals.errors.items())
    ]
    return render_samples("gpu_nvml_errors_total", samples)
