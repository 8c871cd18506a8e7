"""Observations that a kept trace is pointed to by, as exemplars of its buckets.

Whether a trace is kept is known when its request ends. Until then the request's span notes what was
observed; where a service has no spans nothing is noted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailwatch_tracing.cells import HistogramCell
    from tailwatch_tracing.spans.recorder import AnySpan
    from tailwatch_tracing.units import Unit


def observe(cell: HistogramCell, value: int, span: AnySpan | None) -> None:
    """Count a value of a request, in the unit of the histogram's grid."""
    cell.observe(value)
    if span is not None:
        span.observed(cell, value)


def note(cell: HistogramCell, value: int, unit: Unit) -> None:
    """Note a value that was counted for a unit of work, if that is a request with a span."""
    span: AnySpan | None = getattr(unit, "span", None)
    if span is not None:
        span.observed(cell, value)
