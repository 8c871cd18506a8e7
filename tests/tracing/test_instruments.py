"""What all instruments share: whose they are, and that several workers' are summed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from tailwatch_tracing import (
    CascadeTier,
    RequestBatcher,
    RequestQueue,
    ResultCache,
    StageTimingMiddleware,
)
from tailwatch_tracing.service import job_named, service_named
from tests.tracing.asgi import values
from tests.tracing.test_workers import run

KINDS: list[tuple[Callable[..., Any], str]] = [
    (RequestQueue, "inference_queue_depth"),
    (RequestBatcher, "inference_batch_size_count"),
    (ResultCache, "inference_cache_requests_total"),
    (CascadeTier, "inference_cascade_requests_total"),
]


def use(instrument: Any) -> None:
    for method in ("enter", "answered", "miss"):
        getattr(instrument, method, lambda: None)()
    if isinstance(instrument, RequestBatcher):
        with instrument.run([instrument.join()]):
            pass


@pytest.mark.parametrize(("kind", "family"), KINDS)
def test_one_that_is_not_used_is_the_only_services(kind: Callable[..., Any], family: str) -> None:
    kind("x")
    assert values(family, "service") == {}
    StageTimingMiddleware(Starlette(), service="s")
    job_named("nightly")  # a training job is none
    assert values(family, "service") == {("s",): 0}


@pytest.mark.parametrize(("kind", "family"), KINDS)
def test_with_two_services_it_is_the_one_that_is_named(
    kind: Callable[..., Any], family: str
) -> None:
    service_named("first")
    kind("x")
    named = kind("x", service="second")
    use(named)
    assert values(family, "service").keys() == {("second",)}


@pytest.mark.parametrize(("kind", "family"), KINDS)
def test_without_a_name_it_is_refused(kind: Callable[..., Any], family: str) -> None:
    with pytest.raises(ValueError, match=r"\(''\): expected a name that is not empty"):
        kind("")
    with pytest.raises(ValueError, match=r"\(7\): expected a name that is not empty"):
        kind(7)


def test_the_counts_of_workers_are_summed_and_survive_them(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
        from tailwatch_tracing import (
            CascadeTier, RequestBatcher, ResultCache, count_tokens, model_loaded
        )

        server = serve_metrics(0, service="s", workers_dir=DIRECTORY)
        batcher = RequestBatcher("b", max_size=8, window_seconds=0.5)
        cache, tier = ResultCache("c"), CascadeTier("small")
        model_loaded("m", version="7", load_seconds=2)

        def work():
            with batcher.run([batcher.join(), batcher.join()]), stage("inference"):
                batcher.note_padding(used=3, total=4)
            cache.semantic_hit(0.5)
            tier.answered()
            count_tokens(prompt=5, output=11, output_seconds=1)

        work()
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                work()
                os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(pid, 0)
        say({
            name: sum(values(name).values())
            for name in (
                "inference_batch_size_count", "inference_batch_size_sum",
                "inference_batch_wait_seconds_count", "inference_batch_padding_ratio_sum",
                "inference_batch_max_size", "inference_batch_window_seconds",
                "inference_cache_requests_total", "inference_cache_similarity_ratio_sum",
                "inference_cascade_requests_total", "inference_tokens_total",
                "inference_time_per_output_token_seconds_sum",
                "inference_model_info", "inference_model_load_seconds",
            )
        })
        """,
    )
    assert said == {
        "inference_batch_size_count": 3,
        "inference_batch_size_sum": 6,
        "inference_batch_wait_seconds_count": 6,
        "inference_batch_padding_ratio_sum": 0.75,
        "inference_batch_max_size": 8,
        "inference_batch_window_seconds": 0.5,
        "inference_cache_requests_total": 3,
        "inference_cache_similarity_ratio_sum": 1.5,
        "inference_cascade_requests_total": 3,
        "inference_tokens_total": 48,
        "inference_time_per_output_token_seconds_sum": pytest.approx(0.3),
        "inference_model_info": 1,
        "inference_model_load_seconds": 2,
    }
