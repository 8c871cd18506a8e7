"""Exporters for the host, its threads and its GPUs."""
