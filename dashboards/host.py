"""The machine under the services: cores, threads, memory, pressure, network, disks."""

from __future__ import annotations

from dashboards import colors
from dashboards.layout import Line, Section
from dashboards.page import HOST_VARIABLE, page
from dashboards.panels import (
    AnyPanel,
    Help,
    Override,
    Query,
    bars,
    graph,
    named,
    number,
)
from dashboards.promql import HOST, rate
from dashboards.sdk import units
from dashboards.thresholds import HOT_THREAD

UID = "tailwatch-host"

IDLE = f'mode=~"idle|iowait",{HOST}'


def build() -> str:
    """Return the dashboard's JSON."""
    now = [Line(3, [busy(), hottest_thread(), memory_used(), pressure_now()])]
    cpu = [
        Line(8, [modes(), cores(), hottest_cores()], widths=[8, 9, 7]),
        Line(8, [threads(), hottest_threads(), load()], widths=[9, 7, 8]),
    ]
    memory = [Line(7, [memory_bytes(), swap(), pressure()])]
    traffic = [
        Line(7, [received(), sent()]),
        Line(7, [disk_reads(), disk_writes(), disk_busy()]),
    ]
    return page(
        UID,
        "What the machine under the services is short of: CPU, memory, network or disk.",
        [HOST_VARIABLE],
        [
            Section("", now),
            Section("CPU", cpu),
            Section("Memory and pressure", memory),
            Section("Network and disks", traffic),
        ],
    )


def busy() -> AnyPanel:
    """Return the share of CPU in use."""
    idle = rate("host_cpu_seconds_total", IDLE)
    return number(
        "CPU, all cores",
        units.PercentUnit,
        f"1 - avg(sum by (host, cpu) ({idle}))",
        Help("Good: below 80 %. One hot thread hides in here: see the busiest thread."),
        steps=[(colors.GOOD, None), (colors.WARN, 0.8), (colors.BAD, 0.95)],
        decimals=0,
    )


def hottest_thread() -> AnyPanel:
    """Return the busiest thread."""
    return number(
        "Busiest thread",
        units.PercentUnit,
        f"max(host_thread_cpu_max_ratio{{{HOST}}})",
        Help(
            f"Good: below {HOT_THREAD:.0%} of one core. A thread at 100 % is a limit that more "
            "cores do not lift.",
            runbook="GpuStarvedUnderLoad",
        ),
        steps=[(colors.GOOD, None), (colors.WARN, HOT_THREAD)],
        decimals=0,
    )


def memory_used() -> AnyPanel:
    """Return the share of memory in use."""
    used = f"1 - host_memory_available_bytes{{{HOST}}} / host_memory_total_bytes{{{HOST}}}"
    return number(
        "Memory in use",
        units.PercentUnit,
        f"max({used})",
        Help("Good: below 90 %. The fullest of the selected hosts."),
        steps=[(colors.GOOD, None), (colors.WARN, 0.9), (colors.BAD, 0.97)],
        decimals=0,
    )


def pressure_now() -> AnyPanel:
    """Return the worst pressure."""
    waited = rate("host_pressure_waiting_seconds_total", HOST)
    return number(
        "Worst pressure",
        units.PercentUnit,
        f"max({waited})",
        Help(
            "Good: below 10 %. Share of time in which some task waited for CPU, memory or I/O "
            "(PSI).",
        ),
        steps=[(colors.GOOD, None), (colors.WARN, 0.1), (colors.BAD, 0.4)],
        when_absent="no PSI",
        decimals=0,
    )


def modes() -> AnyPanel:
    """Return CPU time by mode."""
    seconds = rate("host_cpu_seconds_total", f'mode!="idle",{HOST}')
    every = rate("host_cpu_seconds_total", HOST)
    return graph(
        "CPU by mode",
        units.PercentUnit,
        [Query(f"sum by (mode) ({seconds}) / on () group_left () sum({every})", "{{mode}}")],
        Help(
            "Good: mostly user. system: many small calls or context switches; steal: the "
            "hypervisor gave the core to someone else; iowait: idle while a disk was busy.",
        ),
        overrides=named(colors.CPU_MODES),
        stacked=True,
        maximum=1,
    )


def cores() -> AnyPanel:
    """Return each core's busy share."""
    return graph(
        "Each core",
        units.PercentUnit,
        [Query(_busy_cores(), "{{host}} CPU {{cpu}}")],
        Help(
            "Good: even. One line at the top is one thread that does all the work; a hot thread "
            "that moves between cores does not show here, but under busiest threads.",
            runbook="GpuStarvedUnderLoad",
        ),
        maximum=1,
    )


def hottest_cores() -> AnyPanel:
    """Return the busiest cores now."""
    return bars(
        "Busiest cores now",
        units.PercentUnit,
        [Query(f"topk(8, {_busy_cores()})", "{{host}} CPU {{cpu}}", now=True)],
        Help("Good: even, below 90 %.", runbook="GpuStarvedUnderLoad"),
        steps=[(colors.GOOD, None), (colors.WARN, 0.8), (colors.BAD, 0.95)],
        maximum=1,
    )


