"""The how-to's examples run, and say how many series there are."""

from __future__ import annotations

import re

from tests.training.conftest import Ranks
from tests.training.test_one_rank import by, only
from tests.training.torch_python import ROOT

HOW_TO = (ROOT / "docs/how-to/train.md").read_text()
PLAIN, SCALED, DDP, LIGHTNING, TRANSFORMERS, PUSH = re.findall(
    r"^```python\n(.*?)^```", HOW_TO, re.MULTILINE | re.DOTALL
)


def free_port(example: str) -> str:
    return re.sub(r"serve_metrics\(12161.*\)$", "serve_metrics(0)", example, flags=re.MULTILINE)


def test_the_examples_of_one_rank(solo: Ranks) -> None:
    """256 samples in batches of 32; three epochs, or a step of four batches."""
    for example, steps in ((PLAIN, 24), (SCALED, 2), (LIGHTNING, 24), (TRANSFORMERS, 24)):
        (page,) = solo.run("example", source=free_port(example))
        assert only(page, "training_steps_total") == steps
        assert only(page, "training_samples_total") == steps * 32 * (4 if example == SCALED else 1)


def test_the_example_of_two_ranks(pair: Ranks) -> None:
    for page in pair.run("example", source=free_port(DDP)):
        assert only(page, "training_steps_total") == 12
        assert set(by(page, "training_grad_norm", "kind")) == {"local", "reduced"}
        assert by(page, "training_sample_order_repeats_total", "across")["epochs"] == 0


def test_the_example_of_a_push_outlives_a_gateway_that_is_not_there(solo: Ranks) -> None:
    (page,) = solo.run("example", source=PUSH.replace("9091", "9"))
    assert by(page, "tailwatch_errors_total", "where")["push"] == 1


def test_the_series_of_a_rank() -> None:
    golden = (ROOT / "tests/golden/training.prom").read_text()
    series = [line for line in golden.splitlines() if not line.startswith("#")]
    assert f"has {len(series)} series" in HOW_TO
