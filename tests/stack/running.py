"""Run a command as a person would: signals, output, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_SECONDS = 30.0


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once `condition` holds; fail after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Running:
    """A started command; its temporary files go below `folder`."""

    def __init__(self, command: list[str | Path], folder: Path, **environment: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._mark = f"TAILWATCH_TEST_RUN={uuid.uuid4()}"
        self._output = folder / "output"
        name, value = self._mark.split("=")
        with open(self._output, "wb") as output:
            self._process = subprocess.Popen(
                # A test run in the background ignores SIGINT, and so would its children.
                ["/usr/bin/env", "--default-signal=INT,HUP", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.temporary), name: value, **environment},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for_output(self, text: str) -> None:
        wait_until(
            lambda: text in self.output or self._process.poll() is not None,
            f"{text!r} in {self.output}",
        )
        assert text in self.output

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def press_ctrl_c(self) -> None:
        """Signal the whole foreground process group, as a terminal does."""
        os.killpg(self._process.pid, signal.SIGINT)

    def exit_code(self) -> int:
        return self._process.wait(PATIENCE_SECONDS)

    def survivors(self) -> list[str]:
        """Return the command lines of processes of this run that are still alive."""
        mark = self._mark.encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:  # no process, another user's, or gone by now
                continue
        return found

    def assert_nothing_left(self) -> None:
        assert self.survivors() == []
        assert list(self.temporary.iterdir()) == []

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def running(command: list[str | Path], folder: Path, **environment: str) -> Iterator[Running]:
    """Start a command; it does not outlive the block."""
    run = Running(command, folder, **environment)
    try:
        yield run
    finally:
        run.end()