def threads() -> AnyPanel:
    """Return the busiest threads over time, by process group."""
    busiest = f"max_over_time(host_thread_cpu_max_ratio{{{HOST}}}[$__range] @ end())"
    return graph(
        "Busiest threads",
        units.PercentUnit,
        [
            Query(
                f"host_thread_cpu_max_ratio{{{HOST}}} and on (host, group) topk(8, {busiest})",
                "{{host}} {{group}}",
            )
        ],
        Help(
            f"Good: below {HOT_THREAD:.0%} (dashed) of one core. The busiest thread of each of "
            "the eight process groups that were busiest in this time range. Python runs one "
            "thread at a time: a group at 100 % is at its limit.",
            runbook="GpuStarvedUnderLoad",
        ),
        limits=[("transparent", None), (colors.LIMIT, HOT_THREAD)],
    )


def hottest_threads() -> AnyPanel:
    """Return the busiest threads now."""
    return bars(
        "Busiest threads now",
        units.PercentUnit,
        [Query(f"topk(8, host_thread_cpu_max_ratio{{{HOST}}})", "{{host}} {{group}}", now=True)],
        Help(f"Good: below {HOT_THREAD:.0%}.", runbook="GpuStarvedUnderLoad"),
        steps=[(colors.GOOD, None), (colors.WARN, HOT_THREAD)],
        maximum=1,
    )


def load() -> AnyPanel:
    """Return the load average against the number of cores."""
    idle_cores = f'count by (host) (host_cpu_seconds_total{{mode="idle",{HOST}}})'
    return graph(
        "Load",
        units.Short,
        [
            Query(f"host_load1{{{HOST}}}", "{{host}} 1 min"),
            Query(f"host_load5{{{HOST}}}", "{{host}} 5 min"),
            Query(idle_cores, "{{host}} cores"),
        ],
        Help("Good: below the number of cores (dashed). Counts tasks that wait for a disk, too."),
        overrides=[
            Override("1 min$", color=colors.CALM),
            Override("5 min$", color="light-purple"),
            Override("cores$", color=colors.MUTED, dashed=True),
        ],
    )


def memory_bytes() -> AnyPanel:
    """Return memory in use and total."""
    used = f"host_memory_total_bytes{{{HOST}}} - host_memory_available_bytes{{{HOST}}}"
    return graph(
        "Memory",
        units.BytesIEC,
        [
            Query(used, "{{host}} in use"),
            Query(f"host_memory_total_bytes{{{HOST}}}", "{{host}} total"),
        ],
        Help("Good: flat, with room under the total (dashed). Page cache counts as free."),
        overrides=[Override("total$", color=colors.MUTED, dashed=True)],
    )


def swap() -> AnyPanel:
    """Return swap traffic."""
    return graph(
        "Swapping",
        units.BytesPerSecondSI,
        [
            Query(rate("host_swap_in_bytes_total", HOST), "{{host}} in"),
            Query(rate("host_swap_out_bytes_total", HOST), "{{host}} out"),
        ],
        Help("Good: 0. Pages read back from swap stop the thread that needs them."),
        overrides=[Override("in$", color=colors.WARN), Override("out$", color=colors.CALM)],
    )


def pressure() -> AnyPanel:
    """Return pressure by resource."""
    return graph(
        "Pressure",
        units.PercentUnit,
        [Query(rate("host_pressure_waiting_seconds_total", HOST), "{{host}} {{resource}}")],
        Help(
            "Good: below 10 %. Share of time in which some task waited for the resource (PSI). "
            "Empty: the kernel has PSI switched off.",
        ),
        overrides=[Override(f"{name}$", color=color) for name, color in colors.PRESSURE.items()],
        when_empty="PSI is switched off",
    )


def received() -> AnyPanel:
    """Return incoming network traffic by device."""
    return graph(
        "Network in",
        units.BytesPerSecondSI,
        [Query(rate("host_network_receive_bytes_total", HOST), "{{host}} {{device}}")],
        Help("Good: well below the link's speed. lo is traffic inside the host."),
    )


def sent() -> AnyPanel:
    """Return outgoing network traffic by device."""
    return graph(
        "Network out",
        units.BytesPerSecondSI,
        [Query(rate("host_network_transmit_bytes_total", HOST), "{{host}} {{device}}")],
        Help("Good: well below the link's speed. lo is traffic inside the host."),
    )


def disk_reads() -> AnyPanel:
    """Return bytes read by device."""
    return graph(
        "Disk reads",
        units.BytesPerSecondSI,
        [Query(rate("host_disk_read_bytes_total", HOST), "{{host}} {{device}}")],
        Help("Good: quiet while serving. Reads then are models or data that did not stay cached."),
        when_empty="no disk",
    )


def disk_writes() -> AnyPanel:
    """Return bytes written by device."""
    return graph(
        "Disk writes",
        units.BytesPerSecondSI,
        [Query(rate("host_disk_written_bytes_total", HOST), "{{host}} {{device}}")],
        Help("Good: even. Bursts are checkpoints or logs, and can stall who logs synchronously."),
        when_empty="no disk",
    )


def disk_busy() -> AnyPanel:
    """Return the share of time each disk was busy."""
    return graph(
        "Disk busy",
        units.PercentUnit,
        [Query(rate("host_disk_io_seconds_total", HOST), "{{host}} {{device}}")],
        Help(
            "Good: below 60 %. Share of time with at least one request outstanding; an SSD at "
            "100 % may still have room, a single disk has none.",
        ),
        maximum=1,
        when_empty="no disk",
    )


def _busy_cores() -> str:
    return f"1 - sum by (host, cpu) ({rate('host_cpu_seconds_total', IDLE)})"
