"""Where dashboards, alert rules and runbooks are, in a wheel and in a checkout."""

from __future__ import annotations

from pathlib import Path

from tailwatch_stack.errors import TailwatchError

_HERE = Path(__file__).resolve().parent
_CHECKOUT = _HERE.parents[1]


def data_dir(name: str) -> Path:
    """Return the directory `name`: "dashboards", "alert_rules" or "runbooks".

    A wheel carries a copy in `_data/`; a checkout (editable install) has the originals at
    the repository root, so that edits show at once.

    Raises:
        TailwatchError: neither exists; the message lists both places tried.
    """
    tried = [_HERE / "_data" / name, _CHECKOUT / name]
    for path in tried:
        if path.is_dir():
            return path
    raise TailwatchError(f"no {name}: tried {', '.join(map(str, tried))}")


def checkout_dir() -> Path | None:
    """Return the repository root when tailwatch runs from a checkout, else None."""
    return _CHECKOUT if (_CHECKOUT / "demo" / "__init__.py").is_file() else None
