"""GPM: how busy the SMs and the memory were between two samples. Hopper and newer."""

from __future__ import annotations

from tailwatch_exporters._nvml import Device, GpmReader, NvmlError
from tailwatch_exporters.gpu_pcie import PcieRate
from tailwatch_exporters.gpu_sample import DeviceCalls, SampleBuilder

_GPM_SM_ACTIVE, _GPM_SM_OCCUPANCY, _GPM_TENSOR, _GPM_DRAM = 2, 3, 5, 10
_GPM_PCIE_TRANSMIT, _GPM_PCIE_RECEIVE = 20, 21
_GPM_METRICS = (
    _GPM_SM_ACTIVE,
    _GPM_SM_OCCUPANCY,
    _GPM_TENSOR,
    _GPM_DRAM,
    _GPM_PCIE_TRANSMIT,
    _GPM_PCIE_RECEIVE,
)
_GPM_RATIOS = (
    (_GPM_SM_ACTIVE, "gpu_sm_active_ratio"),
    (_GPM_SM_OCCUPANCY, "gpu_sm_occupancy_ratio"),
    (_GPM_TENSOR, "gpu_tensor_active_ratio"),
    (_GPM_DRAM, "gpu_dram_active_ratio"),
)
_MIG_RATIOS = (
    (_GPM_SM_ACTIVE, "gpu_mig_sm_active_ratio"),
    (_GPM_SM_OCCUPANCY, "gpu_mig_sm_occupancy_ratio"),
    (_GPM_TENSOR, "gpu_mig_tensor_active_ratio"),
    (_GPM_DRAM, "gpu_mig_dram_active_ratio"),
)
_MIB = 1 << 20


class GpmProbe:
    """Activity of the SMs and the memory between two samples, on GPUs that have GPM."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._reader: GpmReader | None = None

    def read(
        self, calls: DeviceCalls, builder: SampleBuilder
    ) -> tuple[PcieRate | None, PcieRate | None]:
        """Read GPM; return its PCIe rates, transmitted and received."""
        is_supported = calls.attempt(self._device.is_gpm_supported)
        if is_supported is None:
            return None, None
        metrics = calls.attempt(self._read_metrics) if is_supported else None
        # Some drivers say yes when asked, and "not supported" when told to measure.
        is_refused = calls.settled_code("_read_metrics") != 0
        builder.add("gpu_gpm_supported", int(is_supported and not is_refused))
        if not metrics:
            return None, None
        for metric, family in _GPM_RATIOS:
            if metric in metrics:
                builder.add_percent(family, metrics[metric], f"gpm_{metric}")
        return (
            _gpm_pcie(metrics, _GPM_PCIE_TRANSMIT, builder),
            _gpm_pcie(metrics, _GPM_PCIE_RECEIVE, builder),
        )

    def _read_metrics(self) -> dict[int, float]:
        if self._reader is None:
            self._reader = GpmReader(self._device, _GPM_METRICS)
        return self._reader.read()

    def close(self) -> None:
        """Free the buffers; before the library's shutdown."""
        reader, self._reader = self._reader, None
        if reader is not None:
            _close(reader)


class MigProbe:
    """Whether the GPU is split into MIG instances, and GPM's activity of each of them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._readers: dict[int, GpmReader] = {}

    def read(self, calls: DeviceCalls, builder: SampleBuilder) -> None:
        """Read the GPU instances there are now; the others' buffers are freed."""
        is_enabled = calls.attempt(self._device.is_mig_enabled)
        instances: list[int] = []
        if is_enabled is not None:
            builder.add("gpu_mig_enabled", int(is_enabled))
        if is_enabled and calls.attempt(self._device.is_gpm_supported):
            instances = calls.attempt(self._device.gpu_instances) or []
        for gone in self._readers.keys() - set(instances):
            _close(self._readers.pop(gone))
        for instance in instances:
            metrics = calls.attempt(self._read_instance, instance) or {}
            pair = ("gpu_instance_id", str(instance))
            for metric, family in _MIG_RATIOS:
                if metric in metrics:
                    builder.add_percent(family, metrics[metric], f"gpm_{metric}", pair)

    def _read_instance(self, instance: int) -> dict[int, float]:
        if instance not in self._readers:
            metrics = [metric for metric, _ in _MIG_RATIOS]
            self._readers[instance] = GpmReader(self._device, metrics, instance)
        return self._readers[instance].read()

    def close(self) -> None:
        """Free the buffers; before the library's shutdown."""
        while self._readers:
            _close(self._readers.popitem()[1])


def _close(reader: GpmReader) -> None:
    try:
        reader.close()
    except NvmlError:
        return  # the driver took the buffers with it


def _gpm_pcie(metrics: dict[int, float], metric: int, builder: SampleBuilder) -> PcieRate | None:
    if metric not in metrics or not builder.is_plausible(f"gpm_{metric}", metrics[metric], 1e7):
        return None
    return PcieRate(metrics[metric] * _MIB, "gpm")
