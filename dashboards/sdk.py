"""The classic (v1) builders of grafana-foundation-sdk, imported in one place.

Grafana 10 to 13 and the viewer read v1; dashboards v2 needs Grafana 12 or newer.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # The classic builders warn on import that v2 is preferred (0.0.21).
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import (
        bargauge,
        common,
        dashboard,
        heatmap,
        prometheus,
        stat,
        statetimeline,
        table,
        timeseries,
    )
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model
from grafana_foundation_sdk.models import units

__all__ = [
    "JSONEncoder",
    "bargauge",
    "common",
    "common_model",
    "dashboard",
    "heatmap",
    "heatmap_model",
    "model",
    "prometheus",
    "prometheus_model",
    "stat",
    "statetimeline",
    "table",
    "timeseries",
    "units",
]
