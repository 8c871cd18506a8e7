"""A server in a few lines: it drives an ASGI application and records what was sent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tailwatch_tracing.exposition import render_families
from tailwatch_tracing.serving import collect

Message = MutableMapping[str, Any]
App = Callable[..., Awaitable[None]]


def http_scope(path: str, method: str = "GET", **more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"test")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        **more,
    }


class Exchange:
    """One request: `disconnect` makes the client leave, `fail_on` makes sends raise."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.disconnect = asyncio.Event()
        self._fail_on: str | None = None
        self._error: Exception = OSError("connection lost")
        self._body_read = False

    def fail_on(self, message_type: str, error: Exception | None = None) -> None:
        self._fail_on = message_type
        self._error = error or self._error

    async def receive(self) -> Message:
        if not self._body_read:
            self._body_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.disconnect.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == self._fail_on:
            raise self._error
        self.sent.append(dict(message))

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


async def request(app: App, path: str, method: str = "GET", **more: Any) -> Exchange:
    exchange = Exchange()
    await app(http_scope(path, method, **more), exchange.receive, exchange.send)
    return exchange


def page_values(page: str, name: str, labels: Iterable[str]) -> dict[tuple[str, ...], float]:
    """Values of a page's samples of this name, by the values of these labels, summed."""
    lines = [line for line in page.splitlines() if re.match(rf"{name}[{{ ]", line)]
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            key = tuple(sample.labels[label] for label in labels)
            found[key] = found.get(key, 0) + sample.value
    return found


def values(name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The same of the page as it is now, without the default registry."""
    return page_values(render_families(collect()).decode(), name, labels)


def nonzero(name: str, labels: Iterable[str]) -> dict[tuple[str, ...], float]:
    return {key: value for key, value in values(name, *labels).items() if value}


def outcomes() -> dict[str, float]:
    return {
        key[0]: value for key, value in nonzero("inference_outcomes_total", ["outcome"]).items()
    }


def requests() -> dict[tuple[str, ...], float]:
    """Counts by route, method, status and outcome."""
    return nonzero("inference_requests_total", ["route", "method", "status", "outcome"])
