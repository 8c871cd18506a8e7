"""Device memory and use of the SMs of the processes on a GPU, by process name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tailwatch_exporters import procfs
from tailwatch_exporters._nvml import Device, Process, ProcessUtilization
from tailwatch_exporters.gpu_sample import DeviceCalls, SampleBuilder

PROCESS_GROUP_LIMIT = 20
OTHER_GROUP = "other"
UNKNOWN_GROUP = "unknown"


class ProcessProbe:
    """Device memory and SM use by process name; a name that is gone takes its series along.

    Args:
        procfs_path: where the /proc is mounted that has the pids NVML gives: the host's.
    """

    def __init__(self, procfs_path: Path) -> None:
        self._procfs = str(procfs_path)
        self._seen_microseconds: int | None = None

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
        self._read_utilization(device, calls, builder)

    def _read_utilization(self, device: Device, calls: DeviceCalls, builder: SampleBuilder) -> None:
        is_first = self._seen_microseconds is None
        since = self._seen_microseconds or 0
        samples = calls.attempt(device.process_utilization, since, key=("process_utilization",))
        if samples is None:
            return
        self._seen_microseconds = max([since, *(sample.at_microseconds for sample in samples)])
        if is_first:  # what the driver kept from before, of processes that may have ended
            return
        percent_by_group: Counter[str] = Counter()
        for pid, percent in _latest_percent(samples).items():
            if builder.is_plausible("process_sm", percent, 100):
                percent_by_group[self._group(pid)] += percent
        for group, percent in _capped(percent_by_group).items():
            ratio = min(1.0, percent / 100)
            builder.add("gpu_process_sm_utilization_ratio", ratio, ("group", group))

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


def _latest_percent(samples: list[ProcessUtilization]) -> dict[int, int]:
    return {
        sample.pid: sample.sm_percent
        for sample in sorted(samples, key=lambda sample: sample.at_microseconds)
    }


def _capped(by_group: Counter[str]) -> dict[str, int]:
    """Return the largest groups, the rest together."""
    groups = dict(by_group.most_common(PROCESS_GROUP_LIMIT))
    rest = by_group.total() - sum(groups.values())
    if len(by_group) > len(groups):
        groups[OTHER_GROUP] = groups.get(OTHER_GROUP, 0) + rest
    return groups
