"""A model of one GPU: it takes batches and tells what a real card's counters would show.

Nothing here knows why batches come or stay away: utilisation, power and PCIe bytes follow from
the batches alone. Times are those of a clock that is passed in, so that a test needs no waiting.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class DeviceSpec:
    """The constants of the model. The defaults are one card that the demo's load is tuned to."""

    name: str = "tailwatch simulated GPU"
    launch_seconds: float = 0.005  # fixed cost of a batch
    item_seconds: float = 0.020  # and of each member: 6 members run in 125 ms, so 48 items/s
    sm_active_while_busy: float = 0.85  # the rest is the tail of a kernel, where SMs run dry
    sm_occupancy_while_busy: float = 0.45
    tensor_active_while_busy: float = 0.40
    dram_active_while_busy: float = 0.35
    memory_total_bytes: int = 24 * GIB
    memory_reserved_bytes: int = 512 * MIB  # the driver's own
    context_bytes: int = 600 * MIB
    activation_bytes: int = 256 * MIB  # per member of a batch; a caching allocator keeps them
    idle_watts: float = 60.0
    busy_watts: float = 290.0
    power_limit_watts: float = 350.0

    def kernel_seconds(self, items: int) -> float:
        """Return how long the device works on a batch of `items`."""
        return self.launch_seconds + items * self.item_seconds


@dataclass(frozen=True)
class DeviceReading:
    """The device's integrators at one moment. Seconds and bytes since the model was made."""

    at: float
    busy_seconds: float
    received_bytes: int
    sent_bytes: int
    memory_used_bytes: int


class SimulatedGpu:
    """One stream of one device: batches queue up and run back to back, one at a time.

    Args:
        index: the device's index; its uuid follows from it.
        spec: the constants of the model.
        weights_bytes: size of the model in device memory.
        clock, sleep: time source in seconds and the wait that goes with it.
    """

    def __init__(
        self,
        index: int = 0,
        spec: DeviceSpec | None = None,
        *,
        weights_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.index = index
        self.spec = spec or DeviceSpec()
        self._weights_bytes = weights_bytes
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._made_at = clock()
        self._free_at = self._made_at
        self._launched_seconds = 0.0
        self._received_bytes = 0
        self._sent_bytes = 0
        self._largest_batch = 0

    @property
    def uuid(self) -> str:
        """Return the uuid that the mock NVML gives the device of this index."""
        return f"GPU-{self.index:08d}-0000-0000-0000-000000000000"

    @property
    def free_at(self) -> float:
        """Return the clock's time at which the work launched so far is done."""
        return self._free_at

    def launch(self, items: int, received_bytes: int, sent_bytes: int) -> float:
        """Queue a batch behind the earlier ones; return the clock's time at which it is done.

        Args:
            items: members of the batch.
            received_bytes: size of its input, sent_bytes: size of its output, both over PCIe.
        """
        with self._lock:
            seconds = self.spec.kernel_seconds(items)
            self._free_at = max(self._clock(), self._free_at) + seconds
            self._launched_seconds += seconds
            self._received_bytes += received_bytes
            self._sent_bytes += sent_bytes
            self._largest_batch = max(self._largest_batch, items)
            return self._free_at

    def wait_until(self, done_at: float) -> None:
        """Block until the clock reaches `done_at`; device time costs no CPU."""
        remaining = done_at - self._clock()
        if remaining > 0:
            self._sleep(remaining)

    def read(self) -> DeviceReading:
        """Return the integrators now. Work that is launched but not done yet is not in them."""
        with self._lock:
            now = self._clock()
            # What is left runs without a gap from now on, so it is all that is not busy time yet.
            busy = self._launched_seconds - max(0.0, self._free_at - now)
            return DeviceReading(
                at=now,
                busy_seconds=busy,
                received_bytes=self._received_bytes,
                sent_bytes=self._sent_bytes,
                memory_used_bytes=self.spec.context_bytes
                + self._weights_bytes
                + self._largest_batch * self.spec.activation_bytes,
            )

    def energy_joules(self, reading: DeviceReading) -> float:
        """Return the energy used from the model's start to the reading."""
        spec = self.spec
        idle = (reading.at - self._made_at) * spec.idle_watts
        return idle + reading.busy_seconds * (spec.busy_watts - spec.idle_watts)
