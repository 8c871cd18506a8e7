"""Response headers that keep the page to itself, and a check that keeps other sites out."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The components write their styles at run time, which needs 'unsafe-inline' for styles alone.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class SecurityHeaders:
    """Add the headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and mark its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, marked)


class LoopbackHostOnly:
    """Refuse requests that reached a loopback address under another name.

    A page of any site can make its own name resolve to 127.0.0.1 and then read what is there as
    if it were its own (DNS rebinding); such a request carries that name as its Host.

    Args:
        app: what answers the requests that pass.
        listen_host: the address that the viewer was told to listen on.
    """

    def __init__(self, app: ASGIApp, listen_host: str) -> None:
        self._app = app
        self._names = _LOOPBACK_NAMES | {listen_host, f"[{listen_host}]"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on when its Host names this machine."""
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
            if name not in self._names:
                refusal = PlainTextResponse(
                    f"Host {host!r} is not this machine: expected localhost or 127.0.0.1\n",
                    status_code=421,
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)
