"""A small real inference service, its load, its faults and the receiver of its pages."""
