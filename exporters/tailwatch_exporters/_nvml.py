"""The typed edge to NVML: every call of the project goes through here.

pynvml (distribution nvidia-ml-py) has no types and raises one class per error code; here each call
returns plain Python values in NVML's own units and raises `NvmlError`. ctypes releases the GIL
during a call, so a call that hangs stops its own thread only.

Source: nvml.h as bound by nvidia-ml-py.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
UNKNOWN = 999

LIFECYCLE_CODES = frozenset(
    (UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, UNKNOWN)
)
"""What a call answers when the GPU or the driver beneath it went away."""

SETTLED_CODES = frozenset((NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND))
"""What a call will go on to answer: asking again each second tells nothing."""

EVENT_XID = 8
_MEMORY_V2 = 0x02000028
_TRANSMIT, _RECEIVE = 0, 1


class NvmlError(Exception):
    """A call failed: the NVML function's name and its return code."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} (code {code})")
        self.call = call
        self.code = code


class Utilization(NamedTuple):
    """Percent of the driver's window in which a kernel ran, or memory was read or written."""

    gpu: int
    memory: int


class Memory(NamedTuple):
    """Bytes. `reserved` is the driver's own part, None where the call cannot tell it apart."""

    total: int
    free: int
    used: int
    reserved: int | None


class FieldValue(NamedTuple):
    """One answer of a field query; `value` is None for an error or an unknown type."""

    code: int
    value: float | None
    is_wide: bool  # 64 bits


class Process(NamedTuple):
    """A process with a context on the GPU; bytes None where the driver does not know."""

    pid: int
    used_bytes: int | None


class ProcessUtilization(NamedTuple):
    """Percent of the SMs that a process used up to a moment, in microseconds of Unix time."""

    pid: int
    at_microseconds: int
    sm_percent: int


class RemappedRows(NamedTuple):
    """Memory rows replaced by spare ones, by the kind of error that led to it."""

    corrected: int
    uncorrected: int


class XidEvent(NamedTuple):
    """A GPU reported an error; see NVIDIA's XID documentation for the numbers."""

    uuid: str
    xid: int


