"""One request: what the middleware sees of it, and what is counted when it ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from tailwatch_tracing import clock
from tailwatch_tracing.cells import FIRST_EDGE_NS, SUM_NS
from tailwatch_tracing.families import EDGES_NS
from tailwatch_tracing.routes import RouteTable, Scope
from tailwatch_tracing.shares import credit_request
from tailwatch_tracing.units import Unit

if TYPE_CHECKING:
    from tailwatch_tracing.spans import RequestSpan

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# What has happened to a request, as bits of `Request.events`.
CLIENT_LEFT = 1  # http.disconnect was received, or a send failed
REJECTED = 2  # a queue refused it
STREAM = 4  # its body comes in more than one message
LEFT_UNANSWERED = 8  # the client left before the response started: none of it is sent

STATUS_CLIENT_LEFT = 499  # nginx's code for a client that left before an answer

# anyio's and Starlette's words for what the ASGI specification (2.4) asks to be an OSError.
_LOST_CONNECTION = frozenset(("BrokenResourceError", "ClosedResourceError", "ClientDisconnect"))

# Extensions that end a response: a file sent by its path, or by its descriptor.
_LAST_MESSAGES = frozenset(("http.response.pathsend", "http.response.zerocopysend"))


class Request(Unit):
    """The record of one request; it stands between the application and its receive and send."""

    __slots__ = (
        "_receive",
        "_send",
        "events",
        "response_start_ns",
        "routes",
        "scope",
        "span",
        "status",
    )

    def __init__(self, routes: RouteTable, scope: Scope, receive: Receive, send: Send) -> None:
        # Unit's attributes are set here, too: a call to its __init__ costs more than all of them.
        self.routes = routes
        self.service = service = routes.service
        self.is_open = True
        self.log = None
        self.folded = None
        self.scope = scope
        self.status = 0  # nothing sent
        self.events = 0
        self.span: RequestSpan | None = None
        self._receive = receive
        self._send = send
        service.in_flight[self] = None
        self.start_ns = clock.now_ns()

    async def receive(self) -> Message:
        """Receive for the application; note when the client leaves."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._note_client_left()
        return message

    async def send(self, message: Message) -> None:
        """Send for the application; the last body message ends the request."""
        kind = message["type"]
        if kind == "http.response.start":
            try:
                await self._send(message)
            except Exception as error:
                self._note_failed_send(error)
                raise
            self.status = message.get("status", 0)
            self.response_start_ns = clock.now_ns()
            return
        more = message.get("more_body", False)
        try:
            await self._send(message)
        except Exception as error:
            self._note_failed_send(error)
            raise
        if kind == "http.response.body" or kind in _LAST_MESSAGES:
            if more:
                self.events |= STREAM
            elif self.is_open:
                self.finish(self.status, None)

    def abandon(self, error: BaseException | None) -> None:
        """Count the request: the application has ended without a last body message."""
        status = self.status
        if self.events & REJECTED or status == 429:
            outcome = "rejected"
        elif self.events & CLIENT_LEFT:
            outcome = "client_disconnect"
        elif error is not None and not isinstance(error, Exception):
            outcome = "cancelled"  # asyncio's and trio's Cancelled, GeneratorExit, SystemExit
        else:
            outcome = "error_midstream" if status else "error"
        if status == 0:
            status = 500 if outcome == "error" else STATUS_CLIENT_LEFT
        self.finish(status, outcome)

    def _note_failed_send(self, error: Exception) -> None:
        if isinstance(error, OSError) or type(error).__name__ in _LOST_CONNECTION:
            self._note_client_left()

    def _note_client_left(self) -> None:
        self.events |= CLIENT_LEFT if self.status else CLIENT_LEFT | LEFT_UNANSWERED

    def _outcome_of_answer(self) -> str:
        if self.events & REJECTED or self.status == 429:
            return "rejected"
        if self.status >= 500:
            # What an application answers to its own surprise that the client has left.
            return "client_disconnect" if self.events & LEFT_UNANSWERED else "error"
        if self.status >= 400:
            return "client_error"
        return "client_disconnect"

    def finish(self, status: int, outcome: str | None) -> None:
        """End the request now and count it; without an outcome, as the complete answer it got."""
        end_ns = clock.now_ns()
        self.is_open = False
        service = self.service
        try:
            del service.in_flight[self]
            if outcome is None:
                if status >= 400 or self.events & (REJECTED | CLIENT_LEFT):
                    outcome = self._outcome_of_answer()
                    if status >= 500 and outcome == "client_disconnect":
                        status = STATUS_CLIENT_LEFT
                else:
                    outcome = "ok"
            duration_ns = end_ns - self.start_ns
            timeout_ns = service.client_timeout_ns
            if timeout_ns is not None and duration_ns > timeout_ns:
                outcome = self._unless_timed_out(outcome, timeout_ns)
            scope = self.scope
            try:
                route = self.routes.find(scope)
            except Exception:  # a kind of route nobody has met yet
                service.note_error("route")
                route = self.routes.unmatched
            key = (scope["method"], status, outcome)
            count = route.requests.get(key)
            if count is not None:
                count.counts[0] += 1
            else:
                service.count_request(route, *key)
            log = self.log
            if outcome == "rejected":
                self.log = None
            else:
                slo_ns = service.slo_ns
                slow = 1 if slo_ns is not None and duration_ns > slo_ns else 0
                if log is not None:
                    end_ns = credit_request(self, end_ns, slow)
                    duration_ns = end_ns - self.start_ns
                bucket = bisect_left(EDGES_NS, duration_ns) if duration_ns > FIRST_EDGE_NS else 0
                counts = route.duration.counts
                counts[bucket] += 1
                counts[SUM_NS] += duration_ns
                if log is None:
                    unattributed = service.unattributed
                    counts = unattributed.wall.counts
                    counts[bucket] += 1
                    counts[SUM_NS] += duration_ns
                    unattributed.exclusive.counts[slow] += duration_ns
            if self.span is not None:
                self.span.end(self, route, status, outcome, end_ns, log or ())
        except Exception:
            service.note_error("request")

    def _unless_timed_out(self, outcome: str, timeout_ns: int) -> str:
        if outcome not in ("ok", "client_disconnect"):
            return outcome
        # There is no start where a server lets a body pass without one: status is 0 then.
        is_stream = self.events & STREAM and self.status
        if is_stream and self.response_start_ns - self.start_ns <= timeout_ns:
            return outcome
        return "timeout"
