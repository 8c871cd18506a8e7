"""The pages say what the code does: every family, label and option, and examples that run."""

from __future__ import annotations

import asyncio
import http.server
import inspect
import re
import socketserver
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailwatch_tracing import StageTimingMiddleware, render_metrics, serve_metrics
from tailwatch_tracing.families import DEFAULT_SERIES_LIMIT, EDGES_NS, ERRORS, OUTCOMES
from tailwatch_tracing.middleware import PROBES
from tests.tracing.asgi import page_values, request

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/reference/service-metrics.md").read_text()
HOW_TO = (ROOT / "docs/how-to/instrument.md").read_text()
GOLDEN = (ROOT / "tests/golden/service.prom").read_text()

EXAMPLES = re.findall(r"^```python\n(.*?)^```", HOW_TO, re.MULTILINE | re.DOTALL)


def test_the_reference_has_every_family_with_its_type_and_labels() -> None:
    published = {}
    for family in text_string_to_metric_families(GOLDEN):
        names = {label for sample in family.samples for label in sample.labels} - {"service", "le"}
        suffix = "_total" if family.type == "counter" else ""
        published[family.name + suffix] = (family.type, names)
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \| ([\w, ]*)\|", REFERENCE, re.M)
    documented = {
        name: (kind, {label.strip() for label in labels.split(",") if label.strip()})
        for name, kind, labels in rows
    }
    assert documented == published


def test_the_reference_has_every_outcome_place_and_option() -> None:
    for outcome in OUTCOMES.row:
        assert f"| `{outcome}` |" in REFERENCE
    for where in ERRORS.row:
        assert f"`{where}`" in REFERENCE
    options = list(inspect.signature(StageTimingMiddleware).parameters)[1:]
    assert re.findall(r"^\| `(\w+)` \| ", REFERENCE.partition("## Options")[2], re.M) == options
    for path in PROBES:
        assert f"`{path}`" in REFERENCE
    assert f"| {DEFAULT_SERIES_LIMIT} |" in REFERENCE
    assert f"{len(EDGES_NS)} edges" in REFERENCE


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
