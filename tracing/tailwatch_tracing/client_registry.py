"""The families of a prometheus_client registry, rendered by the client itself in small pieces."""

from __future__ import annotations

import copy
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

PATIENCE_SECONDS = 10.0
"""Prometheus' own default: its scraper has given up by then."""

Pause = Callable[[], None]
"""Called between two small pieces of work, to let other threads have the interpreter."""

_SLOW_SECONDS = 0.002

_SAMPLES_A_PIECE = 50  # the client takes half a millisecond for them

# What the client takes out of a family for the text format, which does not know them, and puts
# behind it as a family of its own.
_OPENMETRICS_ONLY = ("_created", "_gsum", "_gcount")

_HEAD = re.compile(rb"\A(?:#[^\n]*\n){2}")  # HELP and TYPE in the text format
_HEADS = re.compile(rb"\A(?:#[^\n]*\n)+")


class ClientRegistry:
    """A registry with collectors of other people's, which may raise, and may never answer.

    Args:
        registry: Returns it, at every scrape.
        note_error: Called in the `except` that caught something.
    """

    def __init__(
        self, registry: Callable[[], CollectorRegistry], note_error: Callable[[], None]
    ) -> None:
        self._registry = registry
        self._note_error = note_error
        self._asked: dict[object, float] = {}  # by scrapes that go on: since when
        self._is_slow = False

    def forget(self) -> None:
        """In a forked child: the parent's scrapes are not ours."""
        self._asked.clear()

    def pieces(self, openmetrics: bool, pause: Pause) -> Iterator[bytes]:
        """Yield the families, without `# EOF`, to be put before ours.

        A collector that raises costs the page what would come after it in the registry, a family
        that the client cannot render only itself. While one has not answered a scrape for ten
        seconds, other scrapes do not ask the registry.

        Args:
            openmetrics: In this format.
            pause: Called where the caller has no chance to: within collectors, once they were seen
                to be slow.
        """
        scrape = object()
        try:
            self._check_patience()
            self._asked[scrape] = time.monotonic()
            for family in self._collected(pause):
                try:
                    yield from _pieces(family, openmetrics)
                except Exception:
                    self._note_error()
        except Exception:
            self._note_error()
        finally:
            self._asked.pop(scrape, None)

    def _collected(self, pause: Pause) -> Iterator[Metric]:
        is_slow, self._is_slow = self._is_slow, False
        families: Iterator[Metric] | None = None
        while True:
            started = time.thread_time()
            with _pausing(pause) if is_slow else nullcontext():
                if families is None:
                    families = iter(self._registry().collect())
                family = next(families, None)
            self._is_slow |= time.thread_time() - started > _SLOW_SECONDS
            if family is None:
                return
            yield family

    def _check_patience(self) -> None:
        longest = time.monotonic() - min(self._asked.copy().values(), default=math.inf)
        if longest > PATIENCE_SECONDS:
            raise TimeoutError(f"a collector has not answered for {longest:.0f} s")


@contextmanager
def _pausing(pause: Pause) -> Iterator[None]:
    """Pause within somebody else's code, where a function returns.

    The client collects a metric of 100,000 series at one go, for half a second in which requests
    would wait. Where a function returns, its locks are released. From Python 3.12 on a profile
    function costs other threads something, too: hence only for what is slow.
    """
    if sys.getprofile() is not None:  # somebody profiles
        yield
        return

    def on_event(frame: FrameType, event: str, arg: object) -> None:
        if event == "return":
            pause()

    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(None)


def _pieces(family: Metric, openmetrics: bool) -> Iterator[bytes]:
    own, apart = list(family.samples), dict[str, list[Sample]]()
    if not openmetrics and len(own) > _SAMPLES_A_PIECE:
        names = {family.name + suffix for suffix in _OPENMETRICS_ONLY}
        own = [sample for sample in family.samples if sample.name not in names]
        for sample in family.samples:
            if sample.name in names:
                apart.setdefault(sample.name, []).append(sample)
    yield _rendered(family, own[:_SAMPLES_A_PIECE], openmetrics)
    yield from _more(family, own, openmetrics)
    for _, samples in sorted(apart.items()):
        first = _rendered(family, samples[:_SAMPLES_A_PIECE], openmetrics)
        yield _HEAD.sub(b"", first, count=1)
        yield from _more(family, samples, openmetrics)


def _more(family: Metric, samples: list[Sample], openmetrics: bool) -> Iterator[bytes]:
    for start in range(_SAMPLES_A_PIECE, len(samples), _SAMPLES_A_PIECE):
        piece = _rendered(family, samples[start : start + _SAMPLES_A_PIECE], openmetrics)
        yield _HEADS.sub(b"", piece, count=1)


def _rendered(family: Metric, samples: list[Sample], openmetrics: bool) -> bytes:
    part = copy.copy(family)
    part.samples = samples
    registry = _OneFamily(part)
    if not openmetrics:
        return generate_latest(registry)
    page: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    return page.removesuffix(b"# EOF\n")


class _OneFamily(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """Yield it."""
        yield self._family
