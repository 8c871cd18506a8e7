"""Readings of a GPU that need more than one call, or a memory of the sample before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tailwatch_exporters import procfs
from tailwatch_exporters._nvml import (
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    Device,
    FieldValue,
    GpmReader,
    Memory,
    NvmlError,
    Process,
)
from tailwatch_exporters.gpu_pcie import ByteCounter, PcieRate
from tailwatch_exporters.gpu_sample import DeviceCalls, SampleBuilder

PROCESS_GROUP_LIMIT = 20
OTHER_GROUP = "other"
UNKNOWN_GROUP = "unknown"

_ROUNDING_BYTES = 1 << 20  # the sums are taken by the driver at slightly different moments


class EngineProbe:
    """Utilisation per engine, and its integral.

    Args:
        busy_seconds: per engine, kept over samples and over driver reloads.
        longest_seconds: a longer gap between two samples is not credited as busy.
    """

    def __init__(self, busy_seconds: dict[str, float], longest_seconds: float) -> None:
        self._busy_seconds = busy_seconds
        self._longest_seconds = longest_seconds
        self._last_at: dict[str, float] = {}

    def read(self, at: float, device: Device, calls: DeviceCalls, builder: SampleBuilder) -> None:
        """Read all engines; `at` is the time of the sample in seconds."""
        rates = calls.attempt(device.utilization)
        if rates is not None:
            self._add(at, builder, "compute", rates.gpu)
            self._add(at, builder, "memory_controller", rates.memory)
        engines: tuple[tuple[str, Callable[[], int]], ...] = (
            ("encoder", device.encoder_percent),
            ("decoder", device.decoder_percent),
            ("jpeg", device.jpeg_percent),
            ("ofa", device.ofa_percent),
        )
        for engine, call in engines:
            percent = calls.attempt(call)
            if percent is not None:
                self._add(at, builder, engine, percent)

    def _add(self, at: float, builder: SampleBuilder, engine: str, percent: int) -> None:
        pair = ("engine", engine)
        ratio = builder.add_percent("gpu_utilization_ratio", percent, f"utilization_{engine}", pair)
        if ratio is None:
            return
        elapsed = min(at - self._last_at.get(engine, at), self._longest_seconds)
        self._last_at[engine] = at
        self._busy_seconds[engine] = self._busy_seconds.get(engine, 0.0) + ratio * elapsed
        builder.add("gpu_busy_seconds_total", self._busy_seconds[engine], pair)


def read_memory(device: Device, calls: DeviceCalls, builder: SampleBuilder) -> str:
    """Read device memory; return which NVML structure it came from: v1, v2 or none."""
    memory = calls.attempt(device.memory_v2)
    api = "v2"
    if memory is None:
        memory = calls.attempt(device.memory_v1)
        api = "v1"
    if memory is None:
        if _is_unified(calls):
            builder.add("gpu_memory_unified", 1)
        return "none"
    builder.add("gpu_memory_unified", 0)
    _add_memory(memory, builder)
    return api


def _is_unified(calls: DeviceCalls) -> bool:
    """Return whether both calls were told "not supported": GPU and host share their memory."""
    v2_codes = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)  # an older driver lacks the second version
    return (
        calls.settled_code("memory_v1") == NOT_SUPPORTED
        and calls.settled_code("memory_v2") in v2_codes
    )


def _add_memory(memory: Memory, builder: SampleBuilder) -> None:
    reserved = memory.reserved or 0
    used = memory.used
    missing = memory.total - memory.free - used - reserved
    # nvml.h says both that the second version's "used" includes the reserve and that it does not.
    if abs(missing + reserved) <= _ROUNDING_BYTES < reserved:
        used -= reserved
        missing += reserved
    if abs(missing) > _ROUNDING_BYTES or not 0 <= used <= memory.total:
        builder.reject("memory")
        return
    builder.add("gpu_memory_used_bytes", used)
    if memory.reserved is not None:
        builder.add("gpu_memory_reserved_bytes", reserved)
    builder.add("gpu_memory_free_bytes", memory.free)
    builder.add("gpu_memory_total_bytes", memory.total)


_GPM_SM_ACTIVE, _GPM_SM_OCCUPANCY, _GPM_TENSOR, _GPM_DRAM = 2, 3, 5, 10
_GPM_PCIE_TRANSMIT, _GPM_PCIE_RECEIVE = 20, 21
_GPM_METRICS = (
    _GPM_SM_ACTIVE,
    _GPM_SM_OCCUPANCY,
    _GPM_TENSOR,
    _GPM_DRAM,
    _GPM_PCIE_TRANSMIT,
    _GPM_PCIE_RECEIVE,
)
_GPM_RATIOS = (
    (_GPM_SM_ACTIVE, "gpu_sm_active_ratio"),
    (_GPM_SM_OCCUPANCY, "gpu_sm_occupancy_ratio"),
    (_GPM_TENSOR, "gpu_tensor_active_ratio"),
    (_GPM_DRAM, "gpu_dram_active_ratio"),
)
_MIB = 1 << 20


class GpmProbe:
    """Activity of the SMs and the memory between two samples, on GPUs that have GPM."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._reader: GpmReader | None = None

    def read(
        self, calls: DeviceCalls, builder: SampleBuilder
    ) -> tuple[PcieRate | None, PcieRate | None]:
        """Read GPM; return its PCIe rates, transmitted and received."""
        is_supported = calls.attempt(self._device.is_gpm_supported)
        if is_supported is None:
            return None, None
        metrics = calls.attempt(self._read_metrics) if is_supported else None
        # Some drivers say yes when asked, and "not supported" when told to measure.
        is_refused = calls.settled_code("_read_metrics") != 0
        builder.add("gpu_gpm_supported", int(is_supported and not is_refused))
        if not metrics:
            return None, None
        for metric, family in _GPM_RATIOS:
            if metric in metrics:
                builder.add_percent(family, metrics[metric], f"gpm_{metric}")
        return (
            _gpm_pcie(metrics, _GPM_PCIE_TRANSMIT, builder),
            _gpm_pcie(metrics, _GPM_PCIE_RECEIVE, builder),
        )

    def _read_metrics(self) -> dict[int, float]:
        if self._reader is None:
            self._reader = GpmReader(self._device, _GPM_METRICS)
        return self._reader.read()

    def close(self) -> None:
        """Free the buffers; before the library's shutdown."""
        reader, self._reader = self._reader, None
        if reader is not None:
            try:
                reader.close()
            except NvmlError:
                return  # the driver took them with it


