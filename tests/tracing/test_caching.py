"""Results of a cache and tiers of a cascade, told once each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette

from tailwatch_tracing import CascadeTier, ResultCache, StageTimingMiddleware
from tests.tracing.asgi import nonzero, values


def test_results_by_kind_are_there_from_the_start() -> None:
    ResultCache("answers")
    StageTimingMiddleware(Starlette(), service="s")
    assert values("inference_cache_requests_total", "service", "cache", "result") == {
        ("s", "answers", "exact"): 0,
        ("s", "answers", "semantic"): 0,
        ("s", "answers", "miss"): 0,
    }


def test_lookups() -> None:
    cache = ResultCache("answers", service="s")
    for similarity in (0.93, np.float32(0.97), 1.0):
        cache.semantic_hit(similarity)  # type: ignore[arg-type]
    cache.exact_hit()
    cache.exact_hit()
    cache.miss()
    assert values("inference_cache_requests_total", "result") == {
        ("exact",): 2,
        ("semantic",): 3,
        ("miss",): 1,
    }
    assert values("inference_cache_similarity_ratio_sum", "cache") == {("answers",): 2.9}
    buckets = values("inference_cache_similarity_ratio_bucket", "le")
    assert [buckets[(le,)] for le in ("0.92", "0.93", "0.96", "0.97", "0.99", "1.0")] == [
        *(0, 1, 1, 2, 2, 3)
    ]


def test_a_cache_without_semantic_hits_has_no_similarity() -> None:
    ResultCache("embeddings", service="s").exact_hit()
    assert values("inference_cache_similarity_ratio_count") == {}


@pytest.mark.parametrize(("similarity", "taken_as"), [(1.0000001, 1), (-0.2, 0)])
def test_what_rounding_has_put_outside_counts_as_the_bound(
    similarity: float, taken_as: float
) -> None:
    ResultCache("answers", service="s").semantic_hit(similarity)
    assert values("inference_cache_similarity_ratio_sum") == {(): taken_as}


@pytest.mark.parametrize("similarity", [float("nan"), "high", None])
def test_a_similarity_of_nonsense_harms_nobody(similarity: Any) -> None:
    ResultCache("answers", service="s").semantic_hit(similarity)
    assert nonzero("inference_cache_requests_total", ["result"]) == {("semantic",): 1}
    assert values("inference_cache_similarity_ratio_count") == {}
    assert nonzero("tailwatch_errors_total", ["where"]) == {("metrics",): 1}


def test_an_error_is_that_of_the_service_that_has_the_cache() -> None:
    StageTimingMiddleware(Starlette(), service="first")
    ResultCache("answers", service="s").semantic_hit(float("nan"))
    assert nonzero("tailwatch_errors_total", ["service"]) == {("s",): 1}


def test_caches_are_capped() -> None:
    for i in range(70):
        ResultCache(f"c{i}", service="s").miss()
    misses = nonzero("inference_cache_requests_total", ["cache"])
    assert len(misses) == 65
    assert misses[("__other__",)] == 6
    overflow = nonzero("tailwatch_series_overflow_total", ["metric"])
    assert overflow.keys() == {("inference_cache_requests_total",)}


def test_tiers() -> None:
    small, large = CascadeTier("small"), CascadeTier("large")
    StageTimingMiddleware(Starlette(), service="s")
    assert values("inference_cascade_requests_total", "service", "tier") == {
        ("s", "small"): 0,
        ("s", "large"): 0,
    }
    for _ in range(3):
        small.answered()
    large.answered()
    assert values("inference_cascade_requests_total", "tier") == {("small",): 3, ("large",): 1}
