"""The page's own tests and checks, and what its packages may be."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VIEWER = ROOT / "stack" / "tailwatch_stack" / "viewer"
# Licences that let a closed program carry the bundle; a new one here is a decision.
LICENSES = {
    "(MPL-2.0 OR Apache-2.0)",
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unlicense",
}


@pytest.mark.parametrize("script", ["test", "lint"])
def test_npm_script_passes(script: str) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "build-viewer", script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lock_names_no_registry() -> None:
    """An install takes packages from the registry that npm is configured for."""
    lock = json.loads((VIEWER / "web" / "package-lock.json").read_text())
    assert len(lock["packages"]) > 100
    assert [name for name, one in lock["packages"].items() if "resolved" in one] == []
    unchecked = [name for name, one in lock["packages"].items() if name and "integrity" not in one]
    assert unchecked == []


def test_every_version_is_pinned() -> None:
    package = json.loads((VIEWER / "web" / "package.json").read_text())
    versions = {**package["dependencies"], **package["devDependencies"]}
    loose = {name: v for name, v in versions.items() if not re.fullmatch(r"\d+\.\d+\.\d+", v)}
    assert loose == {}


def test_the_bundle_carries_only_permissive_licences() -> None:
    text = (VIEWER / "dist" / "licenses.md").read_text()
    bundled = dict(re.findall(r"^## (\S+) - \S+ \((.+)\)$", text, re.MULTILINE))
    assert len(bundled) > 50, text[:400]
    assert {name: one for name, one in bundled.items() if one not in LICENSES} == {}
    assert not [name for name in bundled if name.startswith("@grafana/prometheus")]
