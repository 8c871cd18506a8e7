"""Each GPU: is it there, is it at work, what limits it, is it healthy."""

from __future__ import annotations

from dashboards import colors
from dashboards.layout import Line, Section
from dashboards.page import GPU_HOST_VARIABLE, GPU_VARIABLE, page
from dashboards.panels import (
    AnyPanel,
    Help,
    Override,
    Query,
    Steps,
    graph,
    listing,
    number,
)
from dashboards.promql import GPU_LEGEND, HOST, SIMULATED, per_gpu, rate
from dashboards.sdk import units
from dashboards.thresholds import SM_ACTIVE

UID = "tailwatch-gpu"

SELECTED = 'index=~"$gpu"'
# Age when Prometheus read it: the time since that scrape says nothing about the GPU.
SAMPLE_AGE = (
    f"(timestamp(gpu_last_sample_timestamp_seconds{{{HOST}}})"
    f" - gpu_last_sample_timestamp_seconds{{{HOST}}})"
)
AGE_STEPS: Steps = [(colors.GOOD, None), (colors.WARN, 1.5), (colors.BAD, 3)]  # sampled each second


def build() -> str:
    """Return the dashboard's JSON."""
    present = [
        Line(5, [gpus(), found(), silent(), simulated()], widths=[12, 4, 4, 4]),
    ]
    work = [
        Line(8, [sm_active(), utilization(), memory()]),
        Line(8, [dram_active(), process_memory(), pcie_in(), pcie_out()]),
    ]
    limits = [Line(7, [clocks(), throttled()]), Line(7, [power(), temperature()])]
    health = [Line(7, [age(), nvml_errors(), hardware_errors()])]
    return page(
        UID,
        "Is each GPU there, at work, held back, healthy.",
        [GPU_HOST_VARIABLE, GPU_VARIABLE],
        [
            Section("", present),
            Section("Work", work),
            Section("What holds it back", limits),
            Section("Health", health),
        ],
    )


def selected(series: str) -> str:
    """Return series of the selected GPUs, named by host and index."""
    return per_gpu(series, SELECTED)


def gpus() -> AnyPanel:
    """Return the list of GPUs."""
    named = (
        f"{SAMPLE_AGE} * on (host, uuid) group_left (index, name, driver) "
        f"gpu_info{{{HOST},{SELECTED}}}"
    )
    return listing(
        "GPUs",
        f"max by (host, index, name, driver) ({named})",
        Help(
            "Good: every GPU of the host is listed and its sample is younger than 3 s. "
            "A GPU whose name says simulated is not hardware. Empty: no GPU, or no driver.",
            runbook="SignalMissing",
        ),
        columns={
            "host": ("Host", 140),
            "index": ("GPU", 60),
            "name": ("Name", 0),
            "driver": ("Driver", 110),
            "Value": ("Sample age", 110),
        },
        value_unit=units.Seconds,
        value_steps=AGE_STEPS,
    )


def found() -> AnyPanel:
    """Return the number of GPUs."""
    return number(
        "Found",
        units.NoUnit,
        f"sum(gpu_devices{{{HOST}}})",
        Help("Good: as many as are installed. 0: the driver runs and sees none."),
        when_absent="no NVML",
        decimals=0,
    )


def silent() -> AnyPanel:
    """Return how many GPUs give no samples."""
    return number(
        "Not answering",
        units.NoUnit,
        f"count(gpu_up{{{HOST}}} == 0) or 0 * count(gpu_up{{{HOST}}})",
        Help(
            "Good: 0. GPUs whose last sample is too old: hung, fallen off the bus, or the driver "
            "is gone. Their other series stop.",
            runbook="SignalMissing",
        ),
        steps=[(colors.GOOD, None), (colors.BAD, 1)],
        when_absent="no GPU",
        filled=True,
        decimals=0,
    )


def simulated() -> AnyPanel:
    """Return how many GPUs are simulated."""
    every = f"count(gpu_info{{{HOST}}})"
    return number(
        "Simulated",
        units.NoUnit,
        f"count(gpu_info{{{SIMULATED},{HOST}}}) or 0 * {every}",
        Help("Good: 0 outside a demo. Simulated GPUs are a device model, not hardware."),
        steps=[(colors.GOOD, None), ("yellow", 1)],
        when_absent="no GPU",
        filled=True,
        decimals=0,
    )


