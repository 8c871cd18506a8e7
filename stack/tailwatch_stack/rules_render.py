"""Render the alert rules: templates that look like the rules, with `${name}` for a threshold."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from tailwatch_stack.errors import TailwatchError

HEADER = "# Rendered by `tailwatch rules build` from a template and the thresholds: edit those.\n"

# Only `${name}` is ours: `$labels` and `{{ $value }}` are Prometheus' and stay as they are.
_NAME = re.compile(r"\$\{([^}]*)\}")


def render_rules(templates: Path, values: Mapping[str, object]) -> dict[str, str]:
    """Return "recording/queue.yaml" -> rendered text for every template below `templates`.

    Args:
        templates: a directory of *.yaml rule files with `${group.key}` in them.
        values: what stands for each name, "group.key" -> number or text.

    Raises:
        TailwatchError: there is no template, one uses a name without a value, or a rendered file
            is no YAML.
    """
    rendered = {
        path.relative_to(templates).as_posix(): HEADER + _fill(path, values)
        for path in sorted(templates.rglob("*.yaml"))
    }
    if not rendered:
        raise TailwatchError(f"{templates}: holds no rule template, expected *.yaml")
    for name, text in rendered.items():
        try:
            yaml.safe_load(text)
        except yaml.YAMLError as error:
            problem = str(error).replace("\n", " ")
            raise TailwatchError(f"{templates / name}: renders to no YAML: {problem}") from error
    return rendered


def _fill(path: Path, values: Mapping[str, object]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            raise TailwatchError(f"{path}: ${{{name}}} stands for no threshold")
        return str(values[name])

    return _NAME.sub(value, path.read_text(encoding="utf-8"))


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    """Write relative name -> text below `directory`, all or none.

    Every text goes to a temporary file beside its target first; only when all are complete are
    they renamed. Rule files of an earlier rendering that are no longer among `files` are removed,
    other files are left alone.

    Raises:
        TailwatchError: something cannot be written; what was there before is unchanged.
    """
    complete: list[tuple[Path, Path]] = []
    try:
        for name, text in files.items():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            complete.append((_temporary(target, text), target))
        for temporary, target in complete:
            temporary.replace(target)
        _remove_stale(directory, files)
    except OSError as error:
        where = error.filename or directory
        raise TailwatchError(f"{where}: cannot be written: {error.strerror}") from error
    finally:
        for temporary, _ in complete:
            temporary.unlink(missing_ok=True)


def _temporary(target: Path, text: str) -> Path:
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)  # mkstemp gives 0600, and Prometheus is another user
    except OSError:
        Path(name).unlink()
        raise
    return Path(name)


def _remove_stale(directory: Path, files: Mapping[str, str]) -> None:
    for folder in {(directory / name).parent for name in files}:
        for path in folder.glob("*.yaml"):
            if path.relative_to(directory).as_posix() in files:
                continue
            if path.read_text(encoding="utf-8").startswith(HEADER):
                path.unlink()
