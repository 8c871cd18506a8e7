"""An hour of the metrics on the golden pages, with the alert rules evaluated over it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.browser import backend
from tests.browser.openmetrics import END, START, Ramp, write

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
RULES = ROOT / "alert_rules" / "recording"
RULE_INTERVAL = 30
# promtool does not let a rule see what another recorded: each pass lets them see one level more.
RULE_PASSES = 4

# Per page: the job that scrapes it, and by which share of its value a counter grows a second. The
# pages were recorded from a few requests, and from hosts that had been up for a quarter of an hour.
PAGES = {
    "service": ("tailwatch-service", 1.0),
    "gpu": ("tailwatch-exporter", 1e-3),
    "host": ("tailwatch-exporter", 1e-3),
    "threads": ("tailwatch-exporter", 1e-3),
}
# The pages come from different machines: here the service runs on the exporter's first GPU.
SERVICE_GPU = {"inference_gpu_info": {"uuid": "GPU-00000000-0000-0000-0000-000000000000"}}
COUNTERS = ("counter", "histogram", "summary")

SYMPTOM = {
    "alertname": "GpuStarvedUnderLoad",
    "severity": "critical",
    "role": "symptom",
    "class": "A",
    "symptom": "gpu-starved",
    "service": "content-type",
}
WATCHDOG = {"alertname": "Watchdog", "severity": "info", "role": "meta", "symptom": "meta"}


def build(data: Path, more: Iterable[Ramp] = ()) -> None:
    """Write the TSDB blocks of the hour, and of more series, into the folder `data`."""
    samples = data.parent / "sample-blocks"
    backend.create_blocks(write([*golden_ramps(), *alert_ramps(), *more]), samples)
    recorded: Path | None = None
    for number in range(RULE_PASSES):
        _join(data, samples, recorded)
        recorded = data.parent / f"rule-blocks-{number}"
        with backend.prometheus(data) as url:
            rules = sorted(RULES.glob("*.yaml"))
            backend.create_rule_blocks(rules, recorded, url, START, END, RULE_INTERVAL)
    _join(data, samples, recorded)


def golden_ramps() -> Iterator[Ramp]:
    for page, (job, growth) in PAGES.items():
        target = {"job": job, "instance": f"127.0.0.1:{job}", "host": "node-1"}
        for family in text_string_to_metric_families((GOLDEN / f"{page}.prom").read_text()):
            for sample in family.samples:
                grows = family.type in COUNTERS
                yield Ramp(
                    sample.name,
                    {**sample.labels, **SERVICE_GPU.get(sample.name, {}), **target},
                    _counter(sample.value, growth) if grows else _gauge(sample.name, sample.value),
                )


def alert_ramps() -> Iterator[Ramp]:
    yield Ramp("ALERTS", {**WATCHDOG, "alertstate": "firing"}, lambda _t: 1.0)
    yield Ramp(
        "ALERTS",
        {**SYMPTOM, "alertstate": "pending"},
        lambda t: 1.0 if 2100 <= t < 2400 else None,
    )
    yield Ramp("ALERTS", {**SYMPTOM, "alertstate": "firing"}, lambda t: 1.0 if t >= 2400 else None)


def _counter(value: float, growth: float) -> Callable[[float], float]:
    return lambda t: value * (1 + growth * t)


def _gauge(name: str, value: float) -> Callable[[float], float]:
    if name.endswith("_timestamp_seconds"):
        return lambda t: START + t - 1
    if name.endswith("_ratio"):  # something that moves
        return lambda t: value * (0.9 + 0.1 * math.sin(t / 400))
    return lambda _t: value


def _join(data: Path, *sources: Path | None) -> None:
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    for source in sources:
        if source is not None:
            shutil.copytree(source, data, dirs_exist_ok=True)
