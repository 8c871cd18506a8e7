"""The dashboards and runbooks that the viewer shows, read from their folders when asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tailwatch_stack.errors import TailwatchError

_RUNBOOK_NAME = re.compile(r"[A-Za-z0-9]+")


class Dashboards:
    """The `*.json` files of a folder; read at every request, so that edits show at once.

    Args:
        folder: holds dashboards in Grafana's v1 form, each with a `uid` and a `title`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> list[dict[str, Any]]:
        """Return every dashboard, the overview first, then by title.

        Raises:
            TailwatchError: no file, one that is not a dashboard, or two of one uid.
        """
        paths = sorted(self._folder.glob("*.json"))
        if not paths:
            raise TailwatchError(f"{self._folder}: no dashboard, expected *.json files")
        found: dict[str, Path] = {}
        dashboards = []
        for path in paths:
            dashboard = _read(path)
            uid = dashboard["uid"]
            if uid in found:
                raise TailwatchError(f"{path}: uid {uid} is also that of {found[uid].name}")
            found[uid] = path
            dashboards.append(dashboard)
        return sorted(dashboards, key=_order)

    def get(self, uid: str) -> dict[str, Any] | None:
        """Return the dashboard of this uid, None when there is none."""
        return next((one for one in self.all() if one["uid"] == uid), None)


def _order(dashboard: dict[str, Any]) -> tuple[bool, str]:
    return "overview" not in dashboard["uid"], dashboard["title"]


def _read(path: Path) -> dict[str, Any]:
    try:
        dashboard = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TailwatchError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(dashboard, dict):
        raise TailwatchError(f"{path}: expected a JSON object, found {type(dashboard).__name__}")
    for key in ("uid", "title"):
        if not (isinstance(dashboard.get(key), str) and dashboard[key]):
            raise TailwatchError(f"{path}: expected a text under {key!r}")
    return dashboard


class Runbooks:
    """The Markdown pages of a folder, each named after its alert."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the alerts that have a runbook, sorted."""
        return sorted(path.stem for path in self._folder.glob("*.md") if _is_name(path.stem))

    def get(self, alert: str) -> str | None:
        """Return the page's Markdown, None when the alert has no page."""
        if not _is_name(alert):  # also keeps the path inside the folder
            return None
        try:
            return (self._folder / f"{alert}.md").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None


def _is_name(text: str) -> bool:
    return _RUNBOOK_NAME.fullmatch(text) is not None
