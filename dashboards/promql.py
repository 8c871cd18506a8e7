"""PromQL fragments that several panels share. Metric names stay literals at the caller."""

from __future__ import annotations

SERVICE = 'service=~"$service"'
HOST = 'host=~"$host"'
ERRORS = 'outcome=~"error|error_midstream|timeout|rejected"'

# The Watchdog, which always fires, has severity info.
ALL_SYMPTOMS = 'role=~"symptom|meta",severity!="info"'
# Alerts about a target or the pipeline carry no service: they are shown whatever is selected.
SYMPTOMS = f'{ALL_SYMPTOMS},service=~"$service|"'
WATCHDOG = 'ALERTS{alertname="Watchdog",alertstate="firing"}'
# 0 while the always-firing Watchdog proves that rules are evaluated; absent otherwise, so that
# a dead rule engine never reads as "nothing fires".
ZERO_WHILE_ALERTING_WORKS = f"0 * count({WATCHDOG})"

_SIMULATED_NAME = "(?i).*simulated.*"
SIMULATED = f'name=~"{_SIMULATED_NAME}"'
_SIMULATED_SERVICES = (
    f"(service_uuid:inference_gpu:info and on (cluster, uuid) gpu_info{{{SIMULATED}}})"
)

GPU_LEGEND = "{{host}} GPU {{index}}{{simulated}}"


def rate(counter: str, selector: str) -> str:
    """Return the per-second rate of a counter over Grafana's rate interval."""
    return f"rate({counter}{{{selector}}}[$__rate_interval])"


def quantile(q: float, histogram: str, selector: str, by: str = "") -> str:
    """Return the q-quantile of a classic histogram, where there was anything to measure.

    Buckets are summed before the quantile. Without observations it would be NaN: a comparison
    leaves such a series out.

    Args:
        q: 0..1.
        histogram: family name, without `_bucket`.
        selector: label matchers, without braces.
        by: labels to keep, comma separated.
    """
    labels = f"{by}, le" if by else "le"
    buckets = f"sum by ({labels}) ({rate(f'{histogram}_bucket', selector)})"
    return f"histogram_quantile({q}, {buckets}) >= 0"


def per_gpu(series: str, gpus: str = "") -> str:
    """Return series (which carry host and uuid) with the labels of GPU_LEGEND.

    Args:
        series: an expression that keeps the labels `host` and `uuid`.
        gpus: further matchers on gpu_info, such as `index=~"$gpu"`.
    """
    selector = f"{HOST},{gpus}" if gpus else HOST
    identity = (
        f'label_replace(gpu_info{{{selector}}}, "simulated", " (simulated)", '
        f'"name", "{_SIMULATED_NAME}")'
    )
    return f"{series} * on (host, uuid) group_left (index, simulated) {identity}"


def gpu_mean(series: str) -> str:
    """Return the mean of a series over GPUs, simulated ones apart, with the label `simulated`."""
    return f"avg by (simulated) ({per_gpu(series)})"


def on_simulated(series: str) -> str:
    """Return the part of a series with the label `service` whose GPUs are simulated."""
    return f"{series} and on (cluster, service) {_SIMULATED_SERVICES}"


def on_hardware(series: str) -> str:
    """Return the part of a series with the label `service` whose GPUs are not simulated."""
    return f"{series} unless on (cluster, service) {_SIMULATED_SERVICES}"
