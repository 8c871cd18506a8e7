"""OpenTelemetry's current context, with one call less where its implementation has a name.

Its public functions only pass on to that; `detach` moreover logs what our callers expect, a context
that is closed in another one.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import context

_runtime: Any = getattr(context, "_RUNTIME_CONTEXT", context)

get_current = _runtime.get_current
attach = _runtime.attach
detach = _runtime.detach

__all__ = ["attach", "detach", "get_current"]
