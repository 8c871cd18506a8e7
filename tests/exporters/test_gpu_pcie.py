"""Whether a byte counter may be believed."""

from __future__ import annotations

import pytest

from tailwatch_exporters._nvml import FieldValue
from tailwatch_exporters.gpu_pcie import ByteCounter, PcieRate


def wide(value: float) -> FieldValue:
    return FieldValue(0, value, True)


def rate(bytes_per_second: float) -> PcieRate:
    return PcieRate(bytes_per_second, "throughput")


def feed(counter: ByteCounter, growth: float, measured: float, samples: int, start: int = 0) -> int:
    """Feed one-second samples; return how many of them were rejections."""
    return sum(
        counter.observe(second, wide(second * growth), rate(measured))
        for second in range(start, start + samples)
    )


def test_four_samples_that_agree_are_enough() -> None:
    counter = ByteCounter()
    feed(counter, 1e6, 1e6, 3)
    assert counter.verdict == "trial"
    feed(counter, 1e6, 1e6, 1, start=3)
    assert counter.verdict == "accepted"


@pytest.mark.parametrize("factor", [1.9, 1 / 1.9])
def test_scatter_within_two_agrees(factor: float) -> None:
    counter = ByteCounter()
    assert feed(counter, 1e6, 1e6 * factor, 4) == 0
    assert counter.verdict == "accepted"


@pytest.mark.parametrize("factor", [2.1, 1 / 2.1, 1000, 0])
def test_beyond_two_disagrees(factor: float) -> None:
    counter = ByteCounter()
    assert feed(counter, 1e6, 1e6 * factor, 4) == 1
    assert counter.verdict == "rejected"


def test_two_counters_at_rest_prove_nothing() -> None:
    counter = ByteCounter()
    assert feed(counter, 0, 0, 50) == 0
    assert counter.verdict == "trial"


def test_little_traffic_in_bursts_is_no_disagreement() -> None:
    """80 kB each second, which the rate shows one sample after the counter."""
    counter = ByteCounter()
    for second in range(200):
        grown = 80_000 * (
            (second + 1) // 2 * 2
        )  # two bursts fall into one sample, none in the next
        counter.observe(second, wide(grown), rate(160_000 * (second % 2)))
        assert counter.verdict != "rejected"
    assert counter.verdict == "accepted"


def test_a_counter_that_goes_wrong_later_is_rejected() -> None:
    counter = ByteCounter()
    feed(counter, 1e6, 1e6, 10)
    assert counter.verdict == "accepted"
    assert feed(counter, 1e6, 5e6, 60, start=10) == 1
    assert counter.verdict == "rejected"


def test_a_driver_reload_is_not_a_disagreement() -> None:
    counter = ByteCounter()
    feed(counter, 1e6, 1e6, 10)
    assert counter.observe(10, wide(5.0), rate(1e6)) is False
    assert counter.verdict == "accepted"


def test_a_counter_that_wraps_at_32_bits_is_not_believed_for_its_type() -> None:
    """Between two wraps it looks right: a rate over several of them would not be."""
    counter = ByteCounter()
    published = []
    for second in range(300):
        counter.observe(second, wide(second * 5e8 % 2**32), rate(5e8))
        if counter.verdict == "accepted":
            published.append(second)
    assert published == [3, 4, 5, 6, 7, 8]  # 2^32 bytes are 8.6 seconds


def test_a_rejected_counter_is_tried_again() -> None:
    counter = ByteCounter()
    feed(counter, 1e9, 1e6, 4)
    assert feed(counter, 1e6, 1e6, 70, start=4) == 0
    assert counter.verdict == "accepted"


def test_without_a_measured_rate_it_is_not_believed() -> None:
    counter = ByteCounter()
    for second in range(10):
        counter.observe(second, wide(second * 1e6), None)
    assert counter.verdict == "trial"
