"""W3C trace context and baggage, read from a request's headers.

Headers come from outside: whatever is not valid is left out, without a line in the log. Only the
standard's own formats are read here; OTEL_PROPAGATORS may name others.

Source: W3C Trace Context (Recommendation 2021-11-23, and level 2 for the random flag), W3C Baggage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote_plus, unquote_plus

SAMPLED = 0x01
RANDOM = 0x02

MOST_STATE_BYTES = 512
MOST_BAGGAGE_BYTES = 8192
MOST_BAGGAGE_MEMBERS = 64

_LONGEST_BAGGAGE_MEMBER = 4096  # bytes; OpenTelemetry sends no longer one, and logs it
_MOST_STATE_MEMBERS = 32
_LONGEST_STATE = _MOST_STATE_MEMBERS * 514  # bytes of as many of the longest members
_LONG_STATE_MEMBER = 128
_LONGEST_TRACEPARENT = 512  # a later version may be longer than the 55 of version 00

_TRACEPARENT = re.compile(
    rb"[ \t]*([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?[ \t]*"
)
_STATE_MEMBER = re.compile(
    r"([a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
    r"=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])"
)
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # RFC 7230, section 3.2.6
_VALUE = r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
_PROPERTY = rf"[ \t]*{_TOKEN}[ \t]*(?:=[ \t]*{_VALUE}[ \t]*)?"
_BAGGAGE_MEMBER = re.compile(rf"({_TOKEN})[ \t]*=[ \t]*({_VALUE}[ \t]*(?:;{_PROPERTY})*)")

FIELDS = frozenset((b"traceparent", b"tracestate", b"baggage"))
"""The headers of the standards."""


class RemoteParent(NamedTuple):
    """The caller's span: its ids, its flags, and the header tracestate, still as it came."""

    trace_id: int
    span_id: int
    flags: int
    state: bytes


def read_headers(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[RemoteParent | None, list[bytes] | None]:
    """Return the caller's span, if it sent one, and its baggage headers, if any.

    Names are lower-case, as ASGI has them.
    """
    found: list[tuple[bytes, bytes]] | None = None
    for header in headers:
        if header[0] in FIELDS:
            if found is None:
                found = [header]
            else:
                found.append(header)
    if found is None:
        return None, None
    parents = [value for name, value in found if name == b"traceparent"]
    baggage = [value for name, value in found if name == b"baggage"] or None
    parent = None
    if len(parents) == 1:  # of two nobody knows which is the caller's
        state = b",".join(value for name, value in found if name == b"tracestate")
        if len(state) > MOST_STATE_BYTES:  # it is held until the trace is exported
            members = parse_tracestate(state)
            state = ",".join(f"{key}={value}" for key, value in members).encode()
        parent = parse_traceparent(parents[0], state)
    return parent, baggage


def parse_traceparent(value: bytes, state: bytes = b"") -> RemoteParent | None:
    """Return the caller's span, or None for a value that the standard does not allow."""
    match = _TRACEPARENT.fullmatch(value) if len(value) <= _LONGEST_TRACEPARENT else None
    if match is None:
        return None
    version, trace, span, flags, rest = match.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == b"ff" or (version == b"00" and rest) or not trace_id or not span_id:
        return None
    return RemoteParent(trace_id, span_id, int(flags, 16) & (SAMPLED | RANDOM), state)


def parse_tracestate(value: bytes) -> list[tuple[str, str]]:
    """Return the members; none when one of them, or their number, is not allowed.

    Of more than 512 bytes the long members are left out first, then the last ones, as the standard
    has it ("Tracestate Limits").
    """
    if len(value) > _LONGEST_STATE:
        return []
    members: dict[str, str] = {}
    for text in value.decode("latin-1").split(","):
        member = text.strip(" \t")
        if not member:
            continue
        match = _STATE_MEMBER.fullmatch(member)
        if match is None or match[1] in members:
            return []
        members[match[1]] = match[2]
    if len(members) > _MOST_STATE_MEMBERS:
        return []
    size = sum(len(key) + len(text) + 2 for key, text in members.items()) - 1
    for longest in (_LONG_STATE_MEMBER, 0):
        for key, text in reversed(list(members.items())):
            member_size = len(key) + 1 + len(text)
            if size > MOST_STATE_BYTES and member_size > longest:
                del members[key]
                size -= member_size + 1
    return list(members.items())


def parse_baggage(values: Sequence[bytes]) -> dict[str, str]:
    """Return name -> value of the valid members, as far as they can be sent on.

    That is the first 64 members of at most 4096 bytes each and 8192 bytes together, in the form in
    which OpenTelemetry writes them. Values keep their properties (`;key=value`), as there.
    """
    text = b",".join(values)[: MOST_BAGGAGE_BYTES + 1].decode("latin-1")
    members = text.split(",")
    if len(text) > MOST_BAGGAGE_BYTES:
        members.pop()  # it may be cut
    baggage: dict[str, str] = {}
    size = 0
    for member in members[:MOST_BAGGAGE_MEMBERS]:
        match = _BAGGAGE_MEMBER.fullmatch(member.strip(" \t"))
        if match is None:
            continue
        name, value = unquote_plus(match[1]).strip(), unquote_plus(match[2]).strip()
        member_size = len(quote_plus(name)) + 1 + len(quote_plus(value))
        size += member_size + 1
        if member_size > _LONGEST_BAGGAGE_MEMBER or size > MOST_BAGGAGE_BYTES + 1:
            break
        baggage[name] = value
    return baggage
