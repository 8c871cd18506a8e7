"""The ASGI middleware."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from tailwatch_tracing import clock
from tailwatch_tracing.authorization import authorization
from tailwatch_tracing.cpu import drive
from tailwatch_tracing.exemplars import observe
from tailwatch_tracing.families import DEFAULT_SERIES_LIMIT, UPSTREAM_WAIT
from tailwatch_tracing.request import UNNOTICED_NS, Receive, Request, Send
from tailwatch_tracing.routes import RouteTable, Scope
from tailwatch_tracing.runtime import runtime
from tailwatch_tracing.service import service_named
from tailwatch_tracing.serving import answer_metrics
from tailwatch_tracing.spans import are_configured, recorder_of
from tailwatch_tracing.units import current_unit
from tailwatch_tracing.upstream import wait_ns
from tailwatch_tracing.websockets import Websocket, WebsocketUnit, websockets_of
from tailwatch_tracing.workers import workers

ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

# Bound once: CPython would bind them anew for every request.
_set_unit = current_unit.set
_reset_unit = current_unit.reset

PROBES = ("/metrics", "/health", "/healthz", "/livez", "/readyz", "/ping")
"""Paths that are not counted unless told otherwise."""


class StageTimingMiddleware:
    """Count and time every HTTP request, by route template, outcome and stage.

        app.add_middleware(StageTimingMiddleware, service="embedder", metrics_path="/metrics")

    It passes every message, exception, context variable and cancellation through unchanged, reads
    no body, and starts no thread before it serves. Websockets are counted and timed by
    themselves; lifespan passes untouched.

    Args:
        app: The wrapped ASGI application.
        service: The label `service`. Middlewares of one name in a process share their counts.
        metrics_path: The path, exactly as given, at which the middleware answers with the page.
        metrics_auth: What a request for the page must show, `Bearer TOKEN` or
            `Basic USER:PASSWORD`; by default what TAILWATCH_METRICS_AUTH says, nothing without it.
        slo_seconds: Latency objective, snapped to the nearest bucket edge; without it no request
            is slow.
        client_timeout_seconds: Time after which clients give up; without it no outcome is
            `timeout`.
        exclude: Paths that are passed on uncounted.
        series_limit: Label sets per family; what comes after shares the route `__other__`.
        gpu_uuids: GPUs the service computes on; by default those of CUDA_VISIBLE_DEVICES.
        workers_dir: A directory, best on a tmpfs, through which the workers of one service share
            one page; by default that of TAILWATCH_WORKERS_DIR. The first one in a process decides.
        trust_request_start: Believe the header X-Request-Start, because a proxy of yours sets it.

    Raises:
        OSError: the workers directory cannot be used; the message says why.
        ValueError, TypeError: an option out of its range; the message names it.
    """

    __slots__ = (
        "_metrics_auth",
        "_metrics_path",
        "_passed",
        "_routes",
        "_service",
        "_trust_request_start",
        "app",
    )

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: str,
        metrics_path: str | None = None,
        metrics_auth: str | None = None,
        slo_seconds: float | None = None,
        client_timeout_seconds: float | None = None,
        exclude: Iterable[str] = PROBES,
        series_limit: int = DEFAULT_SERIES_LIMIT,
        gpu_uuids: Sequence[str] | None = None,
        workers_dir: str | os.PathLike[str] | None = None,
        trust_request_start: bool = False,
    ) -> None:
        _check_options(service, metrics_path, exclude, series_limit, gpu_uuids)
        _check_positive("slo_seconds", slo_seconds)
        _check_positive("client_timeout_seconds", client_timeout_seconds)
        if metrics_auth is not None and metrics_path is None:
            raise ValueError("metrics_auth without metrics_path, expected both")
        self.app = app
        self._metrics_auth = authorization(metrics_auth)
        self._metrics_path = metrics_path
        self._trust_request_start = trust_request_start
        self._passed = frozenset(exclude) | ({metrics_path} if metrics_path else set())
        self._service = service_named(service)
        self._service.configure(
            slo_seconds=slo_seconds,
            client_timeout_seconds=client_timeout_seconds,
            series_limit=series_limit,
            gpu_uuids=gpu_uuids,
        )
        self._routes = RouteTable(self._service, app)
        if self._service.spans is None and are_configured(os.environ):
            self._service.spans = recorder_of(self._service)
        runtime.watch_collector()
        workers.configure(service, workers_dir)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        kind = scope["type"]
        if kind != "http" and kind != "websocket":
            workers.serve()  # the first that a worker gets is its lifespan
            await self.app(scope, receive, send)
            return
        try:
            path = scope["path"]
            root_path = scope.get("root_path")
            if root_path and path.startswith(f"{root_path}/"):  # as Starlette's routes have it
                path = path[len(root_path) :]
            is_passed = path in self._passed or (
                self._service.has_several_middlewares and self._is_counted_outside(scope)
            )
        except Exception:  # a scope unlike any server's is the application's to understand
            self._service.note_error("request")
            path, is_passed = "", True
        if is_passed:
            if path == self._metrics_path and kind == "http":
                await answer_metrics(scope, send, self._metrics_auth)
            else:
                await self.app(scope, receive, send)
            return
        if kind == "websocket":
            await self._handle_websocket(scope, receive, send)
            return
        app = self.app
        service = self._service
        request = Request()
        request.service = service
        request.routes = self._routes
        request.scope = scope
        request.server_receive = receive
        request.server_send = send
        request.is_open = True
        request.log = None
        request.folded = None
        request.status = 0
        request.events = 0
        request.end_ns = 0
        service.in_flight[request] = None
        request.start_ns = start_ns = clock.now_ns()
        # From the first request on: what a model's loading blocks before is nobody's wait.
        if start_ns > runtime.look_again_ns:
            self._watch_loop()
        spans = service.spans
        if spans is not None:
            request.span = None
            spans.begin(request, app)
        if self._trust_request_start:
            self._note_upstream_wait(request)
        token = _set_unit(request)
        try:
            if service.has_suspended_stages:
                await drive(app(scope, request.receive, request.send))
            else:
                await app(scope, request.receive, request.send)
        except BaseException as error:
            request.leave(error)
            raise
        else:
            if clock.now_ns() - request.end_ns > UNNOTICED_NS:
                request.leave(None)
        finally:
            try:
                _reset_unit(token)
                if spans is not None and request.span is not None:
                    request.span.detach()
            except ValueError:  # closed in another context, which has nothing to restore
                pass

    async def _handle_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        workers.serve()
        websocket = Websocket(websockets_of(self._service), receive, send)
        token = current_unit.set(WebsocketUnit(self._service, scope))
        try:
            await self.app(scope, websocket.receive, websocket.send)
        except BaseException as error:
            websocket.leave(error)
            raise
        else:
            websocket.leave(None)
        finally:
            with suppress(ValueError):  # closed in another context
                current_unit.reset(token)

    def _is_counted_outside(self, scope: Scope) -> bool:
        """Return whether a middleware of the same service around this one has the same request.

        So it is where a mounted application is instrumented, too. Whatever copies the scope on its
        way leaves the same list of headers in it; a request that one handler makes to another
        application in the process has its own.
        """
        unit = current_unit.get()
        if unit.service is not self._service or not isinstance(unit, Request | WebsocketUnit):
            return False
        return unit.scope.get("headers") is scope.get("headers")

    def _note_upstream_wait(self, request: Request) -> None:
        try:
            waited_ns = wait_ns(request.scope["headers"])
            if waited_ns is not None:
                cell = self._service.store.histogram(UPSTREAM_WAIT)
                observe(cell, waited_ns, request.span_or_none)
        except Exception:
            self._service.note_error("request")

    def _watch_loop(self) -> None:
        workers.serve()
        try:
            runtime.watch_loop()
        except Exception:  # an event loop without timers
            self._service.note_error("request")


def _check_options(
    service: str,
    metrics_path: str | None,
    exclude: Iterable[str],
    series_limit: int,
    gpu_uuids: Sequence[str] | None,
) -> None:
    if not isinstance(service, str) or not service:
        raise ValueError(f"service={service!r}: expected a name that is not empty")
    if metrics_path is not None and not str(metrics_path).startswith("/"):
        raise ValueError(f"metrics_path={metrics_path!r}: expected a path that begins with /")
    for name, value in (("exclude", exclude), ("gpu_uuids", gpu_uuids or ())):
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise TypeError(f"{name}={value!r}: expected a list of strings")
    if not isinstance(series_limit, int):
        raise TypeError(f"series_limit={series_limit!r}: expected a whole number")
    if series_limit < 1:
        raise ValueError(f"series_limit={series_limit!r}: expected at least 1")


def _check_positive(name: str, seconds: float | None) -> None:
    if seconds is None:
        return
    if not isinstance(seconds, int | float):
        raise TypeError(f"{name}={seconds!r}: expected seconds above 0, or None")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"{name}={seconds!r}: expected seconds above 0, or None")
