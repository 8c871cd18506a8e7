"""CUDA_VISIBLE_DEVICES, as the CUDA programming guide reads it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette

from tailwatch_tracing import StageTimingMiddleware
from tailwatch_tracing.gpus import visible_gpu_uuids
from tests.tracing.asgi import values

A, B, C = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abc")


class FakeNvml(SimpleNamespace):
    def __init__(self, uuids: list[str], names: list[str] | None = None) -> None:
        super().__init__()
        self.is_open = 0
        self._uuids = uuids
        self._names = names or ["NVIDIA A10"] * len(uuids)

    def nvmlInit(self) -> None:
        self.is_open += 1

    def nvmlShutdown(self) -> None:
        self.is_open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self._uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return self._uuids[handle].encode() if handle == 1 else self._uuids[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self._names[handle]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, []),
        ("", []),
        (A, [A]),
        (f"{B},{A}", [B, A]),
        ("MIG-12345678-0000-0000-0000-000000000000", ["MIG-12345678-0000-0000-0000-000000000000"]),
        ("0", [A]),
        ("2, 1", [C, B]),
        ("0,-1,1", [A]),
        ("0,9,1", [A]),
        ("-1", []),
        ("GPU-bbb", [B]),
        ("GPU-", []),
        ("NoDevFiles", []),
    ],
)
def test_entries(visible: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml([A, B, C])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_gpu_uuids(environ) == expected
    assert nvml.is_open == 0


def test_unlike_cards_are_numbered_by_cuda_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([A, B], ["NVIDIA T4", "NVIDIA H100"]))
    environ = {"CUDA_VISIBLE_DEVICES": "1"}
    assert visible_gpu_uuids(environ) == []
    assert visible_gpu_uuids({**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == [B]


def test_without_nvml_only_whole_uuids_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert visible_gpu_uuids({"CUDA_VISIBLE_DEVICES": f"{A},1"}) == [A]


def test_the_page_shows_the_option_else_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", B)
    StageTimingMiddleware(Starlette(), service="environment")
    StageTimingMiddleware(Starlette(), service="option", gpu_uuids=[C])
    StageTimingMiddleware(Starlette(), service="none", gpu_uuids=[])
    assert values("inference_gpu_info", "service", "uuid") == {
        ("environment", B): 1,
        ("option", C): 1,
    }
