"""What a dashboard ought to show, worked out from its JSON and Prometheus' answers alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.browser import backend
from tests.browser.openmetrics import END, START

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
# An hour on a panel of a few hundred pixels has a step of 15 s or 30 s, and targets are scraped
# every 15 s: four scrapes are the longer.
MACROS = {"$__rate_interval": "1m", "$__range": "1h"}
STEP = 30

_UNITS = {
    "": 1,
    "%": 0.01,
    "req/s": 1,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "min": 60,
    "mins": 60,
    "hours": 3600,
    "K": 1e3,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "B/s": 1,
    "kB/s": 1e3,
    "MB/s": 1e6,
    "W": 1,
    "MHz": 1e6,
    "GHz": 1e9,
    "c/s": 1,
    "°C": 1,
}


def uids() -> list[str]:
    return [json.loads(path.read_text())["uid"] for path in sorted(DASHBOARDS.glob("*.json"))]


def panels(uid: str) -> dict[str, Any]:
    """Return panel title -> panel, those in rows too."""
    dashboards = (json.loads(path.read_text()) for path in DASHBOARDS.glob("*.json"))
    (dashboard,) = (one for one in dashboards if one["uid"] == uid)
    return {one["title"]: one for one in _walk(dashboard["panels"]) if one["type"] != "row"}


def values(prometheus: str, panel: Any) -> list[float]:
    """Return the values at the end of the hour of a panel of instant queries."""
    return [
        float(one["value"][1])
        for target in panel["targets"]
        for one in _at(prometheus, target, END)
    ]


def named_values(prometheus: str, panel: Any, time: float = END) -> dict[str, float]:
    """Return series name -> value at a time in seconds, the end of the hour by default."""
    return {
        _name(target["legendFormat"], one["metric"]): float(one["value"][1])
        for target in panel["targets"]
        for one in _at(prometheus, target, time)
    }


def series_names(prometheus: str, panel: Any) -> list[str]:
    """Return the names of a graph's series over the hour, in the queries' order."""
    names = []
    for target in panel["targets"]:
        answer = backend.ask(
            prometheus,
            "query_range",
            query=_expand(target["expr"]),
            start=START,
            end=END,
            step=STEP,
        )
        names += [_name(target["legendFormat"], one["metric"]) for one in answer["result"]]
    return names


def label_values(prometheus: str, panel: Any) -> list[dict[str, str]]:
    """Return the labels of each row of a table, which has one instant query."""
    (target,) = panel["targets"]
    return [one["metric"] for one in _at(prometheus, target, END)]


def read_value(text: str) -> tuple[float, float]:
    """Return the number that a text such as `836 ms` means, and how far rounding may be off."""
    match = re.fullmatch(r"(-?[\d.]+)\s*(.*)", text.strip())
    assert match, f"not a value: {text!r}"
    digits, unit = match.groups()
    decimals = len(digits.partition(".")[2])
    scale = _UNITS[unit]
    return float(digits) * scale, 0.5001 * 10**-decimals * scale


def _at(prometheus: str, target: Any, time: float) -> list[Any]:
    answer = backend.ask(prometheus, "query", query=_expand(target["expr"]), time=time)
    return list(answer["result"])


def _expand(expression: str) -> str:
    """Put in what the page has at first: All for every variable, whose value is `.+`."""
    for macro, value in MACROS.items():
        expression = expression.replace(macro, value)
    return re.sub(r"\$\w+", ".+", expression)


def _name(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), legend)


def _walk(panels: list[Any]) -> Iterator[Any]:
    for panel in panels:
        yield panel
        yield from _walk(panel.get("panels") or [])
