"""A server in a few lines: it drives an ASGI application and records what was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tailwatch_tracing.exposition import render_families
from tailwatch_tracing.serving import collect

Message = MutableMapping[str, Any]
App = Callable[..., Awaitable[None]]
Labels = frozenset[tuple[str, str]]


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
    """One request: `disconnect` makes the client leave, `fail_on` makes a send raise."""

    def __init__(self, fail_on: str | None = None, error: Exception | None = None) -> None:
        self.sent: list[Message] = []
        self.disconnect = asyncio.Event()
        self._fail_on = fail_on
        self._error = error or OSError("connection lost")
        self._body_read = False

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


def page_samples(page: str) -> dict[tuple[str, Labels], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def samples() -> dict[tuple[str, Labels], float]:
    """What the page shows now, without the default registry."""
    return page_samples(render_families(collect()).decode())


def nonzero(name: str, labels: Iterable[str]) -> dict[tuple[str, ...], float]:
    """Values of a metric's samples that are not 0, by the values of these labels."""
    found: dict[tuple[str, ...], float] = {}
    for (sample, pairs), value in samples().items():
        if sample == name and value:
            values = dict(pairs)
            key = tuple(values[label] for label in labels)
            found[key] = found.get(key, 0) + value
    return found


def outcomes() -> dict[str, float]:
    return {
        key[0]: value for key, value in nonzero("inference_outcomes_total", ["outcome"]).items()
    }


def requests() -> dict[tuple[str, ...], float]:
    """Counts by route, method, status and outcome."""
    return nonzero("inference_requests_total", ["route", "method", "status", "outcome"])
