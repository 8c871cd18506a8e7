"""What a request for the page is answered with, whichever server it came through."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

from tailwatch_tracing.authorization import Authorization
from tailwatch_tracing.exposition import accepts_gzip, negotiate
from tailwatch_tracing.scrapes import Page

_TEXT = "text/plain; charset=utf-8"


class Scrape(NamedTuple):
    """What matters of a request; `peer` is the client's address, None where it has none."""

    method: str
    accept: str
    accept_encoding: str
    authorization: Sequence[bytes]
    peer: str | None

    @property
    def wants_openmetrics(self) -> bool:
        """Return which format it is answered in."""
        return negotiate(self.accept)[0]

    @property
    def wants_gzip(self) -> bool:
        """Return whether to compress; not for this machine, where it costs more than it saves."""
        return accepts_gzip(self.accept_encoding) and not _is_local(self.peer)


class Answer(NamedTuple):
    """A response; its body is to be sent block by block, or not at all to a HEAD."""

    status: int
    headers: list[tuple[str, str]]
    blocks: Sequence[bytes]


def refusal(scrape: Scrape, auth: Authorization | None) -> Answer | None:
    """Return a 401 or 405, None if the page may be had."""
    if auth is not None and not auth.allows(scrape.authorization):
        return _line(401, "Unauthorized", ("WWW-Authenticate", auth.challenge))
    if scrape.method not in ("GET", "HEAD"):
        return _line(405, "Method Not Allowed", ("Allow", "GET, HEAD"))
    return None


def with_page(page: Page) -> Answer:
    """Return the page."""
    headers = [
        ("Content-Type", page.content_type),
        ("Content-Length", str(page.length)),
        ("Vary", "Accept, Accept-Encoding"),
    ]
    if page.is_gzipped:
        headers.append(("Content-Encoding", "gzip"))
    return Answer(200, headers, page.blocks)


def failure() -> Answer:
    """Return a 500 for a page that could not be made."""
    return _line(500, "the metrics page could not be rendered")


def _line(status: int, text: str, *headers: tuple[str, str]) -> Answer:
    body = text.encode() + b"\n"
    common = [("Content-Type", _TEXT), ("Content-Length", str(len(body)))]
    return Answer(status, [*common, *headers], [body])


def _is_local(peer: str | None) -> bool:
    if peer is None:  # a Unix socket
        return True
    try:
        return ip_address(peer.partition("%")[0]).is_loopback
    except ValueError:
        return False
