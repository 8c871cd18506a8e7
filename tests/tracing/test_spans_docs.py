"""docs/how-to/trace.md says what the spans do."""

from __future__ import annotations

import re
from pathlib import Path

from tailwatch_tracing.families import SPANS_DROPPED
from tailwatch_tracing.spans import conventions, export, kept, propagation, request_span, sampling
from tests.tracing.asgi import http_scope

PAGE = (Path(__file__).parents[2] / "docs/how-to/trace.md").read_text()


def test_every_attribute_is_named() -> None:
    headers = [(b"host", b"a"), (b"user-agent", b"b")]
    attributes = conventions.request_attributes(http_scope("/", "BREW", headers=headers))
    try:
        raise LookupError
    except LookupError:
        conventions.add_outcome(attributes, "/x", 500, "error")
    assert len(attributes) == 13
    for name in attributes:
        assert f"`{name}`" in PAGE
    for outcome in conventions.FAILED:
        assert f"`{outcome}`" in PAGE


def test_every_reason_of_a_drop_is_in_the_table() -> None:
    assert tuple(re.findall(r"^\| `(\w+)` \| ", PAGE, re.M)) == SPANS_DROPPED.row


def test_numbers_are_the_codes() -> None:
    for text in (
        f"up to {sampling.KEPT_PER_SECOND} a second",
        f"the first {kept.STAGE_SPANS} of a request",
        f"cut at {conventions.LONGEST_VALUE} characters",
        f"({propagation.MOST_BAGGAGE_MEMBERS} members, {propagation.MOST_BAGGAGE_BYTES} bytes)",
        f"it has {export.EXIT_SECONDS:.0f} seconds",
    ):
        assert text in PAGE, text
    assert request_span.MOST_ITEMS == 128
