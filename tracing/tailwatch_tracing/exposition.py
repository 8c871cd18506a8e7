"""The one text renderer: rows of own cells in, a Prometheus or OpenMetrics page out.

Formats: Prometheus text 0.0.4 and OpenMetrics 1.0.0. Label text is rendered once, by `labels`, and
kept by whoever owns a series, so that a scrape only joins strings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import Literal, NamedTuple

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_OPENMETRICS_VERSIONS = frozenset(("", "0.0.1", "1.0.0"))

_SAMPLES_A_PIECE = 50  # about as long to render as a histogram series


class Family(NamedTuple):
    """A counter or gauge family.

    `name` is the full name (a counter's ends in `_total`), `samples` are pairs of rendered label
    text and value. A family without samples keeps its HELP and TYPE lines.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Sequence[tuple[str, float]]


class RenderedFamily(NamedTuple):
    """A counter or gauge family whose sample lines were made earlier, by `render_samples`.

    `blocks` are such texts; they are the same in both formats.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    blocks: Sequence[str]


class Exemplar(NamedTuple):
    """One observation that has a trace: hex ids, the observed value, Unix seconds."""

    trace_id: str
    span_id: str
    value: float
    timestamp: float


class HistogramSeries(NamedTuple):
    """One series: `counts` per bucket, not cumulative, one more than the family has edges.

    `exemplars` maps a bucket's index to the exemplar of that bucket.
    """

    labels: str
    counts: Sequence[int]
    sum: float
    exemplars: Mapping[int, Exemplar] | None = None


class HistogramFamily(NamedTuple):
    """A histogram family; `edges` are the finite upper bounds, ascending.

    Its series may be made while they are rendered.
    """

    name: str
    help: str
    edges: Sequence[float]
    series: Iterable[HistogramSeries]


def labels(**pairs: str) -> str:
    """Return `{a="b",c="d"}` in the given order with values escaped, `""` for no pairs."""
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs.items()) + "}"


def number(value: float) -> str:
    """Return a sample value as both formats write it: shortest form, `+Inf`, `-Inf`, `NaN`."""
    if isinstance(value, int):
        return str(int(value))  # a bool is written as a number too
    if math.isfinite(value):
        return repr(float(value))  # a float of numpy's has another repr
    if math.isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"


def render_samples(name: str, samples: Iterable[tuple[str, float]]) -> str:
    """Return the sample lines of a counter or gauge, for a `RenderedFamily`."""
    return "".join([f"{name}{label_text} {number(value)}\n" for label_text, value in samples])


AnyFamily = Family | RenderedFamily | HistogramFamily


def render_families(families: Iterable[AnyFamily], openmetrics: bool = False) -> bytes:
    """Return the page as UTF-8, with `# EOF` at its end for OpenMetrics.

    Raises:
        ValueError: a histogram series with another number of counts than its family has buckets.
    """
    return b"".join(render_pieces(families, openmetrics))


def render_pieces(families: Iterable[AnyFamily], openmetrics: bool = False) -> Iterator[bytes]:
    """Yield the page piece by piece: a head, a histogram series, 50 samples, what came rendered.

    A renderer that must not hold the interpreter for long can pause between any two; none of them
    takes much longer than 20 us. A histogram's `_count` is the sum of the bucket counts read once,
    so that a page rendered while another thread observes is never torn.
    """
    for family in families:
        kind = "histogram" if isinstance(family, HistogramFamily) else family.kind
        yield _head(family.name, kind, family.help, openmetrics)
        if isinstance(family, RenderedFamily):
            yield _encoded("".join(family.blocks))
        elif isinstance(family, HistogramFamily):
            template = _bucket_template(tuple(family.edges))
            for series in family.series:
                yield _histogram_lines(family, series, template, openmetrics)
        else:
            samples = iter(family.samples)
            while some := list(islice(samples, _SAMPLES_A_PIECE)):
                yield _encoded(render_samples(family.name, some))
    if openmetrics:
        yield b"# EOF\n"


def negotiate(accept: str | None) -> tuple[bool, str]:
    """Return whether an Accept header asks for OpenMetrics, and the Content-Type to answer with.

    Text 0.0.4 is the answer to no header and to anything not understood. OpenMetrics wins when a
    version of it that we write is accepted with a quality at least as high as text's (RFC 9110,
    section 12.5.1).
    """
    openmetrics_quality = 0.0
    text_quality = 0.0
    for part in (accept or "").lower().split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        given = dict(p.split("=", 1) for p in parameters if "=" in p)
        quality = _quality(given.get("q", "1"))
        if media == "application/openmetrics-text":
            if given.get("version", "").strip('"') in _OPENMETRICS_VERSIONS:
                openmetrics_quality = max(openmetrics_quality, quality)
        elif media == "text/plain":
            text_quality = max(text_quality, quality)
    if openmetrics_quality > 0 and openmetrics_quality >= text_quality:
        return True, OPENMETRICS_CONTENT_TYPE
    return False, TEXT_CONTENT_TYPE


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether an Accept-Encoding header names gzip with a quality above 0."""
    for part in accept_encoding.lower().split(","):
        coding, _, parameter = part.strip().partition(";")
        if coding.strip() == "gzip":
            return parameter.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _help(text: str, openmetrics: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if openmetrics else text


def _encoded(text: str) -> bytes:
    # A label that UTF-8 cannot write, as from undecodable bytes, must not cost the whole page.
    return text.encode(errors="replace")


@lru_cache(maxsize=1024)
def _head(name: str, kind: str, help_text: str, openmetrics: bool) -> bytes:
    # OpenMetrics names a counter's family without the suffix that its samples have.
    title = name.removesuffix("_total") if openmetrics and kind == "counter" else name
    return _encoded(f"# HELP {title} {_help(help_text, openmetrics)}\n# TYPE {title} {kind}\n")


_SERIES = b"\0"
"""Stands in a bucket template for what all lines of one series begin with."""


@lru_cache(maxsize=64)
def _bucket_template(edges: tuple[float, ...]) -> bytes:
    """Return the bucket lines of any series with these edges, each with a `%d` for its count."""
    texts = [number(float(edge)).encode() for edge in (*edges, math.inf)]
    return b"".join([b'%sle="%s"} %%d\n' % (_SERIES, text) for text in texts])


def _histogram_lines(
    family: HistogramFamily, series: HistogramSeries, template: bytes, openmetrics: bool
) -> bytes:
    name, label_text = family.name, series.labels
    buckets = len(family.edges) + 1
    if len(series.counts) != buckets:
        raise ValueError(f"{name}{label_text}: {len(series.counts)} counts, need {buckets}")
    start = f"{name}_bucket{label_text[:-1]}," if label_text else f"{name}_bucket{{"
    totals = tuple(accumulate(series.counts))
    # Two passes in C over all lines take a third of the time of one in Python over each.
    lines = template.replace(_SERIES, _encoded(start.replace("%", "%%"))) % totals
    if openmetrics and series.exemplars:
        lines = _with_exemplars(lines, series.exemplars)
    return lines + _encoded(
        f"{name}_count{label_text} {totals[-1]}\n{name}_sum{label_text} {number(series.sum)}\n"
    )


def _with_exemplars(lines: bytes, exemplars: Mapping[int, Exemplar]) -> bytes:
    of_buckets = lines.split(b"\n")  # the last one is empty
    for index, exemplar in exemplars.items():
        if index < len(of_buckets) - 1:
            ids = labels(trace_id=exemplar.trace_id, span_id=exemplar.span_id)
            at = f"{number(exemplar.value)} {number(exemplar.timestamp)}"
            of_buckets[index] += _encoded(f" # {ids} {at}")
    return b"\n".join(of_buckets)
