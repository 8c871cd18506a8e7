"""What a request is called in OpenTelemetry's semantic conventions for HTTP server spans.

Left out although recommended: `url.query`, which carries tokens and prompts, and exception messages
and stack traces. TAILWATCH_SPAN_OMIT names attributes that a service does not want to record.

Source: OpenTelemetry semantic conventions 1.23 and later, "HTTP server span" (stable).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tailwatch_tracing.cells import OVERFLOW, as_text
from tailwatch_tracing.routes import UNMATCHED, Scope
from tailwatch_tracing.service import METHODS

if TYPE_CHECKING:
    from tailwatch_tracing.calls import Call

SCHEMA_URL = "https://opentelemetry.io/schemas/1.23.1"

Attributes = dict[str, str | int]

LONGEST_VALUE = 1024
"""Characters of a path, host or user agent that are kept: a client may send 64 KiB of each."""

FAILED = frozenset(("error", "error_midstream", "timeout"))
"""Outcomes of a span with the status Error."""

_PORTS = {"http": 80, "https": 443}


def omitted_from(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names in TAILWATCH_SPAN_OMIT, separated by commas."""
    names = environ.get("TAILWATCH_SPAN_OMIT", "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def span_text(value: object) -> str:
    """Return a text that can be encoded: one span that cannot be loses all of its batch."""
    text = as_text(value)
    return text if text.isascii() else text.encode(errors="replace").decode()


def request_attributes(scope: Scope, omitted: Iterable[str] = ()) -> Attributes:
    """Return what is known when a request arrives."""
    method = scope["method"]
    scheme = scope.get("scheme") or "http"
    attributes: Attributes = {
        "http.request.method": method,
        "url.path": scope["path"][:LONGEST_VALUE],
        "url.scheme": scheme,
    }
    if method not in METHODS:
        attributes["http.request.method"] = "_OTHER"
        attributes["http.request.method_original"] = method[:LONGEST_VALUE]
    version = scope.get("http_version")
    if version:
        attributes["network.protocol.version"] = version
    client = scope.get("client")
    if client:
        attributes["client.address"] = client[0]
    host = None
    for name, value in scope.get("headers", ()):
        if name == b"user-agent":
            attributes["user_agent.original"] = value[:LONGEST_VALUE].decode("latin-1")
        elif name == b"host":
            host = value
    if host is not None:
        address, port = _address_of(host[:LONGEST_VALUE], scheme)
    else:
        address, port = scope.get("server") or (None, None)
    if address:
        attributes["server.address"] = address
        if port is not None:
            attributes["server.port"] = port
    for name in omitted:
        attributes.pop(name, None)
    return attributes


@lru_cache(256)  # a service has few names, and a client that makes up others gets no more
def _address_of(host: bytes, scheme: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit("//" + host.decode("latin-1"))
        return parts.hostname, parts.port or _PORTS.get(scheme)
    except ValueError:  # not a host that anybody has
        return None, None


@lru_cache(4096)  # as many as there may be routes, twice
def span_name(method: str, template: str) -> str:
    """Return `GET /items/{id}`: the method alone without a route, HTTP for an unknown method."""
    known = method if method in METHODS else "HTTP"
    return f"{known} {template}" if has_route(template) else known


def has_route(template: str) -> bool:
    """Return whether a template is one of the application's own."""
    return template not in (UNMATCHED, OVERFLOW)


def add_outcome(attributes: Attributes, template: str, status: int, outcome: str) -> None:
    """Add what is known when a request has ended; call it where it ends, in its `except` if any."""
    if has_route(template):
        attributes["http.route"] = template
    attributes["http.response.status_code"] = int(status)
    attributes["tailwatch.outcome"] = outcome
    if outcome in FAILED:
        attributes["error.type"] = _error_type(status, outcome)


def _error_type(status: int, outcome: str) -> str:
    if outcome == "timeout":
        return outcome
    error = sys.exc_info()[1]
    if error is None or hasattr(error, "status_code"):  # an answer in the shape of an exception
        return str(int(status)) if outcome == "error" else outcome
    return type_name(type(error))


def call_attributes(call: Call) -> dict[str, str]:
    """Return what is known of a call to another service."""
    attributes = {"peer.service": span_text(call.target)}
    if call.error is not None:
        attributes["error.type"] = type_name(call.error)
    return attributes


def type_name(kind: type[BaseException]) -> str:
    """Return an exception's name with its module, but for a built-in one."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
