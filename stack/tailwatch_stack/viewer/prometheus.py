"""Queries of Prometheus' HTTP API, passed through so that the page needs one origin only."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tailwatch_stack.errors import TailwatchError, UsageError

# What the page asks, and nothing that writes, deletes, reloads or shows the configuration.
_READ_PATHS = {
    "query": ("GET", "POST"),
    "query_range": ("GET", "POST"),
    "labels": ("GET",),
}
_LABEL_VALUES = re.compile(r"label/[a-zA-Z_][a-zA-Z0-9_]*/values")
_LONGEST_BODY = 1 << 20  # bytes; a query of a dashboard is a few hundred

# Prometheus gives a query up after two minutes by default and then says so itself.
_TIMEOUT = httpx.Timeout(130.0, connect=5.0)
_PASSED_ON = ("content-type", "content-encoding", "cache-control", "retry-after")


@dataclass(frozen=True)
class PrometheusServer:
    """How to reach a Prometheus, or anything that speaks its HTTP API.

    Args:
        url: its base, path prefix included.
        headers: sent with each request, for example a tenant's.
        bearer_token_file: read at each request, so that a rotated token is taken up.
        ca_file: certificates, in PEM, that its TLS certificate is checked against.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    bearer_token_file: Path | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        """Raise UsageError on a URL that is not one."""
        no_server = UsageError(
            f"--prometheus.url {self.url}: expected http://host:port or https://"
        )
        try:
            parts = urlsplit(self.url)
            httpx.URL(self.url)
            is_server = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except (ValueError, httpx.InvalidURL):
            raise no_server from None
        if not is_server:
            raise no_server
        if parts.query or parts.fragment:
            raise UsageError(f"--prometheus.url {self.url}: expected no ? or # part")

    @property
    def shown_url(self) -> str:
        """The URL without a user name or password in it."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")

    def client(self) -> httpx.AsyncClient:
        """Return a client; proxies in the environment are for the internet and not used.

        Raises:
            TailwatchError: the CA file is missing or holds no certificate.
        """
        return httpx.AsyncClient(
            timeout=_TIMEOUT,
            trust_env=False,
            headers=dict(self.headers),
            verify=self._tls_context() if self.ca_file else True,
        )

    def authorization(self) -> dict[str, str]:
        """Return the header with the bearer token, nothing when there is no token file.

        Raises:
            OSError: the token file cannot be read.
            UnicodeError: it is not text.
        """
        if self.bearer_token_file is None:
            return {}
        token = self.bearer_token_file.read_text(encoding="utf-8").strip()
        return {"Authorization": f"Bearer {token}"}

    def _tls_context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=str(self.ca_file))
        except OSError as error:  # ssl.SSLError is one
            raise TailwatchError(
                f"--prometheus.ca-file {self.ca_file}: expected certificates in PEM: {error}"
            ) from error


class PrometheusProxy:
    """Passes queries on, and refuses all other requests."""

    def __init__(self, server: PrometheusServer, client: httpx.AsyncClient) -> None:
        self._server = server
        self._client = client

    async def answer(self, request: Request) -> Response:
        """Answer `/prom/api/v1/<path>` with what Prometheus says."""
        path = request.path_params["path"]
        methods = _methods(path)
        if methods is None:
            return _refuse(404, "not_found", f"{path} is not passed on to Prometheus")
        if request.method not in methods:
            return _refuse(405, "bad_method", f"{request.method} {path}: {' or '.join(methods)}")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_BODY:
                return _refuse(413, "bad_data", f"the request is longer than {_LONGEST_BODY} bytes")
        return await self._pass_on(request, path, body)

    async def _pass_on(self, request: Request, path: str, body: bytes) -> Response:
        try:
            authorization = self._server.authorization()
        except (OSError, UnicodeError) as error:
            return _refuse(502, "unavailable", f"the bearer token cannot be read: {error}")
        try:
            upstream = await self._client.send(
                self._client.build_request(
                    request.method,
                    f"{self._server.url.rstrip('/')}/api/v1/{path}?{request.url.query}",
                    content=body or None,
                    headers=_request_headers(request) | authorization,
                ),
                stream=True,
            )
        except httpx.InvalidURL as error:
            return _refuse(400, "bad_data", f"the query string cannot be passed on: {error}")
        except httpx.TimeoutException:
            return _refuse(
                504, "timeout", f"Prometheus at {self._server.shown_url} did not answer in time"
            )
        except httpx.HTTPError as error:
            return _refuse(
                502,
                "unavailable",
                f"Prometheus at {self._server.shown_url} cannot be reached: {error}",
            )
        return StreamingResponse(
            _chunks(upstream),
            status_code=upstream.status_code,
            headers={
                name: upstream.headers[name] for name in _PASSED_ON if name in upstream.headers
            },
        )


def _methods(path: str) -> tuple[str, ...] | None:
    if _LABEL_VALUES.fullmatch(path):
        return ("GET",)
    return _READ_PATHS.get(path)


def _request_headers(request: Request) -> dict[str, str]:
    passed = ("accept", "accept-encoding", "content-type")
    found = {name: request.headers[name] for name in passed if name in request.headers}
    # The client would ask for compression by itself, and the answer is passed on as it comes.
    return {"accept-encoding": "identity"} | found


async def _chunks(upstream: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in upstream.aiter_raw():
            yield chunk
    finally:
        await upstream.aclose()


def _refuse(status: int, kind: str, message: str) -> JSONResponse:
    """Answer in the form of Prometheus' own errors, so that the page has one kind to show."""
    return JSONResponse(
        {"status": "error", "errorType": kind, "error": message}, status_code=status
    )
