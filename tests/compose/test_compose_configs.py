"""The configuration files that the containers read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from tailwatch_stack.native.binaries import locate

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "stack" / "tailwatch_stack" / "config"
PROVISIONING = CONFIG / "grafana" / "provisioning"

Services = dict[str, dict[str, Any]]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_prometheus_differs_from_the_native_one_by_targets_only() -> None:
    native, compose = load(CONFIG / "prometheus.yml"), load(CONFIG / "compose" / "prometheus.yml")
    for config in (native, compose):
        del config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
        for job in config["scrape_configs"]:
            for targets in job["static_configs"]:
                del targets["targets"]
    exporter = next(j for j in compose["scrape_configs"] if j["job_name"] == "tailwatch-exporter")
    assert exporter.pop("dns_sd_configs") == [
        {"names": ["exporter-gpu"], "type": "A", "port": 12160}
    ]
    exporter.pop("relabel_configs")
    assert compose == native


def test_alertmanager_differs_from_the_native_one_by_the_webhook_only() -> None:
    native = (CONFIG / "alertmanager.yml").read_text()
    compose = (CONFIG / "compose" / "alertmanager.yml").read_text()
    assert native.count("127.0.0.1:12165") == 2
    assert compose == native.replace("127.0.0.1:12165", "webhook:12165")


def test_every_address_is_a_service_and_a_port_it_listens_on(services: Services) -> None:
    listening = {
        "prometheus": {9090},
        "alertmanager": {9093},
        "grafana": {3000},
        "jaeger": {4317, 4318, 16686},
        "exporter": {12160},
        "exporter-gpu": {12160},
        "demo": {12164},
        "webhook": {12165},
    }
    for name, ports in listening.items():  # what is published is what listens
        published = {port["target"] for port in services[name].get("ports", [])}
        assert published == (ports if name != "exporter-gpu" else set())
    texts = [
        path.read_text()
        for path in (
            CONFIG / "compose" / "prometheus.yml",
            CONFIG / "compose" / "alertmanager.yml",
            PROVISIONING / "datasources" / "tailwatch.yaml",
        )
    ]
    texts += [json.dumps(service) for service in services.values()]
    addresses = {
        (host, int(port))
        for text in texts
        for host, port in re.findall(r"\b([a-z][a-z-]*):(\d{4,5})\b", text)
    }
    assert {host for host, _ in addresses} >= {"prometheus", "alertmanager", "jaeger", "demo"}
    assert not [(host, port) for host, port in addresses if port not in listening.get(host, set())]


def test_promtool_accepts_the_configuration_and_its_rules(tmp_path: Path) -> None:
    shutil.copy(CONFIG / "compose" / "prometheus.yml", tmp_path)
    shutil.copytree(ROOT / "alert_rules", tmp_path / "alert_rules")
    answer = subprocess.run(
        [locate("promtool"), "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"SUCCESS: [1-9]\d* rules found", answer.stdout)


def test_amtool_accepts_the_routes() -> None:
    answer = subprocess.run(
        [locate("amtool"), "check-config", CONFIG / "compose" / "alertmanager.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_gpu_exporter_is_labelled_like_a_static_target() -> None:
    job = next(
        job
        for job in load(CONFIG / "compose" / "prometheus.yml")["scrape_configs"]
        if job["job_name"] == "tailwatch-exporter"
    )
    static = job["static_configs"][0]["labels"]
    found = {"__meta_dns_name": "exporter-gpu", "__address__": "172.18.0.9:12160"}
    assert relabelled(job["relabel_configs"], found) == {
        **found,
        **static,
        "instance": "exporter-gpu:12160",
    }
    untouched = {"__address__": "exporter:12160", **static}
    assert relabelled(job["relabel_configs"], untouched) == untouched


def relabelled(rules: list[dict[str, Any]], labels: dict[str, str]) -> dict[str, str]:
    """Apply rules of action `replace` as Prometheus documents them: the regex is anchored."""
    labels = deepcopy(labels)
    for rule in rules:
        text = ";".join(labels.get(name, "") for name in rule["source_labels"])
        if match := re.fullmatch(rule["regex"], text):
            value = re.sub(r"\$(\d)", r"\\\1", rule["replacement"])
            labels[rule["target_label"]] = match.expand(value)
    return labels


def test_exemplars_link_to_the_trace_store() -> None:
    sources = {
        s["type"]: s for s in load(PROVISIONING / "datasources" / "tailwatch.yaml")["datasources"]
    }
    assert set(sources) == {"prometheus", "jaeger"}
    (destination,) = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert destination["name"] == "trace_id"
    assert destination["datasourceUid"] == sources["jaeger"]["uid"]
    assert sources["prometheus"]["isDefault"] is True


def test_the_data_source_knows_the_scrape_interval() -> None:
    (prometheus, _) = load(PROVISIONING / "datasources" / "tailwatch.yaml")["datasources"]
    scrape = load(CONFIG / "compose" / "prometheus.yml")["global"]["scrape_interval"]
    assert prometheus["jsonData"]["timeInterval"] == scrape


def test_grafana_finds_the_dashboards_where_they_are_mounted(services: Services) -> None:
    (provider,) = load(PROVISIONING / "dashboards" / "tailwatch.yaml")["providers"]
    mounts = {v["target"]: v["source"] for v in services["grafana"]["volumes"]}
    folder = Path(mounts[provider["options"]["path"]])
    dashboards = {path.name for path in folder.glob("*.json")}
    assert {"overview.json", "request-path.json", "gpu.json", "host.json"} <= dashboards
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/overview.json"


def test_jaeger_stores_what_it_receives(services: Services) -> None:
    config = load(CONFIG / "jaeger.yaml")
    pipeline = config["service"]["pipelines"]["traces"]
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) == set(config[kind])
    assert set(config["service"]["extensions"]) == set(config["extensions"])
    store = config["exporters"]["jaeger_storage_exporter"]["trace_storage"]
    assert store in config["extensions"]["jaeger_storage"]["backends"]
    assert config["extensions"]["jaeger_query"]["storage"]["traces"] == store
    health = services["jaeger"]["healthcheck"]["test"][-1]
    port = config["extensions"]["healthcheckv2"]["http"]["endpoint"].rpartition(":")[2]
    assert health == f"http://127.0.0.1:{port}/status"
