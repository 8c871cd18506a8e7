"""`tailwatch viewer`: serve the dashboards and runbooks to a browser."""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from tailwatch_stack.data import data_dir
from tailwatch_stack.errors import UsageError
from tailwatch_stack.viewer.address import bind, parse_listen_address
from tailwatch_stack.viewer.documents import Dashboards, Runbooks
from tailwatch_stack.viewer.prometheus import PrometheusServer
from tailwatch_stack.viewer.server import ViewerSettings, create_app

_HEADER = re.compile(r"([A-Za-z0-9-]+)\s*:\s*([\x20-\x7e]+)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "--web.listen-address",
        dest="listen_address",
        default="127.0.0.1:12162",
        metavar="HOST:PORT",
        help="address to serve on; there is no log-in, so keep it on loopback "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--prometheus.url",
        dest="prometheus_url",
        default="http://127.0.0.1:9090",
        metavar="URL",
        help="Prometheus, or what speaks its HTTP API; a path prefix is kept "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--prometheus.header",
        dest="prometheus_headers",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="header sent to Prometheus, such as a tenant's X-Scope-OrgID; repeatable",
    )
    parser.add_argument(
        "--prometheus.bearer-token-file",
        dest="bearer_token_file",
        type=Path,
        metavar="FILE",
        help="file with the token that Prometheus asks for",
    )
    parser.add_argument(
        "--prometheus.ca-file",
        dest="ca_file",
        type=Path,
        metavar="FILE",
        help="certificates (PEM) that Prometheus' own is checked against",
    )
    parser.add_argument(
        "--prometheus.scrape-interval",
        dest="scrape_interval",
        default="15s",
        metavar="DURATION",
        help="how often targets are scraped: the smallest step, and a quarter of the "
        "shortest window for rates (default: %(default)s)",
    )
    parser.add_argument(
        "--dashboards",
        type=Path,
        metavar="DIR",
        help="folder of dashboards to show instead of the shipped ones",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; the address is printed once requests are accepted."""
    listen = parse_listen_address(args.listen_address)
    if args.dashboards is not None and not args.dashboards.is_dir():
        raise UsageError(f"--dashboards {args.dashboards}: expected a folder")
    settings = ViewerSettings(
        listen=listen,
        prometheus=PrometheusServer(
            url=args.prometheus_url,
            headers=dict(_header(text) for text in args.prometheus_headers),
            bearer_token_file=_readable("--prometheus.bearer-token-file", args.bearer_token_file),
            ca_file=_readable("--prometheus.ca-file", args.ca_file),
        ),
        dashboards=Dashboards(args.dashboards or data_dir("dashboards")),
        runbooks=Runbooks(data_dir("runbooks")),
        scrape_interval_seconds=_seconds(args.scrape_interval),
    )
    app = create_app(settings)
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    # uvicorn raises the signal that stopped it once more: being told to stop is no failure.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda *_: sys.exit(0))
    with contextlib.closing(bind(listen)) as listener:
        _Server(config, f"http://{listen}/").run(sockets=[listener])
    return 0


class _Server(uvicorn.Server):
    """A server that says where it is once it answers."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"viewer: {self._url}", flush=True)


def _header(text: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(text)
    if match is None:
        raise UsageError(f"--prometheus.header {text}: expected NAME:VALUE")
    return match[1], match[2]


def _readable(flag: str, path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        raise UsageError(f"{flag} {path}: expected a file")
    return path


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"--prometheus.scrape-interval {text}: expected a duration such as 15s")
    return seconds
