"""Which GPUs this process computes on, by UUID."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

_FULL_UUID_LENGTH = len("GPU-00000000-0000-0000-0000-000000000000")


def visible_gpu_uuids(environ: Mapping[str, str]) -> list[str]:
    """Return the UUIDs that CUDA_VISIBLE_DEVICES names, in its order; none when it is unset.

    Indices and shortened UUIDs need NVML: where `pynvml` is missing, or CUDA's numbering may differ
    from NVML's (unlike cards without CUDA_DEVICE_ORDER=PCI_BUS_ID), they are left out. As in CUDA,
    an entry that names no device ends the list.

    Source: CUDA C Programming Guide, "CUDA Environment Variables".
    """
    entries = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if all(_is_full(entry) for entry in entries):
        return entries
    if not entries[0]:
        return []
    numbered = _numbered_uuids(environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID")
    uuids = []
    for entry in entries:
        uuid = entry if _is_full(entry) else _resolve(entry, numbered)
        if uuid is None:
            break
        uuids.append(uuid)
    return uuids


def _is_full(entry: str) -> bool:
    return entry.startswith("MIG-") or (
        entry.startswith("GPU-") and len(entry) == _FULL_UUID_LENGTH
    )


def _resolve(entry: str, numbered: Sequence[str]) -> str | None:
    if entry.isdecimal():
        return numbered[int(entry)] if int(entry) < len(numbered) else None
    matching = [uuid for uuid in numbered if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def _numbered_uuids(is_pci_order: bool) -> list[str]:
    """Return NVML's UUIDs by index, or none where CUDA may number the cards otherwise."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no pynvml, no driver: nothing is known, nothing is said
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        names = {_text(nvml.nvmlDeviceGetName(handle)) for handle in handles}
        if len(names) > 1 and not is_pci_order:
            return []
        return [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except Exception:  # a card that fell off the bus shifts the numbers
        return []
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older pynvml answers in bytes
