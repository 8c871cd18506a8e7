"""The demo's faults: what each injects, the load that belongs to it, and the switch.

A fault is a cause and never an output: it costs the service real CPU, real memory or its
back-pressure, and everything that is measured follows from that. The simulated GPU knows nothing
of faults.
"""

import gc
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

WALL_LIMIT = 1.25  # at 10 requests of 70 ms a second: 0.88 of the thread's time
QUEUE_LIMIT = 20  # waiting requests: under half a second of work of one simulated GPU


@dataclass(frozen=True)
class Load:
    """What the traffic generator sends: bursts of `burst` requests, `rate` requests per second.

    With `of_capacity` the rate is that share of what the service's simulated GPUs can do.
    """

    burst: int
    rate: float = 0.0
    of_capacity: float | None = None

    def rate_per_second(self, capacity_per_second: float) -> float:
        """Return requests per second for a service of that capacity."""
        if self.of_capacity is None:
            return self.rate
        return self.of_capacity * capacity_per_second


@dataclass(frozen=True)
class Fault:
    """One row of the table: a cause that the service injects into itself, and its load."""

    name: str
    description: str
    load: Load
    preprocess_cpu_seconds: float = 0.0  # pure-Python CPU per request, in the preprocess thread
    queue_limit: int | None = QUEUE_LIMIT  # None: no back-pressure
    pause_seconds: float = 0.0  # length of a full garbage collection
    pause_interval_seconds: float = 0.0  # from one collection to the next
    needs_simulated_gpu: bool = False


HEALTHY_LOAD = Load(burst=10, rate=10.0)
HEALTHY = Fault("none", "healthy", HEALTHY_LOAD)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "slow-preprocess",
            "70 ms of pure-Python work per request in the one preprocess thread",
            HEALTHY_LOAD,
            preprocess_cpu_seconds=0.070,
            needs_simulated_gpu=True,
        ),
        Fault(
            "unbounded-queue",
            "no queue limit, and requests arrive at 1.5 times what the GPU can do",
            Load(burst=6, of_capacity=1.5),
            queue_limit=None,
            needs_simulated_gpu=True,
        ),
        Fault(
            "overload",
            "requests arrive at 1.05 times what the GPU can do; the queue limit holds",
            Load(burst=6, of_capacity=1.05),
            needs_simulated_gpu=True,
        ),
        Fault(
            "stalls",
            "a full garbage collection of about 0.7 s over live objects, every 10 s",
            HEALTHY_LOAD,
            pause_seconds=0.7,
            pause_interval_seconds=10.0,
        ),
    )
}


class FaultSwitch:
    """Holds the fault that is on and injects it. `set` may be called from any thread.

    Args:
        clock: seconds; times the pauses.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._live_objects = LiveObjects()
        self._last_pause = clock()
        self.active = HEALTHY

    def set(self, fault: Fault) -> None:
        """Turn `fault` on and the one before off. Takes seconds where live objects are made."""
        with self._lock:
            if fault is self.active:
                return
            self.active = HEALTHY
            self._live_objects.clear()
            if fault.pause_seconds:
                self._live_objects.grow_until_a_collection_takes(fault.pause_seconds)
                self._last_pause = self._clock()
            self.active = fault
            logger.warning("fault %s: %s", fault.name, fault.description)

    def in_preprocess(self) -> None:
        """Inject the active fault into a request's preprocessing. Call it in that thread."""
        if self.active.preprocess_cpu_seconds:
            burn_cpu(self.active.preprocess_cpu_seconds)

    def in_postprocess(self) -> None:
        """Inject the active fault into a request's postprocessing. Call it on the event loop."""
        if self.active.pause_interval_seconds:
            now = self._clock()
            if now - self._last_pause >= self.active.pause_interval_seconds:
                self._last_pause = now
                gc.collect()


def burn_cpu(seconds: float) -> None:
    """Work in pure Python until the calling thread has used `seconds` of CPU time.

    On a machine too busy to give it that, stop after WALL_LIMIT times as long: the thread stays
    the bottleneck, and the demo does not turn into one of overload.
    """
    end = time.thread_time() + seconds
    latest = time.monotonic() + WALL_LIMIT * seconds
    checksum = 0
    while time.thread_time() < end and time.monotonic() < latest:
        for byte in range(256):
            checksum = (checksum * 31 + byte) & 0xFFFFFFFF


class LiveObjects:
    """A graph of Python lists that stays alive, for the garbage collector to walk through.

    Each node links to random others, as a neighbour index does: a full collection follows every
    link, and few bytes of memory keep it busy for long.
    """

    LINKS = 32
    MOST_NODES = 4_000_000  # about 1.6 GB

    def __init__(self) -> None:
        self._nodes: list[list[object]] = []

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    def grow_until_a_collection_takes(self, seconds: float) -> None:
        """Add nodes until a full collection takes that long, or MOST_NODES are reached."""
        self._add(100_000)
        while (took := _full_collection_seconds()) < 0.9 * seconds:
            wanted = int(len(self) * min(4.0, seconds / took))
            if wanted > self.MOST_NODES:
                logger.warning(
                    "a collection of %d objects takes %.2f s, %.2f s were wanted",
                    len(self),
                    took,
                    seconds,
                )
                return
            self._add(wanted - len(self))

    def clear(self) -> None:
        """Let go of all nodes; their links are cut, so that no collection is needed."""
        for node in self._nodes:
            node.clear()
        self._nodes = []

    def _add(self, count: int) -> None:
        fresh: list[list[object]] = [[] for _ in range(count)]
        self._nodes += fresh
        stride = len(self._nodes) // self.LINKS  # links lead far apart: the walk misses the caches
        for node in fresh:
            node += self._nodes[random.randrange(stride) :: stride]


def _full_collection_seconds() -> float:
    start = time.perf_counter()
    gc.collect()
    return time.perf_counter() - start
