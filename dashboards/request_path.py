"""One request's way through a service, in causal order: ingress to postprocess."""

from __future__ import annotations

from dashboards import colors
from dashboards.layout import Line, Section
from dashboards.page import SERVICE_VARIABLE, page
from dashboards.panels import (
    AnyPanel,
    Help,
    Override,
    Query,
    durations,
    graph,
    named,
    number,
)
from dashboards.promql import SERVICE, on_hardware, on_simulated, quantile, rate
from dashboards.sdk import units
from dashboards.service_numbers import requests, tp99, waiting
from dashboards.thresholds import ERROR_BUDGET, PAUSE_SHARE

UID = "tailwatch-request-path"

DURATION = "inference_request_duration_seconds"


def build() -> str:
    """Return the dashboard's JSON."""
    where = [
        Line(3, [requests(), in_flight(), oldest(), waiting(), rejected(), tp99()]),
        Line(
            8,
            [stage_seconds(), stage_shares("true"), stage_shares("false")],
            widths=[10, 7, 7],
        ),
        Line(8, [latency(), distribution()]),
    ]
    arrival = [
        Line(7, [arrivals(), stage("ingress", INGRESS), flight()]),
        Line(7, [depth(), queue_wait(), drain(), rejects()]),
    ]
    work = [
        Line(8, [stage("preprocess", PREPROCESS), stage("inference", INFERENCE), gpu_active()]),
        Line(7, [stage("postprocess", POSTPROCESS), outcomes(), other_stages()]),
    ]
    runtime = [Line(7, [loop_lost(), loop_lag(), gc_share(), gc_longest()])]
    return page(
        UID,
        "Where a request spends its time, from arrival to the last byte.",
        [SERVICE_VARIABLE],
        [
            Section("", where),
            Section("Arrival and queue", arrival),
            Section("Stages", work),
            Section("Python runtime", runtime),
        ],
    )


INGRESS = Help(
    "Good: about 1 ms. From the first byte to the first stage: reading the body, parsing, "
    "dependencies, and a queue that stands before preprocessing.",
    runbook="LatencyTailDivergence",
)
PREPROCESS = Help(
    "Good: shorter than inference. CPU work on the request; where it grows while the GPU idles, "
    "preprocessing starves the GPU.",
    runbook="GpuStarvedUnderLoad",
)
INFERENCE = Help(
    "Good: TP99 close to TP50. Includes the wait for the device's other work. CUDA runs "
    "asynchronously: time moves to whatever stage waits for the result.",
    runbook="LatencyTailDivergence",
)
POSTPROCESS = Help(
    "Good: about 1 ms. After the model: decoding, serialising, sending.",
    runbook="LatencyTailDivergence",
)


def in_flight() -> AnyPanel:
    """Return requests being served."""
    return number(
        "In flight",
        units.Short,
        f"sum(inference_requests_in_flight{{{SERVICE}}})",
        Help("Good: about requests per second times latency (Little's law)."),
        decimals=0,
    )


def oldest() -> AnyPanel:
    """Return the age of the oldest request in flight."""
    return number(
        "Oldest in flight",
        units.Seconds,
        f"max(inference_oldest_in_flight_seconds{{{SERVICE}}})",
        Help(
            "Good: below TP99. A request that hangs never finishes, so no latency shows it; "
            "here it grows by a second every second.",
            runbook="QueueBeyondTimeout",
        ),
    )


def rejected() -> AnyPanel:
    """Return the share of requests that were turned away."""
    turned_away = rate("inference_outcomes_total", f'outcome="rejected",{SERVICE}')
    every = rate("inference_outcomes_total", SERVICE)
    return number(
        "Rejected",
        units.PercentUnit,
        f"sum({turned_away}) / (sum({every}) > 0)",
        Help(
            "Good: 0, and a few percent during overload: a bounded queue that rejects keeps the "
            "others fast.",
            runbook="ErrorBudgetFastBurn",
        ),
        steps=[(colors.GOOD, None), (colors.WARN, ERROR_BUDGET), (colors.BAD, 10 * ERROR_BUDGET)],
        when_absent="no traffic",
        decimals=1,
    )


