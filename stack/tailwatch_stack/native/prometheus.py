"""Prometheus: its configuration for this run, checked, and how it is started and seen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tailwatch_stack.errors import UsageError
from tailwatch_stack.native import debian, loopback
from tailwatch_stack.native.checks import failure
from tailwatch_stack.native.ports import ADDRESS
from tailwatch_stack.native.processes import Service
from tailwatch_stack.native.targets import LOOPBACK_HOST, Target, this_host

_SHIPPED = Path(__file__).resolve().parents[1] / "config" / "prometheus.yml"

# For targets of a person's own scrape configuration: the shipped rules join on `host`.
_HOST_LIKE_OUR_TARGETS = (
    {
        "source_labels": ["host", "__address__"],
        "regex": r";\[?(.+?)\]?:\d+",
        "target_label": "host",
    },
    {
        "source_labels": ["host"],
        "regex": LOOPBACK_HOST,
        "target_label": "host",
        "replacement": this_host(),
    },
)


def configuration(
    rules: Path,
    alertmanager_port: int,
    targets: Sequence[Target],
    scrape_configs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the shipped configuration with this run's targets, rules and Alertmanager.

    Args:
        rules: directory with `recording/` and `alerts/`.
        alertmanager_port: on loopback.
        targets: for the shipped jobs; a job that gets none is left out.
        scrape_configs: further jobs.

    Raises:
        UsageError: a further job has the name of a shipped one.
    """
    config: dict[str, Any] = yaml.safe_load(_SHIPPED.read_text())
    config["rule_files"] = [str(rules / kind / "*.yaml") for kind in ("recording", "alerts")]
    config["alerting"] = {
        "alertmanagers": [{"static_configs": [{"targets": [f"{ADDRESS}:{alertmanager_port}"]}]}]
    }
    shipped = [job["job_name"] for job in config["scrape_configs"]]
    for job in scrape_configs:
        if job.get("job_name") in shipped:
            raise UsageError(
                f"--scrape-config: the job name {job['job_name']} is tailwatch's own: "
                "expected another one, or --target for its targets"
            )
    jobs = []
    for job in config["scrape_configs"]:
        mine = [target for target in targets if target.job == job["job_name"]]
        job["static_configs"] = [{"targets": [t.address], "labels": t.labels} for t in mine]
        if mine:
            jobs.append(job)
    for extra in scrape_configs:
        relabel = [*(extra.get("relabel_configs") or []), *_HOST_LIKE_OUR_TARGETS]
        jobs.append({**extra, "relabel_configs": relabel})
    config["scrape_configs"] = jobs
    return config


def refusal(promtool: Path, file: Path) -> str | None:
    """Return in one line why promtool refuses a configuration or a file it names, else None."""
    reason = failure([promtool, "check", "config", file])
    return reason and reason.removeprefix(f"parsing YAML file {file}: ")


def service(prometheus: Path, config: Path, data: Path, port: int) -> Service:
    """Return Prometheus as a service on loopback, with exemplars kept."""
    url = f"http://{ADDRESS}:{port}"
    command: list[str | Path] = [
        prometheus,
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address={ADDRESS}:{port}",
        f"--web.external-url={url}",
        "--enable-feature=exemplar-storage",
    ]
    if prometheus.is_relative_to(debian.cache_dir()):
        # Debian's build reads its web pages from /usr/share unless told otherwise.
        command.append(f"--web.local-assets={prometheus.parents[1]}/share/prometheus/web/")
    return Service(
        name="prometheus",
        command=command,
        ready_url=f"{url}/-/ready",
        detail=lambda: _targets_in_words(loopback.read_json(f"{url}/api/v1/targets?state=active")),
    )


def _targets_in_words(answer: Any) -> str:
    if answer is None:
        return "running, does not answer"
    targets = answer["data"]["activeTargets"]
    if not targets:  # in its first seconds
        return "running, no targets yet"
    count = {health: 0 for health in ("up", "unknown", "down")}
    for target in targets:
        count[target["health"]] += 1
    words = f"running, {count['up']} of {len(targets)} targets up"
    if count["unknown"]:
        words += f", {count['unknown']} not scraped yet"
    down = [t for t in targets if t["health"] == "down"]
    if down:
        words += f"; {down[0]['scrapeUrl'].removeprefix('http://')}: {_reason(down[0])}"
    return words


def _reason(target: Any) -> str:
    """Return why a scrape failed; without the address, so that it fits a terminal's line."""
    error = target["lastError"].removeprefix(f'Get "{target["scrapeUrl"]}": ')
    return re.sub(r"^dial tcp \S+: connect: ", "", error)
