"""The collector `gpu`: publishes the samplers' latest snapshots; a scrape never calls NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tailwatch_exporters._nvml import Library
from tailwatch_exporters.collectors import Collector
from tailwatch_exporters.gpu_device import DeviceSampler
from tailwatch_exporters.gpu_families import FAMILIES
from tailwatch_exporters.gpu_manager import GpuManager
from tailwatch_exporters.gpu_sample import device_labels
from tailwatch_tracing.exposition import RenderedFamily, labels, render_samples

Blocks = dict[str, list[str]]
"""Family name -> texts of sample lines."""


class GpuCollector(Collector):
    """NVIDIA GPUs through NVML, each sampled by a thread of its own.

    Without a driver or a GPU it publishes `nvml_up` 0 with a reason and goes on looking.

    Args:
        interval_seconds: between two samples of a GPU.
        procfs_path: for the names of processes: /proc of the host's pid namespace.
        exit_on_version_mismatch: be `fatal` when the driver was replaced by another version.
        library: NVML.
        clock: seconds; the samplers' clock.
    """

    name = "gpu"

    def __init__(
        self,
        interval_seconds: float = 1.0,
        procfs_path: Path = Path("/proc"),
        exit_on_version_mismatch: bool = False,
        library: Library | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exit_on_version_mismatch = exit_on_version_mismatch
        self._clock = clock
        self._manager = GpuManager(library or Library(), interval_seconds, procfs_path, clock)

    def fatal(self) -> str | None:
        """Return that the driver was replaced, where that is to end the process."""
        if self._exit_on_version_mismatch and self._manager.has_old_library():
            return "the NVIDIA driver was replaced, its library is loaded at the next start only"
        return None

    def start(self) -> None:
        """Begin looking for GPUs."""
        self._manager.start()

    def stop(self, timeout_seconds: float) -> bool:
        """End the samplers and NVML; return whether no call hung."""
        return self._manager.stop(timeout_seconds)

    def collect(self) -> Iterator[RenderedFamily]:
        """Yield the families that have a value now."""
        blocks: dict[str, list[str]] = {family: [] for family in FAMILIES}
        self._add_library(blocks)
        devices = self._manager.devices.values()
        for sampler in sorted(devices, key=lambda sampler: sampler.identity.index):
            self._add_device(sampler, blocks)
        for name, (kind, help_text) in FAMILIES.items():
            yield RenderedFamily(name, kind, help_text, blocks[name])

    def _add_library(self, blocks: Blocks) -> None:
        status = self._manager.status()
        _add(blocks, "nvml_up", labels(reason=status.reason), int(status.is_up))
        _add(blocks, "gpu_devices", "", status.device_count)
        for (call, code), count in sorted(dict(self._manager.errors).items()):
            label_text = labels(call=call, code=str(code))
            _add(blocks, "gpu_nvml_errors_total", label_text, count)

    def _add_device(self, sampler: DeviceSampler, blocks: Blocks) -> None:
        uuid = sampler.identity.uuid
        label_text = device_labels(uuid)
        state = sampler.state
        snapshot = sampler.fresh_snapshot(self._clock())
        if snapshot is None:
            _add(blocks, "gpu_up", label_text, 0)
            if state.answered_at is not None:
                _add(blocks, "gpu_last_sample_timestamp_seconds", label_text, state.answered_at)
        else:
            for family, lines in snapshot.lines.items():
                blocks[family].append(lines)
        if state.errors:
            blocks["gpu_nvml_errors_total"].append(state.errors)
        # What came as an event stays true of a GPU that does not answer: it says why.
        for xid_labels, count in self._manager.xids.totals(uuid):
            _add(blocks, "gpu_xid_errors_total", xid_labels, count)
        xid_at = self._manager.xids.last_at(uuid)
        if xid_at is not None:
            _add(blocks, "gpu_xid_last_timestamp_seconds", label_text, xid_at)


def _add(blocks: Blocks, family: str, label_text: str, value: float) -> None:
    blocks[family].append(render_samples(family, [(label_text, value)]))
