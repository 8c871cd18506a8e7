"""What NVML gives as numbered fields: one call reads all that a GPU has."""

from __future__ import annotations

from typing import NamedTuple

from tailwatch_exporters._nvml import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    SETTLED_CODES,
    Device,
    FieldValue,
    NvmlError,
)
from tailwatch_exporters.gpu_sample import COUNTER_LIMIT, DeviceCalls, SampleBuilder

Field = tuple[int, int]
"""Field id and scope id; the scope of an NVLink field is the link."""

_NANOSECONDS = 1_000_000_000
_KIB = 1024


class _Target(NamedTuple):
    """Where a field goes; `divisor` leads to the base unit, `limit` is in NVML's unit."""

    family: str
    label: tuple[str, str]
    divisor: float
    limit: float = COUNTER_LIMIT


def _clock_event(reason: str) -> _Target:
    return _Target("gpu_clock_event_seconds_total", ("reason", reason), _NANOSECONDS)


_FIELDS = {
    (74, 0): _clock_event("sw_power_cap"),
    (76, 0): _clock_event("sync_boost"),
    (269, 0): _clock_event("sw_thermal"),
    (270, 0): _clock_event("hw_thermal"),
    (271, 0): _clock_event("hw_power_brake"),
    (82, 0): _Target("gpu_temperature_celsius", ("sensor", "memory"), 1, limit=250),
}
_NVLINK_FIELDS = {  # field id: family
    138: "gpu_nvlink_transmit_bytes_total",
    139: "gpu_nvlink_receive_bytes_total",
}
_LINK_COUNT = (91, 0)
_PCIE_TRANSMIT, _PCIE_RECEIVE = (197, 0), (198, 0)

_MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS, asked for where the GPU does not say how many it has
_ABSENT_CODES = SETTLED_CODES | {INVALID_ARGUMENT, NOT_FOUND}


class FieldProbe:
    """Reads the fields; one that a GPU does not have rests like a call that is not supported."""

    def __init__(self) -> None:
        self._links = _MOST_LINKS

    def read(
        self, device: Device, calls: DeviceCalls, builder: SampleBuilder
    ) -> tuple[FieldValue | None, FieldValue | None]:
        """Publish the fields; return the PCIe byte counters, transmitted and received."""
        found = self._query(device, calls)
        links = found.get(_LINK_COUNT)
        count = None if links is None else _believed(_LINK_COUNT, links, _MOST_LINKS, builder)
        if count is not None:
            self._links = int(count)
        for field, target in _FIELDS.items():
            if field in found:
                _publish(field, found[field], target, builder)
        for field in self._nvlink_fields():
            if field in found:
                _publish_nvlink(field, found[field], builder)
        return found.get(_PCIE_TRANSMIT), found.get(_PCIE_RECEIVE)

    def _query(self, device: Device, calls: DeviceCalls) -> dict[Field, FieldValue]:
        fields = [*_FIELDS, *self._nvlink_fields(), _LINK_COUNT, _PCIE_TRANSMIT, _PCIE_RECEIVE]
        wanted = [field for field in fields if not calls.rests(field)]
        answers = calls.attempt(device.fields, wanted, key=("fields",)) if wanted else None
        return {
            field: answer
            for field, answer in zip(wanted, answers or (), strict=False)
            if _has_value(field, answer, calls)
        }

    def _nvlink_fields(self) -> list[Field]:
        return [(number, link) for number in _NVLINK_FIELDS for link in range(self._links)]


def _has_value(field: Field, answer: FieldValue, calls: DeviceCalls) -> bool:
    if answer.code == 0:
        return True
    if answer.code in _ABSENT_CODES:
        calls.settle(field, answer.code)
    else:
        text = f"field {field[0]} scope {field[1]}"
        calls.count_error(NvmlError("nvmlDeviceGetFieldValues", answer.code, text))
    return False


def _believed(
    field: Field, answer: FieldValue, limit: float, builder: SampleBuilder
) -> float | None:
    """Return the value, None when it is of no known type or cannot be true."""
    name = str(field[0])
    if answer.value is None:
        builder.reject(name)
        return None
    return answer.value if builder.is_plausible(name, answer.value, limit) else None


def _publish(field: Field, answer: FieldValue, target: _Target, builder: SampleBuilder) -> None:
    value = _believed(field, answer, target.limit, builder)
    if value is not None:
        builder.add(target.family, value / target.divisor, target.label)


def _publish_nvlink(field: Field, answer: FieldValue, builder: SampleBuilder) -> None:
    number, link = field
    if answer.is_wide:
        target = _Target(_NVLINK_FIELDS[number], ("link", str(link)), 1 / _KIB)
        _publish(field, answer, target, builder)
    else:  # 32 bits of KiB wrap within minutes
        builder.reject(str(number))
