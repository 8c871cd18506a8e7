"""Device memory: with the driver's reserve apart where NVML can tell it, and only if it adds up."""

from __future__ import annotations

from tailwatch_exporters._nvml import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Device, Memory
from tailwatch_exporters.gpu_sample import DeviceCalls, SampleBuilder

_ROUNDING_BYTES = 1 << 20  # the sums are taken by the driver at slightly different moments


def read_memory(device: Device, calls: DeviceCalls, builder: SampleBuilder) -> str:
    """Read device memory; return which NVML structure it came from: v1, v2 or none."""
    memory = calls.attempt(device.memory_v2)
    api = "v2"
    if memory is None:
        memory = calls.attempt(device.memory_v1)
        api = "v1"
    if memory is None:
        if _is_unified(calls):
            builder.add("gpu_memory_unified", 1)
        return "none"
    builder.add("gpu_memory_unified", 0)
    _add_memory(memory, builder)
    return api


def _is_unified(calls: DeviceCalls) -> bool:
    """Return whether both calls were told "not supported": GPU and host share their memory."""
    v2_codes = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)  # an older driver lacks the second version
    return (
        calls.settled_code("memory_v1") == NOT_SUPPORTED
        and calls.settled_code("memory_v2") in v2_codes
    )


def _add_memory(memory: Memory, builder: SampleBuilder) -> None:
    reserved = memory.reserved or 0
    used = memory.used
    missing = memory.total - memory.free - used - reserved
    # nvml.h says both that the second version's "used" includes the reserve and that it does not.
    if abs(missing + reserved) <= _ROUNDING_BYTES < reserved:
        used -= reserved
        missing += reserved
    if abs(missing) > _ROUNDING_BYTES or not 0 <= used <= memory.total:
        builder.reject("memory")
        return
    builder.add("gpu_memory_used_bytes", used)
    if memory.reserved is not None:
        builder.add("gpu_memory_reserved_bytes", reserved)
    builder.add("gpu_memory_free_bytes", memory.free)
    builder.add("gpu_memory_total_bytes", memory.total)
