"""Request and stage timing for AI inference services."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailwatch_tracing.calls import downstream
    from tailwatch_tracing.middleware import StageTimingMiddleware
    from tailwatch_tracing.queues import RequestQueue
    from tailwatch_tracing.runtime import watch_largest_free_block, watch_threadpool
    from tailwatch_tracing.serving import metrics_app, render_metrics, serve_metrics
    from tailwatch_tracing.stages import stage

__all__ = [
    "RequestQueue",
    "StageTimingMiddleware",
    "downstream",
    "metrics_app",
    "render_metrics",
    "serve_metrics",
    "stage",
    "watch_largest_free_block",
    "watch_threadpool",
]

_MODULES = {
    "RequestQueue": "queues",
    "StageTimingMiddleware": "middleware",
    "downstream": "calls",
    "metrics_app": "serving",
    "render_metrics": "serving",
    "serve_metrics": "serving",
    "stage": "stages",
    "watch_largest_free_block": "runtime",
    "watch_threadpool": "runtime",
}


def __getattr__(name: str) -> Any:
    # On first use: the exporter takes the renderer alone and stays 10 MB smaller.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
