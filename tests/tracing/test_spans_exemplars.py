"""A bucket of every histogram leads to a kept trace, and to none that is not kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tailwatch_tracing import RequestQueue, StageTimingMiddleware, render_metrics, stage
from tests.tracing.asgi import nonzero, request
from tests.tracing.conftest import Clock
from tests.tracing.test_spans import NOT_SAMPLED, SAMPLED, TRACE_ID, Traced


def exemplars() -> dict[tuple[str, str], list[Any]]:
    """By family and the label that is not the service's or the bucket's."""
    found: dict[tuple[str, str], list[Any]] = {}
    body, _ = render_metrics("application/openmetrics-text")
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            if sample.exemplar:
                (label,) = (v for k, v in sample.labels.items() if k not in ("service", "le"))
                found.setdefault((family.name, label), []).append(sample.exemplar)
    return found


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    return Traced(monkeypatch)


def test_duration_and_stages_point_to_a_kept_trace(traced: Traced) -> None:
    traced.get("/x/7", headers=SAMPLED)
    found = exemplars()
    expected = {
        ("inference_request_duration_seconds", "/x/{id}"): 0.006,
        ("inference_stage_duration_seconds", "preprocess"): 0.002,
        ("inference_stage_duration_seconds", "inference"): 0.004,
    }
    for series, seconds in expected.items():
        (exemplar,) = found[series]
        assert exemplar.labels["trace_id"] == TRACE_ID
        assert len(exemplar.labels["span_id"]) == 16
        assert seconds <= exemplar.value < 5
        assert abs(float(exemplar.timestamp) - time.time()) < 60


def test_a_trace_that_is_not_kept_is_no_exemplar(traced: Traced) -> None:
    traced.get("/x/7", headers=NOT_SAMPLED)
    assert exemplars() == {}


def test_a_trace_that_is_kept_late_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced(
        monkeypatch, OTEL_TRACES_SAMPLER="parentbased_traceidratio", OTEL_TRACES_SAMPLER_ARG="0"
    )
    with pytest.raises(LookupError):
        traced.get("/fail", headers=NOT_SAMPLED)
    assert ("inference_request_duration_seconds", "/fail") in exemplars()


def test_a_rejected_request_is_in_no_histogram_and_no_exemplar(traced: Traced) -> None:
    traced.get("/busy", headers=SAMPLED)
    # A loaded machine may take its time after the request.
    assert {family for family, _ in exemplars()} <= {"inference_background_seconds"}


def test_the_newest_of_a_bucket_wins(traced: Traced, clock: Clock) -> None:
    for trace_id in ("1" * 32, "2" * 32):
        traced.get("/stream", headers=[(b"traceparent", f"00-{trace_id}-{'3' * 16}-01".encode())])
    (exemplar,) = exemplars()[("inference_request_duration_seconds", "/stream")]
    assert exemplar.labels["trace_id"] == "2" * 32


def test_every_bucket_that_counted_an_interval_points_to_it(traced: Traced, clock: Clock) -> None:
    async def handler(incoming: Request) -> Response:
        for seconds in (0.2, 1.0, 0.1):
            with stage("inference"):
                clock.advance(seconds)
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="s")
    asyncio.run(request(app, "/", headers=SAMPLED))
    found = exemplars()[("inference_stage_duration_seconds", "inference")]
    assert [exemplar.value for exemplar in found] == [0.1, 0.2, 1.0]


async def no_stage(clock: Clock) -> None:
    clock.advance(0.3)


async def one_after_the_other(clock: Clock) -> None:
    clock.advance(0.1)
    with stage("preprocess"):
        clock.advance(0.2)
    clock.advance(0.3)
    with stage("inference"):
        clock.advance(0.4)
    clock.advance(0.5)


async def one_in_the_other(clock: Clock) -> None:
    clock.advance(0.1)
    with stage("inference"):
        clock.advance(0.2)
        with stage("h2d"):
            clock.advance(0.3)
        clock.advance(0.4)
    clock.advance(0.5)
    with stage("inference again"):
        clock.advance(0.6)


async def without_inference(clock: Clock) -> None:
    with stage("preprocess"):
        clock.advance(0.2)
    clock.advance(0.3)


@pytest.mark.parametrize(
    "work", [no_stage, one_after_the_other, one_in_the_other, without_inference]
)
def test_every_stage_that_counted_the_request_points_to_it(
    traced: Traced, clock: Clock, work: Callable[[Clock], Awaitable[None]]
) -> None:
    async def handler(incoming: Request) -> Response:
        await work(clock)
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="s")
    asyncio.run(request(app, "/", headers=SAMPLED))
    counted = nonzero("inference_stage_duration_seconds_sum", ["stage"])
    pointed = {
        (name,): exemplar.value
        for (family, name), (exemplar,) in exemplars().items()
        if family == "inference_stage_duration_seconds"
    }
    assert pointed == pytest.approx(counted)


def test_first_chunk_gaps_and_queues_point_to_it(traced: Traced) -> None:
    queue = RequestQueue("gpu")

    async def handler(incoming: Request) -> Response:
        with queue.enter():
            pass
        return StreamingResponse(iter([b"x", b"y"]))

    app = StageTimingMiddleware(Starlette(routes=[Route("/s", handler)]), service="s")
    asyncio.run(request(app, "/s", headers=SAMPLED))
    found = exemplars()
    for series in [
        ("inference_time_to_response_start_seconds", "/s"),
        ("inference_time_to_first_chunk_seconds", "/s"),
        ("inference_chunk_gap_seconds", "/s"),
        ("inference_queue_wait_seconds", "gpu"),
    ]:
        assert found[series][0].labels["trace_id"] == TRACE_ID, series


def test_what_ends_after_the_request_points_to_it(traced: Traced) -> None:
    traced.get("/background", headers=SAMPLED)
    (exemplar,) = exemplars()[("inference_background_seconds", "/background")]
    assert exemplar.labels["trace_id"] == TRACE_ID
    assert exemplar.value >= 0.05
