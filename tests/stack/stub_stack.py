"""Runs the supervisor on services that are one line of Python each; tests signal it.

usage: stub_stack.py SERVICE...
    quick   ready at once      slow    ready after a second      stubborn  ignores SIGTERM
    broken  ends at its start  silent  ends without a word    brief     ends soon after it was ready
    vanishing  ends, and its program is gone
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from tailwatch_stack.errors import TailwatchError
from tailwatch_stack.native import supervisor
from tailwatch_stack.native.console import Console
from tailwatch_stack.native.processes import Service
from tailwatch_stack.native.rundir import run_directory
from tailwatch_stack.native.signals import StopSignals, unwind_on_termination
from tests.stack.running import free_ports

SERVE = "http.server.ThreadingHTTPServer(('127.0.0.1', {port}), H).serve_forever()"
HANDLER = (
    "import http.server, os, signal, time\n"
    "def interrupted(*_): open(os.environ['INTERRUPTED'], 'w').close()\n"
    "signal.signal(signal.SIGINT, interrupted)\n"
    "class H(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self): self.send_response(200); self.end_headers()\n"
)
PROGRAMS = {
    "quick": HANDLER + SERVE,
    "slow": HANDLER + "time.sleep(1)\n" + SERVE,
    "stubborn": HANDLER + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVE,
    "brief": HANDLER + "import threading\n"
    "threading.Timer(0.5, lambda: os._exit(7)).start()\n" + SERVE,
    "broken": "print('first'); raise SystemExit('the disk is full')",
    "silent": "raise SystemExit(3)",
}


def service(name: str) -> Service:
    [port] = free_ports(1)
    return Service(
        name=name,
        command=[sys.executable, "-u", "-c", PROGRAMS[name].replace("{port}", str(port))],
        ready_url=f"http://127.0.0.1:{port}/",
    )


def vanishing(directory: Path) -> Service:
    program = directory / "vanishing"
    program.write_text('#!/bin/sh\nrm "$0"\nexec sleep 0.5\n')
    program.chmod(0o755)
    return Service(name="vanishing", command=[program])


def note_pids(pids: Mapping[str, int]) -> None:
    print("pids", *pids.values(), flush=True)


def build(directory: Path) -> list[Service]:
    return [vanishing(directory) if name == "vanishing" else service(name) for name in sys.argv[1:]]


if __name__ == "__main__":
    unwind_on_termination()
    with StopSignals() as signals, run_directory() as directory:
        try:
            code = supervisor.run(build, note_pids, Console(), signals, directory)
        except TailwatchError as error:
            print(f"error: {error}", flush=True)
            code = error.exit_code
    sys.exit(code)
