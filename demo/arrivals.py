"""Open-loop arrivals: when each request is due, fixed by a seed before anything is sent."""

import itertools
import random
from collections.abc import Iterator

JITTER = 0.3  # a gap between bursts is 0.7 to 1.3 times the mean


def arrivals(rate_per_second: float, burst: int, seed: int) -> Iterator[float]:
    """Yield the due times in seconds from the start, ascending, without end.

    Bursts of `burst` requests arrive together. The gaps between bursts vary around their mean,
    so that a scraper with a fixed interval meets every phase of a burst.

    Raises:
        ValueError: the rate is not above 0 or the burst below 1.
    """
    if not rate_per_second > 0:
        raise ValueError(f"the rate is {rate_per_second} requests per second, expected above 0")
    if burst < 1:
        raise ValueError(f"a burst has {burst} requests, expected at least 1")
    return _arrivals(burst / rate_per_second, burst, random.Random(seed))


def _arrivals(mean_gap: float, burst: int, generator: random.Random) -> Iterator[float]:
    due = 0.0
    while True:
        yield from itertools.repeat(due, burst)
        due += mean_gap * generator.uniform(1 - JITTER, 1 + JITTER)
