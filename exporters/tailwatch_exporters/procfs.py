"""Reads and parses the kernel's text files. Parsers are pure: text in, numbers in kernel units out.

Source: proc(5) and the kernel's Documentation/filesystems/proc.rst, admin-guide/iostats.rst,
accounting/psi.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

CPU_MODES = (
    "user",
    "nice",
    "system",
    "idle",
    "iowait",
    "irq",
    "softirq",
    "steal",
    "guest",
    "guest_nice",
)
"""The columns of a cpu line of /proc/stat, in order."""

SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the device's own sector size."""


def read_bytes(path: str) -> bytes:
    """Return a whole file; /proc files have no size to ask for.

    Raises:
        OSError: with the path in it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
    except OSError as error:  # a failed read, unlike a failed open, does not name the file
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)
    return b"".join(chunks)


def read_text(path: str) -> str:
    """Return a whole file as text; undecodable bytes are replaced.

    Raises:
        OSError: with the path in it.
    """
    return read_bytes(path).decode(errors="replace")


class Stat(NamedTuple):
    """What /proc/stat holds of interest; `cpus` maps the cpu id to ticks per mode."""

    cpus: Mapping[str, list[int]]
    context_switches: int | None


def parse_stat(text: str) -> Stat:
    """Parse /proc/stat. Ticks are in the order of `CPU_MODES`, missing columns count as 0.

    The `cpu` total line is left out: Prometheus sums. Columns that newer kernels add are ignored.
    `guest` is inside `user` and `guest_nice` inside `nice`: they are subtracted there, so that
    the modes of a cpu add up to wall time once. The difference is negative where the kernel's
    numbers contradict each other.

    Raises:
        ValueError: a cpu line has fewer than four numbers, or text where a number belongs.
    """
    cpus: dict[str, list[int]] = {}
    switches = None
    for line in text.splitlines():
        if line.startswith("cpu"):
            name, *columns = line.split()
            if name != "cpu":
                cpus[name[3:]] = _ticks(name, columns)
        elif line.startswith("ctxt "):
            switches = _integer("/proc/stat", "ctxt", line[5:])
    return Stat(cpus, switches)


def _ticks(name: str, columns: list[str]) -> list[int]:
    if len(columns) < 4:
        raise ValueError(f"/proc/stat: {name} has {len(columns)} numbers, need at least 4")
    try:
        ticks = [int(column) for column in columns[: len(CPU_MODES)]]
    except ValueError:
        raise ValueError(f"/proc/stat: {name} has {' '.join(columns)!r}, need numbers") from None
    ticks.extend([0] * (len(CPU_MODES) - len(ticks)))
    ticks[0] -= ticks[8]
    ticks[1] -= ticks[9]
    return ticks


def parse_loadavg(text: str) -> tuple[float, float, float]:
    """Return the load averages over 1, 5 and 15 minutes.

    Raises:
        ValueError: fewer than three numbers.
    """
    try:
        one, five, fifteen = (float(word) for word in text.split()[:3])
    except ValueError:
        raise ValueError(f"/proc/loadavg: {text.strip()!r}, need three numbers first") from None
    return one, five, fifteen


def parse_meminfo(text: str) -> dict[str, int]:
    """Return field -> bytes for the fields of /proc/meminfo that are in kB.

    Raises:
        ValueError: a field's value is not a number.
    """
    fields = {}
    for line in text.splitlines():
        if line.endswith(" kB"):
            name, _, value = line.partition(":")
            fields[name] = _integer("/proc/meminfo", name, value[:-3]) * 1024
    return fields


def parse_vmstat(text: str) -> dict[str, int]:
    """Return the counters of /proc/vmstat, in events or pages.

    Raises:
        ValueError: a counter is not a number.
    """
    return {
        name: _integer("/proc/vmstat", name, value)
        for name, _, value in (line.partition(" ") for line in text.splitlines())
        if name in ("pswpin", "pswpout", "oom_kill")
    }


class NetworkDevice(NamedTuple):
    """Bytes since boot."""

    received_bytes: int
    transmitted_bytes: int


def parse_net_dev(text: str) -> dict[str, NetworkDevice]:
    """Return device -> byte counters of /proc/net/dev.

    Raises:
        ValueError: a line has fewer than nine numbers.
    """
    devices = {}
    for line in text.splitlines()[2:]:
        # Aliases have a colon of their own, and no space need follow the last colon.
        name, _, numbers = line.rpartition(":")
        columns = numbers.split()
        if len(columns) < 9:
            raise ValueError(f"/proc/net/dev: {line.strip()!r}, need nine numbers or more")
        devices[name.strip()] = NetworkDevice(
            _integer("/proc/net/dev", "bytes", columns[0]),
            _integer("/proc/net/dev", "bytes", columns[8]),
        )
    return devices


def parse_tcp_retransmits(text: str) -> int | None:
    """Return RetransSegs of /proc/net/snmp: a line of names, then a line of numbers."""
    names: list[str] = []
    for line in text.splitlines():
        if not line.startswith("Tcp: "):
            continue
        if names:
            values = dict(zip(names, line.split(), strict=False))
            value = values.get("RetransSegs")
            return None if value is None else _integer("/proc/net/snmp", "RetransSegs", value)
        names = line.split()
    return None


class Disk(NamedTuple):
    """Counters since boot: completed requests, sectors of 512 bytes, milliseconds."""

    reads: int
    sectors_read: int
    read_ms: int
    writes: int
    sectors_written: int
    write_ms: int
    io_ms: int


def parse_diskstats(text: str) -> dict[str, Disk]:
    """Return device -> counters of /proc/diskstats, partitions and whole disks alike.

    Raises:
        ValueError: a line has fewer than fourteen columns, or text where a number belongs.
    """
    disks = {}
    for line in text.splitlines():
        columns = line.split()
        if len(columns) < 14:
            raise ValueError(f"/proc/diskstats: {line.strip()!r}, need fourteen columns or more")
        reads, _, sectors_read, read_ms, writes, _, sectors_written, write_ms, _, io_ms = (
            _integer("/proc/diskstats", columns[2], column) for column in columns[3:13]
        )
        disks[columns[2]] = Disk(
            reads, sectors_read, read_ms, writes, sectors_written, write_ms, io_ms
        )
    return disks


def parse_pressure(text: str) -> int | None:
    """Return the microseconds in which at least one task waited ("some") of a PSI file."""
    for line in text.splitlines():
        if line.startswith("some "):
            return _integer("/proc/pressure", "total", line.rpartition("total=")[2])
    return None


class TaskStat(NamedTuple):
    """One line of /proc/<pid>/stat or .../task/<tid>/stat; times in clock ticks."""

    comm: str
    is_kernel_thread: bool
    cpu_ticks: int
    threads: int
    start_ticks: int


_PF_KTHREAD = 0x00200000  # include/linux/sched.h


def parse_task_stat(line: bytes) -> TaskStat:
    """Parse one stat line; the name may hold spaces and parentheses.

    Raises:
        ValueError: the line is cut short or holds text where a number belongs.
    """
    head, closing, tail = line.rpartition(b")")
    comm = head.partition(b"(")[2].decode(errors="replace")
    columns = tail.split()
    if not closing or len(columns) < 20:
        raise ValueError(f"/proc/<pid>/stat: {line!r}, need 22 columns or more")
    return TaskStat(
        comm,
        bool(int(columns[6]) & _PF_KTHREAD),
        int(columns[11]) + int(columns[12]),
        int(columns[17]),
        int(columns[19]),
    )


def process_ids(procfs: str) -> Iterator[str]:
    """Yield the names of the directories of /proc that are processes, or of a task directory."""
    for name in os.listdir(procfs):
        if name[0] in "123456789":
            yield name


def _integer(path: str, field: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{path}: {field} is {text.strip()!r}, need a number") from None
