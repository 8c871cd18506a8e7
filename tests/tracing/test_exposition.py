"""The renderer against the two parsers of prometheus_client, which is not the code under test."""

from __future__ import annotations

import math
import os

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tailwatch_tracing.client_registry import ClientRegistry
from tailwatch_tracing.exposition import (
    Exemplar,
    Family,
    HistogramFamily,
    HistogramSeries,
    RenderedFamily,
    labels,
    negotiate,
    number,
    render_families,
    render_samples,
)
from tailwatch_tracing.page import no_pause

AWKWARD = 'a"b\\c\nd,e}f{g é %d %% \0'
FAMILIES = (
    Family(
        "demo_things_total",
        "counter",
        'Things, "quoted" and back\\slashed.',
        [(labels(kind=AWKWARD, other="x"), 3), (labels(kind="", other="y"), 0)],
    ),
    Family("demo_level", "gauge", "A level.", [("", 1.5)]),
    Family("demo_info", "gauge", "Identity.", [(labels(uuid="GPU-1"), True)]),
    Family("demo_absent_total", "counter", "No sample yet.", []),
    HistogramFamily(
        "demo_seconds",
        "Durations.",
        (0.001, 1, 120.0),
        [
            HistogramSeries(labels(route="/a/{b}"), [1, 0, 2, 4], 512.25),
            HistogramSeries(labels(route=AWKWARD), [0, 0, 0, 2], 1000.0),
            HistogramSeries("", [0, 0, 0, 0], 0.0),
        ],
    ),
)


def samples(families: object) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families  # type: ignore[attr-defined]
        for sample in family.samples
    }


EXPECTED = {
    ("demo_things_total", (("kind", AWKWARD), ("other", "x"))): 3.0,
    ("demo_things_total", (("kind", ""), ("other", "y"))): 0.0,
    ("demo_level", ()): 1.5,
    ("demo_info", (("uuid", "GPU-1"),)): 1.0,
    ("demo_seconds_bucket", (("le", "0.001"), ("route", "/a/{b}"))): 1.0,
    ("demo_seconds_bucket", (("le", "1.0"), ("route", "/a/{b}"))): 1.0,
    ("demo_seconds_bucket", (("le", "120.0"), ("route", "/a/{b}"))): 3.0,
    ("demo_seconds_bucket", (("le", "+Inf"), ("route", "/a/{b}"))): 7.0,
    ("demo_seconds_count", (("route", "/a/{b}"),)): 7.0,
    ("demo_seconds_sum", (("route", "/a/{b}"),)): 512.25,
    ("demo_seconds_bucket", (("le", "0.001"), ("route", AWKWARD))): 0.0,
    ("demo_seconds_bucket", (("le", "1.0"), ("route", AWKWARD))): 0.0,
    ("demo_seconds_bucket", (("le", "120.0"), ("route", AWKWARD))): 0.0,
    ("demo_seconds_bucket", (("le", "+Inf"), ("route", AWKWARD))): 2.0,
    ("demo_seconds_count", (("route", AWKWARD),)): 2.0,
    ("demo_seconds_sum", (("route", AWKWARD),)): 1000.0,
    ("demo_seconds_bucket", (("le", "0.001"),)): 0.0,
    ("demo_seconds_bucket", (("le", "1.0"),)): 0.0,
    ("demo_seconds_bucket", (("le", "120.0"),)): 0.0,
    ("demo_seconds_bucket", (("le", "+Inf"),)): 0.0,
    ("demo_seconds_count", ()): 0.0,
    ("demo_seconds_sum", ()): 0.0,
}


@pytest.mark.parametrize("openmetrics", [False, True])
def test_both_parsers_read_back_what_was_put_in(openmetrics: bool) -> None:
    page = render_families(FAMILIES, openmetrics).decode()
    families = list((parse_openmetrics if openmetrics else parse_text)(page))
    assert samples(families) == EXPECTED
    assert {f.name: f.type for f in families} == {
        "demo_things": "counter",
        "demo_level": "gauge",
        "demo_info": "gauge",
        "demo_absent": "counter",
        "demo_seconds": "histogram",
    }
    assert families[0].documentation == 'Things, "quoted" and back\\slashed.'


def test_counters_are_typed_with_their_suffix_in_text_only() -> None:
    assert b"# TYPE demo_things_total counter\n" in render_families(FAMILIES)
    assert b"# TYPE demo_things counter\n" in render_families(FAMILIES, openmetrics=True)


