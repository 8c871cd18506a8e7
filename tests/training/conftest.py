"""Ranks with a real torch: processes that stay, and run one scenario after another."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

# The autouse fixtures and the clock of the library's other tests.
from tests.tracing.conftest import clock, fresh_process
from tests.training.torch_python import ROOT, torch_python

__all__ = ["clock", "fresh_process"]

_SECONDS = 120


class Ranks:
    """One process a rank; with more than one they are a gloo process group."""

    def __init__(self, python: Path, size: int, metadata: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        common = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tracing", metadata))),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        group = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self._processes = [
            subprocess.Popen(
                [python, "-m", "tests.training.rank_process"],
                cwd=ROOT,
                env=common
                if size == 1
                else {**common, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def run(self, scenario: str, **arguments: Any) -> list[Any]:
        """Run a function of tests/training/scenarios.py in every rank; return its results."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps([scenario, arguments]) + "\n")
            process.stdin.flush()
        end = time.monotonic() + _SECONDS
        answers = [json.loads(self._line(process, end)) for process in self._processes]
        failures = [answer["error"] for answer in answers if "error" in answer]
        assert not failures, "\n".join(failures)
        return [answer["result"] for answer in answers]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.communicate(timeout=20)

    @staticmethod
    def _line(process: subprocess.Popen[str], end: float) -> str:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], max(0, end - time.monotonic()))
        assert ready, "a rank does not answer"
        line = process.stdout.readline()
        assert line, f"a rank ended: {process.wait(20)}"
        return line


@pytest.fixture(scope="session")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that makes the checkout an installed distribution: torch's Python has none."""
    return write_metadata(tmp_path_factory.mktemp("metadata"))


def write_metadata(directory: Path) -> Path:
    installed = version("tailwatch")
    information = directory / f"tailwatch-{installed}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: tailwatch\nVersion: {installed}\n"
    )
    return directory


def _ranks(size: int, metadata: Path) -> Iterator[Ranks]:
    python = torch_python()
    if python is None:
        pytest.skip("no torch: `scripts/test-prerequisites` installs it for the tests")
    ranks = Ranks(python, size, metadata)
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def pair(metadata: Path) -> Iterator[Ranks]:
    """Two ranks."""
    yield from _ranks(2, metadata)


@pytest.fixture(scope="session")
def solo(metadata: Path) -> Iterator[Ranks]:
    """One process without a process group."""
    yield from _ranks(1, metadata)
