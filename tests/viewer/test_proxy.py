from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from tailwatch_stack.errors import TailwatchError, UsageError
from tailwatch_stack.viewer.prometheus import PrometheusProxy, PrometheusServer
from tailwatch_stack.viewer.server import ViewerSettings, create_app
from tests.viewer.conftest import Client, FakePrometheus, reply

QUERIES = ["query", "query_range"]
LABELS = ["labels", "label/host/values"]
# What Prometheus' API can do besides answering queries, and what would show its configuration.
REFUSED = [
    "series",
    "rules",
    "admin/tsdb/delete_series",
    "admin/tsdb/snapshot",
    "write",
    "otlp/v1/metrics",
    "status/config",
    "status/flags",
    "targets",
    "label/host/values/../../../admin/tsdb/snapshot",
    "label/a%2Fb/values",
    "query/../admin/tsdb/snapshot",
    "query/%2e%2e/admin/tsdb/snapshot",
    "",
]


@pytest.mark.parametrize("path", QUERIES + LABELS)
def test_reading_is_passed_on(client: Client, prometheus: FakePrometheus, path: str) -> None:
    response = client.get(f"/prom/api/v1/{path}?query=up%7Ba%3D%22b%22%7D&match[]=x&match[]=y")
    assert response.json() == {"status": "success", "data": []}
    (request,) = prometheus.requests
    assert request.url.host == "prom.test"
    assert request.url.path == f"/prefix/api/v1/{path}"
    assert request.url.params.multi_items() == [
        ("query", 'up{a="b"}'),
        ("match[]", "x"),
        ("match[]", "y"),
    ]


@pytest.mark.parametrize("path", QUERIES)
def test_a_long_query_may_be_posted(client: Client, prometheus: FakePrometheus, path: str) -> None:
    client.post(f"/prom/api/v1/{path}", data={"query": "up"})
    (request,) = prometheus.requests
    assert request.method == "POST"
    assert request.read() == b"query=up"
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize("path", REFUSED)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_nothing_else_is_passed_on(
    client: Client, prometheus: FakePrometheus, method: str, path: str
) -> None:
    response = client.request(method, f"/prom/api/v1/{path}")
    assert response.status_code in (404, 405)
    assert prometheus.requests == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD"])
def test_only_reading_methods_are_passed_on(
    client: Client, prometheus: FakePrometheus, method: str
) -> None:
    assert client.request(method, "/prom/api/v1/query").status_code == 405
    assert client.post("/prom/api/v1/labels").status_code == 405
    assert prometheus.requests == []


@pytest.mark.parametrize("path", ["/prom/-/reload", "/prom/metrics", "/prom/api/v2/query", "/prom"])
def test_paths_outside_of_the_api_do_not_exist(
    client: Client, prometheus: FakePrometheus, path: str
) -> None:
    assert client.post(path).status_code in (404, 405)
    assert client.get(path).status_code == 404
    assert prometheus.requests == []


def test_a_request_longer_than_any_query_is_refused(
    client: Client, prometheus: FakePrometheus
) -> None:
    response = client.post("/prom/api/v1/query", content=b"x" * (1 << 20) + b"x")
    assert response.status_code == 413
    assert prometheus.requests == []


def test_cookies_and_credentials_of_the_browser_stay_here(
    client: Client, prometheus: FakePrometheus
) -> None:
    headers = {"Cookie": "a=b", "Authorization": "Basic x", "X-Forwarded-For": "1.2.3.4"}
    client.get("/prom/api/v1/query", headers=headers)
    assert not {"cookie", "authorization", "x-forwarded-for"} & set(prometheus.requests[0].headers)


def test_errors_of_prometheus_arrive_as_they_are(
    client: Client, prometheus: FakePrometheus
) -> None:
    error = {"status": "error", "errorType": "bad_data", "error": "parse error"}
    prometheus.handler = lambda _request: reply(error, status=400)
    response = client.get("/prom/api/v1/query?query=(")
    assert (response.status_code, response.json()) == (400, error)


def test_compressed_answers_are_passed_through(client: Client, prometheus: FakePrometheus) -> None:
    body = gzip.compress(json.dumps({"status": "success", "data": "x" * 1000}).encode())
    prometheus.handler = lambda _request: httpx.Response(
        200,
        stream=httpx.ByteStream(body),
        headers={"Content-Encoding": "gzip", "Content-Type": "application/json", "X-Inner": "1"},
    )
    response = client.get("/prom/api/v1/query")
    assert response.headers["Content-Encoding"] == "gzip"
    assert "X-Inner" not in response.headers
    assert response.json()["data"] == "x" * 1000


