"""The life of the NVML library and of its GPUs: start, enumerate, lose, start anew, end."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tailwatch_exporters._nvml import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    LIFECYCLE_CODES,
    NO_PERMISSION,
    RESET_REQUIRED,
    SETTLED_CODES,
    VERSION_MISMATCH,
    Device,
    Library,
    NvmlError,
)
from tailwatch_exporters.gpu_device import DeviceSampler, DeviceTotals, Identity
from tailwatch_exporters.gpu_events import XidCounts, XidWatcher
from tailwatch_exporters.gpu_opening import DeviceOpening
from tailwatch_exporters.sampler_thread import SamplerThread

logger = logging.getLogger(__name__)

ENUMERATE_INTERVALS = 5
"""The GPUs are listed anew every so many sampling intervals."""

_LONGEST_REST_INTERVALS = 60
_JOIN_SECONDS = 1.0
_OPENING_SECONDS = 1.0
_HUNG_SECONDS = 30.0  # initialising eight idle GPUs takes a driver ten seconds

REASONS = {
    LIBRARY_NOT_FOUND: "library_not_found",
    FUNCTION_NOT_FOUND: "library_not_found",
    DRIVER_NOT_LOADED: "driver_not_loaded",
    NO_PERMISSION: "no_permission",
    VERSION_MISMATCH: "version_mismatch",
    GPU_IS_LOST: "gpu_lost",
    RESET_REQUIRED: "gpu_lost",
}
"""NVML return code -> the reason label of nvml_up; any other code is `error`."""


class Status(NamedTuple):
    """Whether NVML answers, in a word why not, and how many GPUs it lists."""

    is_up: bool
    reason: str
    device_count: int


class GpuManager:
    """Keeps one sampler per GPU, by uuid, and the library initialised.

    Everything runs in the manager's own thread, since any NVML call may hang.

    Args:
        library: NVML.
        interval_seconds: sampling interval of each GPU.
        procfs_path: for the names of processes.
        clock: seconds.
    """

    def __init__(
        self,
        library: Library,
        interval_seconds: float,
        procfs_path: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.devices: Mapping[str, DeviceSampler] = {}
        self.errors: Counter[tuple[str, int]] = Counter()
        self.xids = XidCounts()
        self._status = Status(False, "starting", 0)
        self._library = library
        self._interval_seconds = interval_seconds
        self._procfs_path = procfs_path
        self._clock = clock
        self._is_open = False
        self._was_open = False
        self._is_list_lost = False
        self._driver = ""
        self._watcher: XidWatcher | None = None
        self._ending: list[DeviceSampler] = []
        self._openings: dict[int, DeviceOpening] = {}
        self._hanging: frozenset[int] = frozenset()
        self._rest_intervals = 1
        self._reopen_intervals = ENUMERATE_INTERVALS
        self._reopen_at = 0.0
        self._busy_since: float | None = None
        self._stopping = threading.Event()
        self._thread = SamplerThread(
            "gpu-manager", self.tick, ENUMERATE_INTERVALS * interval_seconds
        )

    def start(self) -> None:
        """Begin; the driver may come later."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """End all threads and the library; return whether nothing hung."""
        start = self._clock()
        self._stopping.set()
        self._thread.signal_stop()
        self._signal_stop()
        ended = self._thread.join(timeout_seconds / 2)
        self._signal_stop()  # to what the manager began meanwhile
        ended = self._join(start + 0.75 * timeout_seconds) and ended
        if not ended:  # the library must not be shut down under a call
            return False
        closing = threading.Thread(target=self._close, name="gpu-close", daemon=True)
        closing.start()
        closing.join(max(0.0, start + timeout_seconds - self._clock()))
        return not closing.is_alive()

    def status(self) -> Status:
        """Return the status; a call that does not return makes it `hung`."""
        busy_since = self._busy_since
        if busy_since is not None and self._clock() - busy_since > _HUNG_SECONDS:
            return self._status._replace(is_up=False, reason="hung")
        return self._status

    def has_old_library(self) -> bool:
        """Return whether the driver was replaced by another version beneath this process.

        The old library stays mapped, so it cannot be initialised again here.
        """
        is_mismatch = self._status.reason == REASONS[VERSION_MISMATCH]
        return self._was_open and not self._is_open and is_mismatch

    def tick(self) -> float:
        """Bring library and samplers up to date; return the seconds to rest at least."""
        self._busy_since = self._clock()
        try:
            return self._tick()
        finally:
            self._busy_since = None

    def _tick(self) -> float:
        try:
            if not self._is_open:
                self._open()
            elif not self._needs_new_start():
                self._reopen_intervals = ENUMERATE_INTERVALS
            elif self._clock() >= self._reopen_at and not self._reopen():
                self._status = self._status._replace(is_up=False, reason="hung")
                return 0.0
            self._enumerate()
        except NvmlError as error:
            return self._failed(error)
        self._rest_intervals = 1
        return 0.0

    def _failed(self, error: NvmlError) -> float:
        self._count(error, logging.WARNING)
        self._is_list_lost = error.code in LIFECYCLE_CODES
        device_count = self._status.device_count if self._is_open else 0
        self._status = Status(False, REASONS.get(error.code, "error"), device_count)
        self._rest_intervals = min(2 * self._rest_intervals, _LONGEST_REST_INTERVALS)
        if self._is_open:
            return 0.0
        return self._rest_intervals * self._interval_seconds

    def _count_error(self, error: NvmlError) -> None:
        self._count(error, logging.INFO if error.code in SETTLED_CODES else logging.WARNING)

    def _count(self, error: NvmlError, level: int) -> None:
        key = (error.call, error.code)
        if key not in self.errors:
            logger.log(level, "NVML: %s", error)
        self.errors[key] += 1

    def _open(self) -> None:
        self._library.init()
        self._is_open = self._was_open = True
        self._driver = ""
        self._watcher = None

    def _needs_new_start(self) -> bool:
        """Return whether only a new start of the library can help: no GPU answers.

        Without a GPU to ask, the listing tells: it fails when the driver was reloaded.
        """
        samplers = self.devices.values()
        return all(sampler.is_lost for sampler in samplers) if samplers else self._is_list_lost

    def _reopen(self) -> bool:
        """Shut the library down, as a reloaded driver needs, and initialise it again.

        Returns:
            False when a call hangs: the library cannot be shut down under it.
        """
        self._signal_stop()
        if not self._join(self._clock() + _JOIN_SECONDS):
            return False
        self._reopen_intervals = min(2 * self._reopen_intervals, _LONGEST_REST_INTERVALS)
        self._reopen_at = self._clock() + self._reopen_intervals * self._interval_seconds
        self._close()
        self._open()
        return True

    def _calling(self) -> list[DeviceSampler | XidWatcher | DeviceOpening]:
        """Return what makes calls in a thread of its own."""
        watchers = [] if self._watcher is None else [self._watcher]
        return [*self.devices.values(), *self._ending, *self._openings.values(), *watchers]

    def _signal_stop(self) -> None:
        for thread in self._calling():
            thread.signal_stop()

    def _join(self, deadline: float) -> bool:
        return all([thread.join(deadline - self._clock()) for thread in self._calling()])

    def _close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._library.shutdown()
        except NvmlError as error:
            logger.debug("shutdown: %s", error)

    def _enumerate(self) -> None:
        """Start samplers of GPUs that came, stop those of GPUs that went.

        A GPU that cannot be opened is listed still: one that was known stays, and is down.
        """
        if not self._driver:
            self._driver = self._driver_version()
        count = self._library.device_count()
        found = self._open_devices(count)
        self._replace_samplers(found, keep_missing=count - len(found))
        self._is_list_lost = False
        self._status = Status(True, "ok", count)
        for uuid, (_, device) in found.items():
            self._watch(uuid, device)

    def _open_devices(self, count: int) -> dict[str, tuple[int, Device]]:
        """Return the GPUs that could be opened, by uuid, with their index.

        One that hangs when it is opened is left out, and not asked again until it has answered.
        """
        for index in range(count):
            if index not in self._openings:
                self._openings[index] = DeviceOpening(self._library, index)
        found: dict[str, tuple[int, Device]] = {}
        deadline = self._clock() + _OPENING_SECONDS
        for index, opening in list(self._openings.items()):
            if not opening.join(deadline - self._clock()):
                continue
            del self._openings[index]
            try:
                uuid, device = opening.result()
            except NvmlError as error:
                self._count(error, logging.WARNING)  # "no permission" too: a GPU is missing
                continue
            if index < count:
                found[uuid] = (index, device)
        self._tell_hanging()
        return found

    def _tell_hanging(self) -> None:
        hanging = frozenset(self._openings)
        for index in sorted(hanging - self._hanging):
            logger.warning("GPU %d: opening it takes more than %g s", index, _OPENING_SECONDS)
        self._hanging = hanging

    def _driver_version(self) -> str:
        try:
            return self._library.driver_version()
        except NvmlError as error:
            self._count_error(error)
            return ""

    def _replace_samplers(self, found: Mapping[str, tuple[int, Device]], keep_missing: int) -> None:
        self._ending = [sampler for sampler in self._ending if not sampler.join(0.0)]
        devices: dict[str, DeviceSampler] = {}
        for uuid, (index, device) in found.items():
            devices[uuid] = self._sampler(uuid, index, device)
        missing = [uuid for uuid in self.devices if uuid not in found]
        for uuid in missing[:keep_missing]:
            devices[uuid] = self.devices[uuid]
        for uuid in missing[keep_missing:]:
            self.devices[uuid].signal_stop()
            self._ending.append(self.devices[uuid])
            if self._watcher is not None:
                self._watcher.forget(uuid)
        self.devices = devices

    def _sampler(self, uuid: str, index: int, device: Device) -> DeviceSampler:
        """Return the GPU's sampler, a new one where there is none that runs."""
        current = self.devices.get(uuid)
        identity = Identity(uuid, index, self._driver)
        if current is not None and current.is_running():
            current.identity = identity
            return current
        for ending in self._ending:
            if ending.identity.uuid == uuid:
                return ending  # its thread is in a call still: a second one would hang as well
        totals = current.totals if current is not None else DeviceTotals()
        sampler = DeviceSampler(
            self._library,
            device,
            identity,
            totals,
            self._interval_seconds,
            self._procfs_path,
            self._clock,
        )
        if not self._stopping.is_set():
            sampler.start()
        return sampler

    def _watch(self, uuid: str, device: Device) -> None:
        try:
            if self._watcher is None or self._watcher.has_ended():
                self._watcher = XidWatcher(self._library, self.xids, self._count_error)
            self._watcher.watch(uuid, device)
        except NvmlError as error:
            self._count_error(error)
