"""What panels compute, on series whose answer can be worked out by hand, by Prometheus itself."""

from __future__ import annotations

import math
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tailwatch_stack.native.binaries import locate
from tests.dashboards.boards import load
from tests.dashboards.lint import panels

EXPORTER = 'job="tailwatch-exporter",host="a"'
SERVICE = 'job="tailwatch-service",host="a",service="s"'
WATCHDOG = 'ALERTS{alertname="Watchdog",alertstate="firing",severity="info",role="meta"}'
GPU = 'uuid="GPU-1"'


# promtool compares to the last bit; a power of two rounds alike here and there.
STEP = 2.0**-20


@dataclass(frozen=True)
class Case:
    """One query of a panel.

    Args:
        board: file name.
        panel: title.
        series: series -> values in promtool's notation, a sample every 15 s.
        samples: the answer after 5 minutes, series -> value.
        query: which one of the panel, by refId.
    """

    board: str
    panel: str
    series: dict[str, str]
    samples: dict[str, float] = field(default_factory=dict)
    query: str = "A"

    def __str__(self) -> str:
        return f"{self.board}-{self.panel}-{self.query}"

    def expr(self) -> str:
        (panel,) = (one for one in panels(load(self.board)) if one["title"] == self.panel)
        (query,) = (one for one in panel["targets"] if one["refId"] == self.query)
        expr: str = query["expr"]
        for macro, value in (
            ("$__rate_interval", "1m"),
            ("$__range", "5m"),
            ("$service", ".+"),
            ("$host", ".+"),
            ("$gpu", ".+"),
        ):
            expr = expr.replace(macro, value)
        return expr


def outcomes(**per_sample: int) -> dict[str, str]:
    """Return the outcome counters of a service that grow by so many each 15 s."""
    return {
        f'inference_outcomes_total{{{SERVICE},outcome="{outcome}"}}': f"0+{growth}x20"
        for outcome, growth in per_sample.items()
    }


def cores(*busy_of_15_seconds: float) -> dict[str, str]:
    """Return CPU seconds of cores that are busy for so long out of 15 s; iowait is idle."""
    series = {}
    for cpu, busy in enumerate(busy_of_15_seconds):
        cpu_seconds = f'host_cpu_seconds_total{{{EXPORTER},cpu="{cpu}"'
        series[f'{cpu_seconds},mode="user"}}'] = f"0+{busy}x20"
        series[f'{cpu_seconds},mode="idle"}}'] = f"0+{15 - busy - 3}x20"
        series[f'{cpu_seconds},mode="iowait"}}'] = "0+3x20"
    return series


def gpu_named(name: str) -> dict[str, str]:
    return {f'gpu_info{{{EXPORTER},{GPU},index="7",name="{name}",driver="550"}}': "1x20"}


def firing(name: str, severity: str, role: str, service: str = "") -> dict[str, str]:
    labels = f'alertname="{name}",alertstate="firing",severity="{severity}",role="{role}"'
    labels += f',service="{service}"' if service else ""
    return {f"ALERTS{{{labels}}}": "1x20"}


def durations(in_100_ms: int, in_200_ms: int) -> dict[str, str]:
    """Return the duration histogram of a service that gets so many more each 15 s."""
    bucket = f'inference_request_duration_seconds_bucket{{{SERVICE},route="/"'
    every = in_100_ms + in_200_ms
    return {
        f'{bucket},le="0.1"}}': f"0+{in_100_ms}x20",
        f'{bucket},le="0.2"}}': f"0+{every}x20",
        f'{bucket},le="+Inf"}}': f"0+{every}x20",
    }


STAGES = {
    f'inference_request_duration_seconds_count{{{SERVICE},route="/"}}': "0+30x20",
    f'inference_stage_seconds_total{{{SERVICE},stage="ingress",slow="false"}}': "0+3x20",
    f'inference_stage_seconds_total{{{SERVICE},stage="inference",slow="false"}}': "0+9x20",
    f'inference_stage_seconds_total{{{SERVICE},stage="inference",slow="true"}}': "0+6x20",
    f'inference_stage_seconds_total{{{SERVICE},stage="ingress",slow="true"}}': "0+2x20",
    f'inference_stage_seconds_total{{{SERVICE},stage="own",slow="false"}}': "0+1.5x20",
}

