"""Websockets: how many are open, how long they last, and with which code they close.

The code is that of whichever side closes first, RFC 6455 and RFC 8441 alike. Nobody sends one where
a connection breaks or the application just ends (1006), or fails (1011, which servers say for it).
A handshake that is refused has no close code but the HTTP status of the refusal: three digits.
"""

from __future__ import annotations

from tailwatch_tracing import clock
from tailwatch_tracing.cells import OVERFLOW
from tailwatch_tracing.families import WEBSOCKET_CLOSES, WEBSOCKET_CONNECTIONS, WEBSOCKET_DURATION
from tailwatch_tracing.page import Level
from tailwatch_tracing.request import Message, Receive, Send, is_lost_connection
from tailwatch_tracing.routes import Scope
from tailwatch_tracing.service import Service
from tailwatch_tracing.units import Unit

_NORMAL = 1000
_NO_CODE = 1005
_BROKEN = 1006
_FAILED = 1011
_FORBIDDEN = 403  # what a server answers when an application closes instead of accepting
_SERVER_ERROR = 500

_CODE_LIMIT = 64  # clients choose among thousands


class Websockets:
    """The websockets of one service."""

    def __init__(self, service: Service) -> None:
        store = service.store
        self.service = service
        self.open: dict[Websocket, None] = {}
        self._duration = store.histogram(WEBSOCKET_DURATION)
        self._closes = store.capped(
            WEBSOCKET_CLOSES, _CODE_LIMIT, lambda code: store.counter(WEBSOCKET_CLOSES, code)
        )
        for code in (_NORMAL, _NO_CODE, _BROKEN, _FAILED):  # a rate exists at the first failure
            self._closes.get(str(code))
        service.report(lambda: [Level(WEBSOCKET_CONNECTIONS, (), len(self.open))])

    def note_close(self, code: object, lived_ns: int | None) -> None:
        """Count a close, and how long an accepted websocket lived."""
        known = isinstance(code, int) and (100 <= code <= 599 or 1000 <= code <= 4999)
        self._closes.get(str(int(code)) if known else OVERFLOW).counts[0] += 1  # type: ignore[call-overload]
        if lived_ns is not None:
            self._duration.observe(lived_ns)

    def forget(self) -> None:
        """After a fork: all open ones are the parent's."""
        self.open.clear()


def websockets_of(service: Service) -> Websockets:
    """Return the service's one record of its websockets, made for the first of them."""
    if service.websockets is None:
        service.websockets = Websockets(service)
    return service.websockets


class WebsocketUnit(Unit):
    """Stages in a websocket are its service's; each outermost one is a unit of its own."""

    __slots__ = ("scope",)

    def __init__(self, service: Service, scope: Scope) -> None:
        super().__init__(service, 0)
        self.scope = scope


class Websocket:
    """The record of one websocket; it stands between the application and its receive and send."""

    __slots__ = ("_is_accepted", "_receive", "_send", "_start_ns", "_websockets")

    def __init__(self, websockets: Websockets, receive: Receive, send: Send) -> None:
        self._websockets = websockets
        self._receive = receive
        self._send = send
        self._is_accepted = False
        self._start_ns = clock.now_ns()
        websockets.open[self] = None

    async def receive(self) -> Message:
        """Receive for the application; note when the client closes, or has gone."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self._close(message.get("code", _NO_CODE))
        return message

    async def send(self, message: Message) -> None:
        """Send for the application; note what it answers the handshake with, and its close."""
        kind = message["type"]
        try:
            await self._send(message)
        except Exception as error:
            if is_lost_connection(error):
                self._close(_BROKEN)
            raise
        if kind == "websocket.send":
            return
        if kind == "websocket.accept":
            self._is_accepted = True
        elif kind == "websocket.close":
            self._close(message.get("code", _NORMAL) if self._is_accepted else _FORBIDDEN)
        elif kind == "websocket.http.response.start":
            self._close(message.get("status"))

    def leave(self, error: BaseException | None) -> None:
        """Note that the application has ended, perhaps without a close."""
        if not self._is_accepted and not isinstance(error, OSError):
            code = _SERVER_ERROR
        else:
            code = _FAILED if isinstance(error, Exception) else _BROKEN
        self._close(code)

    def _close(self, code: object) -> None:
        websockets = self._websockets
        try:
            if websockets.open.pop(self, self) is None:
                lived_ns = clock.now_ns() - self._start_ns
                websockets.note_close(code, lived_ns if self._is_accepted else None)
        except Exception:
            websockets.service.note_error("request")
