"""The Dockerfile, step by step, without an engine: what it copies, installs and starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

Services = dict[str, dict[str, Any]]


class Stage(NamedTuple):
    """One stage: what it is built on and its instructions in order."""

    base: str
    steps: list[tuple[str, str]]


def stages() -> dict[str, Stage]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    _, *parts = re.split(r"^FROM (\S+) AS (\S+)$", text, flags=re.MULTILINE)
    return {
        name: Stage(base, re.findall(r"^([A-Z]+) (.+)$", body, re.MULTILINE))
        for base, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def steps_of(name: str) -> list[tuple[str, str]]:
    """A stage's steps with those of the stages below it."""
    stage = stages()[name]
    below = steps_of(stage.base) if stage.base in stages() else []
    return below + stage.steps


def sources() -> set[str]:
    return {
        source
        for stage in stages().values()
        for word, rest in stage.steps
        if word == "COPY" and not rest.startswith("--from=")
        for source in rest.split()[:-1]
    }


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    allowed = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    for source in sources():
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, f"{pattern}*") for pattern in allowed), source
    unused = {name for name in allowed if not any(s.startswith(name) for s in sources())}
    assert not unused


def test_the_builder_gets_nothing_that_is_built_here() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"  # everything is left out that is not named
    assert {"**/__pycache__", "**/node_modules", "demo/nvml_mock/build"} <= set(ignored)


@pytest.mark.parametrize("name", ["exporter", "exporter-gpu", "demo", "webhook"])
def test_what_compose_starts_becomes_healthy_and_stops_when_told(
    name: str, services: Services, installed: dict[str, Path]
) -> None:
    image = services[name]["image"].removeprefix("tailwatch-").partition(":")[0]
    (port,) = {target for target in re.findall(r"127\.0\.0\.1:(\d+)/", probe_of(services[name]))}
    here = {"0.0.0.0": "127.0.0.1", port: str(free_port()), "/host/proc": "/proc"}
    command = [*entrypoint(image), *services[name]["command"]]
    if not any(port in argument for argument in command):
        command.append(f"--port={port}")  # the service's default, moved off it here
    probe = ["python", "-c", replaced(probe_of(services[name]), here)]
    with started(installed[image], [replaced(argument, here) for argument in command]) as process:
        deadline = time.monotonic() + 30
        while exit_status(installed[image], probe, within_seconds=10) != 0:
            assert process.poll() is None, (installed[image] / "log").read_text()
            assert time.monotonic() < deadline, "never healthy"
            time.sleep(0.2)
        process.terminate()
        assert process.wait(15) == 0


def test_the_traffic_starts(services: Services, installed: dict[str, Path]) -> None:
    command = [*entrypoint("demo"), *services["traffic"]["command"], "--duration=0.5"]
    # The name `demo` does not resolve here.
    assert exit_status(installed["demo"], command, within_seconds=30) == 0


def probe_of(service: dict[str, Any]) -> str:
    """The Python text of a healthcheck."""
    kind, command, flag, text = service["healthcheck"]["test"]
    assert (kind, command, flag) == ("CMD", "python", "-c")
    return str(text)


def entrypoint(image: str) -> list[str]:
    found: list[str] = json.loads(dict(stages()[image].steps)["ENTRYPOINT"])
    return found


def replaced(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def started(folder: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as the image would, in its virtual environment; it ends with the block."""
    program, *arguments = command
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [folder / "venv" / "bin" / program, *arguments],
            cwd=folder / "app",
            env={"PATH": os.defpath, "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def exit_status(folder: Path, command: list[str], within_seconds: float) -> int:
    with started(folder, command) as process:
        return process.wait(within_seconds)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Replay what the images are built from, each in a folder of its own."""
    return {name: replay(name, tmp_path_factory.mktemp(name)) for name in ("exporter", "demo")}


def replay(image: str, folder: Path) -> Path:
    """Run the build stage's COPY and RUN steps, then the image's own COPY into its app folder."""
    source, app = folder / "src", folder / "app"
    source.mkdir()
    app.mkdir()
    for word, rest in steps_of(f"{image}-build"):
        if word == "COPY":
            copy(rest, source)
        elif word == "RUN":
            run(rest.replace("/venv", str(folder / "venv")), source)
    for word, rest in stages()[image].steps:
        if word == "COPY" and not rest.startswith("--from="):
            copy(rest, app)
    return folder


def copy(arguments: str, folder: Path) -> None:
    *names, target = arguments.split()
    for name in names:
        into = folder / target
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "node_modules", "build")
            shutil.copytree(ROOT / name, into, ignore=ignore)
        else:
            into = into / name if target == "./" else into / Path(name).name
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, into)


def run(command: str, folder: Path) -> None:
    # The tests' own pip and uv stand for those of the base image; the packages come from uv's
    # cache, which holds them since the virtual environment of the tests was made.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "-euc", re.sub(r"\s+", " ", command)],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert answer.returncode == 0, f"{command}\n{answer.stdout}{answer.stderr}"
