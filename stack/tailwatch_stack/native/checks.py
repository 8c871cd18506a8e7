"""What promtool and amtool say of a configuration."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def failure(command: Sequence[str | Path]) -> str | None:
    """Run a checking command and return in one line why it fails, else None."""
    answer = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if answer.returncode == 0:
        return None
    for output in (answer.stdout, answer.stderr):
        _, failed, reason = output.partition("FAILED:")
        if failed:
            return " ".join(reason.split())
    return " ".join(answer.stderr.split())
