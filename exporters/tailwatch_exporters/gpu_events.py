"""Counts XID errors: NVML tells them as events, and only to who was listening."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tailwatch_exporters._nvml import EVENT_XID, SETTLED_CODES, Device, Library, NvmlError
from tailwatch_exporters.gpu_sample import device_labels

logger = logging.getLogger(__name__)

_WAIT_MS = 500  # also how long a stop may take
_ERROR_REST_SECONDS = 1.0
_SETTLED_REST_SECONDS = 60.0


class XidCounts:
    """XID errors per GPU, kept over driver reloads. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._last_at: dict[str, float] = {}

    def add(self, uuid: str, xid: int, at: float) -> None:
        """Count one error; `at` is Unix time."""
        self._counts[uuid, xid] += 1
        self._last_at[uuid] = at

    def totals(self, uuid: str) -> Iterator[tuple[str, float]]:
        """Yield the GPU's counts, with label text."""
        for (its_uuid, xid), count in sorted(dict(self._counts).items()):
            if its_uuid == uuid:
                yield device_labels(uuid, ("xid", str(xid))), count

    def last_at(self, uuid: str) -> float | None:
        """Return the Unix time of the GPU's last error."""
        return self._last_at.get(uuid)


class XidWatcher:
    """Waits for events of all GPUs in one thread, for one life of the library.

    Args:
        library: NVML.
        counts: where the XID errors go.
        count_error: told of every call that failed.
        wall_clock: Unix time.
    """

    def __init__(
        self,
        library: Library,
        counts: XidCounts,
        count_error: Callable[[NvmlError], None],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._counts = counts
        self._count_error = count_error
        self._wall_clock = wall_clock
        self._events = library.event_set()
        self._registered: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-events", daemon=True)

    def watch(self, uuid: str, device: Device) -> None:
        """Listen to a GPU, if it tells XID errors; the first one starts the thread."""
        if uuid in self._registered:
            return
        try:
            if device.supported_events() & EVENT_XID:
                self._events.register(uuid, device)
                if not self._thread.is_alive():
                    self._thread.start()
        except NvmlError as error:
            self._count_error(error)
            if error.code not in SETTLED_CODES:
                return  # to be tried again
        self._registered.add(uuid)

    def forget(self, uuid: str) -> None:
        """Listen anew when this GPU, which went, comes back."""
        self._registered.discard(uuid)

    def signal_stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def has_ended(self) -> bool:
        """Return whether it was asked to end and did."""
        return self._stopping.is_set() and not self._thread.is_alive()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread; return whether it has ended, the event set freed."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_seconds))
            return not self._thread.is_alive()
        self._free()
        return True

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                event = self._events.wait(_WAIT_MS)
            except NvmlError as error:  # a lost GPU: the others' events still come
                self._count_error(error)
                is_settled = error.code in SETTLED_CODES
                self._stopping.wait(_SETTLED_REST_SECONDS if is_settled else _ERROR_REST_SECONDS)
                continue
            if event is not None:
                logger.warning("GPU %s: XID error %d", event.uuid, event.xid)
                self._counts.add(event.uuid, event.xid, self._wall_clock())
        self._free()

    def _free(self) -> None:
        try:
            self._events.free()
        except NvmlError as error:
            logger.debug("freeing the event set: %s", error)
