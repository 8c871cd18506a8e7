"""Device memory of the processes on a GPU, by process name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tailwatch_exporters import procfs
from tailwatch_exporters._nvml import Device, Process
from tailwatch_exporters.gpu_sample import DeviceCalls, SampleBuilder

PROCESS_GROUP_LIMIT = 20
OTHER_GROUP = "other"
UNKNOWN_GROUP = "unknown"


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
