"""The table of what is read from a GPU by a call of its own, and published as it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tailwatch_exporters._nvml import Device
from tailwatch_exporters.gpu_sample import (
    COUNTER_LIMIT,
    U32_LIMIT,
    DeviceCalls,
    SampleBuilder,
)


class Reading(NamedTuple):
    """One value: where it goes, the call and its arguments, and the base units per NVML unit.

    `limit` is the largest believable answer, in NVML's unit.
    """

    family: str
    pairs: tuple[tuple[str, str], ...]
    call: Callable[..., float]
    arguments: tuple[int, ...]
    scale: float
    limit: float


def _clock(family: str, call: Callable[..., float]) -> list[Reading]:
    domains = ("graphics", "sm", "memory", "video")
    return [
        Reading(family, (("domain", name),), call, (number,), 1e6, 100_000)
        for number, name in enumerate(domains)
    ]


def _ecc(type_name: str, error_type: int, scope: str, counter: int) -> Reading:
    pairs = (("type", type_name), ("scope", scope))
    arguments = (error_type, counter)
    return Reading("gpu_ecc_errors_total", pairs, Device.ecc_errors, arguments, 1, COUNTER_LIMIT)


READINGS = (
    Reading(
        "gpu_pcie_link_generation", (("kind", "current"),), Device.pcie_link_generation, (), 1, 32
    ),
    Reading(
        "gpu_pcie_link_generation", (("kind", "max"),), Device.pcie_link_generation_max, (), 1, 32
    ),
    Reading("gpu_pcie_link_width", (("kind", "current"),), Device.pcie_link_width, (), 1, 64),
    Reading("gpu_pcie_link_width", (("kind", "max"),), Device.pcie_link_width_max, (), 1, 64),
    Reading("gpu_pcie_replays_total", (), Device.pcie_replays, (), 1, U32_LIMIT),
    *_clock("gpu_clock_hertz", Device.clock_megahertz),
    *_clock("gpu_clock_max_hertz", Device.clock_max_megahertz),
    Reading("gpu_power_watts", (), Device.power_milliwatts, (), 1e-3, 1e8),
    Reading("gpu_power_limit_watts", (), Device.power_limit_milliwatts, (), 1e-3, 1e8),
    Reading("gpu_energy_joules_total", (), Device.energy_millijoules, (), 1e-3, COUNTER_LIMIT),
    Reading(
        "gpu_temperature_celsius", (("sensor", "gpu"),), Device.temperature_celsius, (), 1, 250
    ),
    _ecc("corrected", 0, "volatile", 0),
    _ecc("uncorrected", 1, "volatile", 0),
    _ecc("corrected", 0, "aggregate", 1),
    _ecc("uncorrected", 1, "aggregate", 1),
)


def take_readings(device: Device, calls: DeviceCalls, builder: SampleBuilder) -> None:
    """Read the table's values."""
    for reading in READINGS:
        key = (reading.call.__name__, *reading.arguments)
        value = calls.attempt(reading.call, device, *reading.arguments, key=key)
        if value is not None and builder.is_plausible(reading.family, value, reading.limit):
            builder.add(reading.family, _scaled(value, reading.scale), *reading.pairs)
    rows = calls.attempt(device.remapped_rows)
    if rows is not None and builder.is_plausible("gpu_remapped_rows_total", max(rows), U32_LIMIT):
        builder.add("gpu_remapped_rows_total", rows.corrected, ("cause", "corrected"))
        builder.add("gpu_remapped_rows_total", rows.uncorrected, ("cause", "uncorrected"))


def _scaled(value: float, scale: float) -> float:
    # Divided where the unit is smaller: 120001 mW is 120.001 W, not 120.00100000000001.
    return value * scale if scale >= 1 else value / round(1 / scale)
