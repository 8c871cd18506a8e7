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

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

import tailwatch_tracing
from docs import build
from tailwatch_tracing import render_metrics, serve_metrics, upstream
from tailwatch_tracing.families import (
    DEFAULT_SERIES_LIMIT,
    EDGES_NS,
    METRICS,
    OUTCOMES,
    SPANS_DROPPED,
    WORKER_FILES_SKIPPED,
)
from tests.tracing.asgi import page_values, request, values

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/reference/service-metrics.md").read_text()
HOW_TO = (ROOT / "docs/how-to/instrument.md").read_text()
GOLDEN = (ROOT / "tests/golden/service.prom").read_text()
TRAINING = (ROOT / "tests/golden/training.prom").read_text()

SECTIONS = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", HOW_TO, re.MULTILINE | re.DOTALL)
EXAMPLES = {
    heading: example
    for heading, section in SECTIONS
    for example in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
}


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
    for family in text_string_to_metric_families(GOLDEN + TRAINING):
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

    route = r'route="/(classify|answer)'
    assert count(rf"^inference_request_duration_seconds_.*{route}") == 2 * 75
    assert "| route | 75, " in HOW_TO
    assert count(rf"^inference_(time_to_|chunk_gap_).*{route}") == 225
    assert count(rf"^inference_time_per_output_token_seconds_.*{route}") == 75
    assert "| route that streams | 225 more, and 75 more" in HOW_TO
    assert count(rf"^inference_background_seconds_.*{route}") == 75
    assert "| route with background work | 75 more |" in HOW_TO
    assert count(r'^inference_stage_.*stage="preprocess"') == 78
    assert "| stage | 78; " in HOW_TO
    assert count(r'queue="preprocess"') == 77
    assert "| queue | 77 |" in HOW_TO
    assert count(r'batcher="encoder"') == 137
    assert "| batcher | 137 |" in HOW_TO
    assert (count(r'cache="'), count("^inference_cache_requests_total")) == (40, 3)
    assert "| cache | 40, without semantic hits 3 |" in HOW_TO
    assert count(r'target="') == 75
    assert "| target of `downstream` | 75 |" in HOW_TO
    process = count("^(python|cgroup|torch|tailwatch)_")
    assert 45 < process < 60
    assert "some 50 for its process" in HOW_TO
    assert round(10 * 80 + 5 * 78 + 77, -2) == 1300
    assert "10 routes, 2 stages and one queue has about 1,300 series" in HOW_TO
    assert f"`series_limit={DEFAULT_SERIES_LIMIT}`" in HOW_TO


def run(example: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "docs/how-to/instrument.md", "exec"), namespace)
    return namespace


def test_there_are_the_examples_that_are_tested_here() -> None:
    assert len(EXAMPLES) == len(re.findall("^```python", HOW_TO, re.MULTILINE)) == 10


@pytest.mark.parametrize(
    ("example", "method", "path", "body", "route", "stages"),
    [
        (
            "FastAPI",
            "POST",
            "/embed/small",
            b'{"length":0}',
            "/embed/{model}",
            {"preprocess", "inference"},
        ),
        ("Starlette", "GET", "/answer/hi", b"HI", "/answer/{text}", {"inference"}),
        ("Any other ASGI application", "GET", "/hi", b"/HI", "__unmatched__", {"inference"}),
        ("A queue, an objective, a timeout", "GET", "/answer", b"done", "/answer", set()),
        (
            "Batches",
            "GET",
            "/length/four",
            b"4",
            "/length/{text}",
            {"batch_wait", "collate", "inference"},
        ),
        (
            "Caches, cascades, tokens, models",
            "GET",
            "/write/new",
            b"Thequickanswer",
            "/write/{prompt}",
            set(),
        ),
    ],
)
def test_examples_serve_and_count(
    example: str, method: str, path: str, body: bytes, route: str, stages: set[str]
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
    assert "serve_metrics(12161" in EXAMPLES["A worker or a batch job"]
    server = run(EXAMPLES["A worker or a batch job"].replace("12161", "0"))["server"]
    try:
        page = render_metrics()[0].decode()
    finally:
        server.close()
    counts = page_values(page, "inference_stage_duration_seconds_count", ["service", "stage"])
    assert counts[("indexer", "inference")] == 2


def test_the_grpc_example_serves_and_counts() -> None:
    example = EXAMPLES["A gRPC server"].replace("127.0.0.1:50051", "127.0.0.1:0")
    names = run(example.replace("12161", "0"))
    try:
        with grpc.insecure_channel(f"127.0.0.1:{names['port']}") as channel:
            embed = channel.unary_unary("/Embedder/Embed")
            assert embed(b"hi", timeout=10) == b"HI"
        page = render_metrics()[0].decode()
    finally:
        names["server"].stop(None).wait(10)
        names["page"].close()
    counts = page_values(page, "inference_stage_duration_seconds_count", ["service", "stage"])
    assert counts[("embedder", "inference")] == 1
    assert page_values(page, "python_threadpool_limit", ["pool"])[("grpc",)] == 8


def test_behind_a_proxy_that_stamps_the_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds after nginx's `t=${msec}`."""
    monkeypatch.setattr(upstream, "time_ns", lambda: 1_700_000_005_123_000_000)
    app = run(EXAMPLES["Behind nginx, or another proxy"])["app"]
    asyncio.run(request(app, "/", headers=[(b"x-request-start", b"t=1700000000.123")]))
    assert values("inference_upstream_wait_seconds_sum") == {(): 5}


def test_the_downstream_example_times_both_calls() -> None:
    example = run(EXAMPLES["Calls to other services"])
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
