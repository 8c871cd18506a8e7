"""The CPU quota of this process's control group, and how it is throttled by it, as seen inside.

Read is the group whose quota is the smallest, the process's own or one above it, up to the root of
what is mounted here: a quota may be set on a pod and not on its containers. Versions 1 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tailwatch_tracing import families
from tailwatch_tracing.page import Level


class CpuQuota(NamedTuple):
    """Limit in cores, times in nanoseconds since the group was made; None what is not told."""

    limit_cores: float
    usage_ns: int | None
    throttled_ns: int | None
    periods: int | None
    throttled_periods: int | None


class _Mount(NamedTuple):
    """A hierarchy as it is mounted: `root` is the group that one sees at `point`."""

    root: PurePosixPath
    point: Path

    def directory(self, group: PurePosixPath) -> Path:
        """Return where a group is, which `root` is or contains."""
        return self.point / group.relative_to(self.root)


def read_quota(root: Path = Path("/")) -> CpuQuota | None:
    """Return the quota in force for this process, None without one or without control groups.

    Args:
        root: Where proc and sys are.

    Source: cgroups(7); Documentation/admin-guide/cgroup-v2.rst and
    Documentation/scheduler/sched-bwc.rst of the kernel.
    """
    try:
        return _read_quota(root)
    except (OSError, ValueError):  # not there, or not for us
        return None


def quota_levels(quota: CpuQuota) -> Iterator[Level]:
    """Yield the group's metrics; its counters are the kernel's and the same for every worker."""
    yield Level(families.CGROUP_CPU_LIMIT, (), quota.limit_cores)
    for metric, value in (
        (families.CGROUP_CPU_USAGE, _seconds(quota.usage_ns)),
        (families.CGROUP_CPU_THROTTLED, _seconds(quota.throttled_ns)),
        (families.CGROUP_CPU_PERIODS, quota.periods),
        (families.CGROUP_CPU_THROTTLED_PERIODS, quota.throttled_periods),
    ):
        if value is not None:
            yield Level(metric, (), value)


def _read_quota(root: Path) -> CpuQuota | None:
    groups = _own_groups((root / "proc/self/cgroup").read_text())
    mounts = _mounts((root / "proc/self/mountinfo").read_text(), root)
    is_v1 = "cpu" in groups and "cpu" in mounts
    controller = "cpu" if is_v1 else ""
    mount = mounts.get(controller)
    if mount is None:
        return None
    limit = _limit_v1 if is_v1 else _limit_v2
    limits = [
        (cores, group)
        for group in _own_and_above(groups[controller], mount)
        if (cores := limit(mount.directory(group))) is not None
    ]
    if not limits:
        return None
    cores, group = min(limits, key=lambda each: each[0])  # of equals the innermost
    statistics = _statistics(mount.directory(group) / "cpu.stat")
    if is_v1:
        usage_ns = _usage_v1(mounts.get("cpuacct"), group)
        throttled_ns = statistics.get("throttled_time")
    else:
        usage_ns = _nanoseconds(statistics.get("usage_usec"))
        throttled_ns = _nanoseconds(statistics.get("throttled_usec"))
    return CpuQuota(
        cores,
        usage_ns,
        throttled_ns,
        statistics.get("nr_periods"),
        statistics.get("nr_throttled"),
    )


def _own_groups(text: str) -> dict[str, PurePosixPath]:
    """Return controller -> this process's group; that of version 2 has an empty name."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = PurePosixPath(path)
    return groups


def _mounts(text: str, root: Path) -> dict[str, _Mount]:
    """Return the same for where the hierarchies are mounted, the first of several."""
    mounts: dict[str, _Mount] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        group, point = (_unescaped(field) for field in before.split(" ")[3:5])
        mount = _Mount(PurePosixPath(group), root / point.lstrip("/"))
        for controller in [""] if kind == "cgroup2" else options.split(","):
            mounts.setdefault(controller, mount)
    return mounts


def _unescaped(field: str) -> str:
    return re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), field)


def _own_and_above(own: PurePosixPath, mount: _Mount) -> list[PurePosixPath]:
    """Return the groups from the own one up to what is mounted.

    Without a namespace a container sees its path on the host, but of the tree only its own group.
    """
    if not own.is_relative_to(mount.root):
        return [mount.root]
    return [group for group in (own, *own.parents) if group.is_relative_to(mount.root)]


def _limit_v2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except FileNotFoundError:  # the root, or the controller is off
        return None
    return None if quota == "max" else int(quota) / int(period)


def _limit_v1(group: Path) -> float | None:
    quota = int((group / "cpu.cfs_quota_us").read_text())
    return None if quota < 0 else quota / int((group / "cpu.cfs_period_us").read_text())


def _usage_v1(mount: _Mount | None, group: PurePosixPath) -> int | None:
    if mount is None or not group.is_relative_to(mount.root):
        return None
    try:
        return int((mount.directory(group) / "cpuacct.usage").read_text())
    except FileNotFoundError:  # CPU is accounted in a hierarchy of its own, without this group
        return None


def _statistics(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in map(str.split, path.read_text().splitlines())}


def _nanoseconds(microseconds: int | None) -> int | None:
    return None if microseconds is None else microseconds * 1000


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9
