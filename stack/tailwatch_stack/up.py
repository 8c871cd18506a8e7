"""`tailwatch up`: exporter, Prometheus, Alertmanager and viewer for a person's own services."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tailwatch_stack.errors import UsageError
from tailwatch_stack.native import alertmanager, ports, prometheus, stack
from tailwatch_stack.native.console import Console
from tailwatch_stack.native.targets import parse_target, read_scrape_configs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `tailwatch up`."""
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="KIND=HOST:PORT[/PATH]",
        help="scrape a service (service=127.0.0.1:8000) or another machine's exporter "
        "(exporter=10.0.0.5:12160), repeatable",
    )
    parser.add_argument(
        "--scrape-config",
        type=Path,
        metavar="FILE",
        help="further scrape jobs: a YAML file with `scrape_configs:` as in prometheus.yml",
    )
    parser.add_argument(
        "--thresholds",
        type=Path,
        metavar="FILE",
        help="YAML with your own alert thresholds, only what differs from the shipped ones",
    )
    parser.add_argument(
        "--alertmanager.webhook-url",
        dest="webhook_url",
        metavar="URL",
        help="post critical alerts to URL/page and warnings to URL/ticket",
    )
    parser.add_argument(
        "--alertmanager.config-file",
        dest="alertmanager_config",
        type=Path,
        metavar="FILE",
        help="your own Alertmanager configuration instead of the shipped one",
    )
    ports.add_argument(parser, ports.STACK_PORTS)
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=default_data_dir(),
        metavar="DIR",
        help="where Prometheus and Alertmanager keep their data (default: %(default)s)",
    )
    stack.add_status_file_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the stack until Ctrl-C; return the exit code."""
    if args.webhook_url is not None and args.alertmanager_config is not None:
        raise UsageError(
            "--alertmanager.webhook-url and --alertmanager.config-file exclude each other"
        )
    if args.webhook_url is not None and not args.webhook_url.startswith(("http://", "https://")):
        raise UsageError(
            f"--alertmanager.webhook-url {args.webhook_url}: expected http:// or https://"
        )
    targets = [parse_target(text) for text in args.target]
    scrape_configs = [] if args.scrape_config is None else read_scrape_configs(args.scrape_config)
    service_ports = ports.parse(args.port, ports.STACK_PORTS)
    console = Console()
    programs = stack.prepare(console, service_ports)
    _check_own_files(args, programs)
    plan = stack.Stack(
        programs=programs,
        ports=service_ports,
        thresholds=args.thresholds,
        alertmanager_config=args.alertmanager_config,
        webhook_url=args.webhook_url,
        targets=targets,
        scrape_configs=scrape_configs,
        data=args.data_dir.resolve(),
    )
    urls = {
        "overview": plan.url("viewer") + stack.OVERVIEW,
        "Prometheus": plan.url("prometheus"),
        "Alertmanager": plan.url("alertmanager"),
        "runbooks": plan.url("viewer") + "/runbooks",
    }
    return stack.run(plan.services, urls, args.status_file, console)


def _check_own_files(args: argparse.Namespace, programs: stack.Programs) -> None:
    """Raise UsageError naming the person's file that Prometheus or Alertmanager would refuse."""
    # Alone, although they become part of a larger one: so line numbers are those of the file.
    for flag, file, refusal, tool in (
        ("--scrape-config", args.scrape_config, prometheus.refusal, programs.promtool),
        (
            "--alertmanager.config-file",
            args.alertmanager_config,
            alertmanager.refusal,
            programs.amtool,
        ),
    ):
        if file is not None and (reason := refusal(tool, file)):
            raise UsageError(f"{flag} {file}: {reason}")


def default_data_dir() -> Path:
    """Return tailwatch's directory in the user's data (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "share") / "tailwatch"
