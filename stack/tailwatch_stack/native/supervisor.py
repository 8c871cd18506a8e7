"""Start services in order, watch them, and stop them all: on request or when one of them dies."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tailwatch_stack.native import loopback
from tailwatch_stack.native.console import Console, Status
from tailwatch_stack.native.processes import Child, Service, ServiceFailed
from tailwatch_stack.native.signals import StopSignals

_TICK_SECONDS = 0.1
_READY_WITHIN_SECONDS = 60.0
_STOP_WITHIN_SECONDS = 10.0
_DETAIL_EVERY_SECONDS = 1.0  # one service each time


class Stopped(Exception):
    """The person asked to stop while services were being started."""


class Supervisor:
    """Runs services under one roof: when one ends, all are stopped.

    Args:
        directory: of this run: gets a log file per service and their temporary files.
        console: where progress goes.
        signals: entered; tells when to stop.
    """

    def __init__(self, directory: Path, console: Console, signals: StopSignals) -> None:
        self._logs = directory / "logs"
        self._temporary = directory / "tmp"
        for folder in (self._logs, self._temporary):
            folder.mkdir()
        self._console = console
        self._signals = signals
        self._children: list[Child] = []
        self._echoed: dict[str, int] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Service -> process id, in the order of their start."""
        return {child.service.name: child.pid for child in self._children}

    def start(self, service: Service) -> None:
        """Start one service and wait until it is ready.

        Raises:
            TailwatchError: it cannot be started, ended, or is not ready within a minute.
            Stopped: a signal to stop came.
        """
        self._console.begin(f"starting {service.name} ...")
        began = time.monotonic()
        try:
            child = Child(
                service,
                self._logs / f"{service.name}.log",
                self._temporary,
                self._signals.inherited_mask,
            )
            self._children.append(child)
            self._wait_until_ready(child, began + _READY_WITHIN_SECONDS)
        except BaseException:
            self._console.finish("failed" if self._signals.received is None else "stopped")
            raise
        self._console.finish(f"ready after {time.monotonic() - began:.1f} s")

    def watch(self) -> None:
        """Show the services' states until a signal to stop comes.

        Raises:
            TailwatchError: a service ended.
        """
        details = {child.service.name: _detail(child.service) for child in self._children}
        for child in itertools.cycle(self._children):
            details[child.service.name] = _detail(child.service)
            self._echo()
            self._console.status([Status(name, detail) for name, detail in details.items()])
            next_detail = time.monotonic() + _DETAIL_EVERY_SECONDS
            while time.monotonic() < next_detail:
                self._raise_if_one_ended()
                self._echo()
                if self._signals.wait(_TICK_SECONDS):
                    return

    def stop(self) -> None:
        """Stop every child, the last started first; a second signal makes it at once."""
        running = [child for child in reversed(self._children) if child.ending() is None]
        if running:
            with contextlib.suppress(OSError):  # the terminal may be gone
                self._console.line("stopping")
        for child in running:
            child.terminate()
        deadline = time.monotonic() + _STOP_WITHIN_SECONDS
        impatient = False
        while running and not impatient and time.monotonic() < deadline:
            impatient = self._signals.wait(_TICK_SECONDS / 2)
            running = [child for child in running if child.ending() is None]
        for child in running:
            child.kill()
        with contextlib.suppress(OSError):
            self._echo()
        self._children.clear()

    def _wait_until_ready(self, child: Child, deadline: float) -> None:
        url = child.service.ready_url
        answer: int | None = None
        while time.monotonic() < deadline:
            self._raise_if_one_ended()
            if url is None or (answer := loopback.status(url)) == 200:
                return
            if self._signals.wait(_TICK_SECONDS):
                raise Stopped
        heard = "nothing" if answer is None else f"status {answer}"
        raise ServiceFailed(
            child, f"is not ready after {_READY_WITHIN_SECONDS:.0f} s: {url} answers {heard}"
        )

    def _raise_if_one_ended(self) -> None:
        for child in self._children:
            ending = child.ending()
            if ending is not None:
                raise ServiceFailed(child, f"(pid {child.pid}) {ending}")

    def _echo(self) -> None:
        """Print the whole lines that echoing services have written since the last time."""
        for child in self._children:
            if not child.service.echo:
                continue
            name = child.service.name
            with open(child.log, "rb") as log:
                log.seek(self._echoed.get(name, 0))
                text = log.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._echoed[name] = self._echoed.get(name, 0) + len(whole)
            for line in whole.decode(errors="replace").splitlines():
                self._console.line(f"{name} | {line}")


def _show_log(child: Child, console: Console) -> None:
    tail = child.log_tail()
    name = child.service.name
    console.line(f"the last lines of {name}:" if tail else f"{name} wrote nothing")
    for line in tail:
        console.line(f"    {line}")


def _detail(service: Service) -> str:
    if service.detail is not None:
        return service.detail()
    if service.ready_url is not None and loopback.status(service.ready_url) != 200:
        return "running, does not answer"
    return "running"


def run(
    build: Callable[[Path], Sequence[Service]],
    announce: Callable[[Supervisor], None],
    console: Console,
    signals: StopSignals,
    directory: Path,
) -> int:
    """Run services until a signal to stop or a failure; return the exit code.

    Args:
        build: renders configurations into the directory it is given, returns the services.
        announce: called once when all are ready.
        console: where progress goes.
        signals: entered.
        directory: of this run.
    """
    supervisor = Supervisor(directory, console, signals)
    try:
        for service in build(directory):
            supervisor.start(service)
        announce(supervisor)
        supervisor.watch()
        return 0
    except Stopped:
        return 128 + (signals.received or 0)
    except ServiceFailed as failure:
        console.close()
        _show_log(failure.child, console)
        raise
    finally:
        with contextlib.suppress(OSError):  # the terminal may be gone
            console.close()
        supervisor.stop()
