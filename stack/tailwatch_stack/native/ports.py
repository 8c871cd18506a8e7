"""The loopback ports of the stack: defaults, the `--port` flag, and the check before a start."""

from __future__ import annotations

import argparse
import errno
import os
import socket
from collections.abc import Iterable, Mapping

from tailwatch_stack.errors import TailwatchError, UsageError

ADDRESS = "127.0.0.1"  # nothing here has authentication, so nothing listens wider

# Prometheus and Alertmanager keep their own; 9100-9999 is fully allocated to exporters.
STACK_PORTS = {"prometheus": 9090, "alertmanager": 9093, "exporter": 12160, "viewer": 12162}


def add_argument(parser: argparse.ArgumentParser, defaults: Mapping[str, int]) -> None:
    """Add the repeatable `--port SERVICE=PORT`."""
    shown = ", ".join(f"{name}={port}" for name, port in defaults.items())
    parser.add_argument(
        "--port",
        action="append",
        default=[],
        metavar="SERVICE=PORT",
        help=f"another loopback port for a service, repeatable (default: {shown})",
    )


def parse(flags: Iterable[str], defaults: Mapping[str, int]) -> dict[str, int]:
    """Return service -> port: the defaults with the flags' values over them.

    Raises:
        UsageError: no such service, not a port (1..65535), or one port for two services.
    """
    ports = dict(defaults)
    for flag in flags:
        name, _, number = flag.partition("=")
        if name not in defaults:
            raise UsageError(f"--port {flag}: expected one of {', '.join(defaults)} before the =")
        if not (number.isascii() and number.isdigit() and 1 <= int(number) <= 65535):
            raise UsageError(f"--port {flag}: expected a port from 1 to 65535 after the =")
        ports[name] = int(number)
    owners: dict[int, str] = {}
    for name, port in ports.items():
        if port in owners:
            raise UsageError(f"port {port} is given to both {owners[port]} and {name}")
        owners[port] = name
    return ports


def check_free(ports: Mapping[str, int]) -> None:
    """Raise TailwatchError naming the first port on which something listens already."""
    for name, port in ports.items():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As the servers do: connections of an earlier run in TIME_WAIT do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, port))
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE
                reason = "taken" if taken else os.strerror(error.errno or 0).lower()
                raise TailwatchError(
                    f"port {port} for {name} is {reason}: "
                    f"stop what listens there or choose another with --port {name}=PORT"
                ) from error
