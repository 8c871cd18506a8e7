"""The how-to page against the code."""

import argparse
from pathlib import Path
from types import ModuleType

import pytest

from tailwatch_stack import demo, up

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "run-the-stack.md").read_text()


@pytest.mark.parametrize("command", [up, demo])
def test_every_flag_is_in_the_page(command: ModuleType) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    flags = [option for action in parser._actions for option in action.option_strings]
    assert len(flags) > 3
    assert [flag for flag in flags if f"`{flag}" not in PAGE] == []


def test_every_default_port_is_in_the_page() -> None:
    assert [f"`{n}` {p}" for n, p in demo.PORTS.items() if f"`{n}` {p}" not in PAGE] == []
