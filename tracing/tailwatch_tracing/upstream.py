"""How long a request was under way before it reached the service, as told by a trusted proxy.

`X-Request-Start` has the Unix time at which the proxy took the request in: seconds with decimals
(nginx: `t=${msec}`), or whole milliseconds (Heroku), microseconds (Apache: `t=%t`) or nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from time import time_ns

_STAMP = re.compile(rb"\s*(?:t=)?(\d{10}|\d{13}|\d{16}|\d{19})(?:\.(\d{1,9}))?\s*")

_CLOCK_SKEW_NS = 10**9
"""By how much a proxy's clock may be ahead: such a request has not waited."""

_LONGEST_WAIT_NS = 3600 * 10**9
"""No proxy holds a request for longer: the header is a client's own, or an old one."""


def wait_ns(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the nanoseconds since the earliest X-Request-Start, None without one to be believed.

    Several proxies may each have left a stamp in the headers, which are those of an ASGI scope:
    their names are in lower case.
    """
    stamps = [value for name, value in headers if name == b"x-request-start"]
    if not stamps:
        return None
    now_ns = time_ns()
    waits = [
        now_ns - stamp_ns
        for stamp_ns in map(_parse, b",".join(stamps).split(b","))
        if stamp_ns is not None and -_CLOCK_SKEW_NS <= now_ns - stamp_ns <= _LONGEST_WAIT_NS
    ]
    return max(0, *waits) if waits else None


def _parse(stamp: bytes) -> int | None:
    """Return Unix nanoseconds; the number of digits tells the unit, until the year 2286."""
    match = _STAMP.fullmatch(stamp)
    if match is None:
        return None
    whole, decimals = match.groups(b"")
    nanoseconds = whole.ljust(19, b"0")
    unit_ns = int(b"1".ljust(20 - len(whole), b"0"))
    return int(nanoseconds) + int(decimals.ljust(9, b"0")) * unit_ns // 10**9
