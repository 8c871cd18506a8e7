"""Models are on the page while they are loaded."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from starlette.applications import Starlette

from tailwatch_tracing import StageTimingMiddleware, model_loaded, model_loading
from tests.tracing.asgi import nonzero, values
from tests.tracing.conftest import Clock


def info() -> dict[tuple[str, ...], float]:
    return values("inference_model_info", "model", "version")


def seconds() -> dict[tuple[str, ...], float]:
    return values("inference_model_load_seconds", "model", "version")


def test_a_hot_swap_shows_two_versions_for_a_while(clock: Clock) -> None:
    with model_loading("encoder", version="6") as old:
        assert info() == {}
        clock.advance(12)
    assert (info(), seconds()) == ({("encoder", "6"): 1}, {("encoder", "6"): 12})
    with model_loading("encoder", version="7"):
        clock.advance(20)
        assert info() == {("encoder", "6"): 1}
    assert info() == {("encoder", "6"): 1, ("encoder", "7"): 1}
    old.unload()
    old.unload()
    assert (info(), seconds()) == ({("encoder", "7"): 1}, {("encoder", "7"): 20})


def test_what_is_loaded_before_a_service_is_named_is_its(clock: Clock) -> None:
    with model_loading("encoder", version="6"):
        clock.advance(1)
    StageTimingMiddleware(Starlette(), service="s")
    assert values("inference_model_info", "service", "model") == {("s", "encoder"): 1}
    model_loaded("reranker", version="1", service="other")
    assert values("inference_model_info", "service", "model") == {
        ("s", "encoder"): 1,
        ("other", "reranker"): 1,
    }


def test_a_block_that_raises_has_loaded_nothing(clock: Clock) -> None:
    error = MemoryError()
    with pytest.raises(MemoryError) as raised, model_loading("encoder", version="6"):
        raise error
    assert raised.value is error
    assert info() == {}


def test_a_version_may_be_known_from_what_was_loaded(clock: Clock) -> None:
    async def main() -> None:
        async with model_loading("encoder", version="latest") as model:
            clock.advance(3)
            model.version = "7f3c"
        async with model_loading("reranker", version="latest") as model:
            model.version = 8  # type: ignore[assignment]

    asyncio.run(main())
    assert seconds() == {("encoder", "7f3c"): 3, ("reranker", "8"): 0}


def test_what_was_not_measured_has_no_seconds() -> None:
    model_loaded("encoder", version="6")
    model_loaded("reranker", version="1", load_seconds=2.5)
    assert info() == {("encoder", "6"): 1, ("reranker", "1"): 1}
    assert seconds() == {("reranker", "1"): 2.5}


def test_two_of_one_version_are_one_until_both_are_gone() -> None:
    """As on two GPUs."""
    first = model_loaded("encoder", version="6", load_seconds=2)
    second = model_loaded("encoder", version="6", load_seconds=3)
    assert (info(), seconds()) == ({("encoder", "6"): 1}, {("encoder", "6"): 3})
    second.unload()
    assert (info(), seconds()) == ({("encoder", "6"): 1}, {("encoder", "6"): 2})
    first.unload()
    assert info() == {}


def test_a_version_a_day_is_no_series_a_day() -> None:
    for day in range(200):
        model_loaded("encoder", version=str(day)).unload()
    assert info() == {}
    assert nonzero("tailwatch_series_overflow_total", ["metric"]) == {}


def test_models_are_capped() -> None:
    """As with adapters of a language model by the thousand."""
    adapters = [model_loaded("adapter", version=str(i), load_seconds=i) for i in range(70)]
    assert len(info()) == 65
    assert info()[("__other__", "__other__")] == 1
    assert seconds()[("__other__", "__other__")] == 69
    assert nonzero("tailwatch_series_overflow_total", ["metric"]) == {("inference_model_info",): 6}
    for adapter in adapters[:10]:
        adapter.unload()
    assert len(info()) == 60


def test_a_version_that_is_loaded_again_has_the_seconds_of_the_last_time() -> None:
    model_loaded("m", version="1", load_seconds=9, service="s")
    again = model_loaded("m", version="1", load_seconds=2, service="s")
    assert (len(info()), seconds()) == (1, {("m", "1"): 2})
    again.unload()
    assert seconds() == {("m", "1"): 9}


def test_seconds_of_numpy_are_seconds() -> None:
    model_loaded("m", version="1", load_seconds=np.float32(1.5), service="s")  # type: ignore[arg-type]
    assert seconds() == {("m", "1"): 1.5}


def test_a_model_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="model '': expected a name that is not empty"):
        model_loading("", version="1")
    with pytest.raises(ValueError, match="model m: load_seconds='2': expected 0 or more"):
        model_loaded("m", version="1", load_seconds="2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="model m: load_seconds=inf: expected 0 or more"):
        model_loaded("m", version="1", load_seconds=float("inf"))
    assert info() == {}
