"""The families of the collector `gpu`: name -> (kind, help), in the order of the page."""

from __future__ import annotations

from typing import Literal

FAMILIES: dict[str, tuple[Literal["counter", "gauge"], str]] = {
    "nvml_up": (
        "gauge",
        "Whether NVML answers; the reason is one of ok, starting, library_not_found, "
        "driver_not_loaded, no_permission, version_mismatch, gpu_lost, hung, error.",
    ),
    "gpu_devices": ("gauge", "GPUs that NVML lists, those it cannot open included."),
    "gpu_up": ("gauge", "Whether the GPU was sampled within the last three sampling intervals."),
    "gpu_last_sample_timestamp_seconds": ("gauge", "When the GPU last answered, Unix time."),
    "gpu_nvml_errors_total": (
        "counter",
        "NVML calls that failed, by function and return code. A call that answers not supported "
        "or no permission is repeated once in 60 samples only.",
    ),
    "gpu_xid_errors_total": (
        "counter",
        "XID errors since the exporter began to listen, by number.",
    ),
    "gpu_xid_last_timestamp_seconds": ("gauge", "When the last XID error came, Unix time."),
    "gpu_info": (
        "gauge",
        "What the GPU is. memory_api says which NVML structure its memory was read with: v1 "
        "counts the driver's reserve as used.",
    ),
    "gpu_rejected_values_total": (
        "counter",
        "Answers that cannot be true and were not published, by NVML field.",
    ),
    "gpu_utilization_ratio": (
        "gauge",
        "Share of the driver's window (1/6 to 1 s) in which the engine had any work, 0..1. "
        "compute is 1 while a single kernel runs, however small: see gpu_sm_active_ratio.",
    ),
    "gpu_busy_seconds_total": (
        "counter",
        "Utilisation integrated over time by the sampler: its rate is the mean utilisation.",
    ),
    "gpu_gpm_supported": (
        "gauge",
        "Whether the GPU has GPM, which the activity ratios come from.",
    ),
    "gpu_sm_active_ratio": (
        "gauge",
        "Mean share of SMs that had a warp resident, 0..1 (GPM).",
    ),
    "gpu_sm_occupancy_ratio": (
        "gauge",
        "Mean share of warp slots that were in use, 0..1 (GPM).",
    ),
    "gpu_tensor_active_ratio": (
        "gauge",
        "Share of time in which the tensor cores were active, 0..1 (GPM).",
    ),
    "gpu_dram_active_ratio": (
        "gauge",
        "Share of the memory bandwidth's peak that was used, 0..1 (GPM).",
    ),
    "gpu_memory_used_bytes": (
        "gauge",
        "Device memory allocated, without the driver's reserve where memory_api is v2.",
    ),
    "gpu_memory_reserved_bytes": ("gauge", "Device memory that the driver keeps for itself."),
    "gpu_memory_free_bytes": ("gauge", "Device memory that is free."),
    "gpu_memory_total_bytes": ("gauge", "Device memory: used, reserved and free together."),
    "gpu_memory_unified": (
        "gauge",
        "1 where GPU and host share one memory, so that there is no device memory to report.",
    ),
    "gpu_process_memory_bytes": (
        "gauge",
        "Device memory of the processes of one name (comm).",
    ),
    "gpu_process_sm_utilization_ratio": (
        "gauge",
        "Share of the SMs' time that the processes of one name (comm) used, 0..1, as last sampled "
        "by the driver; absent for those that it saw idle.",
    ),
    "gpu_pcie_transmit_bytes_total": (
        "counter",
        "Bytes the GPU sent over PCIe (source field: NVML field 197, found to agree with "
        "the measured rate).",
    ),
    "gpu_pcie_receive_bytes_total": (
        "counter",
        "Bytes the GPU received over PCIe (source field: NVML field 198, found to agree with "
        "the measured rate).",
    ),
    "gpu_pcie_transmit_bytes_per_second": (
        "gauge",
        "Rate the GPU sent at over PCIe: source gpm is a mean over the sampling interval, "
        "throughput over 20 ms of it, in units of 1000 bytes (NVML says KB).",
    ),
    "gpu_pcie_receive_bytes_per_second": (
        "gauge",
        "Rate the GPU received at over PCIe: source gpm is a mean over the sampling interval, "
        "throughput over 20 ms of it, in units of 1000 bytes (NVML says KB).",
    ),
    "gpu_pcie_link_generation": (
        "gauge",
        "PCIe generation; the current one drops when the GPU idles.",
    ),
    "gpu_pcie_link_width": ("gauge", "PCIe lanes."),
    "gpu_pcie_replays_total": ("counter", "PCIe packets sent again after an error."),
    "gpu_nvlink_transmit_bytes_total": ("counter", "Payload bytes sent over the NVLink."),
    "gpu_nvlink_receive_bytes_total": ("counter", "Payload bytes received over the NVLink."),
    "gpu_clock_hertz": ("gauge", "Clock now."),
    "gpu_clock_max_hertz": ("gauge", "Highest clock."),
    "gpu_clock_event_seconds_total": (
        "counter",
        "Time in which the clocks were held down for the reason.",
    ),
    "gpu_power_watts": ("gauge", "Power of the board."),
    "gpu_power_limit_watts": ("gauge", "Power that the board is held to."),
    "gpu_energy_joules_total": ("counter", "Energy since the driver was loaded."),
    "gpu_temperature_celsius": ("gauge", "Temperature."),
    "gpu_ecc_errors_total": (
        "counter",
        "Memory errors; volatile counts from the driver's start, aggregate over the GPU's life.",
    ),
    "gpu_remapped_rows_total": ("counter", "Memory rows replaced by spare ones."),
    "gpu_mig_enabled": ("gauge", "Whether the GPU is split into MIG instances."),
    "gpu_mig_sm_active_ratio": (
        "gauge",
        "Mean share of the GPU instance's SMs that had a warp resident, 0..1 (GPM).",
    ),
    "gpu_mig_sm_occupancy_ratio": (
        "gauge",
        "Mean share of the GPU instance's warp slots that were in use, 0..1 (GPM).",
    ),
    "gpu_mig_tensor_active_ratio": (
        "gauge",
        "Share of time in which the GPU instance's tensor cores were active, 0..1 (GPM).",
    ),
    "gpu_mig_dram_active_ratio": (
        "gauge",
        "Share of the GPU instance's memory bandwidth that was used, 0..1 (GPM).",
    ),
}
