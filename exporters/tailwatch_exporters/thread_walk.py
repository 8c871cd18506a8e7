"""Walks the threads of all processes and measures how busy the busiest of each group is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tailwatch_exporters import procfs

KERNEL_GROUP = "kernel"


class Group(NamedTuple):
    """All processes of one name.

    `busiest_ratio` is the share of one core, 0..1, that the busiest thread used since the walk
    before; None when all its threads are new to the walk.
    """

    threads: int
    busiest_ratio: float | None


class _Thread(NamedTuple):
    start_ticks: int
    cpu_ticks: int


class _Process(NamedTuple):
    """What one walk leaves for the next one; `at` is when the process was read."""

    at: float
    main: _Thread
    threads: dict[str, _Thread]


class ThreadWalk:
    """Each `take` reads every process once, and the threads of those that ran.

    A process whose CPU time has not moved has threads that have not either, so only processes
    that ran are looked into: the cost follows what is busy, not what exists.

    Args:
        procfs_path: where /proc is mounted.
        ticks_per_second: unit of the CPU times, USER_HZ.
        clock: seconds.
    """

    def __init__(
        self,
        procfs_path: Path = Path("/proc"),
        ticks_per_second: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._procfs = str(procfs_path)
        self._ticks = ticks_per_second or os.sysconf("SC_CLK_TCK")
        self._clock = clock
        self._processes: dict[str, _Process] = {}

    def take(self) -> dict[str, Group]:
        """Return group name -> what its processes did since the walk before.

        Raises:
            OSError: /proc itself cannot be listed.
        """
        groups: dict[str, Group] = {}
        processes: dict[str, _Process] = {}
        for pid in procfs.process_ids(self._procfs):
            stat = self._read(f"{self._procfs}/{pid}/stat")
            if stat is None:  # it ended meanwhile
                continue
            process, ratio = self._measure(pid, stat)
            processes[pid] = process
            name = KERNEL_GROUP if stat.is_kernel_thread else stat.comm
            groups[name] = _merge(groups.get(name), stat.threads, ratio)
        self._processes = processes
        return groups

    def _measure(self, pid: str, stat: procfs.TaskStat) -> tuple[_Process, float | None]:
        """Return what to remember of a process and the ratio of its busiest thread."""
        at = self._clock()
        main = _Thread(stat.start_ticks, stat.cpu_ticks)
        last = self._processes.get(pid)
        if last is not None and last.main.start_ticks != main.start_ticks:
            last = None  # the number was given to another process
        if last is not None and last.main.cpu_ticks == main.cpu_ticks:
            return _Process(at, main, last.threads), 0.0
        # Of a single thread too: the time of its process includes that of threads that ended.
        process = _Process(at, main, self._read_threads(pid))
        if last is None or at <= last.at:
            return process, None
        used_seconds = _busiest_ticks(last, process) / self._ticks
        # A tick's rounding can make a busy thread look busier than one core allows.
        return process, max(0.0, min(1.0, used_seconds / (at - last.at)))

    def _read_threads(self, pid: str) -> dict[str, _Thread]:
        path = f"{self._procfs}/{pid}/task"
        threads = {}
        try:
            tids = list(procfs.process_ids(path))
        except OSError:
            return {}
        for tid in tids:
            stat = self._read(f"{path}/{tid}/stat")
            if stat is not None:
                threads[tid] = _Thread(stat.start_ticks, stat.cpu_ticks)
        return threads

    def _read(self, path: str) -> procfs.TaskStat | None:
        try:
            return procfs.parse_task_stat(procfs.read_bytes(path))
        except (OSError, ValueError):  # it ended between two reads, or is not ours to see
            return None


def _busiest_ticks(last: _Process, now: _Process) -> int:
    """Return the CPU ticks of the thread that used most between two walks."""
    most = 0
    for tid, thread in now.threads.items():
        earlier = last.threads.get(tid)
        if earlier is None or earlier.start_ticks != thread.start_ticks:
            most = max(most, thread.cpu_ticks)  # it began after the last walk
        else:
            most = max(most, thread.cpu_ticks - earlier.cpu_ticks)
    # A thread that the last walk missed has old time too, but never more than its process used.
    return min(most, now.main.cpu_ticks - last.main.cpu_ticks)


def _merge(group: Group | None, threads: int, ratio: float | None) -> Group:
    if group is None:
        return Group(threads, ratio)
    known = [r for r in (group.busiest_ratio, ratio) if r is not None]
    return Group(group.threads + threads, max(known, default=None))
