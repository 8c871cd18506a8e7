"""A training of two ranks over gloo, with a real torch."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import Ranks
from tests.training.test_one_rank import by, names, only


def test_norms_before_and_after_communication(pair: Ranks) -> None:
    """Ranks have gradients of their own, and the same one after DDP has averaged them."""
    for result in pair.run("distributed"):
        norms = by(result["page"], "training_grad_norm", "kind")
        assert norms == {
            "local": pytest.approx(result["expected"]["local"]),
            "reduced": pytest.approx(result["expected"]["reduced"]),
        }
        assert only(result["page"], "training_world_size") == 2
        assert only(result["page"], "training_effective_batch_size") == 16


@pytest.mark.parametrize("how", ["by hand, not rank 1", "ddp_bypassed", "none"])
def test_ranks_that_are_not_synchronised_differ(pair: Ranks, how: str) -> None:
    """One that leaves the average aside, or all that call the model inside DDP."""
    results = pair.run("distributed", communicate=how)
    norms = [by(result["page"], "training_grad_norm", "kind")["reduced"] for result in results]
    expected = [result["expected"] for result in results]
    first = expected[0]["reduced" if how.startswith("by hand") else "local"]
    assert norms == [pytest.approx(first), pytest.approx(expected[1]["local"])]
    assert abs(norms[0] - norms[1]) / max(norms) > 0.1


def test_ddp_computes_the_same_with_the_monitor(pair: Ranks) -> None:
    assert pair.run("ddp_is_unchanged") == [True, True]


def test_norms_are_unscaled_before_communication_too(pair: Ranks) -> None:
    for result in pair.run("scaled_ddp"):
        assert by(result["page"], "training_grad_norm", "kind") == {
            "local": pytest.approx(result["expected"]["local"], rel=1e-5),
            "reduced": pytest.approx(result["expected"]["reduced"], rel=1e-5),
        }
        assert only(result["page"], "training_loss_scale") == 4096


def test_an_effective_batch_that_grew_while_the_rate_did_not(pair: Ranks) -> None:
    before, after = (
        [
            (only(page, "training_effective_batch_size"), only(page, "training_learning_rate"))
            for page in pair.run("grown_batch", accumulate=accumulate)
        ]
        for accumulate in (1, 4)
    )
    assert before == [(8, 0.03), (8, 0.03)]
    assert after == [(32, 0.03), (32, 0.03)]


@pytest.mark.parametrize(
    ("sampler", "repeats"),
    [
        ("set_epoch", {"epochs": 0, "ranks": 0}),
        ("forgotten", {"epochs": 3, "ranks": 0}),
        ("shuffle", {"epochs": 0, "ranks": 4}),
    ],
)
def test_orders_that_repeat(pair: Ranks, sampler: str, repeats: dict[str, int]) -> None:
    """set_epoch forgotten: across epochs. No DistributedSampler, one seed: across ranks."""
    for page in pair.run("sample_order", sampler=sampler):
        assert by(page, "training_sample_order_repeats_total", "across") == repeats


@pytest.mark.parametrize(("shift", "stretch"), [(0, 0), (1, 0), (0, 0.5)])
def test_batch_norm_of_ranks_that_see_other_inputs(
    pair: Ranks, shift: float, stretch: float
) -> None:
    """Another mean, or another deviation."""
    for result in pair.run("batch_norm", shift=shift, stretch=stretch):
        spread = only(result["page"], "training_bn_spread_ratio")
        assert spread == pytest.approx(result["expected"])
        assert (spread > 0.05) == (shift + stretch > 0)


def test_waiting_for_a_late_rank_is_communication(pair: Ranks) -> None:
    """The rank that is late waits least: its time is compute."""
    phases = [by(page, "training_phase_seconds_total", "phase") for page in pair.run("straggler")]
    shares = [each["communication"] / sum(each.values()) for each in phases]
    assert phases[0]["communication"] > 0.3  # of 4 x 0.1 s
    assert phases[1]["compute"] > 0.4
    assert shares[0] > 0.5
    assert shares[1] < shares[0] / 2


def test_a_monitor_in_one_rank_holds_nobody_up(pair: Ranks) -> None:
    watched, unwatched = pair.run("only_rank_0_watches")
    assert only(watched, "training_steps_total") == 4
    assert names(unwatched) == set()


@pytest.mark.parametrize(("how", "kind"), [("fsdp2", "sharded"), ("fsdp1", "sharded")])
def test_norms_of_shards_are_marked(pair: Ranks, how: str, kind: str) -> None:
    """They are this rank's part: together they are the whole."""
    results: list[Any] = pair.run("sharded", how=how)
    norms = [by(result["page"], "training_grad_norm", "kind") for result in results]
    assert [set(each) for each in norms] == [{kind}, {kind}]
    assert sum(each[kind] ** 2 for each in norms) ** 0.5 == pytest.approx(results[0]["whole"])


@pytest.mark.parametrize("how", ["fsdp2", "fsdp1"])
def test_the_norm_of_the_whole_is_told(pair: Ranks, how: str) -> None:
    """As the how-to says for each."""
    for result in pair.run("sharded", how=how, told="whole"):
        norms = by(result["page"], "training_grad_norm", "kind")
        assert norms == {"reduced": pytest.approx(result["whole"])}


def test_a_norm_that_all_ranks_would_have_to_ask_for_is_refused(pair: Ranks) -> None:
    for result in pair.run("sharded", how="fsdp2", told="dtensor"):
        assert set(by(result["page"], "training_grad_norm", "kind")) == {"sharded"}
        assert by(result["page"], "tailwatch_errors_total", "where")["training"] == 1


def test_an_optimizer_that_shards_only_its_state_has_whole_gradients(pair: Ranks) -> None:
    for result in pair.run("sharded", how="zero"):
        norms = by(result["page"], "training_grad_norm", "kind")
        assert norms == {"reduced": pytest.approx(result["whole"])}


def test_ranks_of_a_machine_share_a_page(pair: Ranks, tmp_path: Path) -> None:
    """Through a workers directory: counters and gauges of both, told apart by the rank."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    page, _ = pair.run("shared_page", directory=str(tmp_path), port=port)
    assert by(page, "training_steps_total", "rank") == {"0": 4, "1": 4}
    assert by(page, "training_learning_rate", "rank") == {"0": 0.01, "1": 0.01}
    assert "inference_" not in page
