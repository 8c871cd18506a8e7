"""OpenTelemetry spans: one per request, one child per stage, made when the request ends.

Needs `tailwatch[tracing]` and an endpoint in OTEL_EXPORTER_OTLP_ENDPOINT or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT; without either nothing of OpenTelemetry is imported.

A request's record and its stages hold every time already. So its beginning only decides whether it
is sampled, draws its ids and makes a span current for clients called within; span data come into
being at its end, and only for a trace that is kept: a sampled one, or one that was slow or failed.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailwatch_tracing.service import Service
    from tailwatch_tracing.spans.recorder import SpanRecorder

logger = logging.getLogger("tailwatch_tracing")


def are_configured(environ: Mapping[str, str]) -> bool:
    """Return whether an OTLP endpoint is set and tracing is not switched off.

    A set endpoint without the extra is said once per service, in the log.
    """
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    is_off = (
        environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        or environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"
    )
    if not endpoint or is_off:
        return False
    if _is_installed("opentelemetry.sdk.trace") and _is_installed("opentelemetry.exporter.otlp"):
        return True
    logger.warning("an OTLP endpoint is set, but spans need: pip install 'tailwatch[tracing]'")
    return False


def recorder_of(service: Service) -> SpanRecorder | None:
    """Return what makes a service's spans; None, counted and logged, when it cannot be made.

    Imports OpenTelemetry now, so that no request waits for that, up to a second.
    """
    try:
        from tailwatch_tracing.spans.recorder import SpanRecorder

        return SpanRecorder(service)
    except Exception:
        service.note_error("spans")
        return None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
