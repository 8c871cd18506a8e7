"""Find Prometheus and its companions: on PATH, else Debian's packages in the user's cache."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tailwatch_stack.errors import TailwatchError
from tailwatch_stack.native import debian

_VERSION = re.compile(r"version (\d+)\.(\d+)")


class _Binary(NamedTuple):
    """A program we start, the oldest version that does, and the Debian package that has it."""

    commands: tuple[str, ...]  # upstream's name first, then Debian's where it differs
    package: str
    minimum: tuple[int, int]


# 2.42 is the first Prometheus with keep_firing_for, which the shipped rules use.
# The other minimums are the versions beside it in Debian 12, the oldest that is tested.
_BINARIES = {
    "prometheus": _Binary(("prometheus",), "prometheus", (2, 42)),
    "promtool": _Binary(("promtool",), "prometheus", (2, 42)),
    "alertmanager": _Binary(
        ("alertmanager", "prometheus-alertmanager"), "prometheus-alertmanager", (0, 25)
    ),
    "amtool": _Binary(("amtool",), "prometheus-alertmanager", (0, 25)),
    "node_exporter": _Binary(
        ("node_exporter", "prometheus-node-exporter"), "prometheus-node-exporter", (1, 5)
    ),
}


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def locate(name: str, report: Callable[[str], None] = _to_stderr) -> Path:
    """Return the path of a program that is new enough, downloading Debian's package if need be.

    Nothing is installed or started on the host: a package is unpacked into the user's cache
    (`debian.cache_dir()`), once. Callers in several processes may ask at the same time.

    Args:
        name: "prometheus", "promtool", "alertmanager", "amtool" or "node_exporter".
        report: takes one line of progress when something has to be downloaded.

    Raises:
        TailwatchError: not on PATH in a sufficient version, and no package to be had.
    """
    binary = _BINARIES[name]
    too_old: list[str] = []
    for path in _on_path(binary):
        version = _version(path)
        if version is not None and version >= binary.minimum:
            return path
        found = "without a readable version" if version is None else _dotted(version)
        too_old.append(f"{path} is {found}")
    try:
        return _packaged(binary, report)
    except TailwatchError as error:
        seen = f" ({'; '.join(too_old)})" if too_old else ""
        raise TailwatchError(
            f"no {name} >= {_dotted(binary.minimum)} on PATH{seen}: install it there "
            f"(https://prometheus.io/download/); Debian's package could not be used: {error}"
        ) from error


def _on_path(binary: _Binary) -> list[Path]:
    found = (shutil.which(command) for command in binary.commands)
    return [Path(path) for path in found if path is not None]


def _packaged(binary: _Binary, report: Callable[[str], None]) -> Path:
    root = debian.unpacked(binary.package, report)
    for command in binary.commands:
        path = root / "usr" / "bin" / command
        if path.is_file():
            version = _version(path)
            if version is None or version < binary.minimum:
                found = "not runnable" if version is None else _dotted(version)
                raise TailwatchError(f"{path} is {found}")
            return path
    raise TailwatchError(f"{root} has none of {', '.join(binary.commands)}")


def _version(path: Path) -> tuple[int, int] | None:
    try:
        answer = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stdout + answer.stderr)
    return (int(match[1]), int(match[2])) if match else None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
