"""The shipped Alertmanager configuration, on the real Alertmanager."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailwatch_stack.native.binaries import locate
from tests.rules.files import ROOT
from tests.rules.running import server, wait_for

CONFIG = ROOT / "stack" / "tailwatch_stack" / "config" / "alertmanager.yml"
WEBHOOK = "http://127.0.0.1:12165"

PAGE = {"severity": "critical", "role": "symptom", "symptom": "timeouts"}
CAUSE = {"severity": "warning", "role": "cause", "symptom": "timeouts"}

ALERTS: list[dict[str, str]] = [
    {"alertname": "QueueBeyondTimeout", "service": "a", "cluster": "c", **PAGE},
    {"alertname": "ErrorBudgetFastBurn", "service": "a", "cluster": "c", **PAGE},
    {"alertname": "CauseOfA", "service": "a", "cluster": "c", **CAUSE},
    {"alertname": "CauseOfB", "service": "b", "cluster": "c", **CAUSE},
    {"alertname": "CauseElsewhere", "service": "a", "cluster": "d", **CAUSE},
    # No service on either side: two missing labels must not count as equal.
    {"alertname": "TrainingFault", "job_name": "r1", "cluster": "c", **PAGE},
    {"alertname": "HostCause", "host": "h9", "cluster": "c", **CAUSE},
    # Other warnings about a service that pages stay: its quality may drift as well.
    {"alertname": "ErrorBudgetSlowBurn", "service": "a", "cluster": "c", **PAGE}
    | {"severity": "warning"},
    {"alertname": "TargetDown", "job": "j", "instance": "i1", "severity": "critical"},
    {"alertname": "SignalMissing", "job": "j", "instance": "i1", "severity": "warning"},
    {"alertname": "SignalMissing", "job": "j", "instance": "i2", "severity": "warning"},
    {"alertname": "SignalMissing", "uuid": "GPU-1", "service": "b", "severity": "warning"},
    {"alertname": "Watchdog", "severity": "info"},
]


@contextmanager
def webhook() -> Iterator[tuple[int, list[tuple[str, dict[str, Any]]]]]:
    """Yield a port and the (path, notification) pairs that arrive there."""
    received: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield listener.server_port, received
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def test_the_configuration_is_valid_and_names_the_demo_webhook() -> None:
    subprocess.run(
        [locate("amtool"), "check-config", CONFIG], check=True, capture_output=True, timeout=30
    )
    text = CONFIG.read_text(encoding="utf-8")
    assert text.count(f"{WEBHOOK}/") == 2


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("alertname=X severity=critical", "page"),
        ("alertname=X severity=warning", "ticket"),
        ("alertname=X severity=info", "nobody"),
        ("alertname=Watchdog severity=info", "watchdog"),
        ("alertname=Watchdog severity=critical", "watchdog"),
    ],
)
def test_routes(labels: str, receiver: str) -> None:
    answer = subprocess.run(
        [locate("amtool"), "config", "routes", "test", f"--config.file={CONFIG}", *labels.split()],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert answer.stdout.split() == [receiver]


def test_pages_and_tickets_are_delivered_and_only_causes_inhibited(tmp_path: Path) -> None:
    with webhook() as (port, received):
        text = CONFIG.read_text(encoding="utf-8").replace(WEBHOOK, f"http://127.0.0.1:{port}")
        config = yaml.safe_load(text)
        config["route"]["group_wait"] = "1s"  # the shipped 10 s only cost time here
        (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(config))

        def command(api: int) -> list[str | Path]:
            return [
                locate("alertmanager"),
                f"--config.file={tmp_path}/alertmanager.yml",
                f"--storage.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{api}",
                "--cluster.listen-address=",
            ]

        with server(command, "/api/v2/status", tmp_path / "log") as alertmanager:
            # Causes after what inhibits them, as they would come.
            alertmanager.post("/api/v2/alerts", [{"labels": alert} for alert in ALERTS])
            wait_for(
                lambda: (
                    len(alerts_of(received, "/page")) == 4
                    and len(alerts_of(received, "/ticket")) == 6
                ),
                lambda: f"got {received}",
            )
            states = {
                tuple(sorted(alert["labels"].items())): alert["status"]["state"]
                for alert in alertmanager.get("/api/v2/alerts")
            }
    suppressed = {
        (labels["alertname"], labels.get("service") or labels.get("instance"))
        for labels, state in ((dict(pairs), state) for pairs, state in states.items())
        if state == "suppressed"
    }
    assert suppressed == {("CauseOfA", "a"), ("SignalMissing", "i1")}

    assert alerts_of(received, "/page") == [
        "ErrorBudgetFastBurn",
        "QueueBeyondTimeout",
        "TargetDown",
        "TrainingFault",
    ]
    assert alerts_of(received, "/ticket") == [
        "CauseElsewhere",
        "CauseOfB",
        "ErrorBudgetSlowBurn",
        "HostCause",
        "SignalMissing",
        "SignalMissing",
    ]
    # One notification for both pages about service a, and only those.
    about_a = [body for path, body in received if path == "/page" and len(body["alerts"]) == 2]
    assert [body["groupLabels"] for body in about_a] == [
        {"cluster": "c", "service": "a", "symptom": "timeouts"}
    ]


def alerts_of(received: list[tuple[str, dict[str, Any]]], path: str) -> list[str]:
    """Return the names of all alerts that arrived at a path."""
    return sorted(
        alert["labels"]["alertname"]
        for at, body in list(received)
        if at == path
        for alert in body["alerts"]
    )
