"""The page, pushed to a Prometheus Pushgateway by a thread of its own."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric, push_to_gateway
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tailwatch_tracing.serving import render_metrics

logger = logging.getLogger("tailwatch_tracing")

_TIMEOUT_SECONDS = 5


class _Page(Collector):
    """What `/metrics` would answer, as prometheus_client has it."""

    def collect(self) -> Iterator[Metric]:
        yield from text_string_to_metric_families(render_metrics()[0].decode())

    def describe(self) -> Iterator[Metric]:
        return iter(())  # asked at registration, where nothing is to be rendered yet


class PagePush:
    """Replaces the page at a gateway at intervals, and once more at the end.

    Args:
        gateway: Address, with or without `http://`.
        job: The label `job`, which with `grouping` tells this page from others at the gateway.
        grouping: Further labels that do.
        every_seconds: Time between two pushes.
        count_error: Is called for each push that fails; returns whether it is the first.

    Raises:
        ValueError: the interval is not above 0.
    """

    def __init__(
        self,
        gateway: str,
        job: str,
        grouping: Mapping[str, str],
        every_seconds: float,
        count_error: Callable[[], bool],
    ) -> None:
        if not every_seconds > 0:
            raise ValueError(f"every_seconds={every_seconds!r}: expected seconds above 0")
        self._gateway = gateway
        self._job = job
        self._grouping = dict(grouping)
        self._every_seconds = every_seconds
        self._count_error = count_error
        self._registry = CollectorRegistry()
        self._registry.register(_Page())
        self._pid = os.getpid()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="tailwatch-push", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Push a last time and end; again is harmless."""
        if not self._is_over.is_set() and os.getpid() == self._pid:  # a forked child is no rank
            atexit.unregister(self.close)
            self._is_over.set()
            self._thread.join(_TIMEOUT_SECONDS)
            self._push()

    def _go_on(self) -> None:
        while not self._is_over.wait(self._every_seconds):
            self._push()

    def _push(self) -> None:
        try:
            push_to_gateway(
                self._gateway,
                job=self._job,
                registry=self._registry,
                grouping_key=self._grouping,
                timeout=_TIMEOUT_SECONDS,
            )
        except Exception as error:  # whatever it is, the training goes on
            if self._count_error():
                logger.warning(
                    "the metrics cannot be pushed to %s: %s; tried again every %g s, silently",
                    self._gateway,
                    error,
                    self._every_seconds,
                )
