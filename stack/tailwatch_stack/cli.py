"""The console script `tailwatch`: one table of commands, each in a module of its own."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from importlib.metadata import version
from types import ModuleType
from typing import NamedTuple, NoReturn

from tailwatch_stack.errors import TailwatchError


class Command(NamedTuple):
    """A subcommand: its module has `add_arguments(parser)` and `run(args) -> int`."""

    module: str
    help: str
    extra: str


COMMANDS = {
    "up": Command("tailwatch_stack.up", "run the stack for your own targets", "stack"),
    "demo": Command("tailwatch_stack.demo", "run the stack with the demo service", "stack"),
    "exporter": Command("tailwatch_exporters.cli", "publish host and GPU metrics", "exporters"),
    "viewer": Command("tailwatch_stack.viewer.cli", "serve the dashboards", "stack"),
    "rules": Command("tailwatch_stack.rules", "render the alert rules", "stack"),
}


class _Parser(argparse.ArgumentParser):
    """Tells wrong usage in one line; argparse's own would put the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"{self.prog}: {message}; expected what {self.prog} --help lists\n")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failure, 2 wrong usage."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = _Parser(prog="tailwatch", description="Observability for AI inference")
    parser.add_argument(
        "--version",
        action="version",
        version=f"tailwatch {version('tailwatch')} (Python {platform.python_version()})",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        for name, command in COMMANDS.items():
            subparser = subparsers.add_parser(name, help=command.help, description=command.help)
            if name == chosen:  # the others' imports would only cost start-up time
                module = _load(command)
                module.add_arguments(subparser)
                subparser.set_defaults(run=module.run)
        args, unknown = parser.parse_known_args(arguments)
        if unknown:  # told by the command, whose help has the right ones
            subparsers.choices[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
        return int(args.run(args))
    except TailwatchError as error:
        print(f"tailwatch {chosen}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _load(command: Command) -> ModuleType:
    try:
        return importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("tailwatch"):
            raise
        raise TailwatchError(
            f"needs the Python package {error.name}: pip install 'tailwatch[{command.extra}]'"
        ) from error
