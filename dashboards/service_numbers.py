"""Numbers of a service that more than one dashboard opens with."""

from __future__ import annotations

from dashboards import colors
from dashboards.panels import AnyPanel, Help, number
from dashboards.promql import SERVICE, quantile, rate
from dashboards.sdk import units
from dashboards.thresholds import QUEUE_DEPTH, WAITING


def requests() -> AnyPanel:
    """Return the request rate."""
    return number(
        "Requests",
        units.RequestsPerSecond,
        f"sum({rate('inference_requests_total', SERVICE)})",
        Help("Good: the usual for this hour. All outcomes, rejected requests included."),
    )


def waiting() -> AnyPanel:
    """Return the number of requests that wait.

    A mean: a queue that bursts fill is empty at most scrapes.
    """
    return number(
        "Waiting",
        units.NoUnit,
        f"sum(service:requests_waiting:avg5m{{{SERVICE}}})",
        Help(
            f"Good: below {WAITING:g}. Requests in a queue, mean over 5 minutes; those in flight "
            "where a service has no queue.",
            runbook="QueueBeyondTimeout",
        ),
        steps=[(colors.GOOD, None), (colors.WARN, WAITING), (colors.BAD, QUEUE_DEPTH)],
        decimals=1,
    )


def tp99() -> AnyPanel:
    """Return the 99th percentile of latency."""
    return number(
        "TP99",
        units.Seconds,
        quantile(0.99, "inference_request_duration_seconds", SERVICE),
        Help(
            "Good: below the SLO. One admitted request in a hundred is slower than this.",
            runbook="LatencyTailDivergence",
        ),
        steps=[(colors.TP99, None)],
        when_absent="no traffic",
    )