def sm_active() -> AnyPanel:
    """Return the share of SMs at work."""
    return graph(
        "SM active",
        units.PercentUnit,
        [Query(selected(f"gpu_sm_active_ratio{{{HOST}}}"), GPU_LEGEND)],
        Help(
            f"Good: high while requests wait; below {SM_ACTIVE:.0%} (dashed) with requests "
            "waiting, the GPU starves. Empty: this GPU has no GPM counters (before Hopper).",
            runbook="GpuStarvedUnderLoad",
        ),
        maximum=1,
        limits=[("transparent", None), (colors.LIMIT, SM_ACTIVE)],
        when_empty="no GPM counters",
    )


def utilization() -> AnyPanel:
    """Return the share of time with a kernel running."""
    return graph(
        "Utilisation",
        units.PercentUnit,
        [Query(selected(rate("gpu_busy_seconds_total", f'engine="compute",{HOST}')), GPU_LEGEND)],
        Help(
            "Good: high while requests wait. Share of time in which any kernel ran: one small "
            "kernel counts like a full chip, so read SM active beside it.",
            runbook="GpuStarvedUnderLoad",
        ),
        maximum=1,
        when_empty="no GPU",
    )


def memory() -> AnyPanel:
    """Return used and total video memory."""
    return graph(
        "Video memory (total dashed)",
        units.BytesIEC,
        [
            Query(selected(f"gpu_memory_used_bytes{{{HOST}}}"), GPU_LEGEND),
            Query(selected(f"gpu_memory_total_bytes{{{HOST}}}"), f"{GPU_LEGEND} total"),
        ],
        Help("Good: flat after start-up, with room under the total (dashed)."),
        overrides=[Override("total$", color=colors.MUTED, dashed=True, in_legend=False)],
        when_empty="no GPU",
    )


def dram_active() -> AnyPanel:
    """Return the share of time the memory interface was busy."""
    return graph(
        "Memory bandwidth in use",
        units.PercentUnit,
        [Query(selected(f"gpu_dram_active_ratio{{{HOST}}}"), GPU_LEGEND)],
        Help(
            "Good: below 80 %. High with SM active low: the model is bound by memory, not by "
            "compute. Empty: this GPU has no GPM counters (before Hopper).",
            runbook="GpuStarvedUnderLoad",
        ),
        maximum=1,
        when_empty="no GPM counters",
    )


def process_memory() -> AnyPanel:
    """Return video memory by process group."""
    return graph(
        "Video memory by program",
        units.BytesIEC,
        [Query(selected(f"gpu_process_memory_bytes{{{HOST}}}"), f"{GPU_LEGEND} {{{{group}}}}")],
        Help(
            "Good: the programs that you expect, each at its usual size. Another one beside them "
            "takes compute, too. Empty: nothing runs, or the driver does not tell.",
        ),
        when_empty="no process known",
    )


def pcie_in() -> AnyPanel:
    """Return bytes from host to GPU."""
    return graph(
        "PCIe, host to GPU",
        units.BytesPerSecondSI,
        _pcie("gpu_pcie_receive_bytes_total", "gpu_pcie_receive_bytes_per_second"),
        Help(
            "Good: well below the link (about 25 GB/s for generation 4 with 16 lanes). "
            "High while the GPU idles: inputs are copied in pieces, or from pageable memory.",
            runbook="GpuStarvedUnderLoad",
        ),
        when_empty="no GPU",
    )


def pcie_out() -> AnyPanel:
    """Return bytes from GPU to host."""
    return graph(
        "PCIe, GPU to host",
        units.BytesPerSecondSI,
        _pcie("gpu_pcie_transmit_bytes_total", "gpu_pcie_transmit_bytes_per_second"),
        Help("Good: below host to GPU, for a service that returns less than it takes."),
        when_empty="no GPU",
    )


def clocks() -> AnyPanel:
    """Return the SM clock against its maximum."""
    sm = f'domain="sm",{HOST}'
    return graph(
        "SM clock (maximum dashed)",
        units.Hertz,
        [
            Query(selected(f"gpu_clock_hertz{{{sm}}}"), GPU_LEGEND),
            Query(selected(f"gpu_clock_max_hertz{{{sm}}}"), f"{GPU_LEGEND} maximum"),
        ],
        Help("Good: near the maximum (dashed) under load. An idle GPU lowers its clock."),
        overrides=[Override("maximum$", color=colors.MUTED, dashed=True, in_legend=False)],
        when_empty="no GPU",
    )


