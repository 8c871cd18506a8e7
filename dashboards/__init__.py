"""The dashboards, as Python that builds the v1 JSON next to it."""
