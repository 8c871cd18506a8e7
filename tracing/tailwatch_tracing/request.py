"""One request: what the middleware sees of it, and what is counted when it ends."""

from __future__ import annotations

from asyncio import CancelledError
from bisect import bisect_left
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tailwatch_tracing import clock
from tailwatch_tracing.cells import FIRST_EDGE_NS, SUM_NS
from tailwatch_tracing.exemplars import observe
from tailwatch_tracing.families import BACKGROUND, EDGES_NS
from tailwatch_tracing.routes import RouteTable, Scope
from tailwatch_tracing.service import RouteCells
from tailwatch_tracing.shares import credit_request
from tailwatch_tracing.streams import Stream, is_background_error, is_resent
from tailwatch_tracing.units import Unit

if TYPE_CHECKING:
    from tailwatch_tracing.spans.recorder import AnySpan
    from tailwatch_tracing.stages import stage

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# What has happened to a request, as bits of `Request.events`.
CLIENT_LEFT = 1  # http.disconnect was received, or a send failed
REJECTED = 2  # a queue refused it
STREAM = 4  # its body comes in more than one message
LEFT_UNANSWERED = 8  # the client left before the response started: none of it is sent
SPANNED = 16  # it has a span to be kept, unless it is only kept for how the request ends
TOKENS_COUNTED = 32  # it has output tokens

STATUS_CLIENT_LEFT = 499  # nginx's code for a client that left before an answer

UNNOTICED_NS = FIRST_EDGE_NS
"""An application may take this long to return after its last body message: that is no work."""

# anyio's and Starlette's words for what the ASGI specification (2.4) asks to be an OSError.
_LOST_CONNECTION = frozenset(("BrokenResourceError", "ClosedResourceError", "ClientDisconnect"))

_BODY = "http.response.body"
# Extensions that send a body: a file by its path, or by its descriptor.
_BODY_MESSAGES = frozenset((_BODY, "http.response.pathsend", "http.response.zerocopysend"))


