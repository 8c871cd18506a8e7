"""`tailwatch exporter`: flags, and the process from start to a clean end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from tailwatch_exporters.collectors import Collector, Runner
from tailwatch_exporters.gpu import GpuCollector
from tailwatch_exporters.host import HostCollector
from tailwatch_exporters.procfs import read_bytes
from tailwatch_exporters.serve import HttpServer, exporter_pages
from tailwatch_exporters.threads import ThreadsCollector

DEFAULT_ADDRESS = "127.0.0.1:12160"

_WATCH_SECONDS = 1.0
_STOP_SECONDS = 1.5  # a supervisor's patience is two
_SHORTEST_INTERVAL_SECONDS = 0.1  # GPM needs more than 100 ms between two samples

COLLECTORS: dict[str, tuple[str, Callable[[argparse.Namespace], Collector]]] = {
    "host": (
        "CPU, memory, network, disk and pressure of the machine",
        lambda args: HostCollector(args.procfs, args.sysfs),
    ),
    "threads": (
        "the busiest thread of each process group",
        lambda args: ThreadsCollector(args.procfs, args.threads_interval),
    ),
    "gpu": (
        "NVIDIA GPUs, through NVML",
        lambda args: GpuCollector(
            args.gpu_interval, args.procfs, args.gpu_exit_on_version_mismatch
        ),
    ),
}
"""Every collector: name -> (what it shows, how it is made). The name is flag and label value."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; they are in the style of Prometheus' own exporters."""
    parser.allow_abbrev = False
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument(
        "--web.listen-address",
        dest="listen_address",
        metavar="HOST:PORT",
        type=listen_address,
        default=DEFAULT_ADDRESS,
        help="where to serve /metrics; :PORT is every address of the machine",
    )
    parser.add_argument(
        "--path.procfs",
        dest="procfs",
        metavar="DIR",
        type=Path,
        default=Path("/proc"),
        help="where the machine's /proc is mounted",
    )
    parser.add_argument(
        "--path.sysfs",
        dest="sysfs",
        metavar="DIR",
        type=Path,
        default=Path("/sys"),
        help="where the machine's /sys is mounted",
    )
    for name, (shows, _) in COLLECTORS.items():
        parser.add_argument(
            f"--collector.{name}",
            dest=f"collector_{name}",
            action=argparse.BooleanOptionalAction,
            default=True,
            help=shows,
        )
    parser.add_argument(
        "--gpu.sampling-interval",
        dest="gpu_interval",
        metavar="DURATION",
        type=duration,
        default="1s",
        help="time between two samples of a GPU, at least 100ms",
    )
    parser.add_argument(
        "--gpu.exit-on-version-mismatch",
        dest="gpu_exit_on_version_mismatch",
        action="store_true",
        help="end with code 1 when the driver was replaced by another version, for a supervisor "
        "to start the exporter again: a process cannot load the new library beside the old one",
    )
    parser.add_argument(
        "--threads.sampling-interval",
        dest="threads_interval",
        metavar="DURATION",
        type=duration,
        default="5s",
        help="time over which a thread's CPU use is measured, at least 100ms",
    )


def listen_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, [IPV6]:PORT or :PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}, expected HOST:PORT with a port up to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise argparse.ArgumentTypeError(f"{text!r}, an IPv6 address is written [ADDRESS]:PORT")
    return host or "0.0.0.0", int(port)


def duration(text: str) -> float:
    """Return the seconds of 500ms, 1s, 1m or a plain number of seconds."""
    units = (("ms", 0.001), ("s", 1.0), ("m", 60.0))
    number, scale = next(
        ((text.removesuffix(unit), scale) for unit, scale in units if text.endswith(unit)),
        (text, 1.0),
    )
    try:
        seconds = float(number) * scale
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}, expected a duration like 500ms or 1s"
        ) from None
    if not _SHORTEST_INTERVAL_SECONDS <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}, expected 100ms to 60m")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    enabled = [name for name in COLLECTORS if getattr(args, f"collector_{name}")]
    if not enabled:
        return _fail(
            "no collector is enabled, expected at least one of " + ", ".join(COLLECTORS), 2
        )
    if {"host", "threads"} & set(enabled):
        try:
            read_bytes(str(args.procfs / "stat"))
        except OSError as error:
            what = f"--path.procfs {args.procfs}: {error.filename}: {_reason(error)}"
            return _fail(f"{what}, expected a mounted /proc", 1)
    collectors = [COLLECTORS[name][1](args) for name in enabled]
    host, port = args.listen_address
    release = version("tailwatch")
    pages = exporter_pages(Runner(collectors, release), enabled, release)
    try:
        server = HttpServer(host, port, pages)
    except OSError as error:
        what = f"--web.listen-address {host}:{port}: {_reason(error)}"
        return _fail(f"{what}, expected a free address of this machine", 1)
    return _serve(server, host, collectors)


def _serve(server: HttpServer, host: str, collectors: list[Collector]) -> int:
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="tailwatch exporter: %(message)s"
    )
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    server.start()
    shown_host = f"[{host}]" if ":" in host else host
    address = f"http://{shown_host}:{server.port}/metrics"
    print(f"tailwatch exporter: serving {address}", file=sys.stderr, flush=True)
    for collector in collectors:
        collector.start()
    fatal = None
    while fatal is None and not ending.wait(_WATCH_SECONDS):
        fatal = next((text for c in collectors if (text := c.fatal()) is not None), None)
    server.stop()
    if not _stop(collectors):
        # A call into the driver has not returned: the library's own clean-up would wait for it.
        print("tailwatch exporter: ended with a driver call hanging", file=sys.stderr, flush=True)
        os._exit(0 if fatal is None else 1)
    return 0 if fatal is None else _fail(fatal, 1)


def _stop(collectors: list[Collector]) -> bool:
    deadline = time.monotonic() + _STOP_SECONDS
    return all([collector.stop(max(0.1, deadline - time.monotonic())) for collector in collectors])


def _reason(error: OSError) -> str:
    """Return the error's bare text: socket.create_server adds the address in brackets."""
    if error.errno is not None and error.errno > 0:  # the numbers of name look-ups are negative
        return os.strerror(error.errno).lower()
    return (error.strerror or "failed").partition(" (")[0].lower()


def _fail(text: str, code: int) -> int:
    print(f"tailwatch exporter: {text}", file=sys.stderr)
    return code
