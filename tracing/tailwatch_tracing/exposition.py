"""The one text renderer: rows of own cells in, a Prometheus or OpenMetrics page out.

Formats: Prometheus text 0.0.4 and OpenMetrics 1.0.0. Label text is rendered once, by `labels`, and
kept by whoever owns a series, so that a scrape only joins strings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_OPENMETRICS_VERSIONS = frozenset(("", "0.0.1", "1.0.0"))


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
    """A histogram family; `edges` are the finite upper bounds, ascending."""

    name: str
    help: str
    edges: Sequence[float]
    series: Sequence[HistogramSeries]


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


def render_families(
    families: Iterable[Family | RenderedFamily | HistogramFamily], openmetrics: bool = False
) -> bytes:
    """Return the page as UTF-8, with `# EOF` at its end for OpenMetrics.

    A histogram's `_count` is the sum of the bucket counts read once, so that a page rendered while
    another thread observes is never torn.
    """
    lines: list[str] = []
    for family in families:
        if isinstance(family, Family):
            lines.append(_head(family.name, family.kind, family.help, openmetrics))
            lines.append(render_samples(family.name, family.samples))
        elif isinstance(family, RenderedFamily):
            lines.append(_head(family.name, family.kind, family.help, openmetrics))
            lines.extend(family.blocks)
        else:
            _add_histogram(lines, family, openmetrics)
    if openmetrics:
        lines.append("# EOF\n")
    # A label that UTF-8 cannot write, as from undecodable bytes, must not cost the whole page.
    return "".join(lines).encode(errors="replace")


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


@lru_cache(maxsize=1024)
def _head(name: str, kind: str, help_text: str, openmetrics: bool) -> str:
    # OpenMetrics names a counter's family without the suffix that its samples have.
    title = name.removesuffix("_total") if openmetrics and kind == "counter" else name
    return f"# HELP {title} {_help(help_text, openmetrics)}\n# TYPE {title} {kind}\n"


def _add_histogram(lines: list[str], family: HistogramFamily, openmetrics: bool) -> None:
    name = family.name
    lines.append(_head(name, "histogram", family.help, openmetrics))
    ends = [f'le="{number(float(edge))}"}} ' for edge in (*family.edges, math.inf)]
    for series in family.series:
        label_text = series.labels
        head = f"{name}_bucket{label_text[:-1]}," if label_text else f"{name}_bucket{{"
        exemplars = series.exemplars if openmetrics else None
        total = 0
        for index, (end, count) in enumerate(zip(ends, series.counts, strict=True)):
            total += count
            exemplar = exemplars.get(index) if exemplars else None
            lines.append(f"{head}{end}{total}{_exemplar(exemplar) if exemplar else ''}\n")
        lines.append(f"{name}_count{label_text} {total}\n")
        lines.append(f"{name}_sum{label_text} {number(series.sum)}\n")


def _exemplar(exemplar: Exemplar) -> str:
    ids = labels(trace_id=exemplar.trace_id, span_id=exemplar.span_id)
    return f" # {ids} {number(exemplar.value)} {number(exemplar.timestamp)}"
