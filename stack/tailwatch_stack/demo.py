"""`tailwatch demo`: the stack with a small inference service, its load, and a webhook."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailwatch_stack.data import checkout_dir
from tailwatch_stack.errors import TailwatchError, UsageError
from tailwatch_stack.native import loopback, ports, stack
from tailwatch_stack.native.console import Console
from tailwatch_stack.native.ports import ADDRESS
from tailwatch_stack.native.processes import Service
from tailwatch_stack.native.targets import local_target

PORTS = {**ports.STACK_PORTS, "demo": 12164, "webhook": 12165}
MOST_GPUS = 8  # the demo service takes no more
PACKAGES = ("aiohttp", "fastapi", "httptools", "magika", "onnxruntime", "uvloop")  # group `demo`
_OVERVIEW = f"{stack.OVERVIEW}?var-service=content-type"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `tailwatch demo`."""
    parser.add_argument("--fault", metavar="NAME", help="start with this fault on")
    parser.add_argument(
        "--simulate-gpu",
        type=int,
        metavar="N",
        help="simulate N GPUs (default: 1 on a machine without a GPU and for a fault that needs "
        "one, else 0)",
    )
    ports.add_argument(parser, PORTS)
    stack.add_status_file_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the demo until Ctrl-C; return the exit code."""
    checkout = checkout_dir()
    if checkout is None:
        raise UsageError("runs from a checkout of tailwatch only: git clone it, then make demo")
    service_ports = ports.parse(args.port, PORTS)
    gpus = _gpus(args.simulate_gpu, checkout, args.fault)
    _check_set_up(checkout, gpus)
    console = Console()
    demo = _Demo(checkout, args.fault, gpus, service_ports["demo"], service_ports["webhook"])
    plan = stack.Stack(
        programs=stack.prepare(console, service_ports),
        ports=service_ports,
        webhook_url=demo.webhook_url,
        targets=[local_target("tailwatch-service", f"{ADDRESS}:{demo.port}")],
    )
    urls = {
        "overview": plan.url("viewer") + _OVERVIEW,
        "Prometheus": plan.url("prometheus"),
        "Alertmanager": plan.url("alertmanager"),
        "webhook log": f"{demo.webhook_url}/notifications",
        "demo service": f"{demo.url}/faults",
        "runbooks": plan.url("viewer") + "/runbooks",
    }
    console.line(f"{gpus} simulated GPU{'s' * (gpus > 1)}" if gpus else "no simulated GPU")
    return stack.run(lambda d: demo.services(plan, d), urls, args.status_file, console)


@dataclass(frozen=True)
class _Demo:
    """The demo's own processes: webhook, service and load."""

    checkout: Path
    fault: str | None
    gpus: int
    port: int
    webhook_port: int

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}"

    @property
    def webhook_url(self) -> str:
        return f"http://{ADDRESS}:{self.webhook_port}"

    def services(self, plan: stack.Stack, directory: Path) -> list[Service]:
        """Return all services: receivers and targets first, the load last."""
        gpu: dict[str, str] = {}
        if self.gpus:
            gpu["NVML_MOCK_FILE"] = str(directory / "gpus.txt")
            gpu["LD_LIBRARY_PATH"] = _before("LD_LIBRARY_PATH", _mock_library(self.checkout).parent)
        return [
            self._process(
                "webhook",
                f"--port={self.webhook_port}",
                ready_url=f"{self.webhook_url}/notifications",
                echo=True,
            ),
            self._process(
                "service",
                f"--port={self.port}",
                f"--simulate-gpu={self.gpus}",
                *([f"--fault={self.fault}"] if self.fault else []),
                ready_url=f"{self.url}/healthz",
                environment=gpu,
                detail=lambda: _fault_in_words(loopback.read_json(f"{self.url}/faults")),
            ),
            *plan.services(directory, exporter_environment=gpu),
            self._process("traffic", f"--url={self.url}"),
        ]

    def _process(self, module: str, *arguments: str, **options: Any) -> Service:
        return Service(
            name=f"demo-{module}",
            command=[sys.executable, "-m", f"demo.{module}", *arguments],
            working_directory=self.checkout,
            **options,
        )


def _gpus(asked: int | None, checkout: Path, fault: str | None) -> int:
    """Return how many GPUs to simulate; raise UsageError if that, or the fault, cannot be."""
    needed = _needs_gpu(checkout, fault)
    if asked is None:
        return 1 if needed or not _machine_has_gpu() else 0
    if not 0 <= asked <= MOST_GPUS:
        raise UsageError(f"--simulate-gpu {asked}: expected 0 to {MOST_GPUS}")
    if needed and not asked:
        raise UsageError(f"--simulate-gpu 0: --fault {fault} needs at least 1")
    return asked


def _machine_has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _needs_gpu(checkout: Path, name: str | None) -> bool:
    """Return whether a fault needs a simulated GPU; raise UsageError if there is none such."""
    if name is None:
        return False
    sys.path.insert(0, str(checkout))  # the console script does not look there
    faults = importlib.import_module("demo.faults").FAULTS
    if name not in faults:
        raise UsageError(f"--fault {name}: expected one of {', '.join(faults)}")
    return bool(faults[name].needs_simulated_gpu)


def _check_set_up(checkout: Path, gpus: int) -> None:
    """Raise TailwatchError if `make setup` has something to do yet."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise TailwatchError(f"needs the Python package {package}: make setup")
    library = _mock_library(checkout)
    if gpus and not library.is_file():
        raise TailwatchError(f"needs {library} for simulated GPUs: make mock")


def _mock_library(checkout: Path) -> Path:
    return checkout / "demo" / "nvml_mock" / "build" / "libnvidia-ml.so.1"


def _before(variable: str, directory: Path) -> str:
    return os.pathsep.join(filter(None, (str(directory), os.environ.get(variable))))


def _fault_in_words(answer: Any) -> str:
    if answer is None:
        return "running, does not answer"
    return f"running, {'fault ' + answer['active'] if answer['active'] else 'healthy'}"
