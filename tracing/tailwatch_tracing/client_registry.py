"""The families of a prometheus_client registry, rendered by the client itself."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import CollectorRegistry


def render_registry(registry: CollectorRegistry, openmetrics: bool) -> bytes:
    """Return the registry's families, without `# EOF`, to be put before ours."""
    if not openmetrics:
        return generate_latest(registry)
    page: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    return page.removesuffix(b"# EOF\n")
