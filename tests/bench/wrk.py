"""wrk, the load generator: on PATH, else Debian's package in the user's cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tailwatch_stack.errors import TailwatchError
from tailwatch_stack.native import debian
from tests.bench.uvicorn_server import other_cores

_LIBRARY = "libluajit-5.1-2"
_RATE = re.compile(r"^Requests/sec:\s+([0-9.]+)$", re.MULTILINE)
_FAULT = re.compile(r"^\s*(?:Non-2xx or 3xx responses|Socket errors): .*$", re.MULTILINE)


class Wrk(NamedTuple):
    """Where it is, and with which environment it runs."""

    path: Path
    environment: Mapping[str, str]

    def requests_per_second(self, url: str, connections: int, seconds: int) -> float:
        """Return the rate at which a server answers, asked by one thread on other cores.

        Raises:
            RuntimeError: wrk failed, or an answer was an error.
        """
        cores = other_cores()
        done = subprocess.run(
            [self.path, "-t1", f"-c{connections}", f"-d{seconds}s", url],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        rate, fault = _RATE.search(done.stdout), _FAULT.search(done.stdout)
        if rate is None or fault is not None:
            said = fault[0] if fault else (done.stderr or done.stdout)
            raise RuntimeError(f"wrk {url}: {said.strip()}")
        return float(rate[1])


def locate() -> Wrk:
    """Return wrk; nothing is installed on the host.

    Raises:
        TailwatchError: it is not on PATH, and Debian's package cannot be had; says why.
    """
    on_path = shutil.which("wrk")
    if on_path is not None:
        return Wrk(Path(on_path), os.environ)
    path = debian.unpacked("wrk", print) / "usr" / "bin" / "wrk"
    libraries = [str(each.parent) for each in debian.unpacked(_LIBRARY, print).rglob("*.so.2")]
    if not path.is_file() or not libraries:
        raise TailwatchError(f"Debian's packages wrk and {_LIBRARY} have other files than expected")
    return Wrk(path, {**os.environ, "LD_LIBRARY_PATH": libraries[0]})