class Request(Unit):
    """The record of one request; it stands between the application and its receive and send.

    Most end in `_complete`: answered with success in one message, in time, without a stage or an
    event. Everything else is told apart in `_finish`. The middleware fills it in: a call to an
    `__init__` would cost more than all of that.
    """

    __slots__ = (
        "_ended",
        "_stream",
        "end_ns",
        "events",
        "output_tokens",
        "response_start_ns",
        "routes",
        "scope",
        "server_receive",
        "server_send",
        "span",
        "status",
    )

    is_request = True

    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    else:
        __init__ = object.__init__

    scope: Scope
    server_receive: Receive
    server_send: Send
    routes: RouteTable
    status: int  # 0 before the response starts
    events: int
    end_ns: int  # 0 before it is counted
    _ended: Ended  # once it has ended and is not counted yet
    _stream: Stream | None  # with STREAM; None when its times do not count
    response_start_ns: int  # with a status
    output_tokens: int  # with TOKENS_COUNTED
    span: AnySpan | None  # where the service has spans

    @property
    def span_or_none(self) -> AnySpan | None:
        """The request's span, None where the service has no spans."""
        return getattr(self, "span", None)

    async def receive(self) -> Message:
        """Receive for the application; note when the client leaves."""
        receive = self.server_receive
        message = await receive()
        if message["type"] == "http.disconnect":
            self._note_client_left()
        return message

    async def send(self, message: Message) -> None:
        """Send for the application; the last body message ends the request."""
        kind = message["type"]
        # Taken out first: CPython 3.11 is quicker at calling a variable than a slot.
        send = self.server_send
        if kind == "http.response.start":
            try:
                status = message["status"]
            except KeyError:  # the server's to refuse
                status = 0
            try:
                await send(message)
            except Exception as error:
                self._note_failed_send(error)
                raise
            self.status = status
            self.response_start_ns = clock.now_ns()
        elif kind == _BODY and "more_body" not in message and not self.events:
            try:
                await send(message)
            except Exception as error:
                self._note_failed_send(error)
                raise
            if self.is_open:
                self._complete(0)
        else:
            await self._send_part(kind, message)

    def leave(self, error: BaseException | None) -> None:
        """Take in that the application has ended: before the request, or a while after it."""
        now_ns = clock.now_ns()
        try:
            if self.is_open:
                self._abandon(error)
                return
            if not self.end_ns:
                self._settle(error)
            background_ns = now_ns - self.end_ns
            if background_ns > UNNOTICED_NS and not self._is_rejected():
                self._note_background(background_ns)
        except Exception:
            self.service.note_error("request")

    async def _send_part(self, kind: str, message: Message) -> None:
        """Send what may be one of several body messages, or something else."""
        send = self.server_send
        is_body = kind in _BODY_MESSAGES
        is_last = is_body and not message.get("more_body", False)
        is_empty = kind == _BODY and not message.get("body")
        noted = self.events
        try:
            await send(message)
        except Exception as error:
            self._note_failed_send(error)
            raise
        except BaseException:
            # Starlette cancels what sends when it hears that the client has left.
            if is_last and is_empty and self.is_open and self.events & CLIENT_LEFT & ~noted:
                self._complete(noted)
            raise
        if not is_body or not self.is_open:
            return
        if not is_last and not self.events & STREAM:
            self._begin_stream()
        if self.events & STREAM and self._stream is not None and not is_empty:
            self._stream.note_chunk(clock.now_ns())
        if not is_last:
            return
        if self.events & STREAM and is_resent():
            self._forget_leaving(noted)
            self._end_unsettled()
        else:
            self._complete(noted)

    def _note_background(self, background_ns: int) -> None:
        try:
            route = self.routes.find(self.scope)
        except Exception:  # said when the request was counted
            return
        observe(route.histogram(BACKGROUND), background_ns, self.span_or_none)

    def _begin_stream(self) -> None:
        self.events |= STREAM
        self._stream = None
        if self.status and not self._is_rejected():
            try:
                self._stream = Stream(
                    self._route(), self.start_ns, self.response_start_ns, self.span_or_none
                )
            except Exception:
                self.service.note_error("request")

    def _complete(self, noted: int) -> None:
        """Count a complete answer; `noted` are the events before its last message was sent."""
        end_ns = clock.now_ns()
        duration_ns = end_ns - self.start_ns
        service = self.service
        try:
            if not self.events and duration_ns <= service.plain_ns and self.status < 400:
                scope = self.scope
                if "app_root_path" in scope or "fastapi" in scope:
                    route = self.routes.find(scope)
                else:  # spares a call
                    route = self.routes.by_route[id(scope["route"])]
                if self.log is None:
                    cell = route.plain[self.status][scope["method"]]
                    del service.in_flight[self]
                else:
                    cell = route.staged[self.status][scope["method"]]
                    del service.in_flight[self]
                    end_ns = self._credit_stages(end_ns, 0)
                    duration_ns = end_ns - self.start_ns
                self.is_open = False
                self.end_ns = end_ns
                bucket = bisect_left(EDGES_NS, duration_ns) if duration_ns > FIRST_EDGE_NS else 0
                counts = cell.counts
                counts[bucket] += 1
                counts[SUM_NS] += duration_ns
                return
        except Exception:  # the first of its kind, or one that `_finish` knows to name
            pass
        self._forget_leaving(noted)
        self._finish(self.status, None, end_ns)

    def _credit_stages(self, end_ns: int, slow: int) -> int:
        try:
            return credit_request(self, end_ns, slow)
        except Exception:
            self.service.note_error("request")
            return end_ns

    def _forget_leaving(self, noted: int) -> None:
        """Take it that a client heard to leave since its last message was handed over has it.

        Hypercorn tells so when an HTTP/2 response is complete, before it returns from the send.
        """
        self.events &= noted | ~(CLIENT_LEFT | LEFT_UNANSWERED)

    def _abandon(self, error: BaseException | None) -> None:
        """Count a request whose application has ended without a last body message."""
        outcome = self._outcome_of_failure(error)
        status = self.status
        if status == 0:
            status = 500 if outcome == "error" else STATUS_CLIENT_LEFT
        self._finish(status, outcome, clock.now_ns())

    def _end_unsettled(self) -> None:
        """End the request; how it went is only known when the application ends, too."""
        try:
            self._ended = self._end(clock.now_ns())
        except Exception:
            self.service.note_error("request")
            self.end_ns = clock.now_ns()

    def _settle(self, error: BaseException | None) -> None:
        """Count a request that `_end_unsettled` has ended."""
        failed = isinstance(error, Exception) and not is_background_error(error)
        self._count(self.status, self._outcome_of_failure(error) if failed else None, self._ended)

    def _finish(self, status: int, outcome: str | None, end_ns: int) -> None:
        """End the request and count it; without an outcome, as the complete answer it got."""
        self.end_ns = end_ns
        try:
            self._count(status, outcome, self._end(end_ns))
        except Exception:
            self.service.note_error("request")

    def _end(self, end_ns: int) -> Ended:
        """Have the request's time end, and credit it to its route and its stages."""
        service = self.service
        self.is_open = False
        service.in_flight.pop(self, None)
        route = self._route()
        log = self.log
        duration_ns = end_ns - self.start_ns
        if self._is_rejected():
            self.log = None
            return Ended(route, end_ns, duration_ns, log)
        if self.events & TOKENS_COUNTED and self.events & STREAM and self._stream is not None:
            self._stream.note_tokens(self.output_tokens)
        slo_ns = service.slo_ns
        slow = 1 if slo_ns is not None and duration_ns > slo_ns else 0
        answered_ns = duration_ns
        if log is not None:
            end_ns = self._credit_stages(end_ns, slow)
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
        return Ended(route, end_ns, answered_ns, log)

    def _count(self, status: int, outcome: str | None, ended: Ended) -> None:
        route, self.end_ns, answered_ns, log = ended
        service = self.service
        if outcome is None:
            if status >= 400 or self.events & (REJECTED | CLIENT_LEFT):
                outcome = self._outcome_of_answer()
                if status >= 500 and outcome == "client_disconnect":
                    status = STATUS_CLIENT_LEFT
            else:
                outcome = "ok"
        timeout_ns = service.client_timeout_ns
        if timeout_ns is not None and answered_ns > timeout_ns:
            outcome = self._unless_timed_out(outcome, timeout_ns)
        key = (self.scope["method"], status, outcome)
        count = route.requests.get(key)
        if count is not None:
            count.counts[0] += 1
        else:
            service.count_request(route, *key)
        events = self.events
        if not events and outcome == "ok" and answered_ns <= service.plain_ns:
            route.expect_plain(self.scope["method"], status, staged=log is not None)
        span = self.span_or_none
        if span is not None:
            span.finish(self, route, status, outcome, self.end_ns, log or ())

    def _route(self) -> RouteCells:
        try:
            return self.routes.find(self.scope)
        except Exception:  # a kind of route nobody has met yet
            self.service.note_error("route")
            return self.routes.unmatched

    def _note_failed_send(self, error: Exception) -> None:
        if is_lost_connection(error):
            self._note_client_left()

    def _note_client_left(self) -> None:
        if not self.is_open:  # servers tell so after every answer, to whom still receives
            return
        self.events |= CLIENT_LEFT if self.status else CLIENT_LEFT | LEFT_UNANSWERED

    def _is_rejected(self) -> bool:
        return bool(self.events & REJECTED) or self.status == 429

    def _outcome_of_failure(self, error: BaseException | None) -> str:
        if self._is_rejected():
            return "rejected"
        if self.events & CLIENT_LEFT:
            return "client_disconnect"
        if error is not None and is_cancellation(error):
            return "cancelled"
        return "error_midstream" if self.status else "error"

    def _outcome_of_answer(self) -> str:
        if self._is_rejected():
            return "rejected"
        if self.status < 400 or self.events & LEFT_UNANSWERED:
            # FastAPI answers its own surprise that an upload breaks off with a 400, Starlette
            # with a 500.
            return "client_disconnect"
        return "error" if self.status >= 500 else "client_error"

    def _unless_timed_out(self, outcome: str, timeout_ns: int) -> str:
        if outcome not in ("ok", "client_disconnect"):
            return outcome
        # There is no start where a server lets a body pass without one: status is 0 then.
        is_stream = self.events & STREAM and self.status
        if is_stream and self.response_start_ns - self.start_ns <= timeout_ns:
            return outcome
        return "timeout"


class Ended(NamedTuple):
    """What is known of a request when its time has ended."""

    route: RouteCells
    end_ns: int
    answered_ns: int
    """From the start to the last body message; stages in threads may end later."""
    log: list[stage] | None
    """Its stages."""


def is_lost_connection(error: Exception) -> bool:
    """Return whether a send that failed with this error has found the client gone."""
    return isinstance(error, OSError) or type(error).__name__ in _LOST_CONNECTION


def is_cancellation(error: BaseException) -> bool:
    """Return whether an application ended because it was told to, by asyncio, trio or a close.

    SystemExit and the like are failures: servers answer them with a 500.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_cancellation, error.exceptions))
    if isinstance(error, CancelledError | GeneratorExit):
        return True
    return not isinstance(error, Exception) and type(error).__name__ == "Cancelled"  # trio's
