"""How many workers the server that runs this process was told to have."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any


def configured_workers() -> int | None:
    """Return the number of workers of the gunicorn, uvicorn or hypercorn that calls us.

    None in another thread than the server's, and without one of them. The servers hand their
    configuration to no application, but it is in the frames below. The largest counts: a uvicorn
    that is a worker of gunicorn has a configuration of its own, with 1.
    """
    found: int | None = None
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        workers = _workers(str(frame.f_globals.get("__name__")), frame)
        if isinstance(workers, int):
            found = max(workers, found or 0)
        frame = frame.f_back
    return found


def _workers(module: str, frame: FrameType) -> Any:
    package = module.partition(".")[0]
    if package == "gunicorn":  # methods of its arbiter and of its workers
        return getattr(getattr(frame.f_locals.get("self"), "cfg", None), "workers", None)
    if module == "uvicorn.server":
        return 1  # its configuration may have more, from WEB_CONCURRENCY, but nothing heeds that
    if package == "hypercorn" or module == "uvicorn._subprocess":
        return getattr(frame.f_locals.get("config"), "workers", None)
    return None
