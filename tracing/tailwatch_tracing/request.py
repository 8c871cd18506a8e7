"""One request: what the middleware sees of it, and what is counted when it ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from tailwatch_tracing.cells import EDGES_NS
from tailwatch_tracing.routes import RouteTable, Scope
from tailwatch_tracing.service import Service
from tailwatch_tracing.stages import Unit

if TYPE_CHECKING:
    from tailwatch_tracing.spans import RequestSpan

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CLIENT_LEFT = 499  # nginx's code for a client that closed the connection before an answer

# anyio's and Starlette's words for what the ASGI specification (2.4) asks to be an OSError.
_LOST_CONNECTION = frozenset(("BrokenResourceError", "ClosedResourceError", "ClientDisconnect"))

# Extensions that end a response: a file sent by its path, or by its descriptor.
_LAST_MESSAGES = frozenset(("http.response.pathsend", "http.response.zerocopysend"))


class Request(Unit):
    """The record of one request; it stands between the application and its receive and send."""

    __slots__ = (
        "client_left",
        "is_rejected",
        "is_stream",
        "receive_",
        "response_start_ns",
        "routes",
        "scope",
        "send_",
        "span",
        "status",
    )

    def __init__(
        self, service: Service, routes: RouteTable, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.service = service
        self.routes = routes
        self.scope = scope
        self.receive_ = receive
        self.send_ = send
        self.timeline = None
        self.span: RequestSpan | None = None
        self.is_open = True
        self.status = 0  # nothing sent
        self.is_stream = False
        self.is_rejected = False
        self.client_left = False
        service.in_flight[self] = None
        self.start_ns = service.clock_ns()

    async def receive(self) -> Message:
        """Receive for the application; note when the client leaves."""
        message = await self.receive_()
        if message["type"] == "http.disconnect":
            self.client_left = True
        return message

    async def send(self, message: Message) -> None:
        """Send for the application; the last body message ends the request."""
        kind = message["type"]
        more = message.get("more_body", False)
        try:
            await self.send_(message)
        except Exception as error:
            if isinstance(error, OSError) or type(error).__name__ in _LOST_CONNECTION:
                self.client_left = True
            raise
        if kind == "http.response.body":
            if more:
                self.is_stream = True
            elif self.is_open:
                self.complete()
        elif kind == "http.response.start":
            self.response_start_ns = self.service.clock_ns()
            self.status = message["status"]
        elif kind == "http.response.zerocopysend" and more:
            self.is_stream = True
        elif kind in _LAST_MESSAGES and self.is_open:
            self.complete()

    def complete(self) -> None:
        """Count the request: its last body message has been sent."""
        service = self.service
        end_ns = service.clock_ns()
        self.is_open = False
        try:
            del service.in_flight[self]
            if self.status >= 400 or self.client_left or self.is_rejected:
                outcome = self._outcome_of_answer()
            else:
                outcome = "ok"
            if service.client_timeout_ns is not None:
                outcome = self._unless_timed_out(outcome, end_ns)
            self._count(end_ns, self.status, outcome)
        except Exception:
            service.note_error("request")

    def abandon(self, error: BaseException | None) -> None:
        """Count the request: the application has ended without a last body message."""
        service = self.service
        end_ns = service.clock_ns()
        self.is_open = False
        try:
            del service.in_flight[self]
            status = self.status
            if self.is_rejected or status == 429:
                outcome = "rejected"
            elif self.client_left:
                outcome = "client_disconnect"
            elif error is not None and not isinstance(error, Exception):
                outcome = "cancelled"  # asyncio's and trio's Cancelled, GeneratorExit, SystemExit
            else:
                outcome = "error_midstream" if status else "error"
            if status == 0:
                status = 500 if outcome == "error" else CLIENT_LEFT
            self._count(end_ns, status, self._unless_timed_out(outcome, end_ns))
        except Exception:
            service.note_error("request")

    def _outcome_of_answer(self) -> str:
        if self.is_rejected or self.status == 429:
            return "rejected"
        if self.status >= 500:
            return "error"
        if self.status >= 400:
            return "client_error"
        return "client_disconnect"

    def _unless_timed_out(self, outcome: str, end_ns: int) -> str:
        timeout_ns = self.service.client_timeout_ns
        if timeout_ns is None or outcome not in ("ok", "client_disconnect"):
            return outcome
        answered_ns = self.response_start_ns if self.is_stream else end_ns
        return "timeout" if answered_ns - self.start_ns > timeout_ns else outcome

    def _count(self, end_ns: int, status: int, outcome: str) -> None:
        service = self.service
        timeline = self.timeline
        if timeline is not None:
            end_ns = timeline.close(end_ns)
        scope = self.scope
        route = self.routes.find(scope)
        key = (scope["method"], status, outcome)
        requests = route.requests
        if key in requests:
            requests[key] += 1
        else:
            service.count_request(route, *key)
        service.outcomes[outcome] += 1
        duration_ns = end_ns - self.start_ns
        if outcome != "rejected":
            slow = service.slo_ns is not None and duration_ns > service.slo_ns
            bucket = bisect_left(EDGES_NS, duration_ns)
            cell = route.duration
            cell.counts[bucket] += 1
            cell.sum_ns += duration_ns
            if timeline is None:
                cells = service.unattributed
                cells.exclusive_ns[slow] += duration_ns
                cell = cells.wall
                cell.counts[bucket] += 1
                cell.sum_ns += duration_ns
            else:
                timeline.credit(service, slow, implicit=True)
        if self.span is not None:
            self.span.end(self, route, status, outcome, end_ns)
