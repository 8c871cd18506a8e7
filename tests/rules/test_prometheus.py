"""The shipped rule files in a real Prometheus: they load, and every rule evaluates."""

from __future__ import annotations

from pathlib import Path

from tailwatch_stack.native.binaries import locate
from tests.rules.files import rule_files, rules
from tests.rules.running import free_port, server, wait_for


def test_all_rules_load_and_evaluate_without_error(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    port = free_port()
    # The files' own intervals would take minutes: a group is evaluated at once where it has none.
    shortened = tmp_path / "rules"
    shortened.mkdir()
    for path in rule_files():
        lines = path.read_text(encoding="utf-8").splitlines()
        text = "\n".join(line for line in lines if not line.startswith("    interval:"))
        (shortened / path.name).write_text(text)
    config.write_text(
        "global: {evaluation_interval: 1s}\n"
        f"rule_files: ['{shortened}/*.yaml']\n"
        "scrape_configs:\n"
        "  - {job_name: tailwatch-exporter, scrape_interval: 1s,\n"
        f"     static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}\n"
    )
    command: list[str | Path] = [
        locate("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with server(port, tmp_path / "log", command) as prometheus:

        def evaluated() -> list[dict[str, str]] | None:
            answer = prometheus.get("/api/v1/rules")
            if answer is None:
                return None
            found = [rule for group in answer["data"]["groups"] for rule in group["rules"]]
            return found if all(rule["health"] != "unknown" for rule in found) else None

        found = wait_for(evaluated, "every rule is evaluated")
        wait_for(
            lambda: [
                alert
                for alert in prometheus.get("/api/v1/alerts")["data"]["alerts"]
                if alert["labels"]["alertname"] == "Watchdog" and alert["state"] == "firing"
            ],
            "the watchdog fires",
        )
    assert len(found) == len(rules("record")) + len(rules("alert"))
    faults = [(rule["name"], rule.get("lastError")) for rule in found if rule["health"] != "ok"]
    assert faults == []
    assert "level=error" not in (tmp_path / "log").read_text()
