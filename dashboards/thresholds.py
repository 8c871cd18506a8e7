"""The numbers at which alerts fire, for the lines and colours of panels."""

from __future__ import annotations

TAIL_RATIO = 4.0  # TP99 / TP50
ERROR_BUDGET = 0.01  # share of requests that may fail
FAST_BURN = 14.4  # times the budget
SM_ACTIVE = 0.3
GPU_UTILIZATION = 0.7
WAITING = 1.0
HOT_THREAD = 0.9
