"""Alertmanager: its configuration for this run, checked, and how it is started and seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tailwatch_stack.native import loopback
from tailwatch_stack.native.checks import failure
from tailwatch_stack.native.ports import ADDRESS
from tailwatch_stack.native.processes import Service

_SHIPPED = Path(__file__).resolve().parents[1] / "config" / "alertmanager.yml"
_SHIPPED_WEBHOOK = "http://127.0.0.1:12165"  # the demo's receiver at its default port


def configuration(webhook_url: str | None) -> dict[str, Any]:
    """Return the shipped configuration, delivering to another webhook or to none.

    Args:
        webhook_url: base URL; critical alerts are posted to <webhook_url>/page, warnings to
            <webhook_url>/ticket. None: alerts are seen in Alertmanager and on the dashboards.
    """
    config: dict[str, Any] = yaml.safe_load(_SHIPPED.read_text())
    for receiver in config["receivers"]:
        webhooks = receiver.pop("webhook_configs", [])
        if webhook_url is None:
            continue
        for webhook in webhooks:
            webhook["url"] = webhook["url"].replace(_SHIPPED_WEBHOOK, webhook_url.rstrip("/"))
        if webhooks:
            receiver["webhook_configs"] = webhooks
    return config


def refusal(amtool: Path, file: Path) -> str | None:
    """Return in one line why amtool refuses a configuration, else None."""
    reason = failure([amtool, "check-config", file])
    return reason and reason.removeprefix("amtool: error: ")


def service(alertmanager: Path, config: Path, data: Path, port: int) -> Service:
    """Return Alertmanager as a service on loopback, without a cluster port."""
    url = f"http://{ADDRESS}:{port}"
    return Service(
        name="alertmanager",
        command=[
            alertmanager,
            f"--config.file={config}",
            f"--storage.path={data}",
            f"--web.listen-address={ADDRESS}:{port}",
            f"--web.external-url={url}",
            "--cluster.listen-address=",
        ],
        ready_url=f"{url}/-/ready",
        detail=lambda: _alerts_in_words(loopback.read_json(f"{url}/api/v2/alerts?active=true")),
    )


def _alerts_in_words(answer: Any) -> str:
    if answer is None:
        return "running, does not answer"
    names = sorted({alert["labels"].get("alertname", "?") for alert in answer} - {"Watchdog"})
    return f"running, firing: {', '.join(names)}" if names else "running, nothing fires"
