"""Utilisation of a GPU's engines, as it is and integrated over time."""

from __future__ import annotations

from collections.abc import Callable

from tailwatch_exporters._nvml import Device
from tailwatch_exporters.gpu_sample import DeviceCalls, SampleBuilder


class EngineProbe:
    """Utilisation per engine, and its integral.

    Args:
        busy_seconds: per engine, kept over samples and over driver reloads.
        longest_seconds: a longer gap between two samples is not credited as busy.
    """

    def __init__(self, busy_seconds: dict[str, float], longest_seconds: float) -> None:
        self._busy_seconds = busy_seconds
        self._longest_seconds = longest_seconds
        self._last_at: dict[str, float] = {}

    def read(self, at: float, device: Device, calls: DeviceCalls, builder: SampleBuilder) -> None:
        """Read all engines; `at` is the time of the sample in seconds."""
        rates = calls.attempt(device.utilization)
        if rates is not None:
            self._add(at, builder, "compute", rates.gpu)
            self._add(at, builder, "memory_controller", rates.memory)
        engines: tuple[tuple[str, Callable[[], int]], ...] = (
            ("encoder", device.encoder_percent),
            ("decoder", device.decoder_percent),
            ("jpeg", device.jpeg_percent),
            ("ofa", device.ofa_percent),
        )
        for engine, call in engines:
            percent = calls.attempt(call)
            if percent is not None:
                self._add(at, builder, engine, percent)

    def _add(self, at: float, builder: SampleBuilder, engine: str, percent: int) -> None:
        pair = ("engine", engine)
        ratio = builder.add_percent("gpu_utilization_ratio", percent, f"utilization_{engine}", pair)
        if ratio is None:
            return
        elapsed = min(at - self._last_at.get(engine, at), self._longest_seconds)
        self._last_at[engine] = at
        self._busy_seconds[engine] = self._busy_seconds.get(engine, 0.0) + ratio * elapsed
        builder.add("gpu_busy_seconds_total", self._busy_seconds[engine], pair)
