"""What the exporters' tests share: pages as values, a fake /proc, the mock NVML, a real process."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from prometheus_client.parser import text_string_to_metric_families

from tailwatch_exporters.collectors import Collector, Runner

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
PROC = FIXTURES / "proc" / "basic"
SYS = FIXTURES / "sys"
MOCK = ROOT / "demo" / "nvml_mock" / "build" / "libnvidia-ml.so.1"

GPU0 = "GPU-00000000-0000-0000-0000-000000000000"
GPU1 = "GPU-00000001-0000-0000-0000-000000000000"

Key = tuple[str, frozenset[tuple[str, str]]]


class Values(dict[Key, float]):
    """A parsed page: `page("name", label="x")` is the value, None when it is not there."""

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.get((name, frozenset(labels.items())))

    def names(self) -> set[str]:
        return {name for name, _ in self}

    def of(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        return {labels: value for (its_name, labels), value in self.items() if its_name == name}

    def names_of(self, uuid: str) -> set[str]:
        return {name for name, labels in self if ("uuid", uuid) in labels}


def parse(page: str) -> Values:
    values = Values()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in values, f"{key} is there twice"
            values[key] = sample.value
    return values


def scrape_text(*collectors: Collector) -> str:
    """Render with a clock that stands still: durations are 0."""
    return Runner(collectors, "0.0.0", clock=lambda: 0.0).render().decode()


def scrape(*collectors: Collector) -> Values:
    return parse(scrape_text(*collectors))


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.01)


class Clock:
    """A clock that moves only when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeProc:
    """A /proc whose processes and threads a test lays out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self,
        pid: int,
        comm: str,
        ticks: int = 0,
        threads: Mapping[int, int] | None = None,
        start: int = 100,
        flags: int = 0x00400000,
        ended: int = 0,
    ) -> None:
        """Write a process; `threads` maps further thread ids to their ticks.

        The process has used `ended` more ticks, in threads that ended.
        """
        tids = {pid: ticks, **(threads or {})}
        total = sum(tids.values()) + ended
        directory = self.path / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "stat").write_bytes(_stat(pid, comm, total, len(tids), start, flags))
        (directory / "comm").write_text(comm + "\n")
        tasks = directory / "task"
        tasks.mkdir(exist_ok=True)
        for tid, its_ticks in tids.items():
            (tasks / str(tid)).mkdir(exist_ok=True)
            line = _stat(tid, comm, its_ticks, len(tids), start, flags)
            (tasks / str(tid) / "stat").write_bytes(line)

    def remove(self, pid: int) -> None:
        for file in sorted((self.path / str(pid)).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        (self.path / str(pid)).rmdir()


def _stat(pid: int, comm: str, ticks: int, threads: int, start: int, flags: int) -> bytes:
    user, system = ticks - ticks // 4, ticks // 4
    return (
        f"{pid} ({comm}) S 1 1 1 0 -1 {flags} 10 0 0 0 {user} {system} 0 0 20 0 {threads} 0 "
        f"{start} 1000000 200 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n"
    ).encode()


class NvmlMock:
    """The mock's file; each write replaces it by renaming, as the mock asks for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: dict[str, str] = {}
        self._write()

    def set(self, *lines: str) -> None:
        """Add or change keys, given as `key=value`."""
        for line in lines:
            key, _, value = line.partition("=")
            self._keys[key] = value
        self._write()

    def unset(self, *keys: str) -> None:
        for key in keys:
            del self._keys[key]
        self._write()

    def replace(self, *lines: str) -> None:
        self._keys.clear()
        self.set(*lines)

    def _write(self) -> None:
        beside = self.path.with_suffix(".new")
        beside.write_text("".join(f"{key}={value}\n" for key, value in self._keys.items()))
        beside.replace(self.path)


def load_mock_library() -> ctypes.CDLL:
    if not MOCK.exists():
        subprocess.run(["make", "--silent", "mock"], cwd=ROOT, check=True)
    return ctypes.CDLL(str(MOCK))


class ExporterProcess:
    """`tailwatch exporter` as a person runs it, on a free port."""

    def __init__(self, *flags: str, mock: NvmlMock | None = None) -> None:
        self._said = tempfile.NamedTemporaryFile("w+")
        self.process = start_exporter(
            "--web.listen-address=127.0.0.1:0", *flags, mock=mock, stderr=self._said
        )
        deadline = time.monotonic() + 30
        while not (found := re.search(r"serving (http://\S+)/metrics\n", self.said())):
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.01)
        self.url = found[1]

    def said(self) -> str:
        """What was written to stderr so far."""
        return Path(self._said.name).read_text()  # an offset of its own, unlike the child's

    def get(self, path: str = "/metrics") -> str:
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return str(answer.read().decode())

    def scrape(self) -> Values:
        return parse(self.get())

    def wait(self, condition: Callable[[Values], object], seconds: float = 20.0) -> Values:
        """Scrape until the condition holds and return that page."""
        deadline = time.monotonic() + seconds
        while True:
            page = self.scrape()
            if condition(page):
                return page
            assert time.monotonic() < deadline, sorted(page.items())
            time.sleep(0.02)

    def stop(self) -> tuple[int, float, str]:
        """Send SIGTERM; return exit code, seconds until the end, and what was said since."""
        said_before = len(self.said())
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=10)
        return code, time.monotonic() - start, self.said()[said_before:]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=10)
        self._said.close()


def start_exporter(
    *flags: str, mock: NvmlMock | None = None, stderr: int | IO[str] = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start the command; with a mock it finds the mock library instead of a real one."""
    env = {k: v for k, v in os.environ.items() if k not in ("NVML_MOCK_FILE", "LD_LIBRARY_PATH")}
    if mock is not None:
        load_mock_library()
        env |= {"LD_LIBRARY_PATH": str(MOCK.parent), "NVML_MOCK_FILE": str(mock.path)}
    code = "import sys; from tailwatch_stack.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, "exporter", *flags],
        env=env,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )
