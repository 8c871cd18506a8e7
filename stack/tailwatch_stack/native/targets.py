"""What to scrape: the `--target` flag and a person's own scrape configuration."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tailwatch_stack.errors import UsageError

LOOPBACK_HOST = r"localhost|127(\.\d+){3}|::1"  # for Python and for Prometheus' RE2

JOBS = {"service": "tailwatch-service", "exporter": "tailwatch-exporter"}

_TARGET = re.compile(
    r"(?P<kind>\w+)=(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})(?P<path>/\S*)?"
)


class Target(NamedTuple):
    """An address to scrape, the job it belongs to, and its target labels."""

    job: str
    address: str
    labels: dict[str, str]


def this_host() -> str:
    """Return the value of the label `host` for this machine."""
    return platform.node()


def local_target(job: str, address: str) -> Target:
    """Return a target on this machine."""
    return Target(job, address, {"host": this_host()})


def parse_target(text: str) -> Target:
    """Return the target that `service=HOST:PORT[/PATH]` or `exporter=HOST:PORT[/PATH]` means.

    The label `host` is HOST, for a loopback address the name of this machine: so a service and
    the exporter beside it carry the same one.

    Raises:
        UsageError: another form.
    """
    match = _TARGET.fullmatch(text)
    if match is None or match["kind"] not in JOBS or not 1 <= int(match["port"]) <= 65535:
        raise UsageError(
            f"--target {text}: expected service=HOST:PORT or exporter=HOST:PORT, "
            "then a path if it is not /metrics"
        )
    host = match["host"].strip("[]")
    labels = {"host": this_host() if re.fullmatch(LOOPBACK_HOST, host) else host}
    if match["path"] is not None:
        labels["__metrics_path__"] = match["path"]
    return Target(JOBS[match["kind"]], f"{match['host']}:{match['port']}", labels)


def read_scrape_configs(path: Path) -> list[dict[str, Any]]:
    """Return the scrape configurations of a file in Prometheus' format, relative paths resolved.

    Only the outer form is checked; what is inside is for `promtool check config`.

    Raises:
        UsageError: unreadable, not YAML, or something besides a list of `scrape_configs`.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"--scrape-config {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--scrape-config {path}: not YAML: {_in_one_line(error)}") from error
    expected = "expected `scrape_configs:` with a list of jobs, and nothing else"
    if not isinstance(document, dict) or set(document) != {"scrape_configs"}:
        found = ", ".join(map(str, document)) if isinstance(document, dict) else "no mapping"
        raise UsageError(f"--scrape-config {path}: found {found}; {expected}")
    jobs = document["scrape_configs"]
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise UsageError(f"--scrape-config {path}: scrape_configs is no list of jobs; {expected}")
    return [_with_absolute_paths(job, path.resolve().parent) for job in jobs]


def _with_absolute_paths(value: Any, directory: Path, key: str = "") -> Any:
    """Resolve `files:` and `*_file:` as Prometheus does: against the file they stand in."""
    if isinstance(value, dict):
        return {k: _with_absolute_paths(v, directory, str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_absolute_paths(item, directory, key) for item in value]
    if value and isinstance(value, str) and (key == "files" or key.endswith("_file")):
        return str(directory / value)
    return value


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())
