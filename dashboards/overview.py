"""The first page at 3 a.m.: what fires, the likely cause, and every resource, on one screen."""

from __future__ import annotations

from dashboards import colors
from dashboards.layout import Line, Section
from dashboards.page import HOST_VARIABLE, SERVICE_VARIABLE, page
from dashboards.panels import (
    AnyPanel,
    Help,
    Override,
    Query,
    graph,
    link,
    named,
    names,
    number,
    page_link,
    states,
)
from dashboards.promql import (
    ERRORS,
    GPU_LEGEND,
    HOST,
    SERVICE,
    SYMPTOMS,
    WATCHDOG,
    ZERO_WHILE_ALERTING_WORKS,
    gpu_mean,
    per_gpu,
    quantile,
    rate,
)
from dashboards.sdk import units
from dashboards.service_numbers import requests, tp99, waiting
from dashboards.thresholds import (
    ERROR_BUDGET,
    FAST_BURN,
    FAST_BURN_ERRORS,
    HOT_THREAD,
    TAIL_RATIO,
    WAITING,
)

UID = "tailwatch-overview"

TO_REQUEST_PATH = page_link("Request path", "tailwatch-request-path", "service")
TO_GPU = page_link("GPU", "tailwatch-gpu", "host")
TO_HOST = page_link("Host", "tailwatch-host", "host")


def build() -> str:
    """Return the dashboard's JSON."""
    lines = [
        Line(3, [firing(), requests(), errors(), tp50(), tp99(), tail(), waiting(), gpu_busy()]),
        Line(6, [alerts(), causes()], widths=[14, 10]),
        Line(7, [latency(), load(), failures()], widths=[9, 8, 7]),
        Line(7, [gpu(), gpu_memory(), cpu(), memory(), network()], widths=[5, 5, 5, 4, 5]),
    ]
    return page(
        UID,
        "Is something wrong, where, and why: symptoms and causes first, then users, then machines.",
        [SERVICE_VARIABLE, HOST_VARIABLE],
        [Section("", lines)],
    )


def firing() -> AnyPanel:
    """Return how many symptoms fire."""
    return number(
        "Firing now",
        units.NoUnit,
        f'count(ALERTS{{alertstate="firing",{SYMPTOMS}}}) or {ZERO_WHILE_ALERTING_WORKS}',
        Help(
            "Good: 0. Symptoms and broken monitoring that fire now. "
            "`no rules` means that the Watchdog does not fire: no rule is evaluated.",
            runbook="Watchdog",
        ),
        steps=[(colors.GOOD, None), (colors.BAD, 1)],
        when_absent="no rules",
        absent_color=colors.BAD,
        filled=True,
        decimals=0,
    )


def errors() -> AnyPanel:
    """Return the share of requests that count against the SLO."""
    failed = rate("inference_outcomes_total", f"{SERVICE},{ERRORS}")
    every = rate("inference_outcomes_total", SERVICE)
    return number(
        "Errors",
        units.PercentUnit,
        f"sum({failed}) / (sum({every}) > 0)",
        Help(
            f"Good: below {ERROR_BUDGET:.0%}, the budget. error, error_midstream, timeout and "
            f"rejected; red from {FAST_BURN:g} times the budget, where it pages.",
            runbook="ErrorBudgetFastBurn",
        ),
        steps=[
            (colors.GOOD, None),
            (colors.WARN, ERROR_BUDGET),
            (colors.BAD, FAST_BURN_ERRORS),
        ],
        when_absent="no traffic",
        decimals=1,
    )


def tp50() -> AnyPanel:
    """Return the median latency."""
    return number(
        "TP50",
        units.Seconds,
        quantile(0.5, "inference_request_duration_seconds", SERVICE),
        Help("Good: steady. Half of the admitted requests are faster than this."),
        steps=[(colors.TP50, None)],
        when_absent="no traffic",
    )


def tail() -> AnyPanel:
    """Return TP99/TP50 of the worst route."""
    return number(
        "TP99 / TP50",
        units.NoUnit,
        f"max(service_route:request_duration_seconds:tail_ratio5m{{{SERVICE}}})",
        Help(
            f"Good: 1.5 to 3; above {TAIL_RATIO:g} the tail diverges. The worst route over "
            "5 minutes; absent below 100 requests in 5 minutes, where TP99 means little.",
            runbook="LatencyTailDivergence",
        ),
        steps=[(colors.GOOD, None), (colors.WARN, TAIL_RATIO * 0.75), (colors.BAD, TAIL_RATIO)],
        when_absent="too few",
        decimals=1,
    )


