"""Write dashboards/*.json: `python -m dashboards.build`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dashboards import gpu, host, overview, request_path

FOLDER = Path(__file__).parent

DASHBOARDS: dict[str, Callable[[], str]] = {  # file name -> builder
    "overview.json": overview.build,
    "request-path.json": request_path.build,
    "gpu.json": gpu.build,
    "host.json": host.build,
}


def main() -> None:
    """Write every dashboard next to this file."""
    for name, build in DASHBOARDS.items():
        (FOLDER / name).write_text(build(), encoding="utf-8")


if __name__ == "__main__":
    main()
