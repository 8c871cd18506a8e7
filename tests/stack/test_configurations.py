"""Prometheus' and Alertmanager's configurations, as promtool and amtool see them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tailwatch_stack.data import data_dir
from tailwatch_stack.errors import UsageError
from tailwatch_stack.native import alertmanager, prometheus
from tailwatch_stack.native.binaries import locate
from tailwatch_stack.native.targets import parse_target

CONFIG = Path(prometheus.__file__).parents[1] / "config"


@pytest.fixture(scope="module")
def promtool() -> Path:
    return locate("promtool")


@pytest.fixture(scope="module")
def amtool() -> Path:
    return locate("amtool")


def written(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def test_the_shipped_prometheus_configuration_is_valid(promtool: Path, tmp_path: Path) -> None:
    (tmp_path / "alert_rules").symlink_to(data_dir("alert_rules"))
    shipped = written(tmp_path / "prometheus.yml", (CONFIG / "prometheus.yml").read_text())
    assert prometheus.refusal(promtool, shipped) is None


def test_the_shipped_alertmanager_configuration_is_valid(amtool: Path) -> None:
    assert alertmanager.refusal(amtool, CONFIG / "alertmanager.yml") is None


def test_targets_jobs_and_rules_are_put_in(promtool: Path, tmp_path: Path) -> None:
    config = prometheus.configuration(
        data_dir("alert_rules"),
        alertmanager_port=19093,
        targets=[parse_target("service=gpu-7:80/own"), parse_target("service=gpu-8:80")],
        scrape_configs=[{"job_name": "triton", "static_configs": [{"targets": ["gpu-7:8002"]}]}],
    )
    assert prometheus.refusal(promtool, written(tmp_path / "prometheus.yml", config)) is None
    service, triton = config["scrape_configs"]
    assert service["job_name"] == "tailwatch-service"
    assert service["static_configs"] == [
        {"targets": ["gpu-7:80"], "labels": {"host": "gpu-7", "__metrics_path__": "/own"}},
        {"targets": ["gpu-8:80"], "labels": {"host": "gpu-8"}},
    ]
    assert triton["job_name"] == "triton"
    assert config["alerting"]["alertmanagers"][0]["static_configs"] == [
        {"targets": ["127.0.0.1:19093"]}
    ]
    assert config["global"] == {"scrape_interval": "15s", "evaluation_interval": "30s"}


def test_a_job_name_of_ours_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        prometheus.configuration(Path("rules"), 9093, [], [{"job_name": "tailwatch-service"}])
    assert str(error.value) == (
        "--scrape-config: the job name tailwatch-service is tailwatch's own: "
        "expected another one, or --target for its targets"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "scrape_configs:\n  - job_name: a\n    static_config: []\n",
            "yaml: unmarshal errors: line 3: field static_config not found in type "
            "config.ScrapeConfig",
        ),
        (
            "scrape_configs:\n  - job_name: a\n  - job_name: a\n",
            'found multiple scrape configs with job name "a"',
        ),
        (
            "scrape_configs:\n  - job_name: a\n    scrape_interval: soon\n",
            'not a valid duration string: "soon"',
        ),
    ],
)
def test_promtools_reason_is_given_in_one_line(
    promtool: Path, tmp_path: Path, text: str, reason: str
) -> None:
    assert prometheus.refusal(promtool, written(tmp_path / "jobs.yml", text)) == reason


def test_amtools_reason_is_given_in_one_line(amtool: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "mine.yml", "route: {receiver: phone}\n")
    assert alertmanager.refusal(amtool, file) == 'undefined receiver "phone" used in route'


def urls(config: dict[str, Any]) -> list[str]:
    return [
        webhook["url"]
        for receiver in config["receivers"]
        for webhook in receiver.get("webhook_configs", [])
    ]


def test_pages_and_tickets_go_to_the_webhook(amtool: Path, tmp_path: Path) -> None:
    config = alertmanager.configuration("https://example.org/tailwatch/")
    assert alertmanager.refusal(amtool, written(tmp_path / "alertmanager.yml", config)) is None
    assert urls(config) == [
        "https://example.org/tailwatch/page",
        "https://example.org/tailwatch/ticket",
    ]


def test_without_a_webhook_nothing_is_delivered(amtool: Path, tmp_path: Path) -> None:
    config = alertmanager.configuration(None)
    assert alertmanager.refusal(amtool, written(tmp_path / "alertmanager.yml", config)) is None
    assert urls(config) == []
