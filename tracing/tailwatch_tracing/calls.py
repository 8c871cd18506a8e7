"""`downstream`: calls to a database, a retrieval service, another model.

Not in a module of its name, which would hide the class of that name in the package.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from tailwatch_tracing import clock, families
from tailwatch_tracing.cells import as_text
from tailwatch_tracing.decorators import timed
from tailwatch_tracing.service import Service, default_service
from tailwatch_tracing.units import NO_UNIT, Unit, current_unit

Function = TypeVar("Function", bound=Callable[..., Any])

CALL_SPANS = 128
"""Calls of one request at most that may become spans."""


class Call(NamedTuple):
    """What is left of a call in a request that has a span; times as of `clock.now_ns`.

    `parent_id` is the span that was current, 0 for none; `span_id` is what the callee was told to
    have as its parent, 0 when nobody asked; `error` is the type of what the block raised.
    """

    target: str
    start_ns: int
    end_ns: int
    parent_id: int
    span_id: int
    error: type[BaseException] | None


class downstream:
    """Time one call to another service.

    Use it as a context manager, sync or async, or as a decorator of a sync or async function:

        with downstream("retrieval") as call:
            client.get(url, headers=call.headers)

    It is no stage: the time stays that of the stage around it. Every call is observed when it ends,
    whatever becomes of its request. One object may be used again, also while it is in use.

    Args:
        target: The label `target`, a name for what is called; at most 64 in a service.
    """

    __slots__ = ("_parent_id", "_span_id", "_start_ns", "_unit", "target")

    _parent_id: int  # 0: no span was current
    _unit: Unit

    def __init__(self, target: str) -> None:
        self.target = as_text(target)
        self._start_ns = 0  # not in use
        self._span_id = 0  # nobody was told

    @property
    def headers(self) -> dict[str, str]:
        """W3C `traceparent` and `tracestate` for the callee; empty where there is no trace.

        With spans on they name this call as the parent; otherwise the span of OpenTelemetry's that
        is current. Where nothing traces, what the request came with is passed on unchanged, as the
        standard asks of a service that takes no part.
        """
        try:
            return self._headers()
        except Exception:
            self._service.note_error("spans")
            return {}

    def __enter__(self) -> downstream:
        """Begin the call."""
        call = self
        again = _in_use_again.get()
        # Taken at once: another thread that enters the same object comes again. And while this
        # context has a call that did, an end is that one's.
        if (again and any(other.of is self for other in again)) or self._start_ns:
            call = _Again(self)
            _in_use_again.set((*again, call))
        call._start_ns = -1
        call._unit = current_unit.get()
        call._span_id = 0
        call._parent_id = 0
        if call._has_span:
            current = _current_span()
            if current is not None:
                call._parent_id = current.span_id
        call._start_ns = clock.now_ns()
        return call

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the call."""
        end_ns = clock.now_ns()
        again = _in_use_again.get()
        if again:
            for call in reversed(again):
                if call.of is self:
                    _in_use_again.set(tuple(other for other in again if other is not call))
                    call._end(end_ns, kind)
                    return
        self._end(end_ns, kind)

    async def __aenter__(self) -> downstream:
        """Begin the call."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the call."""
        self.__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Return `function` timed as a call to this target, every time it is called.

        Raises:
            TypeError: a generator function, whose call does not run it.
        """
        target = self.target
        return timed(function, lambda: downstream(target), f"downstream({target!r})")

    @property
    def _service(self) -> Service:
        unit = current_unit.get() if not self._start_ns else self._unit
        return default_service() if unit is NO_UNIT else unit.service

    @property
    def _has_span(self) -> bool:
        return self._unit.is_open and getattr(self._unit, "span", None) is not None

    def _end(self, end_ns: int, error: type[BaseException] | None) -> None:
        start_ns = self._start_ns
        if not start_ns:  # it has ended: an exit too many, or in another context than its entry
            return
        service = self._service
        try:
            service.downstream.get(self.target).observe(end_ns - start_ns)
            if self._has_span:
                self._leave_to_span(
                    Call(self.target, start_ns, end_ns, self._parent_id, self._span_id, error)
                )
        except Exception:
            service.note_error("metrics")
        self._start_ns = 0

    def _leave_to_span(self, call: Call) -> None:
        unit = self._unit
        calls = getattr(unit, "calls", None)
        if calls is None:
            unit.calls = [call]
        elif len(calls) < CALL_SPANS:
            calls.append(call)
        else:
            dropped = unit.service.store.counter(families.SPANS_DROPPED)
            dropped.counts[families.SPANS_DROPPED.row.index("stage_limit")] += 1

    def _headers(self) -> dict[str, str]:
        current = _current_span()
        if current is None:
            unit = current_unit.get()
            scope = getattr(unit, "scope", None) if unit.is_open else None
            return {} if scope is None else _passed_on(scope.get("headers", ()))
        span_id = current.span_id
        if self._start_ns and self._has_span:
            while not self._span_id:  # 0 is no id
                self._span_id = int.from_bytes(os.urandom(8), "big")
            span_id = self._span_id
        headers = {
            "traceparent": f"00-{current.trace_id:032x}-{span_id:016x}-{current.trace_flags:02x}"
        }
        state = current.trace_state.to_header()
        if state:
            headers["tracestate"] = state
        return headers


class _Again(downstream):
    """A call made with an object that is in use."""

    __slots__ = ("of",)

    def __init__(self, of: downstream) -> None:
        super().__init__(of.target)
        self.of = of


_in_use_again: ContextVar[tuple[_Again, ...]] = ContextVar("tailwatch_calls", default=())


def _current_span() -> Any:
    """Return the ids of OpenTelemetry's current span, if it is imported and there is one."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    ids = trace.get_current_span().get_span_context()
    return ids if ids.is_valid else None


# A later version may have more fields.
_TRACEPARENT = re.compile(
    rb"(?!ff)(?!00-.{53})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    rb"(-[\x21-\x7e]*)?"
)
_TRACESTATE = re.compile(rb"[\x20-\x7e\t]{1,512}")


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return a request's trace headers as they came, none of them if they are not valid.

    Source: W3C Trace Context, sections 3.2, 3.3 and 4.
    """
    parents = []
    states = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    if len(parents) != 1 or not _TRACEPARENT.fullmatch(parents[0]):
        return {}
    passed_on = {"traceparent": parents[0].decode("ascii")}
    state = b",".join(states)
    if _TRACESTATE.fullmatch(state):
        passed_on["tracestate"] = state.decode("ascii")
    return passed_on
