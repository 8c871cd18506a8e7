import platform
from pathlib import Path

import pytest

from tailwatch_stack.errors import UsageError
from tailwatch_stack.native.targets import Target, parse_target, read_scrape_configs

HERE = {"host": platform.node()}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("service=127.0.0.1:8000", Target("tailwatch-service", "127.0.0.1:8000", HERE)),
        ("service=localhost:8000", Target("tailwatch-service", "localhost:8000", HERE)),
        ("service=[::1]:8000", Target("tailwatch-service", "[::1]:8000", HERE)),
        (
            "exporter=gpu-7.lan:12160",
            Target("tailwatch-exporter", "gpu-7.lan:12160", {"host": "gpu-7.lan"}),
        ),
        (
            "service=10.0.0.5:80/internal/metrics",
            Target(
                "tailwatch-service",
                "10.0.0.5:80",
                {"host": "10.0.0.5", "__metrics_path__": "/internal/metrics"},
            ),
        ),
        (
            "service=[2001:db8::1]:80",
            Target("tailwatch-service", "[2001:db8::1]:80", {"host": "2001:db8::1"}),
        ),
    ],
)
def test_a_target_carries_its_host(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:8000",
        "embedder=127.0.0.1:8000",
        "service=127.0.0.1",
        "service=127.0.0.1:0",
        "service=127.0.0.1:70000",
        "service=http://127.0.0.1:8000",
        "service=:8000",
        "service=a:80 b:80",
    ],
)
def test_a_malformed_target_is_named(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_target(text)
    assert str(error.value) == (
        f"--target {text}: expected service=HOST:PORT or exporter=HOST:PORT, "
        "then a path if it is not /metrics"
    )


def test_paths_in_a_scrape_config_are_those_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yml"
    file.write_text(
        """
scrape_configs:
  - job_name: engines
    authorization: {credentials_file: token}
    tls_config: {ca_file: ""}
    file_sd_configs: [{files: [engines/*.json, /etc/engines.json]}]
"""
    )
    assert read_scrape_configs(file) == [
        {
            "job_name": "engines",
            "authorization": {"credentials_file": str(tmp_path / "token")},
            "tls_config": {"ca_file": ""},
            "file_sd_configs": [{"files": [str(tmp_path / "engines/*.json"), "/etc/engines.json"]}],
        }
    ]


EXPECTED = "expected `scrape_configs:` with a list of jobs, and nothing else"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"found no mapping; {EXPECTED}"),
        ("- job_name: a", f"found no mapping; {EXPECTED}"),
        ("scrape_configs: []\nglobal: {}", f"found scrape_configs, global; {EXPECTED}"),
        ("scrape_configs: a", f"scrape_configs is no list of jobs; {EXPECTED}"),
        ("scrape_configs: [a]", f"scrape_configs is no list of jobs; {EXPECTED}"),
    ],
)
def test_another_form_of_scrape_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "jobs.yml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        read_scrape_configs(file)
    assert str(error.value) == f"--scrape-config {file}: {message}"


def test_a_scrape_config_that_is_not_yaml_says_where(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yml"
    file.write_text("scrape_configs:\n  - [\n")
    with pytest.raises(UsageError) as error:
        read_scrape_configs(file)
    assert str(error.value).startswith(f"--scrape-config {file}: not YAML: ")
    assert "line 3" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_scrape_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        read_scrape_configs(tmp_path / "jobs.yml")
    assert str(error.value) == f"--scrape-config {tmp_path}/jobs.yml: No such file or directory"
