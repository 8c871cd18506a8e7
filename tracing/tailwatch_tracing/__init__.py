"""Request and stage timing for AI inference services."""

from tailwatch_tracing.middleware import StageTimingMiddleware
from tailwatch_tracing.queues import RequestQueue
from tailwatch_tracing.serving import metrics_app, render_metrics, serve_metrics
from tailwatch_tracing.stages import stage

__all__ = [
    "RequestQueue",
    "StageTimingMiddleware",
    "metrics_app",
    "render_metrics",
    "serve_metrics",
    "stage",
]