CAUSES = {
    'service:cause:active{service="s",symptom="x",class="A",cause="c",title="Hot"}': "1x20",
    'service:cause:active{service="s",symptom="y",class="A",cause="d",title="Cold"}': "1x20",
    'service:cause:active{service="t",symptom="x",class="A",cause="c",title="Hot"}': "1x20",
}

CASES = [
    # 3 of 48 requests fail; those whose client gave up or erred do not count against the service.
    Case(
        "overview.json",
        "Errors",
        outcomes(ok=40, client_error=4, client_disconnect=1, error=1, timeout=1, rejected=1),
        {"{}": 3 / 48},
    ),
    Case("overview.json", "Errors", outcomes(ok=0, error=0)),  # no traffic is not 0 %
    Case(
        "overview.json",
        "Errors by kind",
        outcomes(ok=48, error=12, rejected=4),
        {'{outcome="error"}': 12 / 64, '{outcome="rejected"}': 4 / 64},
    ),
    Case(
        "overview.json",
        "Firing now",
        {
            WATCHDOG: "1x20",
            **firing("QueueBeyondTimeout", "critical", "symptom", "s"),
            **firing("TargetDown", "critical", "meta"),
            **firing("LatencyBeyondHistogram", "info", "meta", "s"),
            **firing("SomeCause", "warning", "cause", "s"),
        },
        {"{}": 2},
    ),
    Case("overview.json", "Firing now", {WATCHDOG: "1x20"}, {"{}": 0}),
    Case("overview.json", "Firing now", {}),  # nobody watches: no number at all
    Case(
        "overview.json",
        "Symptoms",
        {
            'ALERTS{alertname="A",alertstate="pending",severity="critical",role="symptom"}': "1x20",
            **firing("B", "warning", "symptom", "s"),
            **firing("C", "critical", "symptom", "s"),
        },
        {
            '{alertname="A"}': 1,
            '{alertname="B",service="s"}': 2,
            '{alertname="C",service="s"}': 3,
        },
    ),
    Case(  # named, for the link to its runbook
        "overview.json", "Symptoms", {WATCHDOG: "1x20"}, {'{alertname="Watchdog"}': 0}, query="B"
    ),
    Case(
        "overview.json",
        "Likely causes",
        {**CAUSES, 'ALERTS{service="s",symptom="x",role="symptom",alertstate="pending"}': "1x20"},
        {'{service="s",title="Hot"}': 2},
    ),
    Case(
        "overview.json",
        "Likely causes",
        {**CAUSES, 'ALERTS{service="s",symptom="x",role="symptom",alertstate="firing"}': "1x20"},
        {'{service="s",title="Cold"}': 1, '{service="t",title="Hot"}': 1},
        query="B",
    ),
    Case(
        "overview.json",
        "Likely causes",
        CAUSES,
        {
            '{service="s",title="Hot"}': 1,
            '{service="s",title="Cold"}': 1,
            '{service="t",title="Hot"}': 1,
        },
        query="B",
    ),
    Case(
        "overview.json",
        "Likely causes",
        {WATCHDOG: "1x20"},
        {'{title="No known cause is active"}': 0},
        query="C",
    ),
    Case(
        "overview.json",
        "Likely causes",
        {WATCHDOG: "1x20", 'service:cause:active{service="s",title="Hot"}': "1x20"},
        query="C",
    ),
    Case("overview.json", "Likely causes", {WATCHDOG: "1x20"}, query="D"),
    Case(
        "overview.json",
        "Likely causes",
        {},
        {'{title="No rule is evaluated: alerting is down"}': 2},
        query="D",
    ),
    Case(
        "overview.json",
        "GPU utilisation",
        {
            f'gpu_utilization_ratio{{{EXPORTER},{GPU},engine="compute"}}': "0.5x20",
            f'gpu_utilization_ratio{{{EXPORTER},{GPU},engine="encoder"}}': "0.9x20",
            **gpu_named("some simulated GPU"),
        },
        {f'{{{EXPORTER},{GPU},engine="compute",index="7",simulated=" (simulated)"}}': 0.5},
    ),
    Case(
        "overview.json",
        "GPU utilisation",
        {
            f'gpu_utilization_ratio{{{EXPORTER},{GPU},engine="compute"}}': "0.5x20",
            **gpu_named("NVIDIA H200"),
        },
        {f'{{{EXPORTER},{GPU},engine="compute",index="7"}}': 0.5},
    ),
    # Half of 40 are in the first bucket: the median is its edge, TP99 is 98 % into the second.
    Case("overview.json", "TP50", durations(20, 20), {"{}": 0.1}),
    Case("overview.json", "TP99", durations(20, 20), {"{}": 0.198}),
    Case("overview.json", "TP99", durations(0, 0)),
    Case("overview.json", "Latency", durations(20, 20), {'{service="s"}': 0.198}),
    Case("overview.json", "CPU", cores(3.75, 11.25), {'{host="a"}': 0.5}),
    Case("overview.json", "CPU", cores(3.75, 11.25), {'{host="a"}': 0.75}, query="B"),
    Case(
        "overview.json",
        "Memory",
        {
            f"host_memory_available_bytes{{{EXPORTER}}}": "25x20",
            f"host_memory_total_bytes{{{EXPORTER}}}": "100x20",
        },
        {f"{{{EXPORTER}}}": 0.75},
    ),
    Case(
        "overview.json",
        "Network",
        {
            f'host_network_receive_bytes_total{{{EXPORTER},device="{device}"}}': "0+150x20"
            for device in ("eth0", "eth1", "lo", "docker0")
        },
        {'{host="a"}': 20},
    ),
    # 2 requests a second spend 1.4333 s of every second: exclusive seconds, slow and fast alike.
    Case("request-path.json", "The mean request, by stage", STAGES, {'{stage="ingress"}': 1 / 6}),
    Case(
        "request-path.json",
        "The mean request, by stage",
        STAGES,
        {'{stage="own"}': 0.05},
        query="C",
    ),
    Case(
        "request-path.json",
        "The mean request, by stage",
        STAGES,
        {'{stage="inference"}': 0.5},
        query="D",
    ),
    Case("request-path.json", "Slow requests, by stage", STAGES, {'{stage="ingress"}': 0.25}),
    Case(
        "request-path.json",
        "Slow requests, by stage",
        STAGES,
        {'{stage="inference"}': 0.75},
        query="D",
    ),
    Case(
        "request-path.json",
        "Time to drain the queue",
        {
            'service:queue_drain_seconds{service="dead"}': " ".join(["Inf"] * 21),
            'service:queue_drain_seconds{service="s"}': "3x20",
        },
        {'{service="s"}': 3},
    ),
    Case(
        "gpu.json",
        "Not answering",
        {f"gpu_up{{{EXPORTER},{GPU}}}": "0x20", f'gpu_up{{{EXPORTER},uuid="GPU-2"}}': "1x20"},
        {"{}": 1},
    ),
    Case("gpu.json", "Not answering", {f"gpu_up{{{EXPORTER},{GPU}}}": "1x20"}, {"{}": 0}),
    Case("gpu.json", "Not answering", {}),
    Case("gpu.json", "Simulated", gpu_named("A Simulated GPU"), {"{}": 1}),
    Case("gpu.json", "Simulated", gpu_named("NVIDIA H200"), {"{}": 0}),
    Case(
        "gpu.json",
        "GPUs",
        {
            f"gpu_last_sample_timestamp_seconds{{{EXPORTER},{GPU}}}": "-2+15x20",
            **gpu_named("NVIDIA H200"),
        },
        {'{host="a",index="7",name="NVIDIA H200",driver="550"}': 2},
    ),
    Case("host.json", "CPU, all cores", cores(3.75, 11.25), {"{}": 0.5}),
    Case(
        "host.json",
        "Load",
        cores(3.75, 11.25),
        {'{host="a"}': 2},
        query="C",
    ),
]


@pytest.fixture(scope="session")
def promtool() -> Path:
    return locate("promtool")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_value(case: Case, promtool: Path, tmp_path: Path) -> None:
    suite = {
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {"series": name, "values": values} for name, values in case.series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": f"round({case.expr()}, {STEP:.20f})",
                        "eval_time": "5m",
                        "exp_samples": [
                            {"labels": labels, "value": math.floor(value / STEP + 0.5) * STEP}
                            for labels, value in case.samples.items()
                        ],
                    }
                ],
            }
        ]
    }
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(suite), encoding="utf-8")
    answer = subprocess.run(
        [promtool, "test", "rules", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
