"""The ways to serve the page: on the service's port, on a port of its own, or as an application."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain

from prometheus_client import REGISTRY

from tailwatch_tracing import event_loop
from tailwatch_tracing.answers import Answer, Scrape, failure, refusal, with_page
from tailwatch_tracing.authorization import Authorization, authorization
from tailwatch_tracing.client_registry import ClientRegistry, Pause
from tailwatch_tracing.cuda import pending_times
from tailwatch_tracing.exposition import (
    OPENMETRICS_CONTENT_TYPE,
    TEXT_CONTENT_TYPE,
    Family,
    HistogramFamily,
    negotiate,
    render_pieces,
)
from tailwatch_tracing.instruments import bind_idle
from tailwatch_tracing.metrics_server import MetricsServer, PageServer
from tailwatch_tracing.page import Snapshot, families, no_pause
from tailwatch_tracing.request import Message, Receive, Send
from tailwatch_tracing.routes import Scope
from tailwatch_tracing.runtime import runtime
from tailwatch_tracing.scrapes import Page, Scrapes, Turns, in_blocks
from tailwatch_tracing.service import default_service, service_named, services
from tailwatch_tracing.worker_ports import PortLease
from tailwatch_tracing.worker_processes import registry_of_workers
from tailwatch_tracing.workers import workers

_PAGE_SECONDS = 60.0
_SEND_SECONDS = 60.0


def render_metrics(accept: str | None = None) -> tuple[bytes, str]:
    """Return the page and its Content-Type for an Accept header.

    The page has every service of this process, and the families of prometheus_client's default
    registry: process_*, python_info, and the service's own. It is made here and now; in a thread
    without an event loop with short rests, so that other threads are not held up.

    Args:
        accept: The header of the request; without one the page is Prometheus' text format.
    """
    openmetrics, content_type = negotiate(accept)
    pause = no_pause if event_loop.is_asyncio() else Turns().pause
    return b"".join(_pieces(openmetrics, pause)), content_type


def collect(pause: Pause = no_pause) -> Iterator[Family | HistogramFamily]:
    """Yield the families of all services of this process and its siblings, each family once.

    All numbers are read before the first one.

    Args:
        pause: Called often, between two small pieces of work.
    """
    bind_idle()
    snapshot = Snapshot(pause)
    pending_times.observe_finished()
    for service in services():
        service.snapshot_into(snapshot)
    workers.snapshot_into(snapshot)
    runtime.snapshot_into(snapshot)
    return families(snapshot)


def _pieces(openmetrics: bool, pause: Pause) -> Iterator[bytes]:
    ours = collect(pause)
    for piece in chain(_registry.pieces(openmetrics, pause), render_pieces(ours, openmetrics)):
        pause()
        yield piece


def _page(openmetrics: bool, pause: Pause) -> Page:
    blocks = list(in_blocks(_pieces(openmetrics, pause)))
    content_type = OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE
    return Page(blocks, content_type, is_gzipped=False)


_registry = ClientRegistry(
    lambda: registry_of_workers(REGISTRY, workers.numbered()),
    lambda: default_service().note_error("registry"),
)
_scrapes = Scrapes(_page, may_keep=lambda: not workers.are_shared)


def _begin_child() -> None:
    _registry.forget()
    _scrapes.forget()


os.register_at_fork(after_in_child=_begin_child)


async def answer_metrics(scope: Scope, send: Send, auth: Authorization | None) -> None:
    """Answer an HTTP request with the page, if it shows what is asked for."""
    client = scope.get("client")
    scrape = Scrape(
        scope["method"],
        b",".join(_headers(scope, b"accept")).decode("latin-1"),
        b",".join(_headers(scope, b"accept-encoding")).decode("latin-1"),
        _headers(scope, b"authorization"),
        client[0] if client else None,
    )
    answer = refusal(scrape, auth)
    if answer is None:
        try:
            future = _scrapes.page(scrape.wants_openmetrics, scrape.wants_gzip)
            answer = with_page(await event_loop.result_of(future))
        except Exception:
            default_service().note_error("metrics")
            answer = failure()
    try:
        await event_loop.within(_SEND_SECONDS, lambda: _send(answer, scrape.method, send))
    except (OSError, TimeoutError):  # the client left, or does not read
        pass


def _headers(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key.lower() == name]


async def _send(answer: Answer, method: str, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    *blocks, last = answer.blocks if method != "HEAD" else [b""]
    for block in blocks:
        await send({"type": "http.response.body", "body": block, "more_body": True})
        await event_loop.give_way()  # a send need not wait: the kernel may take megabytes at once
    await send({"type": "http.response.body", "body": last})


def metrics_app(
    *, metrics_auth: str | None = None
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return an ASGI application that answers every path with the page, to mount or to serve.

    Args:
        metrics_auth: As the middleware's.

    Raises:
        ValueError, TypeError: metrics_auth has another form.
    """
    auth = authorization(metrics_auth)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await answer_metrics(scope, send, auth)
        elif scope["type"] == "lifespan":
            message: Message = {"type": ""}
            while message["type"] != "lifespan.shutdown":
                message = await receive()
                await send({"type": message["type"] + ".complete"})
        else:
            await send({"type": "websocket.close", "code": 1000})

    return app


def serve_metrics(
    port: int,
    address: str = "127.0.0.1",
    *,
    service: str | None = None,
    workers_dir: str | os.PathLike[str] | None = None,
    metrics_auth: str | None = None,
) -> MetricsServer:
    """Serve the page at /metrics on its own thread and port, whatever the event loop does.

    Call it in the process that works, after any fork: in a server's start-up hook, or in a worker's
    main function.

    Args:
        port: TCP port, 0 for a free one.
        address: Where to listen; loopback by default.
        service: The label `service` of a process without the middleware.
        workers_dir: As the middleware's. A port on which a sibling serves already is no error then:
            this process takes it over when the sibling dies.
        metrics_auth: As the middleware's.

    Raises:
        ValueError, TypeError: metrics_auth has another form.
        OSError: the port cannot be had, or the workers directory not used; the message names it.
    """
    auth = authorization(metrics_auth)
    if service is not None:
        service_named(service)
    runtime.watch_process()
    workers.configure(service, workers_dir)
    workers.serve()

    def answer(scrape: Scrape) -> Answer:
        refused = refusal(scrape, auth)
        if refused is not None:
            return refused
        try:
            page = _scrapes.page(scrape.wants_openmetrics, scrape.wants_gzip)
            return with_page(page.result(_PAGE_SECONDS))
        except Exception:
            default_service().note_error("metrics")
            return failure()

    path = workers.port_path(address, port) if port else None
    return MetricsServer(
        port,
        lambda: PageServer((address, port), answer),
        None if path is None else PortLease(path),
        workers.at_every_beat,
    )
