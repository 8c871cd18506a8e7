"""Numbers that are on a device: copied to the host without waiting, and read when they are there.

Reading a tensor's value (`.item()`, `float()`, `print`) makes the host wait until the device has
done everything before it, once a step if done in every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch  # pyright: ignore[reportMissingImports]

Use = Callable[[list[float]], None]


class _Reading(NamedTuple):
    copy: torch.Tensor
    event: Any  # marks that the copy is complete
    use: Use


def _is_host(device: torch.device) -> bool:
    return bool(device.type == "cpu")


def _mark(device: torch.device) -> Any:
    """Record an event on the device's current stream; None on a device that knows no events."""
    backend: Any = getattr(torch, device.type, None)
    if not hasattr(backend, "Event"):
        return None
    with backend.device(device) if hasattr(backend, "device") else nullcontext():
        event = backend.Event()
        event.record()
    return event


class Readings:
    """Readings under way, in the order in which they were taken.

    Args:
        mark: Records an event behind what a device was given so far.
    """

    def __init__(self, mark: Callable[[torch.device], Any] = _mark) -> None:
        self._mark = mark
        self._under_way: deque[_Reading] = deque()

    def take(self, numbers: Sequence[Any], use: Use) -> None:
        """Have `use` called with the numbers, flattened, now or from a later `read`.

        They are tensors and floats. Tensors on the CPU are read at once. Where a device knows no
        events, the host waits for it.
        """
        if not numbers:
            return
        device = next((each.device for each in numbers if hasattr(each, "detach")), None)
        if device is None:
            use([float(number) for number in numbers])
            return
        precision = torch.float64 if device.type in ("cpu", "cuda") else torch.float32
        with torch.no_grad():
            flat = [
                torch.as_tensor(number).detach().reshape(-1).to(device, precision)
                for number in numbers
            ]
            together = torch.cat(flat)
            if _is_host(device):
                use(together.tolist())
                return
            # Into pinned memory: torch takes it for a copy that does not block.
            copy = together.to("cpu", non_blocking=True)
        event = self._mark(device)
        if event is None:
            use(together.tolist())
        else:
            self._under_way.append(_Reading(copy, event, use))

    def read(self) -> None:
        """Use what is complete by now."""
        while self._under_way and self._under_way[0].event.query():
            self._use_next()

    def finish(self) -> None:
        """Wait for the rest; to be called at the end of a training."""
        while self._under_way:
            self._under_way[0].event.synchronize()
            self._use_next()

    def _use_next(self) -> None:
        reading = self._under_way.popleft()
        reading.use(reading.copy.tolist())
