"""Made-up data for the dashboard that has a panel of every type."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.browser.openmetrics import Ramp

_SERVICES = {"web": 12.0, "app": 5.0, "worker.1": 0.5}  # requests per second
_SHOPS = {"berlin": 0.42, "paris": 0.71, "rome": 0.93}  # how full
_GIB = 1 << 30
# Share of requests at or under each bound, so that p50 lies near 0.1 s and p99 near 0.5 s.
_LATENCY = {"0.05": 0.2, "0.1": 0.5, "0.2": 0.8, "0.4": 0.97, "0.8": 1.0, "+Inf": 1.0}


def shop_ramps() -> Iterator[Ramp]:
    for service, rate in _SERVICES.items():
        yield Ramp("shop_requests_total", {"service": service}, lambda t, r=rate: r * t)
    for bound, share in _LATENCY.items():
        labels = {"le": bound}
        yield Ramp("shop_latency_seconds_bucket", labels, lambda t, s=share: 10 * s * t)
    for index, (shop, full) in enumerate(_SHOPS.items()):
        labels = {"shop": shop}
        yield Ramp("shop_fill_ratio", labels, lambda _t, f=full: f)
        yield Ramp("shop_stock_bytes", labels, lambda _t, f=full: f * 8 * _GIB)
        yield Ramp(
            "shop_open", labels, lambda t, i=index: float(math.sin(t / (300 + 90 * i)) > -0.5)
        )
    deploy = {"shop": "rome", "version": "7"}
    yield Ramp("shop_deploy", deploy, lambda t: float(1200 <= t <= 1500))
