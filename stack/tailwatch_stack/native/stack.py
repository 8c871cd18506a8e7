"""The four services that both `tailwatch up` and `tailwatch demo` run, and how a run goes."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tailwatch_stack.errors import TailwatchError, UsageError
from tailwatch_stack.native import alertmanager, binaries, ports, prometheus, supervisor
from tailwatch_stack.native.console import Console
from tailwatch_stack.native.ports import ADDRESS
from tailwatch_stack.native.processes import Service
from tailwatch_stack.native.rundir import run_directory
from tailwatch_stack.native.signals import StopSignals, unwind_on_termination
from tailwatch_stack.native.targets import Target, local_target
from tailwatch_stack.rules import render
from tailwatch_stack.rules_render import write_files

OVERVIEW = "/d/tailwatch-overview"


class Programs:
    """The programs of the stack that are not ours, found or downloaded."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.prometheus = binaries.locate("prometheus", report)
        self.promtool = binaries.locate("promtool", report)
        self.alertmanager = binaries.locate("alertmanager", report)
        self.amtool = binaries.locate("amtool", report)


@dataclass(frozen=True)
class Stack:
    """What a run of the stack is made of.

    Attributes:
        programs: where Prometheus and Alertmanager are.
        ports: loopback port by service, with at least those of `ports.STACK_PORTS`.
        thresholds: a person's own over the shipped ones, for the alert rules.
        alertmanager_config: a person's own file; None: the shipped one.
        webhook_url: for the shipped one.
        targets: besides the stack's own.
        scrape_configs: further jobs.
        data: kept directory for the data; None: in the run's directory, gone with it.
    """

    programs: Programs
    ports: Mapping[str, int]
    thresholds: Path | None = None
    alertmanager_config: Path | None = None
    webhook_url: str | None = None
    targets: Sequence[Target] = ()
    scrape_configs: Sequence[Mapping[str, Any]] = ()
    data: Path | None = None

    def services(
        self, directory: Path, exporter_environment: Mapping[str, str] | None = None
    ) -> list[Service]:
        """Write and check the configurations in `directory`; return the services in order.

        Args:
            directory: of this run.
            exporter_environment: added to the exporter's.

        Raises:
            TailwatchError: a configuration is refused, or the data directory cannot be made.
        """
        rules = directory / "alert_rules"
        write_files(rules, render(self.thresholds, base_url=self.url("viewer")))
        prometheus_config = directory / "prometheus.yml"
        _write_yaml(
            prometheus_config,
            prometheus.configuration(
                rules,
                self.ports["alertmanager"],
                [*self._own_targets(), *self.targets],
                self.scrape_configs,
            ),
        )
        if reason := prometheus.refusal(self.programs.promtool, prometheus_config):
            raise TailwatchError(f"Prometheus' configuration is refused: {reason}")
        alertmanager_config = self.alertmanager_config or directory / "alertmanager.yml"
        if self.alertmanager_config is None:
            _write_yaml(alertmanager_config, alertmanager.configuration(self.webhook_url))
        if reason := alertmanager.refusal(self.programs.amtool, alertmanager_config):
            raise TailwatchError(f"Alertmanager's configuration is refused: {reason}")
        data = self.data or directory
        return [
            self._exporter(exporter_environment or {}),
            alertmanager.service(
                self.programs.alertmanager,
                alertmanager_config,
                _made(data / "alertmanager"),
                self.ports["alertmanager"],
            ),
            prometheus.service(
                self.programs.prometheus,
                prometheus_config,
                _made(data / "prometheus"),
                self.ports["prometheus"],
            ),
            self._viewer(),
        ]

    def url(self, service: str) -> str:
        """Return the base URL of a service by its name in `ports`."""
        return f"http://{ADDRESS}:{self.ports[service]}"

    def _own_targets(self) -> list[Target]:
        jobs = {
            "tailwatch-exporter": "exporter",
            "prometheus": "prometheus",
            "alertmanager": "alertmanager",
        }
        return [local_target(job, f"{ADDRESS}:{self.ports[name]}") for job, name in jobs.items()]

    def _exporter(self, environment: Mapping[str, str]) -> Service:
        return Service(
            name="exporter",
            command=tailwatch_command(
                "exporter", f"--web.listen-address={ADDRESS}:{self.ports['exporter']}"
            ),
            ready_url=f"{self.url('exporter')}/-/healthy",
            environment=environment,
        )

    def _viewer(self) -> Service:
        return Service(
            name="viewer",
            command=tailwatch_command(
                "viewer",
                f"--web.listen-address={ADDRESS}:{self.ports['viewer']}",
                f"--prometheus.url={self.url('prometheus')}",
            ),
            ready_url=f"{self.url('viewer')}/-/healthy",
        )


def tailwatch_command(*arguments: str) -> list[str | Path]:
    """Return the command that runs one of our own commands with this Python."""
    return [sys.executable, "-m", "tailwatch_stack", *arguments]


def add_status_file_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--status-file`."""
    parser.add_argument(
        "--status-file",
        type=Path,
        metavar="FILE",
        help="write URLs and process ids there as JSON once everything runs; removed at the stop",
    )


def run(
    build: Callable[[Path], Sequence[Service]],
    urls: Mapping[str, str],
    status_file: Path | None,
    console: Console,
) -> int:
    """Run the services that `build` returns until Ctrl-C; return the exit code.

    Args:
        build: gets the run's directory, returns the services in the order of their start.
        urls: what to print, and under which name, once all are ready.
        status_file: see `add_status_file_argument`.
        console: where progress goes.
    """
    if status_file is not None:
        _remove_older(status_file)
    began = time.monotonic()
    announced = False

    def note_pids(pids: Mapping[str, int]) -> None:
        nonlocal announced
        first, announced = not announced, True
        if first:
            _announce(urls, time.monotonic() - began, console)
        if status_file is None:
            return
        try:
            _write_json(status_file, {"urls": dict(urls), "pids": dict(pids)})
        except TailwatchError as error:
            if first:
                raise
            console.line(str(error))  # a full disk later on is no reason to stop

    with StopSignals() as signals, run_directory() as directory:
        try:
            return supervisor.run(build, note_pids, console, signals, directory)
        finally:
            if status_file is not None:
                with contextlib.suppress(OSError):  # its directory may be gone
                    status_file.unlink()


def prepare(console: Console, service_ports: Mapping[str, int]) -> Programs:
    """Check the ports, then find the programs, which may have to be downloaded.

    From here on SIGTERM and SIGHUP clean up as Ctrl-C does.

    Raises:
        TailwatchError: a port is taken, or a program is not to be had.
    """
    unwind_on_termination()
    ports.check_free(service_ports)
    return Programs(console.line)


def _announce(urls: Mapping[str, str], seconds: float, console: Console) -> None:
    console.line()
    width = max(map(len, urls))
    for name, url in urls.items():
        console.line(f"  {name:<{width}}  {url}")
    console.line()
    console.line(f"everything runs after {seconds:.1f} s; Ctrl-C stops it")


def _remove_older(path: Path) -> None:
    """Remove the status file of a run that was killed.

    Raises:
        UsageError: no file can be there.
    """
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--status-file {path}: expected a file in a directory that exists")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--status-file {path}: {error.strerror}, expected a file") from error


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TailwatchError(f"{directory} cannot be made: {error.strerror}") from error
    return directory


def _write_yaml(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(document), sort_keys=False))


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(json.dumps(document, indent=2) + "\n")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise TailwatchError(f"--status-file {path}: {error.strerror}") from error
