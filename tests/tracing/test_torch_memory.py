"""PyTorch's allocator: read only where the service uses it, and as its documentation says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailwatch_tracing import serving, watch_largest_free_block
from tailwatch_tracing.service import service_named
from tailwatch_tracing.torch_memory import TorchMemory, largest_free_blocks
from tests.tracing.asgi import values
from tests.tracing.conftest import Clock
from tests.tracing.fake_torch import GIB, UUID, FakeCuda, memory_stats, segment, torch_with

GPU = f"GPU-{UUID}"
OTHER_GPU = f"GPU-{UUID[:-1]}6"


@pytest.fixture(autouse=True)
def one_service() -> None:
    service_named("s")


def use(cuda: FakeCuda) -> FakeCuda:
    """Let the page be that of a service with this torch."""
    serving.runtime.torch_memory = TorchMemory(serving.runtime.store, lambda: torch_with(cuda))
    return cuda


def memory() -> dict[tuple[str, ...], float]:
    return values("torch_cuda_memory_bytes", "uuid", "kind")


def events() -> tuple[float | None, float | None]:
    """Retries and failures of the first GPU."""
    retries, ooms = (
        values(f"torch_cuda_{name}_total", "uuid").get((GPU,)) for name in ("alloc_retries", "ooms")
    )
    return retries, ooms


def test_a_recorded_answer_is_published_by_kind() -> None:
    use(
        FakeCuda(
            memory_stats(
                allocated=3 * GIB, reserved=8 * GIB, active=4 * GIB, inactive_split=2 * GIB
            )
        )
    )
    assert memory() == {
        (GPU, "allocated"): 3 * GIB,
        (GPU, "reserved"): 8 * GIB,
        (GPU, "active"): 4 * GIB,
        (GPU, "inactive_split"): 2 * GIB,
    }
    assert events() == (0, 0)


def test_the_limit_is_the_quota_where_one_is_set() -> None:
    use(FakeCuda(memory_stats(reserved=GIB))).fraction = 0.25
    assert memory()[GPU, "limit"] == 6 * GIB


def test_a_gpu_that_this_process_has_not_used_has_no_sample(clock: Clock) -> None:
    cuda = use(FakeCuda(memory_stats(), memory_stats(allocated=1, reserved=2)))
    assert {uuid for uuid, _ in memory()} == {OTHER_GPU}
    cuda.devices[1] = memory_stats()
    clock.advance(1)
    assert memory()[OTHER_GPU, "reserved"] == 0, "its cache was emptied, and that is a value"


def test_counters_grow_by_what_is_new_and_never_go_back(clock: Clock) -> None:
    cuda = use(FakeCuda(memory_stats(reserved=GIB, retries=3, ooms=1)))
    assert events() == (3, 1)
    cuda.devices[0] = memory_stats(reserved=GIB, retries=5, ooms=1)
    clock.advance(1)
    assert events() == (5, 1)
    cuda.devices[0] = memory_stats(reserved=GIB, retries=2, ooms=0)  # reset by the service
    clock.advance(1)
    assert events() == (7, 1)


def test_the_allocator_is_asked_once_a_second_at_most(clock: Clock) -> None:
    cuda = use(FakeCuda(memory_stats(reserved=GIB)))
    for _ in range(10):
        memory()
        clock.advance(0.25)
    assert cuda.readings == 3


def test_two_scrapes_at_once_are_one_reading(clock: Clock) -> None:
    cuda = use(FakeCuda(memory_stats(reserved=GIB)))
    memory()
    clock.advance(1)
    begun, go_on = threading.Event(), threading.Event()

    def slow(device: int) -> dict[str, int]:
        begun.set()
        assert go_on.wait(20)
        return memory_stats(reserved=2 * GIB)

    cuda.memory_stats = slow  # type: ignore[method-assign]
    first = threading.Thread(target=memory)
    first.start()
    assert begun.wait(20)
    clock.advance(2)
    assert memory()[GPU, "reserved"] == GIB, "the second does not wait"
    go_on.set()
    first.join()


def test_nothing_is_read_before_the_service_uses_cuda(clock: Clock) -> None:
    cuda = use(FakeCuda(memory_stats(reserved=GIB)))
    cuda.initialized = False
    assert (memory(), cuda.readings) == ({}, 0)
    cuda.initialized = True
    clock.advance(1)
    assert len(memory()) == 4


def test_a_module_that_is_being_imported_is_no_error() -> None:
    serving.runtime.torch_memory = TorchMemory(serving.runtime.store, SimpleNamespace)
    assert memory() == {}


def test_a_scrape_imports_neither_torch_nor_anyio(tmp_path: Path) -> None:
    for name in ("torch", "anyio"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    scrape = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from tailwatch_tracing import serve_metrics, render_metrics;"
        "serve_metrics(0, service='s'); print(render_metrics()[0].decode())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", scrape, str(tmp_path)], check=True, stdout=subprocess.PIPE, text=True
    )
    assert "python_gc_pause_seconds_total" in ran.stdout
    assert "torch" not in ran.stdout


def test_with_another_backend_what_it_does_not_count_is_left_out() -> None:
    use(FakeCuda(memory_stats(allocated=1, reserved=2))).backend = "cudaMallocAsync"
    assert memory() == {(GPU, "allocated"): 1, (GPU, "reserved"): 2}
    assert events() == (None, None)


def test_an_allocator_that_tells_nothing_is_no_sample(clock: Clock) -> None:
    cuda = use(FakeCuda(memory_stats(reserved=GIB)))

    def refuse(device: int) -> dict[str, int]:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    cuda.memory_stats = refuse  # type: ignore[method-assign]
    assert memory() == {}
    assert values("tailwatch_build_info", "service") == {("s",): 1}


# --- which GPU ---


def test_an_older_torch_takes_the_uuid_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPU)
    use(FakeCuda(memory_stats(reserved=GIB))).uuids = None
    assert {uuid for uuid, _ in memory()} == {GPU}


def test_without_a_uuid_there_is_no_sample() -> None:
    use(FakeCuda(memory_stats(reserved=GIB))).uuids = None
    assert memory() == {}


def test_a_mig_instance_is_named_as_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    mig = "MIG-a65afc88-50b5-5ccf-b0a8-f93b3247ae9e"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mig)
    use(FakeCuda(memory_stats(reserved=GIB)))
    assert {uuid for uuid, _ in memory()} == {mig}


# --- the largest free block ---


def largest() -> dict[tuple[str, ...], float]:
    return values("torch_cuda_largest_free_block_bytes", "uuid")


SEGMENTS: list[Any] = [
    segment(0, ("inactive", 20), ("active_allocated", 500), ("inactive", 30)),
    segment(0, ("active_pending_free", 400), ("inactive", 25)),
    segment(0, ("inactive", 900), pool=(0, 7)),
    segment(1, ("active_allocated", 600)),
]


def test_it_is_of_free_blocks_that_anybody_may_have() -> None:
    assert largest_free_blocks(SEGMENTS) == {0: 30, 1: 0}


def test_it_is_of_releases_that_do_not_tell_pools() -> None:
    old = [{k: v for k, v in each.items() if k != "segment_pool_id"} for each in SEGMENTS]
    assert largest_free_blocks(old) == {0: 900, 1: 0}


def test_it_is_read_only_when_asked_for_and_not_more_often_than_that(clock: Clock) -> None:
    cuda = use(FakeCuda(memory_stats(reserved=2000)))
    cuda.segments = SEGMENTS
    assert (largest(), cuda.snapshots) == ({}, 0)
    watch_largest_free_block(every_seconds=30)
    clock.advance(1)
    assert (largest(), cuda.snapshots) == ({(GPU,): 30}, 1)
    cuda.segments = []
    for _ in range(28):
        clock.advance(1)
        assert largest() == {(GPU,): 30}
    assert cuda.snapshots == 1
    clock.advance(2)
    assert (largest(), cuda.snapshots) == ({(GPU,): 0}, 2)


@pytest.mark.parametrize("wrong", [0, -1, float("nan")])
def test_an_interval_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=f"every_seconds={wrong}: expected seconds above 0"):
        watch_largest_free_block(wrong)


def test_a_forked_child_begins_anew() -> None:
    use(FakeCuda(memory_stats(reserved=GIB, retries=3)))
    assert events() == (3, 0)
    serving.runtime.torch_memory._reading.acquire()  # as another thread of the parent may
    pid = os.fork()
    if pid == 0:
        os._exit(0 if len(memory()) == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
