"""A bucket of every histogram leads to a kept trace, and to none that is not kept."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tailwatch_tracing import (
    RequestBatcher,
    RequestQueue,
    ResultCache,
    StageTimingMiddleware,
    count_tokens,
    downstream,
    render_metrics,
    stage,
)
from tailwatch_tracing.families import METRICS
from tests.tracing.asgi import nonzero, request
from tests.tracing.conftest import Clock
from tests.tracing.test_cuda import Gpu
from tests.tracing.test_spans import NOT_SAMPLED, SAMPLED, TRACE_ID, Traced


def exemplars() -> dict[tuple[str, str], list[Any]]:
    """By family and the label that is not the service's or the bucket's."""
    found: dict[tuple[str, str], list[Any]] = {}
    body, _ = render_metrics("application/openmetrics-text")
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            if sample.exemplar:
                others = [v for k, v in sample.labels.items() if k not in ("service", "le")]
                found.setdefault((family.name, "".join(others)), []).append(sample.exemplar)
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


def test_every_histogram_of_a_request_points_to_it(traced: Traced) -> None:
    queue, batcher, cache = RequestQueue("q"), RequestBatcher("b"), ResultCache("c")

    async def handler(incoming: Request) -> Response:
        cache.semantic_hit(0.93)
        with queue.enter(), downstream("db"):
            pass
        with batcher.join() as place, batcher.run([place]):
            batcher.note_padding(used=1, total=2)

        async def body() -> AsyncIterator[bytes]:
            for _ in range(3):
                count_tokens(output=1)
                yield b"x"

        return StreamingResponse(body(), background=BackgroundTask(time.sleep, 0.01))

    app = StageTimingMiddleware(
        Starlette(routes=[Route("/", handler)]), service="s", trust_request_start=True
    )
    stamp = (b"x-request-start", f"t={time.time() - 1}".encode())
    asyncio.run(request(app, "/", headers=[*SAMPLED, stamp]))
    found = exemplars()
    histograms = {
        name
        for name, metric in METRICS.items()
        if metric.kind == "histogram" and name.startswith("inference_")
    }
    websocket = {"inference_websocket_duration_seconds"}  # which has no span
    assert {family for family, _ in found} == histograms - websocket
    assert {each.labels["trace_id"] for of in found.values() for each in of} == {TRACE_ID}
    assert found[("inference_batch_padding_ratio", "b")][0].value == 0.5
    assert found[("inference_cache_similarity_ratio", "c")][0].value == 0.93


def test_a_batch_points_to_a_member_that_is_kept(traced: Traced) -> None:
    batcher = RequestBatcher("b")
    places: list[Any] = []

    async def handler(incoming: Request) -> Response:
        with batcher.join() as place:
            places.append(place)
            while len(places) < 2:
                await asyncio.sleep(0)
            if places[0] is place:
                with batcher.run(places):
                    batcher.note_padding(used=3, total=4)
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="s")

    async def both() -> None:
        await asyncio.gather(*(request(app, "/", headers=h) for h in (NOT_SAMPLED, SAMPLED)))

    asyncio.run(both())
    found = exemplars()
    for family, value in (("inference_batch_size", 2), ("inference_batch_padding_ratio", 0.25)):
        (exemplar,) = found[(family, "b")]
        assert (exemplar.labels["trace_id"], exemplar.value) == (TRACE_ID, value)


@pytest.mark.parametrize("when", ["before the answer", "after the answer"])
def test_the_gpus_time_is_what_points_to_it(
    traced: Traced, clock: Clock, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    gpu = Gpu(clock)
    monkeypatch.setitem(sys.modules, "torch", gpu.module())

    async def handler(incoming: Request) -> Response:
        with stage("inference", cuda=True):
            gpu.launch(0.030)
            clock.advance(0.001)
        if when == "before the answer":
            gpu.wait()
        return PlainTextResponse("ok")

    app = StageTimingMiddleware(Starlette(routes=[Route("/", handler)]), service="s")
    asyncio.run(request(app, "/", headers=SAMPLED))
    gpu.wait()
    render_metrics()  # reads what the GPU has done since
    (exemplar,) = exemplars()[("inference_stage_duration_seconds", "inference")]
    assert exemplar.value == 0.030


def test_a_trace_that_has_no_room_is_no_exemplar(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced(monkeypatch, OTEL_BSP_MAX_QUEUE_SIZE="2")  # this one has three spans
    traced.get("/x/7", headers=SAMPLED)
    assert exemplars() == {}
    assert nonzero("tailwatch_spans_dropped_total", ["reason"]) == {("queue_full",): 3}


def test_what_ends_after_the_request_points_to_it(traced: Traced) -> None:
    traced.get("/background", headers=SAMPLED)
    (exemplar,) = exemplars()[("inference_background_seconds", "/background")]
    assert exemplar.labels["trace_id"] == TRACE_ID
    assert exemplar.value >= 0.05
