"""The pages say what the code does: metrics, labels and options, and examples that run."""

from __future__ import annotations

import ast
import asyncio
import http.server
import inspect
import re
import socketserver
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import tailwatch_tracing
from docs import build
from tailwatch_tracing import render_metrics, serve_metrics
from tailwatch_tracing.families import (
    EDGES_NS,
    METRICS,
    OUTCOMES,
    SPANS_DROPPED,
    WORKER_FILES_SKIPPED,
)
from tests.tracing.asgi import page_values, request

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/reference/service-metrics.md").read_text()
HOW_TO = (ROOT / "docs/how-to/instrument.md").read_text()
GOLDEN = (ROOT / "tests/golden/service.prom").read_text()

EXAMPLES = re.findall(r"^```python\n(.*?)^```", HOW_TO, re.MULTILINE | re.DOTALL)


def test_the_reference_is_what_the_code_says() -> None:
    """`make docs` writes it anew."""
    assert build.filled(REFERENCE) == REFERENCE


def test_a_metric_in_no_table_or_in_two_is_refused() -> None:
    queues = "<!-- metrics: inference_queue_* inference_rejected_total -->\n"
    assert queues in REFERENCE
    with pytest.raises(ValueError, match="inference_queue_depth is in 0 tables"):
        build.filled(REFERENCE.replace(queues, ""))
    with pytest.raises(ValueError, match="inference_queue_depth is in 2 tables"):
        build.filled(REFERENCE + "<!-- metrics: inference_queue_depth -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match=r"inference_queue_\?: expected the name of a metric"):
        build.filled(REFERENCE.replace("inference_queue_*", "inference_queue_?"))


WATCH = '''
LIMIT = 7

def watch(app, name, *, limit=LIMIT):
    """Watch.

    Args:
        app: Any.
        name: Its
            name.
        limit: How many.

    Raises:
        ValueError: never.
    """
'''


def test_options_are_those_of_the_signature_and_each_has_a_meaning(tmp_path: Path) -> None:
    for folder, source in (("good", WATCH), ("bad", WATCH.replace("limit: How many.", ""))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text(source)
    rows = build.options_table("watch", tmp_path / "good").splitlines()[2:]
    assert rows == ["| `name` | required | Its name. |", "| `limit` | `7` | How many. |"]
    with pytest.raises(ValueError, match=r"watch: its docstring has \['app', 'name'\], it takes"):
        build.options_table("watch", tmp_path / "bad")
    with pytest.raises(ValueError, match="options: gone: expected a name"):
        build.options_table("gone", tmp_path / "good")


def test_the_golden_page_has_every_declared_metric_as_it_is_declared() -> None:
    published = {}
    for family in text_string_to_metric_families(GOLDEN):
        names = {label for sample in family.samples for label in sample.labels} - {"service", "le"}
        suffix = "_total" if family.type == "counter" else ""
        published[family.name + suffix] = (family.type, names)
    assert published == {
        metric.name: (metric.kind, set(metric.labels)) for metric in METRICS.values()
    }


def test_the_reference_has_every_value_of_a_closed_label() -> None:
    for metric in METRICS.values():
        (row,) = re.findall(rf"^\| `{metric.name}` \| .*", REFERENCE, re.MULTILINE)
        assert [value for value in metric.row if f"`{value}`" not in row] == []
    for outcome in OUTCOMES.row:
        assert f"| `{outcome}` |" in REFERENCE
    for metric in (SPANS_DROPPED, WORKER_FILES_SKIPPED):
        for reason in metric.row:
            assert f"| `{reason}` |" in REFERENCE
    assert f"{len(EDGES_NS)} edges" in REFERENCE


def test_the_reference_has_every_environment_variable() -> None:
    """What looks like one in the code, be it read by us or by a library that we start."""
    variable = re.compile(r"(?:TAILWATCH|OTEL|CUDA|PROMETHEUS)_[A-Z_]*[A-Z]")
    used: set[str] = set()
    for module in Path(tailwatch_tracing.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used |= {node.value} if variable.fullmatch(node.value) else set()
    assert "TAILWATCH_WORKERS_DIR" in used
    environment = REFERENCE.partition("## Environment")[2]
    assert {name for name in used if f"`{name}`" not in environment} == set()


def test_the_series_budget_is_what_the_page_has() -> None:
    lines = [line for line in GOLDEN.splitlines() if not line.startswith("#")]

    def count(pattern: str) -> int:
        return sum(1 for line in lines if re.search(pattern, line))

    per_route = count(r'^inference_request_duration_seconds_.*route="/classify')
    per_stage = count(r'^inference_stage_.*stage="preprocess"')
    per_queue = count(r'queue="preprocess"')
    per_batcher = count(r'batcher="encoder"')
    assert (per_route, per_stage, per_queue, per_batcher) == (75, 78, 77, 137)
    assert "75 series of latency" in HOW_TO
    assert "A stage has 78 series" in HOW_TO
    assert "a queue has 77, a batcher 137" in HOW_TO


def run(example: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "docs/how-to/instrument.md", "exec"), namespace)
    return namespace


def test_there_are_the_examples_that_are_tested_here() -> None:
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize(
    ("example", "method", "path", "body", "route", "stages"),
    [
        (0, "POST", "/embed/small", b'{"length":0}', "/embed/{model}", {"preprocess", "inference"}),
        (1, "GET", "/answer/hi", b"HI", "/answer/{text}", {"inference"}),
        (4, "GET", "/answer", b"done", "/answer", set()),
        (
            5,
            "GET",
            "/length/four",
            b"4",
            "/length/{text}",
            {"batch_wait", "collate", "inference"},
        ),
        (6, "GET", "/write/new", b"Thequickanswer", "/write/{prompt}", set()),
    ],
)
def test_examples_serve_and_count(
    example: int, method: str, path: str, body: bytes, route: str, stages: set[str]
) -> None:
    app = run(EXAMPLES[example])["app"]

    async def main() -> str:
        assert (await request(app, path, method)).body == body
        return (await request(app, "/metrics")).body.decode()

    page = asyncio.run(main())
    assert page_values(page, "inference_requests_total", ["route"]) == {(route,): 1}
    counts = page_values(page, "inference_stage_duration_seconds_count", ["stage"])
    explicit = {name for (name,), count in counts.items() if count}
    assert explicit - {"ingress", "postprocess", "unattributed"} == stages


def test_the_worker_example_counts_outside_requests() -> None:
    assert "serve_metrics(12161" in EXAMPLES[2]
    server = run(EXAMPLES[2].replace("12161", "0"))["server"]
    try:
        page = render_metrics()[0].decode()
    finally:
        server.close()
    counts = page_values(page, "inference_stage_duration_seconds_count", ["service", "stage"])
    assert counts[("indexer", "inference")] == 2


def test_the_downstream_example_times_both_calls() -> None:
    example = run(EXAMPLES[3])
    with (
        socketserver.TCPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as closed,
        pytest.raises(OSError),
    ):
        closed.server_close()
        example["retrieve"](f"http://127.0.0.1:{closed.server_address[1]}")
    assert asyncio.run(example["rows"]()) == []
    page = render_metrics()[0].decode()
    counts = page_values(page, "inference_downstream_seconds_count", ["target"])
    assert counts == {("retrieval",): 1, ("db",): 1}


def test_serve_metrics_is_on_loopback_unless_told_otherwise() -> None:
    assert inspect.signature(serve_metrics).parameters["address"].default == "127.0.0.1"
