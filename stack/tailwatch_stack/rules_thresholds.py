"""The numbers that the alert rules decide by: read, checked, and overlaid with a person's own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from tailwatch_stack.errors import UsageError

_FIELDS = ("value", "unit", "about", "source")
_DURATION = re.compile(r"[1-9][0-9]*(s|m|h|d)")


class _Unit(NamedTuple):
    """What a value of this unit has to be, in words and as a test."""

    expected: str
    accepts: Callable[[object], bool]


def _number(accepts: Callable[[float], bool]) -> Callable[[object], bool]:
    """Return a test for numbers that also `accepts`; bool is no number, nor are NaN and Inf."""

    def check(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return math.isfinite(value) and accepts(value)

    return check


_UNITS = {
    "ratio": _Unit("a number above 0 and at most 1", _number(lambda x: 0 < x <= 1)),
    "factor": _Unit("a number of at least 1", _number(lambda x: x >= 1)),
    "seconds": _Unit("a number of seconds above 0", _number(lambda x: x > 0)),
    "count": _Unit("a number above 0", _number(lambda x: x > 0)),
    # Windows of 5 minutes need a handful of recorded samples, and Prometheus whole seconds.
    "interval": _Unit(
        "a whole number of seconds from 1 to 60",
        lambda x: type(x) is int and 1 <= x <= 60,
    ),
    "duration": _Unit(
        "a duration such as 30s, 5m or 1h",
        lambda x: isinstance(x, str) and _DURATION.fullmatch(x) is not None,
    ),
}


class Threshold(NamedTuple):
    """One number: its value, its unit (a key of the table above), what it means, its source."""

    value: float | str
    unit: str
    about: str
    source: str


def load_thresholds(shipped: Path, own: Path | None = None) -> dict[str, Threshold]:
    """Return "group.key" -> threshold from the shipped file, with the values of `own` over it.

    Args:
        shipped: the complete file, alert_rules/thresholds.yaml.
        own: a person's file of the same shape with only what differs; an entry may be the bare
            number instead of the mapping with `value`.

    Raises:
        UsageError: a file cannot be read or is no YAML, a key is unknown or given twice, or a
            value does not fit its unit. One line: file, key, value, what was expected.
    """
    thresholds: dict[str, Threshold] = {}
    for name, entry in _entries(shipped):
        if not isinstance(entry, dict) or set(entry) != set(_FIELDS):
            raise UsageError(f"{shipped}: {name} needs exactly the fields {', '.join(_FIELDS)}")
        threshold = Threshold(**entry)
        _check(shipped, name, threshold.value, threshold.unit)
        thresholds[name] = threshold
    for name, entry in _entries(own) if own is not None else ():
        if name not in thresholds:
            raise UsageError(f"{own}: unknown threshold {name}, {_known(name, thresholds)}")
        value = _own_value(own, name, entry, thresholds[name].unit)
        thresholds[name] = thresholds[name]._replace(value=value)
    return thresholds


def _own_value(path: Path | None, name: str, entry: object, unit: str) -> float | str:
    if isinstance(entry, dict):
        unknown = [str(field) for field in entry if field not in _FIELDS]
        if unknown:
            raise UsageError(
                f"{path}: {name} has the unknown field {unknown[0]}, expected {', '.join(_FIELDS)}"
            )
        if entry.get("unit", unit) != unit:
            raise UsageError(f"{path}: {name} has unit {entry['unit']!r}, expected {unit!r}")
        if "value" not in entry:
            raise UsageError(f"{path}: {name} has no value, expected {_UNITS[unit].expected}")
        entry = entry["value"]
    return _check(path, name, entry, unit)


def _check(path: Path | None, name: str, value: object, unit: str) -> float | str:
    if unit not in _UNITS:
        raise UsageError(f"{path}: {name} has unit {unit!r}, expected one of {list(_UNITS)}")
    if not _UNITS[unit].accepts(value) or not isinstance(value, int | float | str):
        raise UsageError(f"{path}: {name} is {value!r}, expected {_UNITS[unit].expected}")
    return value


def _known(name: str, thresholds: Mapping[str, Threshold]) -> str:
    group = name.partition(".")[0]
    keys = [known for known in thresholds if known.startswith(f"{group}.")]
    groups = dict.fromkeys(known.partition(".")[0] for known in thresholds)
    return f"expected one of {', '.join(keys or groups)}"


def _entries(path: Path) -> list[tuple[str, object]]:
    document = _read(path)
    if not isinstance(document, dict):
        raise UsageError(f"{path}: holds {_kind(document)}, expected groups of thresholds")
    entries: list[tuple[str, object]] = []
    for group, keys in document.items():
        if not isinstance(keys, dict):
            raise UsageError(f"{path}: {group} is {keys!r}, expected a group of thresholds")
        entries += [(f"{group}.{key}", entry) for key, entry in keys.items()]
    return entries


def _kind(document: object) -> str:
    return "nothing" if document is None else f"a {type(document).__name__}"


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a key given twice is an error instead of the last one winning unseen."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            if not isinstance(key, Hashable):
                continue  # refused below
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key} given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read(path: Path) -> object:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is no UTF-8 text: {error.reason}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise UsageError(f"{path}: {where}{error.problem}, expected YAML") from error
    except (yaml.YAMLError, ValueError) as error:  # a forbidden character, or 2026-13-41
        raise UsageError(f"{path}: {str(error).splitlines()[0]}, expected YAML") from error
