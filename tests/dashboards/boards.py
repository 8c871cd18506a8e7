"""The dashboards as they are shipped."""

from __future__ import annotations

import json

from dashboards.build import DASHBOARDS, FOLDER
from tests.dashboards.lint import Json

ROOT = FOLDER.parent
NAMES = sorted(DASHBOARDS)


def load(name: str) -> Json:
    """Return a shipped dashboard by its file name."""
    board: Json = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return board