def _load() -> None:
    """Load the library, before pynvml: that costs 16 MB, on machines without a GPU for nothing."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NvmlError("dlopen", LIBRARY_NOT_FOUND, str(error)) from None


def _binding() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ModuleNotFoundError:
        raise NvmlError(
            "import pynvml", LIBRARY_NOT_FOUND, "not installed: pip install 'tailwatch[exporters]'"
        ) from None


def _call(symbol: str, *arguments: Any, function: str = "") -> Any:
    """Call pynvml's `function` (by default `symbol`, the C function that it calls)."""
    pynvml = _binding()
    try:
        return getattr(pynvml, function or symbol)(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlError(symbol, error.value, str(error)) from None
    except AttributeError:  # an older nvidia-ml-py
        raise NvmlError(symbol, FUNCTION_NOT_FOUND, "not in the installed nvidia-ml-py") from None
    except UnicodeDecodeError as error:
        raise NvmlError(symbol, UNKNOWN, f"answered {error.object!r}, not UTF-8") from None


class Library:
    """The library as a whole: its life, and how devices are found."""

    def init(self) -> None:
        """Load and initialise the library; counted, so pair it with `shutdown`."""
        _load()
        _call("nvmlInitWithFlags", 0)

    def shutdown(self) -> None:
        """End one initialisation; handles from before are void."""
        _call("nvmlShutdown")

    def driver_version(self) -> str:
        """Return the driver's version, such as 550.54.15."""
        return str(_call("nvmlSystemGetDriverVersion"))

    def device_count(self) -> int:
        """Return how many GPUs there are, those that may not be opened included."""
        return int(_call("nvmlDeviceGetCount_v2", function="nvmlDeviceGetCount"))

    def device_by_index(self, index: int) -> Device:
        """Return the GPU at a place of the enumeration, which is not stable across boots."""
        handle = _call(
            "nvmlDeviceGetHandleByIndex_v2", index, function="nvmlDeviceGetHandleByIndex"
        )
        return Device(handle)

    def device_by_uuid(self, uuid: str) -> Device:
        """Return the GPU with this uuid."""
        return Device(_call("nvmlDeviceGetHandleByUUID", uuid))

    def event_set(self) -> EventSet:
        """Return a new event set, to be freed before `shutdown`."""
        return EventSet(_call("nvmlEventSetCreate"))


class Device:
    """The calls on one GPU. A handle is valid until the library's shutdown."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def uuid(self) -> str:
        """Return the GPU's uuid."""
        return str(_call("nvmlDeviceGetUUID", self.handle))

    def model(self) -> str:
        """Return the product name."""
        return str(_call("nvmlDeviceGetName", self.handle))

    def pci_bus_id(self) -> str:
        """Return domain:bus:device.function."""
        info = _call("nvmlDeviceGetPciInfo_v3", self.handle, function="nvmlDeviceGetPciInfo")
        text = info.busId
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)

    def utilization(self) -> Utilization:
        """Return utilisation in percent."""
        rates = _call("nvmlDeviceGetUtilizationRates", self.handle)
        return Utilization(int(rates.gpu), int(rates.memory))

    def encoder_percent(self) -> int:
        """Return the video encoder's utilisation."""
        return int(_call("nvmlDeviceGetEncoderUtilization", self.handle)[0])

    def decoder_percent(self) -> int:
        """Return the video decoder's utilisation."""
        return int(_call("nvmlDeviceGetDecoderUtilization", self.handle)[0])

    def jpeg_percent(self) -> int:
        """Return the JPEG engine's utilisation."""
        return int(_call("nvmlDeviceGetJpgUtilization", self.handle)[0])

    def ofa_percent(self) -> int:
        """Return the optical flow engine's utilisation."""
        return int(_call("nvmlDeviceGetOfaUtilization", self.handle)[0])

    def memory_v2(self) -> Memory:
        """Return memory with the driver's reserve apart."""
        m = _call(
            "nvmlDeviceGetMemoryInfo_v2",
            self.handle,
            _MEMORY_V2,
            function="nvmlDeviceGetMemoryInfo",
        )
        return Memory(int(m.total), int(m.free), int(m.used), int(m.reserved))

    def memory_v1(self) -> Memory:
        """Return memory; `used` includes the driver's reserve."""
        m = _call("nvmlDeviceGetMemoryInfo", self.handle)
        return Memory(int(m.total), int(m.free), int(m.used), None)

    def pcie_transmit_kilobytes(self) -> int:
        """Return KB/s over a 20 ms window; the call takes that long."""
        return int(_call("nvmlDeviceGetPcieThroughput", self.handle, _TRANSMIT))

    def pcie_receive_kilobytes(self) -> int:
        """Return KB/s over a 20 ms window; the call takes that long."""
        return int(_call("nvmlDeviceGetPcieThroughput", self.handle, _RECEIVE))

    def pcie_link_generation(self) -> int:
        """Return the generation in use; it drops when the GPU idles."""
        return int(_call("nvmlDeviceGetCurrPcieLinkGeneration", self.handle))

    def pcie_link_generation_max(self) -> int:
        """Return the best generation of GPU and slot together."""
        return int(_call("nvmlDeviceGetMaxPcieLinkGeneration", self.handle))

    def pcie_link_width(self) -> int:
        """Return the lanes in use."""
        return int(_call("nvmlDeviceGetCurrPcieLinkWidth", self.handle))

    def pcie_link_width_max(self) -> int:
        """Return the lanes of GPU and slot together."""
        return int(_call("nvmlDeviceGetMaxPcieLinkWidth", self.handle))

    def pcie_replays(self) -> int:
        """Return packets sent again since the driver was loaded."""
        return int(_call("nvmlDeviceGetPcieReplayCounter", self.handle))

    def clock_megahertz(self, domain: int) -> int:
        """Return the clock now: 0 graphics, 1 SM, 2 memory, 3 video."""
        return int(_call("nvmlDeviceGetClockInfo", self.handle, domain))

    def clock_max_megahertz(self, domain: int) -> int:
        """Return the clock's maximum: 0 graphics, 1 SM, 2 memory, 3 video."""
        return int(_call("nvmlDeviceGetMaxClockInfo", self.handle, domain))

    def power_milliwatts(self) -> int:
        """Return the board's power, a 1 s average from Ampere on."""
        return int(_call("nvmlDeviceGetPowerUsage", self.handle))

    def power_limit_milliwatts(self) -> int:
        """Return the lowest of all power limits that apply."""
        return int(_call("nvmlDeviceGetEnforcedPowerLimit", self.handle))

    def energy_millijoules(self) -> int:
        """Return energy since the driver was loaded."""
        return int(_call("nvmlDeviceGetTotalEnergyConsumption", self.handle))

    def temperature_celsius(self) -> int:
        """Return the temperature of the die."""
        return int(_call("nvmlDeviceGetTemperature", self.handle, 0))

    def ecc_errors(self, error_type: int, counter: int) -> int:
        """Return ECC errors: type 0 corrected, 1 uncorrected; counter 0 volatile, 1 aggregate."""
        return int(_call("nvmlDeviceGetTotalEccErrors", self.handle, error_type, counter))

    def remapped_rows(self) -> RemappedRows:
        """Return how many memory rows were remapped."""
        corrected, uncorrected, _, _ = _call("nvmlDeviceGetRemappedRows", self.handle)
        return RemappedRows(int(corrected), int(uncorrected))

    def is_mig_enabled(self) -> bool:
        """Return whether the GPU is split into instances."""
        return bool(_call("nvmlDeviceGetMigMode", self.handle)[0])

    def processes(self) -> list[Process]:
        """Return the processes with a compute context, without those under MPS."""
        return self._processes("nvmlDeviceGetComputeRunningProcesses_v3")

    def graphics_processes(self) -> list[Process]:
        """Return the processes with a graphics context."""
        return self._processes("nvmlDeviceGetGraphicsRunningProcesses_v3")

    def mps_processes(self) -> list[Process]:
        """Return the processes with a compute context under MPS."""
        return self._processes("nvmlDeviceGetMPSComputeRunningProcesses_v3")

    def _processes(self, symbol: str) -> list[Process]:
        # By its versioned name: the other raises an error of another kind on an older driver.
        return [
            Process(int(p.pid), None if p.usedGpuMemory is None else int(p.usedGpuMemory))
            for p in _call(symbol, self.handle)
        ]

    def process_utilization(self, since_microseconds: int) -> list[ProcessUtilization]:
        """Return what was sampled after a moment, in microseconds of Unix time; not under MIG."""
        try:
            samples = _call("nvmlDeviceGetProcessUtilization", self.handle, since_microseconds)
        except NvmlError as error:
            # pynvml raises an error of code 0 where the driver succeeds without an entry.
            if error.code in (0, NOT_FOUND):
                return []
            raise
        return [ProcessUtilization(int(s.pid), int(s.timeStamp), int(s.smUtil)) for s in samples]

    def gpu_instances(self) -> list[int]:
        """Return the ids of the GPU instances that MIG has split the GPU into."""
        return sorted(
            {
                int(_call("nvmlDeviceGetGpuInstanceId", handle))
                for index in range(_call("nvmlDeviceGetMaxMigDeviceCount", self.handle))
                if (handle := self._mig_handle(index)) is not None
            }
        )

    def _mig_handle(self, index: int) -> Any:
        try:
            return _call("nvmlDeviceGetMigDeviceHandleByIndex", self.handle, index)
        except NvmlError as error:
            if error.code == NOT_FOUND:  # the places have holes
                return None
            raise

    def fields(self, wanted: Sequence[tuple[int, int]]) -> list[FieldValue]:
        """Query (field id, scope id) pairs in one call; each answer has a code of its own."""
        return [
            _field_value(answer)
            for answer in _call("nvmlDeviceGetFieldValues", self.handle, list(wanted))
        ]

    def is_gpm_supported(self) -> bool:
        """Return whether the GPU has GPM, which Hopper and newer have."""
        return bool(_call("nvmlGpmQueryDeviceSupport", self.handle).isSupportedDevice)

    def supported_events(self) -> int:
        """Return the bit mask of event types."""
        return int(_call("nvmlDeviceGetSupportedEventTypes", self.handle))


