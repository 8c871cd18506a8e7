"""The Python that has torch, for tests that need a real one."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = (ROOT / "requirements/torch.txt", ROOT / "requirements/torch-overrides.txt")


def environment() -> Path:
    """Return where scripts/test-prerequisites makes the environment: one a set of requirements."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in REQUIREMENTS)).hexdigest()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tailwatch" / f"torch-{version}-{digest[:12]}"


def torch_python() -> Path | None:
    """Return the interpreter, None where there is no such environment."""
    python = environment() / "bin/python"
    return python if python.exists() else None


if __name__ == "__main__":
    print(environment())
