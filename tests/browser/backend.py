"""A real Prometheus over blocks made for a test, and the viewer in front of it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailwatch_stack.native.binaries import locate

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_START_SECONDS = 30
_PR_SET_PDEATHSIG = 1  # prctl(2)
_prctl = ctypes.CDLL(None).prctl


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def create_blocks(openmetrics: str, data: Path) -> None:
    """Turn OpenMetrics text into blocks under `data`."""
    text = data.parent / "samples.om"
    text.write_text(openmetrics)
    _promtool("tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(data))


def create_rule_blocks(
    rules: list[Path], data: Path, url: str, start: int, end: int, step: int
) -> None:
    """Evaluate recording rules over the past of a running Prometheus into blocks."""
    _promtool(
        "tsdb",
        "create-blocks-from",
        "rules",
        f"--start={start}",
        f"--end={end}",
        f"--eval-interval={step}s",
        f"--output-dir={data}",
        f"--url={url}",
        *map(str, rules),
    )


@contextlib.contextmanager
def prometheus(data: Path) -> Iterator[str]:
    """Run Prometheus over `data`; gives its URL once it answers."""
    config = data.parent / "prometheus.yml"
    config.write_text("scrape_configs: []\n")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(locate("prometheus")),
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with running(command, f"{url}/-/ready"):
        yield url


@contextlib.contextmanager
def viewer(prometheus_url: str, *flags: str) -> Iterator[str]:
    """Run `tailwatch viewer`; gives its URL once it answers."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "tailwatch_stack",
        "viewer",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--prometheus.url={prometheus_url}",
        *flags,
    ]
    with running(command, f"{url}/-/healthy"):
        yield url


def ask(url: str, path: str, **parameters: str | float) -> Any:
    """Return what Prometheus' API gives under `data`."""
    query = urllib.parse.urlencode(parameters)
    with _OPENER.open(f"{url}/api/v1/{path}?{query}", timeout=10) as response:
        return json.load(response)["data"]


@contextlib.contextmanager
def running(command: list[str], ready_url: str) -> Iterator[None]:
    """Run a server that answers at `ready_url`; it ends with us, even if we are killed."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    try:
        _wait(process, ready_url)
        yield
    finally:
        process.terminate()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _wait(process: subprocess.Popen[str], url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            output = process.communicate()[0]
            raise AssertionError(f"{process.args!r} ended with {process.returncode}: {output}")
        with contextlib.suppress(OSError), _OPENER.open(url, timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"{url} did not answer within {_START_SECONDS} s")


def _promtool(*arguments: str) -> None:
    command = [str(locate("promtool")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=120)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
