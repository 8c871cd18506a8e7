"""The shipped rule files in a real Prometheus: they load, and every rule evaluates."""

from __future__ import annotations

from pathlib import Path

from tailwatch_stack.native.binaries import locate
from tests.rules.files import rule_files, rules
from tests.rules.running import server


def test_all_rules_load_and_evaluate_without_error(tmp_path: Path) -> None:
    # The files' own intervals would take minutes: a group without one is evaluated at once.
    shortened = tmp_path / "rules"
    shortened.mkdir()
    for path in rule_files():
        lines = path.read_text(encoding="utf-8").splitlines()
        text = "\n".join(line for line in lines if not line.startswith("    interval:"))
        (shortened / path.name).write_text(text)
    config = tmp_path / "prometheus.yml"
    config.write_text(f"global: {{evaluation_interval: 1s}}\nrule_files: ['{shortened}/*.yaml']\n")

    def command(port: int) -> list[str | Path]:
        return [
            locate("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]

    with server(command, "/api/v1/rules", tmp_path / "log") as prometheus:

        def evaluated() -> list[dict[str, str]] | None:
            answer = prometheus.get("/api/v1/rules")
            if answer is None:
                return None
            found = [rule for group in answer["data"]["groups"] for rule in group["rules"]]
            return found if all(rule["health"] != "unknown" for rule in found) else None

        found = prometheus.wait_for(evaluated)
        prometheus.wait_for(
            lambda: [
                alert
                for alert in prometheus.get("/api/v1/alerts")["data"]["alerts"]
                if alert["labels"]["alertname"] == "Watchdog" and alert["state"] == "firing"
            ]
        )
    assert len(found) == len(rules("record")) + len(rules("alert"))
    faults = [(rule["name"], rule.get("lastError")) for rule in found if rule["health"] != "ok"]
    assert faults == []
    assert "level=error" not in (tmp_path / "log").read_text()
