"""docker-compose.yml: valid, pinned, confined, and consistent with what it mounts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()

Services = dict[str, dict[str, Any]]

# `traffic` is a client: nothing asks it, and nothing waits for it.
WITHOUT_HEALTHCHECK = {"traffic"}

# Commands that an image has for sure, with the place that says so: upstream's Dockerfile.
IMAGE_COMMANDS = {
    "prom/prometheus": {"/bin/promtool"},
    "prom/alertmanager": {"/bin/amtool"},
    "grafana/grafana": {"curl"},  # apk add curl, since grafana/grafana#65547
    "jaegertracing/jaeger": {"wget"},  # busybox: the base image is Alpine
    "tailwatch-exporter": {"python"},
    "tailwatch-demo": {"python"},
}


def test_it_follows_the_compose_specification() -> None:
    answer = subprocess.run(
        [
            Path(sys.executable).with_name("check-jsonschema"),
            "--builtin-schema",
            "vendor.compose-spec",
            ROOT / "docker-compose.yml",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout


def test_a_gpu_is_asked_for_only_by_its_profile(services: Services) -> None:
    with_gpu = {
        name
        for name, service in services.items()
        if service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
    }
    assert with_gpu == {"exporter-gpu"}
    assert {name for name, service in services.items() if service.get("profiles")} == with_gpu


def test_every_image_is_pinned(services: Services) -> None:
    images = [service["image"] for service in services.values()]
    images += re.findall(r"^FROM (\S+:\S+)", DOCKERFILE, re.MULTILINE)
    loose = [image for image in images if not re.search(r":v?\d+\.\d+\.\d+(-[\w.-]+)?$", image)]
    assert not loose


def test_our_images_carry_our_version(services: Services) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    assert version
    ours = {s["image"] for s in services.values() if s["image"].startswith("tailwatch-")}
    assert ours == {f"tailwatch-{name}:{version[1]}" for name in ("exporter", "demo")}


def test_no_port_is_published_beyond_loopback(services: Services) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert {port.get("host_ip") for port in ports} == {"127.0.0.1"}
    assert not [name for name, service in services.items() if service.get("network_mode")]


def test_no_two_services_publish_the_same_port(services: Services) -> None:
    ports = [port["published"] for s in services.values() for port in s.get("ports", [])]
    assert len(ports) == len(set(ports))


def test_every_container_is_confined(services: Services) -> None:
    for name, service in services.items():
        assert service.get("read_only") is True, name
        assert service.get("cap_drop") == ["ALL"], name
        assert service.get("security_opt") == ["no-new-privileges:true"], name
        assert int(service.get("mem_limit", 0)) > 0, name
        assert not service.get("privileged"), name
        uid = (service.get("user") or _user_of(service["image"])).partition(":")[0]
        assert uid.isdigit() and int(uid) > 0, name


def _user_of(image: str) -> str:
    stage = image.removeprefix("tailwatch-").partition(":")[0]
    found = re.search(rf" AS {stage}\n(?:(?!^FROM).)*?^USER (\S+)$", DOCKERFILE, re.M | re.S)
    assert found, f"the Dockerfile's stage {stage} has no USER"
    return found[1]


def test_host_paths_are_mounted_read_only_and_exist(services: Services) -> None:
    binds = [
        volume
        for service in services.values()
        for volume in service.get("volumes", [])
        if volume["type"] == "bind"
    ]
    assert binds
    for bind in binds:
        assert bind.get("read_only") is True, bind
        assert Path(bind["source"]).exists(), bind


def test_what_is_kept_is_in_named_volumes(services: Services) -> None:
    named = {
        (name, volume["source"], volume["target"])
        for name, service in services.items()
        for volume in service.get("volumes", [])
        if volume["type"] == "volume"
    }
    assert named == {
        ("prometheus", "prometheus-data", "/prometheus"),
        ("alertmanager", "alertmanager-data", "/alertmanager"),
        ("grafana", "grafana-data", "/var/lib/grafana"),
    }


def test_every_server_has_a_healthcheck_with_a_command_of_its_image(services: Services) -> None:
    without = {name for name, service in services.items() if "healthcheck" not in service}
    assert without == WITHOUT_HEALTHCHECK
    for name in services.keys() - without:
        kind, command, *_ = services[name]["healthcheck"]["test"]
        image = services[name]["image"].partition(":")[0]
        assert kind == "CMD", name  # not CMD-SHELL: an image need not have a shell
        assert command in IMAGE_COMMANDS[image], name


@pytest.mark.parametrize("name", ["exporter", "demo"])
def test_one_service_builds_each_image_of_ours(services: Services, name: str) -> None:
    building = {key for key, s in services.items() if s.get("build", {}).get("target") == name}
    assert building == {name}
    users = {key for key, s in services.items() if s["image"].startswith(f"tailwatch-{name}:")}
    assert services[name]["pull_policy"] == "build"
    for user in users - building:  # started after it, so that the image is there
        assert services[user]["pull_policy"] == "never"
        assert services[user]["depends_on"][name]["condition"] == "service_healthy"


def test_exemplars_are_stored(services: Services) -> None:
    assert "--enable-feature=exemplar-storage" in services["prometheus"]["command"]


def test_the_exporter_sees_the_host(services: Services) -> None:
    for name in ("exporter", "exporter-gpu"):
        assert services[name]["pid"] == "host"
        assert ("/proc", "/host/proc") in {
            (volume["source"], volume["target"]) for volume in services[name]["volumes"]
        }
        assert "--path.procfs=/host/proc" in services[name]["command"]


def test_yaml_anchors_are_all_used() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    anchors = set(re.findall(r"&([\w-]+)", text))
    assert anchors == set(re.findall(r"(?<=[ *])\*([\w-]+)", text))
    yaml.safe_load(text)
