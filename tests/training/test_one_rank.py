"""A training in one process, with a real torch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tracing.asgi import page_values
from tests.training.conftest import Ranks


def run(solo: Ranks, scenario: str, **arguments: Any) -> Any:
    return solo.run(scenario, **arguments)[0]


def only(page: str, metric: str) -> float:
    """The value of a metric that has one series."""
    (value,) = page_values(page, metric, ["rank"]).values()
    return value


def by(page: str, metric: str, label: str) -> dict[str, float]:
    return {key: value for (key,), value in page_values(page, metric, [label]).items()}


def names(page: str) -> set[str]:
    return {line.split(" ")[2] for line in page.splitlines() if line.startswith("# TYPE training_")}


def test_a_plain_loop_is_counted_and_read(solo: Ranks) -> None:
    """Two lines in a loop give steps, samples, loss, norm, rate and batch; weights are the same."""
    result = run(solo, "plain_loop")
    page = result["page"]
    assert only(page, "training_steps_total") == 8
    assert only(page, "training_samples_total") == 64
    assert only(page, "training_loss") == pytest.approx(result["losses"][-1])
    assert by(page, "training_grad_norm", "kind") == {"local": pytest.approx(result["norm"])}
    assert only(page, "training_learning_rate") == 0.01
    assert only(page, "training_effective_batch_size") == 8
    assert only(page, "training_world_size") == 1
    assert only(page, "training_expected_loss") == 10 / 8
    assert only(page, "training_nonfinite_total") == 0
    assert result["same"]


def test_a_reading_covers_the_steps_since_the_one_before(solo: Ranks) -> None:
    """With every_steps=3 the first, third and sixth step are read; the end reads the loss."""
    result = run(solo, "plain_loop", every_steps=3)
    page, losses = result["page"], result["losses"]
    assert only(page, "training_loss") == pytest.approx(sum(losses[3:6]) / 3)
    assert only(page, "training_expected_loss") == pytest.approx(10 / 6)


def test_what_a_loop_does_not_have_is_absent(solo: Ranks) -> None:
    """No scaler, no clipping, no BatchNorm, no other rank: no sample, not a 0."""
    assert names(run(solo, "plain_loop")["page"]) == {
        "training_effective_batch_size",
        "training_expected_loss",
        "training_grad_norm",
        "training_learning_rate",
        "training_loader_info",
        "training_loader_wait_seconds_total",
        "training_loss",
        "training_nonfinite_total",
        "training_phase_seconds_total",
        "training_sample_order_repeats_total",
        "training_samples_total",
        "training_steps_total",
        "training_world_size",
    }


def test_a_run_that_is_over_has_counters_and_no_gauges(solo: Ranks) -> None:
    page = run(solo, "plain_loop")["after"]
    assert only(page, "training_steps_total") == 8
    assert all(name.endswith("_total") for name in names(page))


def test_a_training_job_is_no_service_of_requests(solo: Ranks) -> None:
    page = run(solo, "plain_loop")["page"]
    assert "inference_" not in page
    assert 'python_gc_pause_seconds_total{service="plain"}' in page


@pytest.mark.parametrize(("accumulate", "steps", "batch"), [(1, 8, 8), (4, 2, 32), (3, 2, 24)])
def test_micro_steps_are_no_steps(solo: Ranks, accumulate: int, steps: int, batch: int) -> None:
    """A step of several batches is one step of their samples; a rest makes none."""
    page = run(solo, "accumulation", accumulate=accumulate)
    assert only(page, "training_steps_total") == steps
    assert only(page, "training_samples_total") == 64
    assert only(page, "training_effective_batch_size") == batch
    assert only(page, "training_learning_rate") == 0.02


def test_losses_that_are_not_finite_are_counted_and_not_averaged(solo: Ranks) -> None:
    pages = run(solo, "not_finite")
    assert [page_values(page, "training_nonfinite_total", []).get((), None) for page in pages] == [
        None,
        0,
        0,
        0,
        1,
        1,
        1,
        1,
        2,
    ]
    assert only(pages[-1], "training_loss") == 2


def test_there_is_no_loss_where_none_is_finite(solo: Ranks) -> None:
    page = run(solo, "only_not_finite")
    assert only(page, "training_nonfinite_total") == 2
    assert "training_loss" not in names(page)


def test_a_loss_is_that_of_its_step(solo: Ranks) -> None:
    """Whatever is written into the same tensor later: losses 1, 2 and 3 since the first reading."""
    assert only(run(solo, "reused_loss"), "training_loss") == 2


def test_a_loop_whose_loader_is_not_known(solo: Ranks) -> None:
    """Losses are read by the next step; only what batches would tell is missing."""
    page = run(solo, "without_batches")
    assert only(page, "training_steps_total") == 4
    assert only(page, "training_loss") == 1  # of the second step, read with the third
    assert "training_samples_total" not in names(page)


def test_an_effective_batch_is_that_of_the_largest_step(solo: Ranks) -> None:
    """An epoch's last step is smaller, and may be the one that is read."""
    assert only(run(solo, "uneven_steps"), "training_effective_batch_size") == 36


