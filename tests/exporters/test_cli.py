"""`tailwatch exporter` as a person meets it: flags, mistakes, start and end."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tailwatch_exporters.cli import COLLECTORS, duration, listen_address
from tests.exporters.support import PROC, ExporterProcess, start_exporter


def run(*flags: str) -> tuple[int, str]:
    """Run to the end; return exit code and the last line said."""
    process = start_exporter(*flags)
    _, said = process.communicate(timeout=20)
    return process.returncode, said.splitlines()[-1]


def test_unknown_flags_are_usage_errors() -> None:
    code, said = run("--collector.gpus")
    assert code == 2
    assert "--collector.gpus" in said


def test_flags_are_not_abbreviated() -> None:
    assert run("--web.listen=127.0.0.1:0")[0] == 2


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--web.listen-address=12160", "'12160', expected HOST:PORT with a port up to 65535"),
        ("--web.listen-address=h:99999", "'h:99999', expected HOST:PORT"),
        ("--web.listen-address=::1:80", "'::1:80', an IPv6 address is written [ADDRESS]:PORT"),
        ("--gpu.sampling-interval=fast", "'fast', expected a duration like 500ms or 1s"),
        ("--gpu.sampling-interval=50ms", "'50ms', expected 100ms to 60m"),
        ("--threads.sampling-interval=nan", "'nan', expected 100ms to 60m"),
        ("--threads.sampling-interval=-1", "'-1', expected 100ms to 60m"),
    ],
)
def test_bad_values_name_flag_value_and_expectation(flag: str, message: str) -> None:
    code, said = run(flag)
    assert code == 2
    assert flag.partition("=")[0] in said
    assert message in said


def test_no_collector_is_a_usage_error() -> None:
    code, said = run(*(f"--no-collector.{name}" for name in COLLECTORS))
    assert code == 2
    assert said == (
        "tailwatch exporter: no collector is enabled, expected at least one of host, threads, gpu"
    )


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = run(f"--web.listen-address={address}")
    assert code == 1
    assert said == (
        f"tailwatch exporter: --web.listen-address {address}: address already in use, "
        "expected a free address of this machine"
    )


def test_an_address_that_does_not_resolve_is_one_line() -> None:
    code, said = run("--web.listen-address=no-such-host.invalid:1")
    assert code == 1
    assert said.startswith("tailwatch exporter: --web.listen-address no-such-host.invalid:1: ")
    assert said.endswith(", expected a free address of this machine")
    assert "(" not in said  # no second account of the address by the socket module


def test_an_unreadable_procfs_is_one_line(tmp_path: Path) -> None:
    code, said = run(f"--path.procfs={tmp_path}/none")
    assert code == 1
    assert said == (
        f"tailwatch exporter: --path.procfs {tmp_path}/none: {tmp_path}/none/stat: "
        "no such file or directory, expected a mounted /proc"
    )


def test_start_scrape_and_end(exporter: Callable[..., ExporterProcess]) -> None:
    process = exporter(f"--path.procfs={PROC}", "--no-collector.gpu", "--no-collector.threads")
    page = process.scrape()
    assert page("host_load1") == 0.72
    assert page("exporter_collector_success", collector="host") == 1
    assert "exporter_collector_success" in page.names()
    assert process.get("/-/healthy") == "tailwatch exporter is healthy\n"
    code, seconds, said = process.stop()
    assert (code, said) == (0, "")
    assert seconds < 2.0


def test_collectors_are_chosen_by_flag(exporter: Callable[..., ExporterProcess]) -> None:
    page = exporter("--no-collector.gpu", "--no-collector.host").scrape()
    collectors = {dict(k)["collector"] for k in page.of("exporter_collector_success")}
    assert collectors == {"threads"}
    assert "nvml_up" not in page.names()


def test_the_process_stays_small(exporter: Callable[..., ExporterProcess]) -> None:
    process = exporter("--threads.sampling-interval=0.1")
    process.scrape()
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert int(fields["VmRSS"].split()[0]) < 30 * 1024  # 20 MB where this was written; NVML adds 16


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:12160", ("127.0.0.1", 12160)),
        (":9", ("0.0.0.0", 9)),
        ("[::1]:80", ("::1", 80)),
        ("host:0", ("host", 0)),
    ],
)
def test_listen_addresses(text: str, expected: tuple[str, int]) -> None:
    assert listen_address(text) == expected


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("1s", 1.0), ("2m", 120.0), ("0.25", 0.25), ("1.5s", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "1h", "1 2s", "inf"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)
