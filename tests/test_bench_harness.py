"""The statistics of the benchmarks, on numbers whose answers are known."""

from __future__ import annotations

import os
import random
from pathlib import Path
from statistics import NormalDist

import pytest

from tests.bench import (
    gpu_scrape,
    growth,
    host_scrape,
    merge,
    middleware,
    render,
    routes,
    scrape_overlap,
    spans,
    stages,
    throughput,
)
from tests.bench.__main__ import BENCHES, main
from tests.bench.harness import (
    Interval,
    Result,
    Verdict,
    added_ratio,
    in_fresh_process,
    median_interval,
    mirrored,
    table,
)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [  # Campbell and Gardner, BMJ 296 (1988) 1454: ranks of the interval of a median
        (6, 1, 6),
        (8, 1, 8),
        (9, 2, 8),
        (10, 2, 9),
        (20, 6, 15),
        (25, 8, 18),
    ],
)
def test_the_interval_of_a_median_is_between_the_tabulated_ranks(
    count: int, low: int, high: int
) -> None:
    values = [float(i) for i in range(count, 0, -1)]
    assert median_interval(values) == Interval((count + 1) / 2, low, high)


def test_the_interval_holds_the_true_median_at_least_95_times_in_100() -> None:
    rng = random.Random(7)
    held = 0
    for _ in range(2000):
        interval = median_interval([rng.lognormvariate(0, 1) for _ in range(10)])
        held += interval.low <= 1.0 <= interval.high
    # 10 values: exactly 1 - 2 * 11/1024 = 97.85 %; three standard deviations of 2000 trials
    expected, deviation = 0.9785, (0.9785 * 0.0215 / 2000) ** 0.5
    assert abs(held / 2000 - expected) < NormalDist().inv_cdf(0.9987) * deviation


def test_too_few_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="5 slots, need 6"):
        median_interval([1.0] * 5)


def test_a_mirrored_pass_costs_every_variant_the_same_drift() -> None:
    order = mirrored(["a", "b", "c"])
    assert order == ["a", "b", "c", "c", "b", "a"]
    drift = {name: sum(i for i, n in enumerate(order) if n == name) for name in "abc"}
    assert len(set(drift.values())) == 1


def test_added_cost_is_compared_inside_a_slot() -> None:
    slots = [
        {"bare": 10.0 * busy, "ours": 12.0 * busy, "peer": 18.0 * busy}
        for busy in (1.0, 1.5, 3.0, 1.0, 2.0, 8.0)  # the machine's speed changes from slot to slot
    ]
    assert added_ratio(slots, "ours", "peer", "bare") == Interval(0.25, 0.25, 0.25)


def test_a_peer_that_costs_nothing_is_an_error() -> None:
    slots = [{"bare": 10.0, "ours": 12.0, "peer": 9.0}] * 6
    with pytest.raises(ValueError, match="peer added -1 to bare"):
        added_ratio(slots, "ours", "peer", "bare")


@pytest.mark.parametrize(
    ("interval", "limit", "verdict"),
    [
        (Interval(0.4, 0.3, 0.5), 0.5, Verdict.MET),
        (Interval(0.4, 0.3, 0.51), 0.5, Verdict.NOISY),
        (Interval(0.51, 0.3, 0.6), 0.5, Verdict.MISSED),
        (Interval(0.51, 0.3, 0.6), None, Verdict.INFORMATION),
    ],
)
def test_a_goal_is_met_only_by_the_whole_interval(
    interval: Interval, limit: float | None, verdict: Verdict
) -> None:
    assert Result("bench", "what", "x", interval, limit).verdict is verdict


def test_the_table_is_markdown() -> None:
    rows = table(
        [
            Result("stages", "ours / theirs", "x", Interval(1.5, 1.25, 1.75), 2.2),
            Result("memory", "a series", "B", Interval(96.0, 96.0, 96.0)),
        ]
    ).splitlines()
    assert [cell.strip() for cell in rows[2].strip("|").split("|")] == [
        "stages", "ours / theirs", "1.5 x", "1.25 .. 1.75", "<= 2.2 x", "met",
    ]  # fmt: skip
    assert len({len(row) for row in rows}) == 1


def test_the_page_on_speed_names_every_benchmark_with_its_goals() -> None:
    page = (Path(__file__).parents[1] / "docs" / "why" / "speed.md").read_text()
    compared = page.partition("## What is compared")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in compared.splitlines() if line.startswith("| ")][1:]
    documented: dict[str, list[str]] = {}
    name = ""
    for row in rows:
        name = row[1].strip() or name
        documented.setdefault(name, []).append(row[4].strip())
    assert documented == {
        "middleware": [
            f"<= {middleware.RUNWAY_GOAL:g}x",
            f"<= {middleware.INSTRUMENTATOR_GOAL:g}x",
        ],
        "routes": [f"<= {routes.GROWTH_GOAL_US:g} µs more"],
        "stages": [f"<= {stages.GOAL:g}x"],
        "spans": [f"<= {spans.FULL_GOAL:g}x", f"<= {spans.SAMPLED_GOAL:g}x"],
        "memory": ["printed"],
        "growth": [
            f"<= {growth.GOAL_KIB} KiB more",
            f"<= {growth.GOAL_OBJECTS} more",
        ],
        "merge": [f"<= {merge.GOAL:g}x"],
        "render": [f"<= {render.GOAL:g}x"],
        "scrape_overlap": [f"<= {scrape_overlap.GOAL_MS:g} ms more"] * 2,
        "throughput": [f">= {share:g}x" for _, share in throughput.SERVERS.values()],
        "gpu_scrape": [
            f"<= {gpu_scrape.GOAL:g}x",
            f"<= {gpu_scrape.AGE_GOAL:g} intervals",
        ],
        "host_scrape": [f"<= {host_scrape.GOAL:g}x"],
    }
    assert list(documented) == list(BENCHES)


def test_a_slot_runs_in_a_new_interpreter_on_one_core() -> None:
    pid, cores = in_fresh_process(_where)
    assert pid != os.getpid()
    assert cores == {min(os.sched_getaffinity(0))}


def _where() -> tuple[int, set[int]]:
    return os.getpid(), os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "no benchmark speed, expected of middleware"),
        (["--slots", "5"], "--slots 5, expected at least 6"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