def stage_seconds() -> AnyPanel:
    """Return the mean request, split into exclusive stage seconds."""
    total = f"sum({rate(f'{DURATION}_count', SERVICE)}) > 0"
    return graph(
        "The mean request, by stage",
        units.Seconds,
        [
            Query(f"sum by (stage) ({_stage_rate(stage)}) / on () group_left () ({total})", name)
            for name, stage in _stages()
        ],
        Help(
            "Good: inference is most of it. Exclusive seconds: every instant of a request counts "
            "for one stage, so the stack adds up to the mean latency.",
            runbook="LatencyTailDivergence",
        ),
        overrides=named(colors.STAGES),
        stacked=True,
        when_empty="no traffic",
    )


def stage_shares(slow: str) -> AnyPanel:
    """Return each stage's share of the time of slow (`true`) or fast (`false`) requests."""
    title = {"true": "Slow requests, by stage", "false": "Fast requests, by stage"}[slow]
    which = f'slow="{slow}"'
    total = f"sum({rate('inference_stage_seconds_total', f'{which},{SERVICE}')}) > 0"
    about = {
        "true": "Good: empty (none was over the SLO), or the same picture as for fast requests. "
        "The stage that is larger here is where the tail comes from. Needs an SLO.",
        "false": "Good: inference is most of it. Requests within the SLO; all of them where the "
        "service has none.",
    }[slow]
    return graph(
        title,
        units.PercentUnit,
        [
            Query(
                f"sum by (stage) ({_stage_rate(stage, which)}) / on () group_left () ({total})",
                name,
            )
            for name, stage in _stages()
        ],
        Help(about, runbook="LatencyTailDivergence"),
        overrides=named(colors.STAGES),
        stacked=True,
        maximum=1,
        when_empty={"true": "no request over the SLO", "false": "no traffic"}[slow],
    )


def latency() -> AnyPanel:
    """Return TP50 and TP99 per route against SLO and client timeout."""
    return graph(
        "Latency by route",
        units.Seconds,
        [
            Query(quantile(0.99, DURATION, SERVICE, by="service, route"), "{{route}} TP99", True),
            Query(quantile(0.5, DURATION, SERVICE, by="service, route"), "{{route}} TP50"),
            Query(f"max by (service) (inference_slo_seconds{{{SERVICE}}})", "{{service}} SLO"),
        ],
        Help(
            "Good: TP99 below the SLO (dashed) and a small multiple of TP50. Points are traced "
            "requests. Rejected requests are not in here.",
            runbook="LatencyTailDivergence",
        ),
        overrides=[
            Override("TP99$", color=colors.TP99),
            Override("TP50$", color=colors.TP50),
            Override("SLO$", color=colors.LIMIT, dashed=True),
        ],
        when_empty="no traffic",
    )


def distribution() -> AnyPanel:
    """Return the latency histogram over time."""
    return durations(
        "Latency distribution",
        f"sum by (le) ({rate(f'{DURATION}_bucket', SERVICE)})",
        Help(
            "Good: one narrow band. Two bands are two kinds of requests; a cloud above the band "
            "is queueing or pauses. Colour: requests per second.",
            runbook="LatencyTailDivergence",
        ),
    )


def arrivals() -> AnyPanel:
    """Return the request rate by route."""
    return graph(
        "Requests by route",
        units.RequestsPerSecond,
        [Query(f"sum by (route) ({rate('inference_requests_total', SERVICE)})", "{{route}}")],
        Help("Good: the usual for this hour. `__unmatched__`: no route matched (404)."),
    )


def flight() -> AnyPanel:
    """Return requests in flight and the oldest one's age."""
    return graph(
        "In flight, and the oldest",
        units.Short,
        [
            Query(
                f"sum by (service) (inference_requests_in_flight{{{SERVICE}}})",
                "{{service}} in flight",
            ),
            Query(
                f"max by (service) (inference_oldest_in_flight_seconds{{{SERVICE}}})",
                "{{service}} oldest",
            ),
        ],
        Help(
            "Good: both flat. An oldest request (right axis) that rises in a straight line hangs.",
            runbook="QueueBeyondTimeout",
        ),
        overrides=[
            Override("in flight$", color=colors.CALM),
            Override("oldest$", color="yellow", right_axis_unit=units.Seconds),
        ],
    )


