"""What the page derives from cells that are not on it themselves."""

from __future__ import annotations

import asyncio
import gc

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tailwatch_tracing import StageTimingMiddleware, service, stage
from tailwatch_tracing.page import Snapshot, is_published
from tests.tracing.asgi import nonzero, request, requests
from tests.tracing.conftest import Clock


def test_counts_are_nothing_for_the_garbage_collector_to_look_at_again() -> None:
    """Those of very many series would make it go through everything that the service has."""
    service.service_named("s").route_cells("/x").duration.observe(10**6)
    snapshot = Snapshot()
    for _ in range(2):  # read, and added to
        service.service_named("s").snapshot_into(snapshot)
        gc.collect()
        counts = [each for family in snapshot.counts.values() for each in family.values()]
        assert len(counts) > 3
        assert not any(map(gc.is_tracked, counts))


def serve_plain_and_staged(clock: Clock) -> None:
    async def plain(incoming: Request) -> PlainTextResponse:
        clock.advance(1)
        return PlainTextResponse("ok")

    async def staged(incoming: Request) -> PlainTextResponse:
        with stage("inference"):
            clock.advance(10)
        return PlainTextResponse("ok")

    routes = [Route("/plain", plain), Route("/staged", staged)]
    app = StageTimingMiddleware(Starlette(routes=routes), service="s")

    async def main() -> None:
        for _ in range(3):
            await request(app, "/plain")
            await request(app, "/staged")

    asyncio.run(main())


def test_requests_with_and_without_a_stage_are_counted_alike(clock: Clock) -> None:
    serve_plain_and_staged(clock)
    assert requests() == {("/plain", "GET", "200", "ok"): 3, ("/staged", "GET", "200", "ok"): 3}
    assert nonzero("inference_request_duration_seconds_sum", ["route"]) == {
        ("/plain",): 3.0,
        ("/staged",): 30.0,
    }
    assert nonzero("inference_stage_seconds_total", ["stage"]) == {
        ("unattributed",): 3.0,
        ("inference",): 30.0,
    }
    assert nonzero("inference_stage_duration_seconds_count", ["stage"]) == {
        ("unattributed",): 3,
        ("inference",): 3,
    }


def test_every_cell_is_taken_from_a_sibling_worker(clock: Clock) -> None:
    """A worker's file holds all of them; what is not known here would be missing in the sum."""
    serve_plain_and_staged(clock)
    cells = service.service_named("s").store.cells
    assert {"plain", "staged"} <= {name for name, _ in cells}
    for (name, values), cell in cells.items():
        assert is_published(name, values, len(cell.counts)), name