def gpu_busy() -> AnyPanel:
    """Return how busy the GPUs are on average."""
    sm_active = gpu_mean(f"gpu_sm_active_ratio{{{HOST}}}")
    utilization = gpu_mean(f'gpu_utilization_ratio{{engine="compute",{HOST}}}')
    return number(
        "GPU active",
        units.PercentUnit,
        f"{sm_active} or {utilization}",
        Help(
            "Good: high while requests wait. Mean share of SMs at work over the selected hosts' "
            "GPUs; utilisation where a GPU cannot tell (before Hopper).",
            runbook="GpuStarvedUnderLoad",
        ),
        when_absent="no GPU",
        decimals=0,
        name="mean{{simulated}}",
    )


def alerts() -> AnyPanel:
    """Return the alerts over time."""
    shown = SYMPTOMS
    ranked = (
        f'ALERTS{{alertstate="pending",{shown}}}'
        f' or 2 * ALERTS{{alertstate="firing",severity!="critical",{shown}}}'
        f' or 3 * ALERTS{{alertstate="firing",severity="critical",{shown}}}'
    )
    return states(
        "Symptoms",
        [
            Query(f"max by (alertname, service) ({ranked})", "{{alertname}} {{service}}"),
            Query(f"0 * max by (alertname) ({WATCHDOG})", "rules are evaluated"),
        ],
        Help(
            "Good: only the line that the Watchdog draws, which proves that rules are evaluated. "
            "Pending alerts have crossed their threshold but not yet for long enough.",
            runbook="Watchdog",
        ),
        mappings={
            0: ("watching", "dark-green"),
            1: ("pending", "yellow"),
            2: ("firing", "orange"),
            3: ("firing, pages", "red"),
        },
        links=[link("Runbook", "/runbooks/${__field.labels.alertname}")],
    )


def causes() -> AnyPanel:
    """Return the causes whose signals are present."""
    active = f"service:cause:active{{{SERVICE}}} > 0"
    # Of symptoms that fire or are about to.
    begun = f'on (cluster, service, symptom) ALERTS{{role="symptom",{SERVICE}}}'
    none = (
        f"label_replace({ZERO_WHILE_ALERTING_WORKS}, "
        f'"title", "No known cause is active", "", "") unless on () ({active})'
    )
    unwatched = (
        'label_replace(vector(2), "title", "No rule is evaluated: alerting is down", "", "")'
        f" unless on () ({ZERO_WHILE_ALERTING_WORKS})"
    )
    return names(
        "Likely causes",
        [
            Query(
                f"2 * max by (service, title) ({active} and {begun})",
                "{{service}}: {{title}}",
                now=True,
            ),
            Query(
                f"max by (service, title) ({active} unless {begun})",
                "{{service}}: {{title}}",
                now=True,
            ),
            Query(none, "{{title}}", now=True),
            Query(unwatched, "{{title}}", now=True),
        ],
        Help(
            "Good: none. Each tile is a cause whose signal is present now. Orange: its symptom "
            "fires or is pending. Grey: it has none so far, which is a warning at most.",
            runbook="GpuStarvedUnderLoad",
        ),
        steps=[("dark-green", None), (colors.MUTED, 1), ("dark-orange", 2)],
        links=[TO_REQUEST_PATH],
    )


def latency() -> AnyPanel:
    """Return TP50 and TP99 against the SLO, with exemplars."""
    duration = "inference_request_duration_seconds"
    return graph(
        "Latency",
        units.Seconds,
        [
            Query(quantile(0.99, duration, SERVICE, by="service"), "{{service}} TP99", True),
            Query(quantile(0.5, duration, SERVICE, by="service"), "{{service}} TP50"),
            Query(f"max by (service) (inference_slo_seconds{{{SERVICE}}})", "{{service}} SLO"),
        ],
        Help(
            "Good: TP99 below the SLO (dashed) and a small multiple of TP50. Points are traced "
            "requests: open one to see its stages. Rejected requests are not in here.",
            runbook="LatencyTailDivergence",
        ),
        overrides=[
            Override("TP99$", color=colors.TP99),
            Override("TP50$", color=colors.TP50),
            Override("SLO$", color=colors.LIMIT, dashed=True),
        ],
        links=[TO_REQUEST_PATH],
        when_empty="no traffic",
    )


def load() -> AnyPanel:
    """Return request rate and waiting requests."""
    by_service = f"sum by (service) ({rate('inference_requests_total', SERVICE)})"
    return graph(
        "Requests per second, and waiting",
        units.RequestsPerSecond,
        [
            Query(by_service, "{{service}} requests"),
            Query(f"service:requests_waiting:sum{{{SERVICE}}}", "{{service}} waiting"),
        ],
        Help(
            f"Good: waiting (right axis) stays below {WAITING:g}. Waiting that grows while "
            "requests do not means that the service got slower.",
            runbook="QueueBeyondTimeout",
        ),
        overrides=[
            Override("requests$", color=colors.CALM),
            Override("waiting$", color="yellow", right_axis_unit=units.Short),
        ],
        links=[TO_REQUEST_PATH],
    )


