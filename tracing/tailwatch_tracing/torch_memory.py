"""Memory of PyTorch's CUDA allocator in this process, where the service uses it.

torch is never imported and CUDA never initialised here: both are looked at only once the service
has done that. A device on which this process has allocated nothing has no sample.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tailwatch_tracing import clock, families
from tailwatch_tracing.cells import CellStore
from tailwatch_tracing.gpus import visible_gpu_uuids
from tailwatch_tracing.page import Level

# A reading takes the allocator's lock, which it holds while it asks the driver for memory.
_READ_AGAIN_NS = 1_000_000_000

_KINDS = (  # kind, key of torch.cuda.memory_stats, whether the backend cudaMallocAsync has it
    ("allocated", "allocated_bytes.all.current", True),
    ("reserved", "reserved_bytes.all.current", True),
    ("active", "active_bytes.all.current", False),
    ("inactive_split", "inactive_split_bytes.all.current", False),
)
_EVENTS = (
    (families.CUDA_ALLOC_RETRIES, "num_alloc_retries"),
    (families.CUDA_OOMS, "num_ooms"),
)
_ORDINARY_POOL = (0, 0)


def imported_torch() -> Any:
    """Return the module if the service has imported it, else None."""
    return sys.modules.get("torch")


class TorchMemory:
    """What the allocator tells, read at most once a second.

    Args:
        store: Where retries and failed allocations are counted.
        find_torch: Returns the module, None without it.
    """

    def __init__(self, store: CellStore, find_torch: Callable[[], Any] = imported_torch) -> None:
        self._store = store
        self._find_torch = find_torch
        self._largest_block_every_ns: int | None = None
        self.begin_child()

    def begin_child(self) -> None:
        """Begin, or begin anew after a fork: CUDA does not survive it."""
        self._reading = threading.Lock()
        self._read_again_ns = 0
        self._levels: list[Level] = []
        self._uuids: list[str | None] | None = None
        self._used: set[int] = set()
        self._told: dict[tuple[str, str], int] = {}
        self._largest_block_again_ns = 0
        self._largest_blocks: dict[int, int] = {}

    def watch_largest_free_block(self, every_seconds: float) -> None:
        """Look for the largest free block, too, but not more often than this.

        Raises:
            ValueError: the interval is not above 0.
        """
        if not every_seconds > 0:
            raise ValueError(f"every_seconds={every_seconds!r}: expected seconds above 0")
        self._largest_block_every_ns = round(every_seconds * 1e9)

    def levels(self) -> list[Level]:
        """Return the gauges, and count the retries and failures since the last reading."""
        now_ns = clock.now_ns()
        # Of two scrapes at once one reads, and the other takes what was read before.
        if now_ns >= self._read_again_ns and self._reading.acquire(blocking=False):
            try:
                self._read_again_ns = now_ns + _READ_AGAIN_NS
                self._levels = list(self._read(now_ns))
            except Exception:  # an allocator that tells nothing, a lost device
                self._levels = []
            finally:
                self._reading.release()
        return self._levels

    def _read(self, now_ns: int) -> Iterator[Level]:
        cuda = getattr(self._find_torch(), "cuda", None)  # None also while it is being imported
        if cuda is None or not cuda.is_initialized():
            return
        if self._uuids is None:
            self._uuids = _device_uuids(cuda)
        is_native = cuda.get_allocator_backend() == "native"
        for index, uuid in enumerate(self._uuids):
            statistics = cuda.memory_stats(index)
            if statistics.get("reserved_bytes.all.peak") or statistics.get("num_ooms"):
                self._used.add(index)
            if uuid is not None and index in self._used:
                yield from _memory_levels(uuid, statistics, is_native)
                yield from _limit_levels(cuda, index, uuid)
                if is_native:
                    self._count_events(uuid, statistics)
        if is_native:
            yield from self._largest_block_levels(cuda, now_ns)

    def _count_events(self, uuid: str, statistics: Mapping[str, int]) -> None:
        for metric, key in _EVENTS:
            value = statistics[key]
            told = self._told.get((metric.name, uuid), 0)
            # A service may call reset_accumulated_memory_stats: then all is new.
            new = value - told if value >= told else value
            self._store.counter(metric, uuid).counts[0] += new
            self._told[metric.name, uuid] = value

    def _largest_block_levels(self, cuda: Any, now_ns: int) -> Iterator[Level]:
        if self._largest_block_every_ns is None:
            return
        if now_ns >= self._largest_block_again_ns:
            self._largest_block_again_ns = now_ns + self._largest_block_every_ns
            self._largest_blocks = largest_free_blocks(cuda.memory_snapshot())
        for index, uuid in enumerate(self._uuids or ()):
            if uuid is not None and index in self._used:
                size = self._largest_blocks.get(index, 0)
                yield Level(families.CUDA_LARGEST_FREE_BLOCK, (uuid,), size)


def largest_free_blocks(segments: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return device index -> size in bytes of the largest block that is reserved and free.

    A private pool's blocks, as of a captured CUDA graph, are left out: nobody else gets them.

    Args:
        segments: As from torch.cuda.memory_snapshot.
    """
    largest: dict[int, int] = {}
    for segment in segments:
        if tuple(segment.get("segment_pool_id", _ORDINARY_POOL)) == _ORDINARY_POOL:
            device = segment["device"]
            free = (block["size"] for block in segment["blocks"] if block["state"] == "inactive")
            largest[device] = max(largest.get(device, 0), *free, 0)
    return largest


def _memory_levels(uuid: str, statistics: Mapping[str, int], is_native: bool) -> Iterator[Level]:
    for kind, key, is_of_async in _KINDS:
        if is_native or is_of_async:
            yield Level(families.CUDA_MEMORY, (uuid, kind), statistics[key])


def _limit_levels(cuda: Any, index: int, uuid: str) -> Iterator[Level]:
    fraction = getattr(cuda, "get_per_process_memory_fraction", _no_quota)(index)
    if fraction < 1:
        limit = int(fraction * cuda.get_device_properties(index).total_memory)
        yield Level(families.CUDA_MEMORY, (uuid, "limit"), limit)


def _no_quota(index: int) -> float:
    return 1.0


def _device_uuids(cuda: Any) -> list[str | None]:
    """Return the UUIDs by torch's index, as NVML and the exporter write them; None if unknown.

    torch tells them from version 2.4 on, but not the name that NVML has for a MIG instance.
    """
    count = cuda.device_count()
    uuids = [getattr(cuda.get_device_properties(index), "uuid", None) for index in range(count)]
    if None in uuids or "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", ""):
        named = visible_gpu_uuids(os.environ)
        return [*named] if len(named) == count else [None] * count
    return [f"GPU-{str(uuid).removeprefix('GPU-')}" for uuid in uuids]
