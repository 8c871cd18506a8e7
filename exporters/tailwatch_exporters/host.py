"""The collector `host`: what /proc and /sys say of the whole machine, read at scrape time."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from tailwatch_exporters import procfs
from tailwatch_exporters.collectors import Collector, CollectorError
from tailwatch_exporters.cpu_clock import CpuClock
from tailwatch_tracing.exposition import Family, labels

Samples = list[tuple[str, float]]

MEMORY = (  # field of /proc/meminfo, metric, help
    ("MemTotal", "host_memory_total_bytes", "Usable memory."),
    ("MemFree", "host_memory_free_bytes", "Memory that is used for nothing at all."),
    (
        "MemAvailable",
        "host_memory_available_bytes",
        "Memory that new work can have without swapping: the kernel's estimate.",
    ),
    ("Buffers", "host_memory_buffers_bytes", "Raw block device cache."),
    ("Cached", "host_memory_cached_bytes", "Page cache, with shared memory and tmpfs in it."),
    ("Shmem", "host_memory_shared_bytes", "Shared memory and tmpfs."),
    ("SwapTotal", "host_swap_total_bytes", "Swap space."),
    ("SwapFree", "host_swap_free_bytes", "Swap space not in use."),
)

_PRESSURE_RESOURCES = ("cpu", "io", "memory")
_SPEED_SECONDS = 60.0  # reading a link's speed takes the kernel's network lock
# Partitions repeat what their disk counts; loop and RAM disks repeat what lies beneath them.
_IGNORED_DISKS = re.compile(r"(z?ram|loop|fd|(h|s|v|xv)d[a-z]+|(nvme\d+n|mmcblk)\d+p)\d+")
_IGNORED_NETWORK_DEVICES = re.compile(r"veth.*")  # one per container, with a random name


@lru_cache(maxsize=4096)
def _labels_of_cpu(cpu: str) -> list[str]:
    return [labels(cpu=cpu, mode=mode) for mode in procfs.CPU_MODES]


@lru_cache(maxsize=1024)  # bounded: names of virtual devices come and go
def _label_of_device(name: str) -> str:
    return labels(device=name)


class HostCollector(Collector):
    """CPU, load, memory, swap, network, disk and pressure of the machine.

    Each file is read for itself: one that does not exist takes only its families away, one that
    cannot be read or parsed is an error of the collector beside the families that worked.
    /proc/stat must exist. No file system is asked for anything.

    Args:
        procfs_path, sysfs_path: where /proc and /sys of the machine are mounted.
        ticks_per_second: unit of /proc/stat, USER_HZ.
        page_bytes: unit of the swap counters.
        clock: seconds, for how long a link's speed is kept.
    """

    name = "host"

    def __init__(
        self,
        procfs_path: Path = Path("/proc"),
        sysfs_path: Path = Path("/sys"),
        ticks_per_second: int | None = None,
        page_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._procfs = str(procfs_path)
        self._sysfs = str(sysfs_path)
        self._ticks = ticks_per_second or os.sysconf("SC_CLK_TCK")
        self._page_bytes = page_bytes or os.sysconf("SC_PAGE_SIZE")
        self._clock = clock
        self._cpu_clock = CpuClock(self._ticks)
        self._speeds: dict[str, float | None] = {}
        self._speeds_read_at = -_SPEED_SECONDS
        self._resource_labels = {r: labels(resource=r) for r in _PRESSURE_RESOURCES}

    def collect(self) -> Iterator[Family]:
        """Yield the families.

        Raises:
            CollectorError: after all families that could be read, naming those that could not.
        """
        failures = []
        for section, is_required in (
            (self._stat, True),
            (self._load, False),
            (self._memory, False),
            (self._vmstat, False),
            (self._pressure, False),
            (self._network, False),
            (self._retransmits, False),
            (self._disks, False),
        ):
            try:
                yield from section()
            except FileNotFoundError as error:
                if is_required:
                    failures.append(str(error))
            except (OSError, ValueError) as error:
                failures.append(str(error))
        if failures:
            raise CollectorError("; ".join(failures))

    def _read(self, name: str) -> str:
        return procfs.read_text(f"{self._procfs}/{name}")

    def _stat(self) -> Iterator[Family]:
        stat = procfs.parse_stat(self._read("stat"))
        per_second = self._ticks
        samples: Samples = []
        for cpu, ticks in self._cpu_clock.advance(stat.cpus).items():
            for label_text, value in zip(_labels_of_cpu(cpu), ticks, strict=True):
                if value is not None:
                    samples.append((label_text, value / per_second))
        yield Family(
            "host_cpu_seconds_total",
            "counter",
            "CPU time per core and mode. A core's modes add up to wall time once: "
            "guest time is not in user.",
            samples,
        )
        if stat.context_switches is not None:
            yield Family(
                "host_context_switches_total",
                "counter",
                "Context switches of all cores.",
                [("", stat.context_switches)],
            )

    def _load(self) -> Iterator[Family]:
        one, five, fifteen = procfs.parse_loadavg(self._read("loadavg"))
        help_text = "Mean number of tasks running or in uninterruptible sleep, over {}."
        yield Family("host_load1", "gauge", help_text.format("1 minute"), [("", one)])
        yield Family("host_load5", "gauge", help_text.format("5 minutes"), [("", five)])
        yield Family("host_load15", "gauge", help_text.format("15 minutes"), [("", fifteen)])

    def _memory(self) -> Iterator[Family]:
        fields = procfs.parse_meminfo(self._read("meminfo"))
        for field, metric, help_text in MEMORY:
            if field in fields:
                yield Family(metric, "gauge", help_text, [("", fields[field])])

    def _vmstat(self) -> Iterator[Family]:
        counters = procfs.parse_vmstat(self._read("vmstat"))
        if "pswpin" in counters:
            yield Family(
                "host_swap_in_bytes_total",
                "counter",
                "Bytes read back from swap.",
                [("", counters["pswpin"] * self._page_bytes)],
            )
        if "pswpout" in counters:
            yield Family(
                "host_swap_out_bytes_total",
                "counter",
                "Bytes written to swap.",
                [("", counters["pswpout"] * self._page_bytes)],
            )
        if "oom_kill" in counters:
            yield Family(
                "host_oom_kills_total",
                "counter",
                "Processes that the kernel killed for want of memory, those in cgroups too.",
                [("", counters["oom_kill"])],
            )

    def _pressure(self) -> Iterator[Family]:
        samples: Samples = []
        for resource in _PRESSURE_RESOURCES:
            try:
                waited_us = procfs.parse_pressure(self._read(f"pressure/{resource}"))
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:  # compiled in, switched off at boot
                    continue
                raise
            if waited_us is not None:
                samples.append((self._resource_labels[resource], waited_us / 1e6))
        yield Family(
            "host_pressure_waiting_seconds_total",
            "counter",
            "Time in which at least one task waited for the resource.",
            samples,
        )

    def _network(self) -> Iterator[Family]:
        received: Samples = []
        transmitted: Samples = []
        names = []
        for name, device in procfs.parse_net_dev(self._read("net/dev")).items():
            if _IGNORED_NETWORK_DEVICES.fullmatch(name):
                continue
            names.append(name)
            label_text = _label_of_device(name)
            received.append((label_text, device.received_bytes))
            transmitted.append((label_text, device.transmitted_bytes))
        yield Family("host_network_receive_bytes_total", "counter", "Bytes received.", received)
        yield Family(
            "host_network_transmit_bytes_total", "counter", "Bytes transmitted.", transmitted
        )
        yield Family(
            "host_network_speed_bytes",
            "gauge",
            "The link's negotiated speed in bytes per second; absent where it has none.",
            self._speed_samples(names),
        )

    def _speed_samples(self, names: list[str]) -> Samples:
        now = self._clock()
        if now - self._speeds_read_at >= _SPEED_SECONDS:
            self._speeds = {}
            self._speeds_read_at = now
        samples: Samples = []
        for name in names:
            if name not in self._speeds:
                self._speeds[name] = self._read_speed(name)
            speed = self._speeds[name]
            if speed is not None:
                samples.append((_label_of_device(name), speed))
        return samples

    def _read_speed(self, name: str) -> float | None:
        """Return bytes per second, None for a link that is down or has no speed."""
        try:
            megabits = int(procfs.read_text(f"{self._sysfs}/class/net/{name}/speed"))
        except (OSError, ValueError):
            return None
        return megabits * 1e6 / 8 if megabits > 0 else None

    def _retransmits(self) -> Iterator[Family]:
        segments = procfs.parse_tcp_retransmits(self._read("net/snmp"))
        if segments is not None:
            yield Family(
                "host_network_retransmits_total",
                "counter",
                "TCP segments sent again.",
                [("", segments)],
            )

    def _disks(self) -> Iterator[Family]:
        disks = {
            _label_of_device(name): disk
            for name, disk in procfs.parse_diskstats(self._read("diskstats")).items()
            if not _IGNORED_DISKS.fullmatch(name)
        }
        yield Family(
            "host_disk_reads_total",
            "counter",
            "Reads completed.",
            [(text, disk.reads) for text, disk in disks.items()],
        )
        yield Family(
            "host_disk_writes_total",
            "counter",
            "Writes completed.",
            [(text, disk.writes) for text, disk in disks.items()],
        )
        yield Family(
            "host_disk_read_bytes_total",
            "counter",
            "Bytes read.",
            [(text, disk.sectors_read * procfs.SECTOR_BYTES) for text, disk in disks.items()],
        )
        yield Family(
            "host_disk_written_bytes_total",
            "counter",
            "Bytes written.",
            [(text, disk.sectors_written * procfs.SECTOR_BYTES) for text, disk in disks.items()],
        )
        yield Family(
            "host_disk_read_seconds_total",
            "counter",
            "Time of all reads together, from queue to completion.",
            [(text, disk.read_ms / 1000) for text, disk in disks.items()],
        )
        yield Family(
            "host_disk_write_seconds_total",
            "counter",
            "Time of all writes together, from queue to completion.",
            [(text, disk.write_ms / 1000) for text, disk in disks.items()],
        )
        yield Family(
            "host_disk_io_seconds_total",
            "counter",
            "Time in which the disk had at least one request.",
            [(text, disk.io_ms / 1000) for text, disk in disks.items()],
        )
