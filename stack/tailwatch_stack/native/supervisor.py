"""Start services in order, start those again that end, and stop them all on request."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailwatch_stack.errors import TailwatchError
from tailwatch_stack.native import loopback
from tailwatch_stack.native.backoff import Backoff
from tailwatch_stack.native.console import Console, Status
from tailwatch_stack.native.processes import Child, Service, ServiceFailed
from tailwatch_stack.native.signals import StopSignals

_TICK_SECONDS = 0.1
_READY_WITHIN_SECONDS = 60.0
_STOP_WITHIN_SECONDS = 10.0
_DETAIL_EVERY_SECONDS = 1.0  # one service each time


class Stopped(Exception):
    """The person asked to stop while services were being started."""


@dataclass(frozen=True)
class _Outage:
    """Why a service does not run, how long it is waited, and when (monotonic) that is over."""

    why: str
    wait_seconds: int
    over: float


class Supervisor:
    """Runs services under one roof.

    One that ends before it was ready fails the start. Later, the others go on and it is started
    again: the pager must not go down with a dashboard.

    Args:
        directory: of this run: gets a log file per service and their temporary files.
        console: where progress goes.
        signals: entered; tells when to stop.
        note_pids: called with service -> process id once all run, and when one was started again.
    """

    def __init__(
        self,
        directory: Path,
        console: Console,
        signals: StopSignals,
        note_pids: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._logs = directory / "logs"
        self._temporary = directory / "tmp"
        for folder in (self._logs, self._temporary):
            folder.mkdir()
        self._console = console
        self._signals = signals
        self._note_pids = note_pids
        self._children: dict[str, Child] = {}
        self._outages: dict[str, _Outage] = {}
        self._backoffs: defaultdict[str, Backoff] = defaultdict(Backoff)
        self._echoed: dict[str, int] = {}

    def start(self, service: Service) -> None:
        """Start one service and wait until it is ready.

        Raises:
            TailwatchError: it cannot be started, ended, or is not ready within a minute.
            Stopped: a signal to stop came.
        """
        self._console.begin(f"starting {service.name} ...")
        began = time.monotonic()
        try:
            child = self._spawn(service)
            self._wait_until_ready(child, began + _READY_WITHIN_SECONDS)
        except BaseException:
            self._console.finish("failed" if self._signals.received is None else "stopped")
            raise
        self._console.finish(f"ready after {time.monotonic() - began:.1f} s")

    def watch(self) -> None:
        """Show the services' states, and start those again that end, until a signal to stop."""
        self._note_pids(self._pids())
        states = {name: self._state(name) for name in self._children}
        for name in itertools.cycle(tuple(states)):
            states[name] = self._state(name)
            self._echo()
            self._console.status([Status(*state) for state in states.items()])
            next_state = time.monotonic() + _DETAIL_EVERY_SECONDS
            while time.monotonic() < next_state:
                self._start_again_what_ended()
                self._echo()
                if self._signals.wait(_TICK_SECONDS):
                    return

    def stop(self) -> None:
        """Stop every child, the last started first; a second signal makes it at once."""
        running = [c for c in reversed(self._children.values()) if c.ending() is None]
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
        for child in self._children.values():
            ending = child.ending()
            if ending is not None:
                raise ServiceFailed(child, f"(pid {child.pid}) {ending}")

    def _start_again_what_ended(self) -> None:
        for name, child in self._children.items():
            ending = child.ending()
            if ending is None:
                continue
            if name not in self._outages:
                _show_log(child, self._console)
                ran_seconds = time.monotonic() - child.started
                self._note_outage(name, f"(pid {child.pid}) {ending}", ran_seconds)
            if time.monotonic() >= self._outages[name].over:
                self._start_again(child.service)

    def _note_outage(self, name: str, why: str, ran_seconds: float) -> None:
        wait = self._backoffs[name].next_seconds(ran_seconds)
        self._outages[name] = _Outage(why, wait, time.monotonic() + wait)
        self._console.line(f"{name} {_in_words(self._outages[name])}")

    def _start_again(self, service: Service) -> None:
        try:
            self._spawn(service)
        except TailwatchError as error:  # out of memory or processes, which may pass
            why = str(error).removeprefix(f"{service.name} ")
            self._note_outage(service.name, why, ran_seconds=0)
            return
        del self._outages[service.name]
        self._note_pids(self._pids())

    def _spawn(self, service: Service) -> Child:
        child = self._children[service.name] = Child(
            service,
            self._logs / f"{service.name}.log",
            self._temporary,
            self._signals.inherited_mask,
        )
        return child

    def _pids(self) -> dict[str, int]:
        return {name: child.pid for name, child in self._children.items()}

    def _state(self, name: str) -> str:
        outage = self._outages.get(name)
        return _in_words(outage) if outage else _detail(self._children[name].service)

    def _echo(self) -> None:
        """Print the whole lines that echoing services have written since the last time."""
        for name, child in self._children.items():
            if not child.service.echo:
                continue
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


def _in_words(outage: _Outage) -> str:
    when = f"in {outage.wait_seconds} s" if outage.wait_seconds else "now"
    return f"{outage.why}, starting it again {when}"


def _detail(service: Service) -> str:
    if service.detail is not None:
        return service.detail()
    if service.ready_url is not None and loopback.status(service.ready_url) != 200:
        return "running, does not answer"
    return "running"


def run(
    build: Callable[[Path], Sequence[Service]],
    note_pids: Callable[[Mapping[str, int]], None],
    console: Console,
    signals: StopSignals,
    directory: Path,
) -> int:
    """Run services until a signal to stop or a failed start; return the exit code.

    Args:
        build: renders configurations into the directory it is given, returns the services.
        note_pids: called with service -> process id once all run, and when one was started again.
        console: where progress goes.
        signals: entered.
        directory: of this run.
    """
    supervisor = Supervisor(directory, console, signals, note_pids)
    try:
        for service in build(directory):
            supervisor.start(service)
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