def depth() -> AnyPanel:
    """Return the queues' depth."""
    return graph(
        "Queue depth",
        units.Short,
        [
            Query(
                f"sum by (service, queue) (inference_queue_depth{{{SERVICE}}})",
                "{{service}} {{queue}}",
            )
        ],
        Help(
            "Good: mostly 0, with a ceiling. A straight climb is a queue without a bound. "
            "Empty: the service has no queue instrument.",
            runbook="QueueBeyondTimeout",
        ),
        when_empty="no queue instrument",
    )


def queue_wait() -> AnyPanel:
    """Return how long requests wait in queues."""
    wait = "inference_queue_wait_seconds"
    return graph(
        "Queue wait",
        units.Seconds,
        [
            Query(quantile(0.99, wait, SERVICE, by="queue"), "{{queue}} TP99"),
            Query(quantile(0.5, wait, SERVICE, by="queue"), "{{queue}} TP50"),
        ],
        Help(
            "Good: below the time of the work itself. Empty: no queue instrument, or nobody "
            "waited.",
            runbook="QueueBeyondTimeout",
        ),
        overrides=[Override("TP99$", color=colors.TP99), Override("TP50$", color=colors.TP50)],
        when_empty="nobody waited",
    )


def drain() -> AnyPanel:
    """Return the time to empty the queue against the client's patience."""
    timeout = f"max by (service) (inference_client_timeout_seconds{{{SERVICE}}})"
    return graph(
        "Time to drain the queue",
        units.Seconds,
        [
            Query(f"service:queue_drain_seconds{{{SERVICE}}} < +Inf", "{{service}} drain"),
            Query(timeout, "{{service}} client timeout"),
        ],
        Help(
            "Good: well below the client's timeout (dashed): who joins the queue now is answered "
            "in time. Depth divided by the completion rate; a gap while requests wait means that "
            "nothing completes.",
            runbook="QueueBeyondTimeout",
        ),
        overrides=[
            Override("drain$", color=colors.WARN),
            Override("client timeout$", color=colors.LIMIT, dashed=True),
        ],
    )


def rejects() -> AnyPanel:
    """Return rejected requests by reason."""
    return graph(
        "Rejected requests by reason",
        units.RequestsPerSecond,
        [Query(f"sum by (reason) ({rate('inference_rejected_total', SERVICE)})", "{{reason}}")],
        Help(
            "Good: 0; during overload, what exceeds capacity. Empty: no queue instrument.",
            runbook="ErrorBudgetFastBurn",
        ),
        stacked=True,
        when_empty="no queue instrument",
    )


def stage(name: str, about: Help) -> AnyPanel:
    """Return TP50 and TP99 of one stage."""
    selector = f'stage="{name}",{SERVICE}'
    histogram = "inference_stage_duration_seconds"
    return graph(
        name.capitalize(),
        units.Seconds,
        [
            Query(quantile(0.99, histogram, selector, by="service"), "{{service}} TP99"),
            Query(quantile(0.5, histogram, selector, by="service"), "{{service}} TP50"),
        ],
        about,
        overrides=[Override("TP99$", color=colors.TP99), Override("TP50$", color=colors.TP50)],
    )


def other_stages() -> AnyPanel:
    """Return the TP99 of the stages that have no panel of their own."""
    selector = f'stage!~"ingress|preprocess|inference|postprocess",{SERVICE}'
    return graph(
        "Other stages, TP99",
        units.Seconds,
        [
            Query(
                quantile(0.99, "inference_stage_duration_seconds", selector, by="stage"),
                "{{stage}}",
            )
        ],
        Help(
            "Good: short. The service's own stages, the wait for a batch, copies, and what no "
            "stage covers (unattributed). Empty: there are none.",
            runbook="LatencyTailDivergence",
        ),
        overrides=named(colors.STAGES),
        when_empty="no other stages",
    )


