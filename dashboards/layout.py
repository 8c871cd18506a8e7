"""Where panels sit on the grid, and what the SDK leaves out of them.

The SDK's own layout wraps only after column 24, gives panels no id, rows the id 0, queries no
refId, and closes a row that holds panels (0.0.21). Here rows stay open and every position is
computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from string import ascii_uppercase

from dashboards.panels import AnyPanel
from dashboards.sdk import dashboard, model, prometheus_model

COLUMNS = 24


@dataclass(frozen=True)
class Line:
    """Panels side by side, of one height in grid units; widths default to equal shares."""

    height: int
    panels: Sequence[AnyPanel]
    widths: Sequence[int] = ()

    def placed_widths(self) -> Sequence[int]:
        """Return one width per panel.

        Raises:
            ValueError: the widths do not fill the 24 columns, or there is not one per panel.
        """
        widths = self.widths or [COLUMNS // len(self.panels)] * len(self.panels)
        if len(widths) != len(self.panels) or sum(widths) != COLUMNS:
            raise ValueError(f"a line of {len(self.panels)} panels has widths {list(widths)}")
        return widths


@dataclass(frozen=True)
class Section:
    """Lines under a row title; without a title they stand at the top of the page."""

    title: str
    lines: Sequence[Line]


def place(sections: Iterable[Section]) -> list[model.Panel | model.RowPanel]:
    """Return panels and rows from top to bottom, with positions, ids and refIds."""
    placed: list[model.Panel | model.RowPanel] = []
    ids = count(1)
    y = 0
    for section in sections:
        if section.title:
            placed.append(_row(section.title, next(ids), y))
            y += 1
        for line in section.lines:
            x = 0
            for builder, width in zip(line.panels, line.placed_widths(), strict=True):
                panel = builder.build()
                panel.id_val = next(ids)
                panel.grid_pos = model.GridPos(h=line.height, w=width, x=x, y=y)
                _name_queries(panel)
                placed.append(panel)
                x += width
            y += line.height
    return placed


def _row(title: str, row_id: int, y: int) -> model.RowPanel:
    position = model.GridPos(h=1, w=COLUMNS, x=0, y=y)
    return dashboard.Row(title).id(row_id).grid_pos(position).build()


def _name_queries(panel: model.Panel) -> None:
    for query, letter in zip(panel.targets or [], ascii_uppercase, strict=False):
        if isinstance(query, prometheus_model.Dataquery):
            query.ref_id = letter