def ask_proxy(
    settings: ViewerSettings, query: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Response:
    """Answer a request as bare as it is given: a client adds headers and limits of its own."""

    async def receive() -> Message:
        return {"type": "http.request"}

    async def answer() -> Response:
        proxy = PrometheusProxy(settings.prometheus, settings.prometheus.client())
        return await proxy.answer(Request(scope, receive))

    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "server": ("127.0.0.1", 12162),
        "path": "/prom/api/v1/query",
        "path_params": {"path": "query"},
        "query_string": query,
        "headers": headers,
    }
    return asyncio.run(answer())


@pytest.mark.parametrize("asked", ["identity", "gzip"])
def test_answers_are_compressed_only_for_who_can_read_them(
    settings: ViewerSettings, prometheus: FakePrometheus, asked: str
) -> None:
    headers = () if asked == "identity" else ((b"accept-encoding", asked.encode()),)
    ask_proxy(settings, headers=headers)
    assert prometheus.requests[0].headers["accept-encoding"] == asked


def test_a_query_string_beyond_what_is_passed_on_is_refused(
    settings: ViewerSettings, prometheus: FakePrometheus
) -> None:
    response = ask_proxy(settings, query=b"query=" + b"x" * 70_000)
    assert response.status_code == 400
    assert b"URL too long" in bytes(response.body)
    assert prometheus.requests == []


def raise_error(error: type[httpx.TransportError], message: str) -> httpx.Response:
    raise error(message)


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (
            httpx.ConnectError,
            502,
            "Prometheus at http://prom.test:9090/prefix cannot be reached: x",
        ),
        (
            httpx.ReadTimeout,
            504,
            "Prometheus at http://prom.test:9090/prefix did not answer in time",
        ),
        (httpx.RemoteProtocolError, 502, "cannot be reached: x"),
    ],
)
def test_a_prometheus_that_is_down_is_told_in_its_own_form(
    client: Client,
    prometheus: FakePrometheus,
    error: type[httpx.TransportError],
    status: int,
    expected: str,
) -> None:
    prometheus.handler = lambda _request: raise_error(error, "x")
    response = client.get("/prom/api/v1/query")
    assert response.status_code == status
    assert response.json()["status"] == "error"
    assert expected in response.json()["error"]


def test_no_error_shows_credentials(settings: ViewerSettings, prometheus: FakePrometheus) -> None:
    server = dataclasses.replace(settings.prometheus, url="https://me:secret@prom.test/x/")
    prometheus.handler = lambda _request: raise_error(httpx.ConnectError, "refused")
    app = create_app(dataclasses.replace(settings, prometheus=server))
    error = Client(app).get("/prom/api/v1/query").json()["error"]
    assert error == "Prometheus at https://prom.test/x cannot be reached: refused"


def test_headers_and_a_rotated_token_are_sent(
    settings: ViewerSettings, prometheus: FakePrometheus, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    server = dataclasses.replace(
        settings.prometheus, headers={"X-Scope-OrgID": "team"}, bearer_token_file=token
    )
    app = create_app(dataclasses.replace(settings, prometheus=server))
    client = Client(app, base_url="http://127.0.0.1")
    client.get("/prom/api/v1/query")
    token.write_text("second")
    client.get("/prom/api/v1/query")
    token.write_bytes(b"\xff")
    assert "token cannot be read" in client.get("/prom/api/v1/query").json()["error"]
    token.unlink()
    assert "token cannot be read" in client.get("/prom/api/v1/query").json()["error"]
    sent = [request.headers for request in prometheus.requests]
    assert [headers["authorization"] for headers in sent] == ["Bearer first", "Bearer second"]
    assert {headers["x-scope-orgid"] for headers in sent} == {"team"}


@pytest.mark.parametrize(
    "url",
    [
        *("prom:9090", "ftp://prom", "http://", "http://prom/?x=1", ""),
        *("http://[::1", "http://prom:web", "http://prom:65536", "http://prom:0", "http://a\x07"),
    ],
)
def test_what_is_no_url_is_named(url: str) -> None:
    with pytest.raises(UsageError, match=r"--prometheus\.url"):
        PrometheusServer(url)


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text("nothing")
    with pytest.raises(TailwatchError, match=r"--prometheus\.ca-file .*: expected certificates"):
        PrometheusServer("https://prom", ca_file=ca_file).client()