def gpu_active() -> AnyPanel:
    """Return how busy the service's GPUs are."""
    sm_active = f"service:gpu_sm_active:ratio5m{{{SERVICE}}}"
    utilization = f"service:gpu_utilization:ratio5m{{{SERVICE}}}"
    return graph(
        "Its GPUs",
        units.PercentUnit,
        [
            Query(on_hardware(sm_active), "{{service}} SM active"),
            Query(on_hardware(utilization), "{{service}} utilisation"),
            Query(on_simulated(sm_active), "{{service}} (simulated) SM active"),
            Query(on_simulated(utilization), "{{service}} (simulated) utilisation"),
        ],
        Help(
            "Good: high while requests wait. Mean of 5 minutes over the GPUs that the service "
            "names in inference_gpu_info. Empty: it names none, or no exporter sees them.",
            runbook="GpuStarvedUnderLoad",
        ),
        overrides=[
            Override("SM active$", color=colors.GOOD),
            Override("utilisation$", color=colors.CALM, dashed=True),
        ],
        maximum=1,
        when_empty="no GPU known",
    )


def outcomes() -> AnyPanel:
    """Return requests by outcome."""
    return graph(
        "Requests by outcome",
        units.RequestsPerSecond,
        [Query(f"sum by (outcome) ({rate('inference_outcomes_total', SERVICE)})", "{{outcome}}")],
        Help(
            "Good: ok, and a few client_error. error_midstream: the answer broke off. "
            "cancelled: the service itself stopped the request.",
            runbook="ErrorBudgetFastBurn",
        ),
        overrides=named(colors.OUTCOMES),
        stacked=True,
    )


def loop_lost() -> AnyPanel:
    """Return the share of time the event loop was held up."""
    lost = rate("python_event_loop_lost_seconds_total", SERVICE)
    return graph(
        "Event loop held up",
        units.PercentUnit,
        [Query(f"max by (service) ({lost})", "{{service}}")],
        Help(
            f"Good: below {PAUSE_SHARE:.0%} (dashed). Share of time in which the loop could not "
            "run what was due: blocking calls, CPU work or a pause. Empty: no event loop.",
            runbook="LatencyTailDivergence",
        ),
        limits=[("transparent", None), (colors.LIMIT, PAUSE_SHARE)],
        when_empty="no event loop",
    )


def loop_lag() -> AnyPanel:
    """Return the longest recent hold-up of the event loop."""
    return graph(
        "Longest hold-up of the loop",
        units.Seconds,
        [
            Query(
                f"max by (service) (python_event_loop_lag_max_seconds{{{SERVICE}}})", "{{service}}"
            )
        ],
        Help(
            "Good: below 50 ms. Every request in flight waits this long at once.",
            runbook="LatencyTailDivergence",
        ),
        when_empty="no event loop",
    )


def gc_share() -> AnyPanel:
    """Return the share of time in garbage collection."""
    pauses = rate("python_gc_pause_seconds_total", SERVICE)
    return graph(
        "Garbage collection",
        units.PercentUnit,
        [Query(f"max by (service) ({pauses})", "{{service}}")],
        Help(
            f"Good: below {PAUSE_SHARE:.0%} (dashed). Share of time in which Python collected "
            "garbage and ran nothing else.",
            runbook="LatencyTailDivergence",
        ),
        limits=[("transparent", None), (colors.LIMIT, PAUSE_SHARE)],
    )


def gc_longest() -> AnyPanel:
    """Return the longest recent garbage collection."""
    return graph(
        "Longest garbage collection",
        units.Seconds,
        [Query(f"max by (service) (python_gc_pause_max_seconds{{{SERVICE}}})", "{{service}}")],
        Help(
            "Good: below 50 ms. Long pauses with a steady interval are full collections over "
            "many live objects: gc.freeze() after loading the model.",
            runbook="LatencyTailDivergence",
        ),
    )


def _stages() -> list[tuple[str, str]]:
    """Return (legend, matcher) in causal order, which is the order in which a stack piles up.

    Waiting for a batch, copies and a service's own stages mostly lie between preprocessing and
    inference.
    """
    named_here = "ingress|preprocess|inference|postprocess"
    return [
        ("ingress", 'stage="ingress"'),
        ("preprocess", 'stage="preprocess"'),
        ("{{stage}}", f'stage!~"{named_here}"'),
        ("inference", 'stage="inference"'),
        ("postprocess", 'stage="postprocess"'),
    ]


def _stage_rate(stage: str, which: str = "") -> str:
    selector = ",".join(part for part in (stage, which, SERVICE) if part)
    return rate("inference_stage_seconds_total", selector)
