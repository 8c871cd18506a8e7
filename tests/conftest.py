"""Fixtures that every suite may use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


def pytest_configure() -> None:
    # A run that is told to end ends its servers too, as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Every server of a test is on loopback, whatever proxy the machine is set up with.
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost,::1"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a page with tests/golden/<name>; `--update-golden` rewrites it."""

    def check(name: str, page: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(page)
        assert page == path.read_text(), f"{path} differs; review, then pytest --update-golden"

    return check
