"""Short HTTP reads from the services of the stack, never through a proxy."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def status(url: str, timeout_seconds: float = 1.0) -> int | None:
    """Return the HTTP status that `url` answers a GET with, None when nothing answers."""
    try:
        with _OPENER.open(url, timeout=timeout_seconds) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, http.client.HTTPException):
        return None


def read_json(url: str, timeout_seconds: float = 1.0) -> Any:
    """Return the JSON document at `url`, None when nothing readable answers."""
    try:
        with _OPENER.open(url, timeout=timeout_seconds) as response:
            return json.load(response)
    except (OSError, http.client.HTTPException, ValueError):
        return None
