"""The programs that judge the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailwatch_stack.native.binaries import locate


@pytest.fixture(scope="session")
def promtool() -> Path:
    return locate("promtool")
