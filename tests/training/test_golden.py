"""The page of a rank that uses everything, under a clock that stands still between steps."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from tailwatch_stack.native.binaries import locate
from tests.training.conftest import Ranks


def test_training_page(golden: Callable[[str, str], None], pair: Ranks) -> None:
    page, _ = pair.run("whole_page")
    golden("training.prom", page)
    checked = subprocess.run(
        [locate("promtool"), "check", "metrics"], input=page, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