_FIELD_TYPES = {  # nvmlValueType_t: member of the union, whether it has 64 bits
    0: ("dVal", False),
    1: ("uiVal", False),
    2: ("ulVal", ctypes.sizeof(ctypes.c_ulong) == 8),
    3: ("ullVal", True),
    4: ("sllVal", True),
    5: ("siVal", False),
    6: ("usVal", False),
}


def _field_value(answer: Any) -> FieldValue:
    code = int(answer.nvmlReturn)
    member, is_wide = _FIELD_TYPES.get(answer.valueType, ("", False))
    if code or not member:
        return FieldValue(code, None, is_wide)
    return FieldValue(0, getattr(answer.value, member), is_wide)


class GpmReader:
    """Reads GPM metrics as means between one `read` and the next, which are > 100 ms apart.

    The buffers are large (19 KB) and allocated once.

    Args:
        device: the GPU.
        metrics: ids.
        gpu_instance: of MIG, to be read in the whole GPU's place.
    """

    def __init__(
        self, device: Device, metrics: Sequence[int], gpu_instance: int | None = None
    ) -> None:
        pynvml = _binding()
        self._device = device
        self._gpu_instance = gpu_instance
        self._metrics = metrics
        self._get = pynvml.c_nvmlGpmMetricsGet_t()
        self._get.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._get.numMetrics = len(metrics)
        for slot, metric in zip(self._get.metrics, metrics, strict=False):
            slot.metricId = metric
        self._samples = [_call("nvmlGpmSampleAlloc") for _ in range(2)]
        self._has_first = False

    def read(self) -> dict[int, float]:
        """Return metric id -> value in GPM's units, without those that have none.

        Empty at first and after a failed call: a mean needs two samples.
        """
        first, second = self._samples
        had_first, self._has_first = self._has_first, False
        self._take(second)
        self._has_first = True
        self._samples = [second, first]
        if not had_first:
            return {}
        self._get.sample1, self._get.sample2 = first, second
        _call("nvmlGpmMetricsGet", self._get)
        return {
            metric: float(slot.value)
            for slot, metric in zip(self._get.metrics, self._metrics, strict=False)
            if not slot.nvmlReturn
        }

    def _take(self, sample: Any) -> None:
        if self._gpu_instance is None:
            _call("nvmlGpmSampleGet", self._device.handle, sample)
        else:
            _call("nvmlGpmMigSampleGet", self._device.handle, self._gpu_instance, sample)

    def close(self) -> None:
        """Free the buffers; before the library's shutdown."""
        samples, self._samples = self._samples, []
        for sample in samples:
            _call("nvmlGpmSampleFree", sample)


class EventSet:
    """Collects events of the GPUs registered with it; there is no history from before."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._uuids: dict[int | None, str] = {}

    def register(self, uuid: str, device: Device) -> None:
        """Add a GPU's XID events."""
        _call("nvmlDeviceRegisterEvents", device.handle, EVENT_XID, self._handle)
        self._uuids[_address(device.handle)] = uuid

    def wait(self, timeout_ms: int) -> XidEvent | None:
        """Return the next event, None when none came in time."""
        try:
            event = _call(
                "nvmlEventSetWait_v2", self._handle, timeout_ms, function="nvmlEventSetWait"
            )
        except NvmlError as error:
            if error.code == TIMEOUT:
                return None
            raise
        # A GPU that fell off the bus tells that by an event, and its uuid no more.
        uuid = self._uuids.get(_address(event.device)) or Device(event.device).uuid()
        return XidEvent(uuid, int(event.eventData))

    def free(self) -> None:
        """Free the set, once; no thread may be waiting on it."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _call("nvmlEventSetFree", handle)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