def test_openmetrics_ends_once_and_text_never() -> None:
    assert render_families(FAMILIES, openmetrics=True).count(b"# EOF\n") == 1
    assert render_families(FAMILIES, openmetrics=True).endswith(b"# EOF\n")
    assert b"# EOF" not in render_families(FAMILIES)


def test_exemplars_are_on_their_bucket_in_openmetrics_only() -> None:
    exemplar = Exemplar("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 0.67, 1700000000.5)
    family = HistogramFamily(
        "demo_seconds",
        "Durations.",
        (0.5, 1.0),
        [HistogramSeries("", [0, 1, 0], 0.67, {1: exemplar})],
    )
    (parsed,) = parse_openmetrics(render_families([family], openmetrics=True).decode())
    with_exemplar = [s for s in parsed.samples if s.exemplar]
    assert [s.labels["le"] for s in with_exemplar] == ["1.0"]
    assert with_exemplar[0].exemplar.labels == {
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
    }
    assert with_exemplar[0].exemplar.value == 0.67
    assert float(with_exemplar[0].exemplar.timestamp) == 1700000000.5
    assert b" # {" not in render_families([family])


def test_an_exemplar_is_on_its_bucket_whatever_the_labels_have() -> None:
    """Bytes know more ends of a line than the format does."""
    exemplar = Exemplar("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 0.67, 1700000000.5)
    series = HistogramSeries(
        labels(route="a\rb\x0bc\x85"), [0, 1, 0], 0.67, {1: exemplar, 7: exemplar}
    )
    page = render_families([HistogramFamily("d", "D.", (0.5, 1.0), [series])], openmetrics=True)
    found = [line for line in page.decode().split("\n") if " # {" in line]
    assert len(found) == 1
    assert 'le="1.0"} 1 # {trace_id="0af7651916cd43dd8448eb211c80319c"' in found[0]


def test_a_histogram_with_a_missing_bucket_is_refused() -> None:
    """One count per bucket and one for +Inf, or the page would silently shift."""
    family = HistogramFamily("demo_seconds", "D.", (1.0,), [HistogramSeries("", [1], 0.0)])
    with pytest.raises(ValueError, match="demo_seconds: 1 counts, need 2"):
        render_families([family])


class NumpyFloat(float):
    """Is written as numpy 2 writes its own."""

    def __repr__(self) -> str:
        return f"np.float64({float(self)})"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (True, "1"),
        (2**63, "9223372036854775808"),
        (0.1, "0.1"),
        (1e-9, "1e-09"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
        (NumpyFloat(0.3), "0.3"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_no_labels_render_as_nothing() -> None:
    assert labels() == ""


PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("text/html,*/*;q=0.8", False),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        ("APPLICATION/OPENMETRICS-TEXT; VERSION=1.0.0", True),
        ('application/openmetrics-text; version="1.0.0"', True),
        ("application/openmetrics-text; version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.1, text/plain;q=0.9", False),
        ("application/openmetrics-text;q=soon", False),
        (";;,,;q", False),
    ],
)
def test_negotiation(accept: str | None, openmetrics: bool) -> None:
    chosen, content_type = negotiate(accept)
    assert chosen is openmetrics
    assert content_type.startswith("application/openmetrics-text" if openmetrics else "text/plain")


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_registry_joins_the_page_before_its_end(openmetrics: bool) -> None:
    registry = CollectorRegistry()
    Counter("theirs", "Theirs.", registry=registry).inc()
    theirs = b"".join(ClientRegistry(lambda: registry, pytest.fail).pieces(openmetrics, no_pause))
    page = theirs + render_families(FAMILIES, openmetrics)
    parse = parse_openmetrics if openmetrics else parse_text
    names = {family.name for family in parse(page.decode())}
    assert {"theirs", "demo_things"} <= names


@pytest.mark.parametrize("openmetrics", [False, True])
def test_lines_made_earlier_give_the_same_page(openmetrics: bool) -> None:
    plain = [family for family in FAMILIES if isinstance(family, Family)]
    rendered = [
        RenderedFamily(
            family.name,
            family.kind,
            family.help,
            [render_samples(family.name, [sample]) for sample in family.samples],
        )
        for family in plain
    ]
    assert render_families(rendered, openmetrics) == render_families(plain, openmetrics)


def test_a_label_that_utf_8_cannot_write_costs_only_itself() -> None:
    family = Family("a_total", "counter", "A.", [(labels(x=os.fsdecode(b"caf\xe9")), 1)])
    assert b'a_total{x="caf?"} 1\n' in render_families([family])
