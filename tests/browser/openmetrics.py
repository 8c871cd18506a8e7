"""Write an hour of samples as OpenMetrics text, from which promtool makes TSDB blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

# Fixed, so that every run shows the same values; in the past, so that no live sample mixes in.
END = 1_767_225_600  # 2026-01-01T00:00:00Z
START = END - 3600
STEP = 15


@dataclass(frozen=True)
class Ramp:
    """A series: its value, or None for no sample, as a function of the seconds since START."""

    name: str
    labels: Mapping[str, str]
    value: Callable[[float], float | None]

    def lines(self) -> Iterable[str]:
        pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in self.labels.items())
        for time in range(START, END + 1, STEP):
            value = self.value(time - START)
            if value is not None:
                yield f"{self.name}{{{pairs}}} {value!r} {time}\n"


def write(ramps: Iterable[Ramp]) -> str:
    """Return one OpenMetrics document; its families are untyped, which promtool accepts."""
    by_name: dict[str, list[Ramp]] = {}
    for ramp in ramps:
        by_name.setdefault(ramp.name, []).append(ramp)
    lines = [line for same in by_name.values() for ramp in same for line in ramp.lines()]
    return "".join(lines) + "# EOF\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
