"""Requests a second of one uvicorn worker with a middleware, against the bare application."""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack

from starlette.applications import Starlette

from tailwatch_stack.errors import TailwatchError
from tests.bench import wrk
from tests.bench.harness import Interval, Result, median_interval, mirrored
from tests.bench.middleware import application, with_instrumentator, with_tailwatch
from tests.bench.uvicorn_server import ASYNCIO_H11, UVLOOP_HTTPTOOLS, UvicornServer

CONNECTIONS = 16
SECONDS = 1  # a block; two a slot and variant
WARM_SECONDS = 1

SERVERS = {  # uvicorn's options, and the least share of the bare application's rate
    "asyncio+h11": (ASYNCIO_H11, 0.97),
    "uvloop+httptools": (UVLOOP_HTTPTOOLS, 0.92),
}

BARE, OURS = "bare", "tailwatch"
VARIANTS = {
    BARE: "bare",
    OURS: "tailwatch",
    "prometheus-fastapi-instrumentator": "instrumentator",
    "starlette_exporter": "exporter",
}


def bare() -> Starlette:
    """Return the application alone."""
    return application()


def tailwatch() -> Starlette:
    """Return it with every signal on."""
    return with_tailwatch()


def instrumentator() -> Starlette:
    """Return it with prometheus-fastapi-instrumentator."""
    return with_instrumentator()


def exporter() -> Starlette:
    """Return it with starlette_exporter, by its README's usage."""
    from starlette_exporter import PrometheusMiddleware, handle_metrics

    app = application()
    app.add_middleware(PrometheusMiddleware)
    app.add_route("/metrics", handle_metrics)
    return app


def run(slots: int) -> list[Result]:
    """Serve all variants of a slot at once, of which one is asked at a time; none without wrk."""
    try:
        load = wrk.locate()
    except TailwatchError as error:
        print(f"throughput: not measured, as there is no wrk: {error}", file=sys.stderr)
        return []
    results: list[Result] = []
    for server, (options, share) in SERVERS.items():
        rates = _rates(load, options, slots)
        results += [
            Result("throughput", f"{server}: {name}", "1/s", median_interval(rates[name]))
            for name in VARIANTS
        ]
        results += [
            Result(
                "throughput",
                f"{server}: bare / {name}" + (f" (1 / {share})" if name == OURS else ""),
                "x",
                _ratio(rates[BARE], rates[name]),
                1 / share if name == OURS else None,
            )
            for name in VARIANTS
            if name != BARE
        ]
    return results


def _ratio(bare: list[float], other: list[float]) -> Interval:
    return median_interval([a / b for a, b in zip(bare, other, strict=True)])


def _rates(load: wrk.Wrk, options: tuple[str, ...], slots: int) -> dict[str, list[float]]:
    """Return the mean rate of every slot."""
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(slots):
        for name, rate in _slot(load, options).items():
            rates[name].append(rate)
    return rates


def _slot(load: wrk.Wrk, options: tuple[str, ...]) -> dict[str, float]:
    """Serve all variants in new processes and return their rates.

    How objects lie in a process's memory is worth several per cent of a fast server.

    Raises:
        RuntimeError: a middleware that did not count its requests.
    """
    blocks: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(UvicornServer(f"{__name__}:{factory}", "/answer", options))
            for name, factory in VARIANTS.items()
        }
        for server in servers.values():
            load.requests_per_second(server.url, CONNECTIONS, WARM_SECONDS)
        for name in mirrored(list(VARIANTS)):
            url = servers[name].url
            blocks[name].append(load.requests_per_second(url, CONNECTIONS, SECONDS))
        for name, server in servers.items():
            if name != BARE and _counted(server.get("/metrics").decode()) < 1000:
                raise RuntimeError(f"{name} did not count its requests")
    return {name: statistics.mean(values) for name, values in blocks.items()}


def _counted(page: str) -> float:
    """Return the number of requests on a page of any of the variants."""
    names = (
        "inference_requests_total{",
        "http_requests_total{",
        "starlette_requests_total{",
    )
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(names)
    )