def _gpm_pcie(metrics: dict[int, float], metric: int, builder: SampleBuilder) -> PcieRate | None:
    if metric not in metrics or not builder.is_plausible(f"gpm_{metric}", metrics[metric], 1e7):
        return None
    return PcieRate(metrics[metric] * _MIB, "gpm")


class _Direction(NamedTuple):
    """One direction of the PCIe traffic: NVML's field, and the families."""

    field: str
    total: str
    per_second: str


_TRANSMIT = _Direction("197", "gpu_pcie_transmit_bytes_total", "gpu_pcie_transmit_bytes_per_second")
_RECEIVE = _Direction("198", "gpu_pcie_receive_bytes_total", "gpu_pcie_receive_bytes_per_second")


class PcieProbe:
    """PCIe traffic per direction, from the best source that may be believed."""

    def __init__(self) -> None:
        self._counters = {_TRANSMIT: ByteCounter(), _RECEIVE: ByteCounter()}

    def read(
        self,
        at: float,
        device: Device,
        calls: DeviceCalls,
        builder: SampleBuilder,
        counters: tuple[FieldValue | None, FieldValue | None],
        rates: tuple[PcieRate | None, PcieRate | None],
    ) -> None:
        """Publish both directions.

        Args:
            at: when the byte counters were read, in seconds.
            device, calls, builder: of the sample.
            counters: the byte counters, transmitted and received, None where there are none.
            rates: GPM's rates; where there are none, the call that takes 20 ms is made.
        """
        sent = rates[0] or _throughput(calls, device.pcie_transmit_kilobytes, builder)
        self._publish(at, builder, _TRANSMIT, counters[0], sent)
        received = rates[1] or _throughput(calls, device.pcie_receive_kilobytes, builder)
        self._publish(at, builder, _RECEIVE, counters[1], received)

    def _publish(
        self,
        at: float,
        builder: SampleBuilder,
        direction: _Direction,
        answer: FieldValue | None,
        rate: PcieRate | None,
    ) -> None:
        counter = self._counters[direction]
        if answer is not None and counter.observe(at, answer, rate):
            builder.reject(direction.field)
        if answer is not None and answer.value is not None and counter.verdict == "accepted":
            builder.add(direction.total, answer.value, ("source", "field"))
        elif rate is not None:
            builder.add(direction.per_second, rate.bytes_per_second, ("source", rate.source))


def _throughput(
    calls: DeviceCalls, call: Callable[[], int], builder: SampleBuilder
) -> PcieRate | None:
    kilobytes = calls.attempt(call)
    if kilobytes is None or not builder.is_plausible("pcie_throughput", kilobytes, 2.0**32 - 2):
        return None
    return PcieRate(kilobytes * 1000.0, "throughput")


class ProcessProbe:
    """Device memory by process name; a name that is gone takes its series along.

    Args:
        procfs_path: where the /proc is mounted that has the pids NVML gives: the host's.
    """

    def __init__(self, procfs_path: Path) -> None:
        self._procfs = str(procfs_path)

    def read(self, device: Device, calls: DeviceCalls, builder: SampleBuilder) -> None:
        """Read the processes with a context on the GPU."""
        lists = [
            calls.attempt(device.processes),
            calls.attempt(device.graphics_processes),
            calls.attempt(device.mps_processes),
        ]
        used_by_group: Counter[str] = Counter()
        for pid, used_bytes in _used_by_pid(lists).items():
            used_by_group[self._group(pid)] += used_bytes
        for group, used_bytes in _capped(used_by_group).items():
            builder.add("gpu_process_memory_bytes", used_bytes, ("group", group))

    def _group(self, pid: int) -> str:
        try:
            return procfs.read_text(f"{self._procfs}/{pid}/comm").rstrip("\n")
        except OSError:  # ended meanwhile, or in a pid namespace that this /proc does not show
            return UNKNOWN_GROUP


def _used_by_pid(lists: list[list[Process] | None]) -> dict[int, int]:
    """A process with several kinds of context is on several lists, with one and the same sum."""
    used: dict[int, int] = {}
    for processes in lists:
        for process in processes or ():
            if process.used_bytes is not None:
                used[process.pid] = max(used.get(process.pid, 0), process.used_bytes)
    return used


def _capped(used_by_group: Counter[str]) -> dict[str, int]:
    """Return the largest groups, the rest together."""
    groups = dict(used_by_group.most_common(PROCESS_GROUP_LIMIT))
    rest = used_by_group.total() - sum(groups.values())
    if len(used_by_group) > len(groups):
        groups[OTHER_GROUP] = groups.get(OTHER_GROUP, 0) + rest
    return groups
