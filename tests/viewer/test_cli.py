from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tailwatch_stack.cli import main
from tailwatch_stack.errors import TailwatchError, UsageError
from tailwatch_stack.viewer.address import ListenAddress, bind, parse_listen_address

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "viewer.md"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:12162", ListenAddress("127.0.0.1", 12162)),
        ("[::1]:80", ListenAddress("::1", 80)),
        (":9090", ListenAddress("", 9090)),
        ("gpu-box:1", ListenAddress("gpu-box", 1)),
    ],
)
def test_listen_addresses_are_written_as_for_prometheus(text: str, expected: ListenAddress) -> None:
    assert parse_listen_address(text) == expected


@pytest.mark.parametrize("text", ["", "127.0.0.1", "host:", "host:0", "host:65536", "::1:80"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--web.listen-address {text}: expected")):
        parse_listen_address(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("gpu-box", False),
    ],
)
def test_loopback_is_known(host: str, expected: bool) -> None:
    assert ListenAddress(host, 1).is_loopback is expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--web.listen-address", "x"], "--web.listen-address x: expected host:port"),
        (["--prometheus.url", "x"], "--prometheus.url x: expected http://host:port"),
        (["--prometheus.url", "http://[::1"], "http://[::1: expected http://host:port"),
        (["--prometheus.header", "x=1"], "--prometheus.header x=1: expected NAME:VALUE"),
        (["--prometheus.ca-file", "/nope"], "--prometheus.ca-file /nope: expected a file"),
        (["--prometheus.bearer-token-file", "/nope"], "/nope: expected a file"),
        (["--prometheus.scrape-interval", "soon"], "soon: expected a duration such as 15s"),
        (["--prometheus.scrape-interval", "0s"], "0s: expected a duration such as 15s"),
        (["--dashboards", "/nope"], "--dashboards /nope: expected a folder"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], flags: list[str], expected: str
) -> None:
    assert main(["viewer", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tailwatch viewer: ")
    assert expected in line


def test_a_taken_port_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["viewer", "--web.listen-address", address]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tailwatch viewer: cannot listen on {address}: Address already in use")


def test_of_two_that_start_at_once_one_is_told() -> None:
    """Both may bind before either answers; the port is taken as soon as one has it."""
    with bind(ListenAddress("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(TailwatchError, match="Address already in use"):
            bind(ListenAddress("127.0.0.1", port))


def test_what_is_no_host_name_is_told() -> None:
    with pytest.raises(TailwatchError, match=r"cannot listen on a\.\.b:12162: .* no host name"):
        bind(ListenAddress("a..b", 12162))


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_stops_when_told(stop: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tailwatch_stack", "viewer"]
    flags = ["--web.listen-address", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"viewer: http://127.0.0.1:{port}/\n"
        process.send_signal(stop)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


def test_the_reference_names_every_flag_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main(["viewer", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    flags = set(re.findall(r"(?<!\w)--[a-z][\w.-]+", shown)) - {"--help"}
    defaults = set(re.findall(r"\(default: ([^)]+)\)", shown))
    assert len(flags) >= 7
    assert {flag for flag in flags if f"`{flag}" not in REFERENCE.read_text()} == set()
    assert {one for one in defaults if f"`{one}`" not in REFERENCE.read_text()} == set()
    documented = set(re.findall(r"^\| `(--[\w.-]+)", REFERENCE.read_text(), re.MULTILINE))
    assert documented == flags
