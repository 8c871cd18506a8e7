"""Request and stage timing for AI inference services."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailwatch_tracing.batching import BatchPlace, RequestBatcher
    from tailwatch_tracing.caching import ResultCache
    from tailwatch_tracing.calls import downstream
    from tailwatch_tracing.cascade import CascadeTier
    from tailwatch_tracing.middleware import StageTimingMiddleware
    from tailwatch_tracing.models import LoadedModel, model_loaded, model_loading
    from tailwatch_tracing.queues import QueuePlace, RequestQueue
    from tailwatch_tracing.runtime import watch_largest_free_block, watch_threadpool
    from tailwatch_tracing.serving import metrics_app, render_metrics, serve_metrics
    from tailwatch_tracing.stages import stage
    from tailwatch_tracing.tokens import count_tokens
    from tailwatch_tracing.training.monitor import TrainingMonitor as TrainingMonitor

# Without TrainingMonitor: it needs torch, and `import *` is to work everywhere.
__all__ = [
    "BatchPlace",
    "CascadeTier",
    "LoadedModel",
    "QueuePlace",
    "RequestBatcher",
    "RequestQueue",
    "ResultCache",
    "StageTimingMiddleware",
    "count_tokens",
    "downstream",
    "metrics_app",
    "model_loaded",
    "model_loading",
    "render_metrics",
    "serve_metrics",
    "stage",
    "watch_largest_free_block",
    "watch_threadpool",
]

_MODULES = {
    "BatchPlace": "batching",
    "CascadeTier": "cascade",
    "LoadedModel": "models",
    "QueuePlace": "queues",
    "RequestBatcher": "batching",
    "RequestQueue": "queues",
    "ResultCache": "caching",
    "StageTimingMiddleware": "middleware",
    "TrainingMonitor": "training.monitor",
    "count_tokens": "tokens",
    "downstream": "calls",
    "metrics_app": "serving",
    "model_loaded": "models",
    "model_loading": "models",
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
