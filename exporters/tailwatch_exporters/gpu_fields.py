"""What NVML gives as numbered fields: one call reads all that a GPU has."""

from __future__ import annotations

from tailwatch_exporters._nvml import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    SETTLED_CODES,
    Device,
    FieldValue,
    NvmlError,
)
from tailwatch_exporters.gpu_sample import DeviceCalls, SampleBuilder

Field = tuple[int, int]
"""Field id and scope id; the scope of an NVLink field is the link."""

_NANOSECONDS = 1_000_000_000
_KIB = 1024

_FIELDS = {  # field: family, label, divisor to the base unit
    (74, 0): ("gpu_clock_event_seconds_total", ("reason", "sw_power_cap"), _NANOSECONDS),
    (76, 0): ("gpu_clock_event_seconds_total", ("reason", "sync_boost"), _NANOSECONDS),
    (269, 0): ("gpu_clock_event_seconds_total", ("reason", "sw_thermal"), _NANOSECONDS),
    (270, 0): ("gpu_clock_event_seconds_total", ("reason", "hw_thermal"), _NANOSECONDS),
    (271, 0): ("gpu_clock_event_seconds_total", ("reason", "hw_power_brake"), _NANOSECONDS),
    (82, 0): ("gpu_temperature_celsius", ("sensor", "memory"), 1),
}
_NVLINK_FIELDS = {  # field id: family
    138: "gpu_nvlink_transmit_bytes_total",
    139: "gpu_nvlink_receive_bytes_total",
}
_LINK_COUNT = (91, 0)
_PCIE_TRANSMIT, _PCIE_RECEIVE = (197, 0), (198, 0)

_MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS, asked for where the GPU does not say how many it has
_LIMIT = 2.0**62  # NVML's "not available" is the largest number of the type
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
        if links is not None and links.value is not None:
            self._links = min(_MOST_LINKS, int(links.value))
        for field, (family, label, divisor) in _FIELDS.items():
            if field in found:
                _publish(field, found[field], family, label, divisor, builder)
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


def _publish(
    field: Field,
    answer: FieldValue,
    family: str,
    label: tuple[str, str],
    divisor: float,
    builder: SampleBuilder,
) -> None:
    name = str(field[0])
    if answer.value is None:
        builder.reject(name)
    elif builder.is_plausible(name, answer.value, _LIMIT):
        builder.add(family, answer.value / divisor, label)


def _publish_nvlink(field: Field, answer: FieldValue, builder: SampleBuilder) -> None:
    number, link = field
    if answer.is_wide:
        label = ("link", str(link))
        _publish(field, answer, _NVLINK_FIELDS[number], label, 1 / _KIB, builder)
    else:  # 32 bits of KiB wrap within minutes
        builder.reject(str(number))
