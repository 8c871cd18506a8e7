"""The two ways a command ends badly: wrong usage, or a failure."""

from __future__ import annotations


class TailwatchError(Exception):
    """A failure told in one line: what, its value, what was expected. Exit code 1."""

    exit_code = 1


class UsageError(TailwatchError):
    """The person asked for something that cannot be: exit code 2."""

    exit_code = 2
