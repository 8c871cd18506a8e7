"""An in-process ASGI client: no sockets, no server, so that only the application is timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from starlette.types import ASGIApp, Message, Scope

from tests.bench.harness import mirrored

# What a client library sends; a middleware that copies or parses headers pays for them here too.
_HEADERS = [
    (b"host", b"127.0.0.1:8000"),
    (b"user-agent", b"python-httpx/0.28"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
]
_SCOPE: Scope = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.4"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "query_string": b"",
    "root_path": "",
    "headers": _HEADERS,
    "client": ("127.0.0.1", 50000),
    "server": ("127.0.0.1", 8000),
}
_REQUEST: Message = {"type": "http.request", "body": b"", "more_body": False}


async def _receive() -> Message:
    return _REQUEST


async def _send(message: Message) -> None:
    if message["type"] == "http.response.start" and message["status"] != 200:
        raise RuntimeError(f"status {message['status']}, expected 200")


async def request(app: ASGIApp, path: str, count: int) -> None:
    """Send requests one after another.

    Raises:
        RuntimeError: an answer other than 200.
    """
    template = {**_SCOPE, "path": path, "raw_path": path.encode()}
    for _ in range(count):
        await app(template.copy(), _receive, _send)


async def cpu_per_request(
    targets: Mapping[str, tuple[ASGIApp, str]], requests: int, passes: int
) -> dict[str, float]:
    """Return each target's CPU seconds a request: the median over mirrored passes.

    Args:
        targets: name -> application and the path to ask for.
        requests: per block; a block is what is timed.
        passes: each is two blocks a target.
    """
    for app, path in targets.values():
        await request(app, path, requests)  # fill caches, specialise bytecode
    blocks: dict[str, list[float]] = {name: [] for name in targets}
    order: Sequence[str] = mirrored(list(targets))
    for _ in range(passes):
        for name in order:
            app, path = targets[name]
            start = time.process_time()
            await request(app, path, requests)
            blocks[name].append((time.process_time() - start) / requests)
    return {name: statistics.median(values) for name, values in blocks.items()}


def sent(requests: int, passes: int) -> int:
    """Return how many requests `cpu_per_request` sends to each target."""
    return requests * (1 + 2 * passes)
