"""Fixtures of the exporters' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from tests.exporters.support import ExporterProcess, FakeProc, NvmlMock, load_mock_library


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    path = tmp_path / "proc"
    path.mkdir()
    (path / "stat").write_text("cpu0 1 1 1 1\nctxt 1\n")
    return FakeProc(path)


@pytest.fixture
def mock(tmp_path: Path) -> NvmlMock:
    return NvmlMock(tmp_path / "nvml.txt")


@pytest.fixture
def nvml(mock: NvmlMock, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlMock]:
    """The mock library inside this process, behind the real pynvml."""
    monkeypatch.setenv("NVML_MOCK_FILE", str(mock.path))
    load_mock_library()  # from now on the name libnvidia-ml.so.1 means it
    yield mock
    mock.replace("n=1")
    try:
        while True:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pass  # uninitialised, as the next test expects it


@pytest.fixture
def exporter() -> Iterator[Callable[..., ExporterProcess]]:
    """Start exporters that end with the test."""
    started: list[ExporterProcess] = []

    def start(*flags: str, mock: NvmlMock | None = None) -> ExporterProcess:
        process = ExporterProcess(*flags, mock=mock)
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()