@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_scaler(solo: Ranks, fused: bool) -> None:
    """A step with infinite gradients is skipped; norms are those of the loss that is not scaled.

    A fused optimizer is called also for a step that it then skips itself.
    """
    result = run(solo, "scaled", fused=fused)
    page = result["page"]
    assert result["scales"] == [1024, 1024, 512, 512]
    assert only(page, "training_loss_scale") == 512
    assert only(page, "training_skipped_steps_total") == 1
    assert only(page, "training_steps_total") == 4
    assert by(page, "training_grad_norm", "kind") == {"local": pytest.approx(result["norms"][-1])}
    assert result["released"]


def test_a_loss_scaler_that_is_off_skips_nothing(solo: Ranks) -> None:
    page = run(solo, "scaled", enabled=False)["page"]
    assert only(page, "training_steps_total") == 4
    assert only(page, "training_skipped_steps_total") == 0
    assert "training_loss_scale" not in names(page)


def test_steps_that_are_clipped(solo: Ranks) -> None:
    """Norms are those before clipping."""
    result = run(solo, "clipped")
    page = result["page"]
    assert only(page, "training_clipped_steps_total") == 3
    assert sum(norm > result["limit"] for norm in result["norms"]) == 3
    assert by(page, "training_grad_norm", "kind") == {"local": pytest.approx(result["norms"][-1])}


def test_an_optimizer_with_a_closure(solo: Ranks) -> None:
    """Gradients are read after the step, where they exist."""
    result = run(solo, "closure")
    assert only(result["page"], "training_steps_total") == 2
    norms = by(result["page"], "training_grad_norm", "kind")
    assert norms == {"local": pytest.approx(result["norm"])}


def test_phases_add_up_to_the_loop(solo: Ranks) -> None:
    """Every instant is in one phase, but for a pause and what is outside the loop."""
    page = run(solo, "phases")
    assert by(page, "training_phase_seconds_total", "phase") == {
        "data": 1,
        "compute": 4.25,
        "communication": 0.0625,
        "optimizer": 0.5,
        "checkpoint": 4,
    }
    assert only(page, "training_loader_wait_seconds_total") == 1


def test_a_slow_data_loader(solo: Ranks) -> None:
    """32 samples of 20 ms by one process take 0.64 s, of which nearly all is waited for."""
    result = run(solo, "slow_data_loader")
    phases = by(result["page"], "training_phase_seconds_total", "phase")
    assert 0.6 < phases["data"] <= result["seconds"]
    assert phases["data"] > 3 * phases["compute"]
    waited = only(result["page"], "training_loader_wait_seconds_total")
    assert waited == pytest.approx(phases["data"], abs=0.1)
    settings = ["num_workers", "prefetch_factor", "pin_memory", "persistent_workers"]
    assert page_values(result["page"], "training_loader_info", settings) == {
        ("1", "3", "false", "false"): 1
    }


def test_samples_are_counted_whatever_a_batch_is(solo: Ranks) -> None:
    """By the sampler for a DataLoader, else by the first tensor, else as told, else not."""
    counts = by(run(solo, "sample_counts"), "training_samples_total", "job_name")
    assert counts == {
        "map": 20,
        "workers": 20,
        "collated": 20,
        "stream": 20,
        "tensors": 20,
        "stateful": 20,
        "unbatched": 20,
        "told": 5,
    }


@pytest.mark.parametrize(("set_epoch", "repeats"), [(True, 0), (False, 2)])
def test_the_order_of_a_loader_that_stays(solo: Ranks, set_epoch: bool, repeats: int) -> None:
    page = run(solo, "persistent_order", set_epoch=set_epoch)
    assert by(page, "training_sample_order_repeats_total", "across") == {"epochs": repeats}


def test_errors_are_those_of_the_training(solo: Ranks) -> None:
    """What the loop raises comes out as it is; what the monitor raises is counted."""
    result = run(solo, "leaves_errors_alone")
    assert result["seen"] == [True, True, True, True]
    assert by(result["page"], "tailwatch_errors_total", "where")["training"] == 9
    assert only(result["page"], "training_steps_total") == 8


def test_no_step_asks_a_device_for_a_value(solo: Ranks) -> None:
    """Of 60 steps only the first and every 20th ask, as often each; without a monitor none."""
    reads = run(solo, "reads", every_steps=20, watched=True)
    assert set(reads) == {"1", "20", "40", "60"}
    assert len(set(reads.values())) == 1
    assert run(solo, "reads", every_steps=20, watched=False) == {}


def test_a_copy_is_read_when_its_event_says_that_it_is_complete(solo: Ranks) -> None:
    assert run(solo, "late_device") == [[], [], [1, 2, 3, 4]]


def test_a_mistake_is_named(solo: Ranks) -> None:
    assert run(solo, "refusals") == {
        "name": "ValueError: job_name is empty: expected the name of the training job",
        "every_steps": "ValueError: every_steps=0: expected 1 or more",
        "optimizer": "TypeError: refusals.<locals>.Hidden has no step hooks, which torch.optim's "
        "have: leave optimizer out, and put `with monitor.optimizer_step():` around its step",
        "phase": "ValueError: phase 'backward': expected one of data, compute, communication, "
        "optimizer, checkpoint",
        "push": "ValueError: every_seconds=0: expected seconds above 0",
    }
