"""The how-to page against the code."""

import argparse
from pathlib import Path

from tailwatch_stack import up
from tailwatch_stack.native.ports import STACK_PORTS

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "run-the-stack.md").read_text()


def test_every_flag_and_default_port_is_in_the_page() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    up.add_arguments(parser)
    flags = [option for action in parser._actions for option in action.option_strings]
    assert len(flags) > 5
    assert [flag for flag in flags if f"`{flag} " not in PAGE] == []
    assert [f"`{n}` {p}" for n, p in STACK_PORTS.items() if f"`{n}` {p}" not in PAGE] == []
