"""Under the real Trainers of Lightning and of transformers."""

from __future__ import annotations

import pytest

from tests.training.conftest import Ranks
from tests.training.test_one_rank import by, names, only, run

# Of each epoch; the scenarios sleep that long.
CHECKPOINT_SECONDS = 0.05
EVALUATION_SECONDS = 0.4


@pytest.mark.parametrize("scaled", [False, True])
def test_lightning(solo: Ranks, scaled: bool) -> None:
    """A step of two batches; with a scaler the third of twelve is skipped."""
    result = run(solo, "lightning", scaled=scaled)
    page = result["page"]
    assert only(page, "training_steps_total") == 12
    assert only(page, "training_samples_total") == 3 * 64
    assert only(page, "training_effective_batch_size") == 16
    assert only(page, "training_learning_rate") == 0.001
    assert only(page, "training_nonfinite_total") == int(scaled)
    if scaled:  # in half precision, and one step behind
        assert only(page, "training_skipped_steps_total") == 1
        assert only(page, "training_loss_scale") == 32
    tolerance = 0.01 if scaled else 1e-6
    assert only(page, "training_loss") == pytest.approx(
        sum(result["losses"][-2:]) / 2, rel=tolerance
    )
    norms = by(page, "training_grad_norm", "kind")
    assert norms == {"local": pytest.approx(result["norm"], rel=tolerance)}  # before clipping
    assert by(page, "training_sample_order_repeats_total", "across") == {"epochs": 1}


def test_phases_of_lightning(solo: Ranks) -> None:
    """Checkpoints are one, a validation is none."""
    result = run(solo, "lightning")
    phases = by(result["after"], "training_phase_seconds_total", "phase")
    assert result["checkpoints"] == 3
    assert 3 * CHECKPOINT_SECONDS <= phases["checkpoint"] < EVALUATION_SECONDS
    assert sum(phases.values()) < result["seconds"] - 3 * EVALUATION_SECONDS
    assert all(phases[name] > 0 for name in ("data", "compute", "optimizer"))


def test_lightning_lets_go_at_the_end(solo: Ranks) -> None:
    result = run(solo, "lightning")
    assert result["released"]
    assert all(name.endswith("_total") for name in names(result["after"]))


def test_lightning_with_ddp(pair: Ranks) -> None:
    for result in pair.run("lightning_ddp"):
        assert by(result["page"], "training_grad_norm", "kind") == {
            "local": pytest.approx(result["local"], rel=1e-5),
            "reduced": pytest.approx(result["reduced"], rel=1e-5),
        }
        assert only(result["page"], "training_world_size") == 2
        phases = by(result["page"], "training_phase_seconds_total", "phase")
        assert phases["communication"] > 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_transformers(solo: Ranks, accumulate: int) -> None:
    """Loss and norm are as the Trainer logs them: before clipping."""
    result = run(solo, "transformers", accumulate=accumulate)
    page, last = result["page"], result["logs"][-1]
    assert only(page, "training_steps_total") == result["steps"] == 24 / accumulate
    assert only(page, "training_samples_total") == 3 * 64
    assert only(page, "training_effective_batch_size") == 8 * accumulate
    assert only(page, "training_learning_rate") == 0.001
    assert only(page, "training_loss") == pytest.approx(last["loss"])
    norms = by(page, "training_grad_norm", "kind")
    assert norms == {"local": pytest.approx(last["grad_norm"])}
    assert last["grad_norm"] > 1
    assert by(page, "training_sample_order_repeats_total", "across") == {"epochs": 0}


def test_phases_of_transformers(solo: Ranks) -> None:
    """Checkpoints are one, an evaluation is none."""
    result = run(solo, "transformers")
    phases = by(result["after"], "training_phase_seconds_total", "phase")
    assert 3 * CHECKPOINT_SECONDS <= phases["checkpoint"] < EVALUATION_SECONDS
    assert sum(phases.values()) < result["seconds"] - 3 * EVALUATION_SECONDS
    assert all(phases[name] > 0 for name in ("data", "compute", "optimizer"))
    assert result["released"]
