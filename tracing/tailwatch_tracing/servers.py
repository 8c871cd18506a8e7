"""How many workers the server that runs this process was told to have."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

_SERVERS = ("gunicorn", "hypercorn", "uvicorn")


def configured_workers() -> int | None:
    """Return the number of workers of the gunicorn, uvicorn or hypercorn that calls us.

    None in another thread than the server's, and without one of them. The servers hand their
    configuration to no application, but it is in the frames below: `config` of uvicorn's and
    hypercorn's functions, `self.cfg` of gunicorn's arbiter and workers. A uvicorn that is a worker
    of gunicorn has one of its own, with 1: the largest is the answer.
    """
    found: int | None = None
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _SERVERS:
            workers = _workers(frame.f_locals)
            if workers is not None:
                found = max(workers, found or 0)
        frame = frame.f_back
    return found


def _workers(variables: Any) -> int | None:
    server = variables.get("self")
    for config in (
        getattr(server, "cfg", None),
        getattr(server, "config", None),
        variables.get("config"),
    ):
        workers = getattr(config, "workers", None)
        if isinstance(workers, int):
            return workers
    return None