def throttled() -> AnyPanel:
    """Return the share of time the clock was held down, by reason."""
    held = rate("gpu_clock_event_seconds_total", HOST)
    return graph(
        "Clock held down, by reason",
        units.PercentUnit,
        [Query(selected(held), f"{GPU_LEGEND} {{{{reason}}}}")],
        Help(
            "Good: 0. Share of time in which power or heat lowered the clock. "
            "Empty: the driver does not count it.",
        ),
        maximum=1,
        legend_on_right=True,
        when_empty="not counted by this driver",
    )


def power() -> AnyPanel:
    """Return power against its limit."""
    return graph(
        "Power (limit dashed)",
        units.Watt,
        [
            Query(selected(f"gpu_power_watts{{{HOST}}}"), GPU_LEGEND),
            Query(selected(f"gpu_power_limit_watts{{{HOST}}}"), f"{GPU_LEGEND} limit"),
        ],
        Help("Good: below the limit (dashed). At the limit the clock goes down."),
        overrides=[Override("limit$", color=colors.MUTED, dashed=True, in_legend=False)],
        when_empty="no GPU",
    )


def temperature() -> AnyPanel:
    """Return temperatures per sensor."""
    return graph(
        "Temperature",
        units.Celsius,
        [Query(selected(f"gpu_temperature_celsius{{{HOST}}}"), f"{GPU_LEGEND} {{{{sensor}}}}")],
        Help("Good: below 80 °C, and level under steady load."),
        when_empty="no GPU",
    )


def age() -> AnyPanel:
    """Return the age of each GPU's newest sample."""
    return graph(
        "Sample age",
        units.Seconds,
        [Query(selected(SAMPLE_AGE), GPU_LEGEND)],
        Help(
            "Good: below 1.5 s, at one sample a second. Age at the moment of the scrape: it climbs "
            "while a GPU does not answer, until its series stop.",
            runbook="SignalMissing",
        ),
        when_empty="no GPU",
    )


def nvml_errors() -> AnyPanel:
    """Return failing NVML calls and answers that cannot be true."""
    failing = rate("gpu_nvml_errors_total", HOST)
    rejected = rate("gpu_rejected_values_total", HOST)
    return graph(
        "NVML errors, rejected values",
        units.CountsPerSecond,
        [
            Query(selected(failing), f"{GPU_LEGEND} {{{{call}}}} {{{{code}}}}"),
            Query(selected(rejected), f"{GPU_LEGEND} rejected {{{{field}}}}"),
        ],
        Help(
            "Good: near 0. Code 3 (not supported) comes back once in 60 samples. A rejected value "
            "cannot be true and was not published. Empty: no call ever failed.",
            runbook="SignalMissing",
        ),
        when_empty="no call ever failed",
    )


def hardware_errors() -> AnyPanel:
    """Return XID and ECC errors."""
    xid = f"increase(gpu_xid_errors_total{{{HOST}}}[$__rate_interval])"
    ecc = f'increase(gpu_ecc_errors_total{{type="uncorrected",{HOST}}}[$__rate_interval])'
    replays = f"increase(gpu_pcie_replays_total{{{HOST}}}[$__rate_interval])"
    return graph(
        "Hardware errors",
        units.Short,
        [
            Query(selected(xid), f"{GPU_LEGEND} XID {{{{xid}}}}"),
            Query(selected(ecc), f"{GPU_LEGEND} ECC {{{{scope}}}}"),
            Query(selected(replays), f"{GPU_LEGEND} PCIe replays"),
        ],
        Help(
            "Good: none. An uncorrected ECC error, XID 48 or 79 (off the bus): drain the GPU and "
            "reset it or its host; if it comes back, replace it. XID 63: a bad memory row is "
            "replaced at the next reset.",
        ),
        when_empty="nothing ever failed",
    )


def _pcie(counter: str, gauge: str) -> list[Query]:
    legend = f"{GPU_LEGEND} {{{{source}}}}"  # a GPU may change from one source to another
    return [
        Query(selected(rate(counter, HOST)), legend),
        Query(selected(f"{gauge}{{{HOST}}}"), legend),
    ]
