"""No request leaves anything behind; `make bench` says the same of ten million."""

from __future__ import annotations

from tests.bench import growth
from tests.bench.harness import in_fresh_process


def test_neither_objects_nor_memory_grow_with_requests() -> None:
    kib, objects = in_fresh_process(growth.measure, 20_000, 40_000, 5_000)
    assert objects <= growth.GOAL_OBJECTS
    assert kib <= growth.GOAL_KIB


def test_the_requests_are_of_every_kind() -> None:
    """Else their not growing would say little."""
    kinds = [growth._kind(number) for number in range(1000, 1200)]
    assert len({path for path, _, _ in kinds}) >= 6
    assert {path for path, _, _ in kinds}.isdisjoint(
        path for path, _, _ in map(growth._kind, range(1200, 1400)) if path.count("/") > 1
    )
    assert len({send for _, _, send in kinds}) == 2
