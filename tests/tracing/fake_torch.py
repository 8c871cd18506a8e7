"""torch.cuda as far as it is asked, with answers in the documented form of torch 2.9."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

GIB = 2**30

UUID = "11111111-2222-3333-4444-555555555555"

_POOLS = ("all", "large_pool", "small_pool")
_NAMES = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


def memory_stats(
    *,
    allocated: int = 0,
    reserved: int = 0,
    active: int = 0,
    inactive_split: int = 0,
    retries: int = 0,
    ooms: int = 0,
) -> dict[str, int]:
    """Return an answer of torch.cuda.memory_stats.

    Source: the docstring of torch.cuda.memory_stats. Other pools and statistics get numbers that
    nobody should take for these.
    """
    answer = {f"{name}.{pool}.current": 111 for name in _NAMES for pool in _POOLS}
    answer |= {f"{name}.{pool}.peak": 222 for name in _NAMES for pool in _POOLS}
    return answer | {
        "allocated_bytes.all.current": allocated,
        "reserved_bytes.all.current": reserved,
        "reserved_bytes.all.peak": reserved,
        "active_bytes.all.current": active,
        "inactive_split_bytes.all.current": inactive_split,
        "num_alloc_retries": retries,
        "num_ooms": ooms,
        "num_sync_all_streams": 333,
        "max_split_size": -1,
    }


def segment(device: int, *blocks: tuple[str, int], pool: tuple[int, int] = (0, 0)) -> Any:
    """Return one entry of torch.cuda.memory_snapshot; a block is its state and its size."""
    return {
        "device": device,
        "address": 139_000_000_000,
        "total_size": sum(size for _, size in blocks),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": pool,
        "blocks": [{"state": state, "size": size, "frames": []} for state, size in blocks],
    }


class FakeCuda:
    """Devices whose answers a test sets; it counts what it was asked."""

    def __init__(self, *devices: dict[str, int]) -> None:
        self.devices = list(devices)
        self.initialized = True
        self.backend = "native"
        self.fraction = 1.0
        self.segments: list[Any] = []
        self.snapshots = 0
        self.readings = 0
        self.uuids: list[Any] | None = [
            UUID[:-1] + str(5 + index) for index in range(len(self.devices))
        ]

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return len(self.devices)

    def get_allocator_backend(self) -> str:
        return self.backend

    def get_per_process_memory_fraction(self, device: int) -> float:
        return self.fraction

    def get_device_properties(self, device: int) -> SimpleNamespace:
        properties = SimpleNamespace(total_memory=24 * GIB)
        if self.uuids is not None:
            properties.uuid = self.uuids[device]
        return properties

    def memory_stats(self, device: int) -> dict[str, int]:
        self.readings += 1
        return self.devices[device]

    def memory_snapshot(self) -> list[Any]:
        self.snapshots += 1
        return self.segments


def torch_with(cuda: FakeCuda) -> Any:
    """Return a module with this part."""
    return SimpleNamespace(cuda=cuda)
