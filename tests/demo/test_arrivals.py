"""The open-loop schedule."""

import itertools
import statistics

import pytest

from demo.arrivals import arrivals


def first(count: int, rate: float, burst: int, seed: int = 1) -> list[float]:
    return list(itertools.islice(arrivals(rate, burst, seed), count))


def test_a_seed_fixes_the_schedule() -> None:
    assert first(500, 10, 8) == first(500, 10, 8)
    assert first(500, 10, 8) != first(500, 10, 8, seed=2)


@pytest.mark.parametrize(("rate", "burst"), [(10, 8), (72, 6), (50.4, 6), (5, 1)])
def test_the_rate_is_the_one_asked_for(rate: float, burst: int) -> None:
    due = first(40_000, rate, burst)
    assert due == sorted(due)
    assert 40_000 / due[-1] == pytest.approx(rate, rel=0.01)


def test_bursts_arrive_together_with_gaps_around_the_mean() -> None:
    due = first(8_000, 10, 8)
    assert all(len(set(due[at : at + 8])) == 1 for at in range(0, 8_000, 8))
    gaps = [later - earlier for earlier, later in itertools.pairwise(due[::8])]
    assert 0.7 * 0.8 <= min(gaps) < 0.75 * 0.8
    assert 1.25 * 0.8 < max(gaps) <= 1.3 * 0.8


def test_a_scraper_meets_every_phase_of_a_burst() -> None:
    """Seen every 15 s, the time since the last burst is spread over the whole gap."""
    due = first(80_000, 10, 8)[::8]
    seen, at = [], 0
    for scrape in range(15, int(due[-1]), 15):
        while due[at + 1] <= scrape:
            at += 1
        seen.append(scrape - due[at])
    assert statistics.mean(seen) == pytest.approx(0.4, abs=0.05)
    assert statistics.stdev(seen) > 0.2


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (float("nan"), 1), (10, 0)])
def test_a_load_that_makes_no_sense_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        arrivals(rate, burst, 1)