def failures() -> AnyPanel:
    """Return failed requests by kind, as a share of all."""
    failed = rate("inference_outcomes_total", f"{SERVICE},{ERRORS}")
    every = rate("inference_outcomes_total", SERVICE)
    share = f"sum by (outcome) ({failed}) / on () group_left () (sum({every}) > 0)"
    return graph(
        "Errors by kind",
        units.PercentUnit,
        [Query(share, "{{outcome}}")],
        Help(
            f"Good: below {ERROR_BUDGET:.0%} in sum (dashed). rejected: the queue was full or "
            "429. timeout: answered after the client had given up. Empty: no traffic.",
            runbook="ErrorBudgetFastBurn",
        ),
        overrides=named(colors.ERRORS),
        stacked=True,
        limits=[("transparent", None), (colors.LIMIT, ERROR_BUDGET)],
        when_empty="no traffic",
    )


def gpu() -> AnyPanel:
    """Return utilisation per GPU, and SM activity of all."""
    utilization = per_gpu(f'gpu_utilization_ratio{{engine="compute",{HOST}}}')
    return graph(
        "GPU utilisation",
        units.PercentUnit,
        [
            Query(utilization, GPU_LEGEND),
            Query(gpu_mean(f"gpu_sm_active_ratio{{{HOST}}}"), "SM active, mean{{simulated}}"),
        ],
        Help(
            "Good: high while requests wait. Utilisation is the share of time with any kernel "
            "running; SM active (dashed) the share of the chip at work. Empty: no GPU here.",
            runbook="GpuStarvedUnderLoad",
        ),
        overrides=[Override("^SM active", color="text", dashed=True)],
        maximum=1,
        links=[TO_GPU],
        when_empty="no GPU",
    )


def gpu_memory() -> AnyPanel:
    """Return used and total video memory per GPU."""
    return graph(
        "Video memory (total dashed)",
        units.BytesIEC,
        [
            Query(per_gpu(f"gpu_memory_used_bytes{{{HOST}}}"), GPU_LEGEND),
            Query(per_gpu(f"gpu_memory_total_bytes{{{HOST}}}"), f"{GPU_LEGEND} total"),
        ],
        Help(
            "Good: flat after start-up, with room under the total (dashed). "
            "Empty: no GPU on these hosts.",
        ),
        overrides=[Override("total$", color=colors.MUTED, dashed=True, in_legend=False)],
        links=[TO_GPU],
        when_empty="no GPU",
    )


def cpu() -> AnyPanel:
    """Return the hosts' CPU, their hottest core and busiest thread."""
    idle = rate("host_cpu_seconds_total", f'mode=~"idle|iowait",{HOST}')
    busy = f"1 - sum by (host, cpu) ({idle})"
    return graph(
        "CPU",
        units.PercentUnit,
        [
            Query(f"avg by (host) ({busy})", "{{host}} all cores"),
            Query(f"max by (host) ({busy})", "{{host}} hottest core"),
            Query(
                f"max by (host) (host_thread_cpu_max_ratio{{{HOST}}})", "{{host}} busiest thread"
            ),
        ],
        Help(
            f"Good: no thread above {HOT_THREAD:.0%}. One busy thread holds a service back while "
            "all cores together look idle. Who it is: the Host page.",
            runbook="GpuStarvedUnderLoad",
        ),
        overrides=[
            Override("all cores$", color=colors.CALM),
            Override("hottest core$", color="light-purple"),
            Override("busiest thread$", color="yellow"),
        ],
        maximum=1,
        links=[TO_HOST],
    )


def memory() -> AnyPanel:
    """Return the share of host memory in use."""
    used = f"1 - host_memory_available_bytes{{{HOST}}} / host_memory_total_bytes{{{HOST}}}"
    return graph(
        "Memory",
        units.PercentUnit,
        [Query(used, "{{host}}")],
        Help("Good: below 90 % and flat. What programs cannot get any more (MemAvailable)."),
        maximum=1,
        limits=[("transparent", None), (colors.LIMIT, 0.9)],
        links=[TO_HOST],
    )


def network() -> AnyPanel:
    """Return network traffic per host."""
    devices = f'device!~"lo|ifb.*|veth.*|docker.*|br-.*|cni.*|cali.*|flannel.*",{HOST}'
    received = rate("host_network_receive_bytes_total", devices)
    sent = rate("host_network_transmit_bytes_total", devices)
    return graph(
        "Network",
        units.BytesPerSecondSI,
        [
            Query(f"sum by (host) ({received})", "{{host}} in"),
            Query(f"sum by (host) ({sent})", "{{host}} out"),
        ],
        Help(
            "Good: well below the link's speed. Physical devices only: loopback and bridges are "
            "on the Host page.",
        ),
        overrides=[Override("in$", color="green"), Override("out$", color="blue")],
        links=[TO_HOST],
    )
