"""The viewer's application over a Prometheus that the test speaks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from tailwatch_stack.viewer.address import ListenAddress
from tailwatch_stack.viewer.documents import Dashboards, Runbooks
from tailwatch_stack.viewer.prometheus import PrometheusServer
from tailwatch_stack.viewer.server import ViewerSettings, create_app

Handler = Callable[[httpx.Request], httpx.Response]


def reply(document: object, status: int = 200) -> httpx.Response:
    """Return an answer that is still to be read, as one from the network is."""
    stream = httpx.ByteStream(json.dumps(document).encode())
    return httpx.Response(status, stream=stream, headers={"Content-Type": "application/json"})


def answer_success(_request: httpx.Request) -> httpx.Response:
    return reply({"status": "success", "data": []})


@dataclass
class FakePrometheus:
    """Answers what the test says and remembers what it was asked."""

    handler: Handler = answer_success
    requests: list[httpx.Request] = field(default_factory=list)

    def transport(self) -> httpx.MockTransport:
        def handle(request: httpx.Request) -> httpx.Response:
            self.requests.append(request)
            return self.handler(request)

        return httpx.MockTransport(handle)


@dataclass(frozen=True)
class FakeServer(PrometheusServer):
    """A server that is reached through the fake's transport."""

    fake: FakePrometheus = field(default_factory=FakePrometheus)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self.fake.transport(), headers=dict(self.headers))


@dataclass(frozen=True)
class Client:
    """Sends requests to an application without a socket."""

    app: Starlette
    base_url: str = "http://127.0.0.1:12162"

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=self.base_url) as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())


@pytest.fixture
def prometheus() -> FakePrometheus:
    return FakePrometheus()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Dashboards, runbooks and a bundle as small as they can be."""
    for name in ("dashboards", "runbooks", "dist/assets"):
        (tmp_path / name).mkdir(parents=True)
    for uid, title in (("b-host", "Host"), ("overview", "Overview"), ("a-gpu", "GPU")):
        text = json.dumps({"uid": uid, "title": title, "tags": ["x"], "panels": []})
        (tmp_path / "dashboards" / f"{uid}.json").write_text(text)
    (tmp_path / "runbooks" / "TooHot.md").write_text("# TooHot\n\n## Meaning\n")
    (tmp_path / "secret.md").write_text("not for you")
    (tmp_path / "dist" / "index.html").write_text("<html>the page</html>")
    (tmp_path / "dist" / "assets" / "index-abc.js").write_text("1;")
    (tmp_path / "dist" / "favicon.svg").write_text("<svg/>")
    return tmp_path


@pytest.fixture
def settings(folder: Path, prometheus: FakePrometheus) -> ViewerSettings:
    return ViewerSettings(
        listen=ListenAddress("127.0.0.1", 12162),
        prometheus=FakeServer("http://prom.test:9090/prefix/", fake=prometheus),
        dashboards=Dashboards(folder / "dashboards"),
        runbooks=Runbooks(folder / "runbooks"),
        scrape_interval_seconds=15,
        dist=folder / "dist",
    )


@pytest.fixture
def client(settings: ViewerSettings) -> Client:
    return Client(create_app(settings))
