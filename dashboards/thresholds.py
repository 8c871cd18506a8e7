"""The numbers at which alerts fire, for the lines and colours of panels.

Read from alert_rules/thresholds.yaml, so that a page and the picture it links to agree.
"""

from __future__ import annotations

from pathlib import Path

import yaml

_PATH = Path(__file__).parent.parent / "alert_rules" / "thresholds.yaml"
_SECTIONS: dict[str, dict[str, dict[str, float]]] = yaml.safe_load(
    _PATH.read_text(encoding="utf-8")
)

TAIL_RATIO = _SECTIONS["latency_tail"]["ratio_min"]["value"]
ERROR_BUDGET = round(1 - _SECTIONS["slo"]["objective"]["value"], 6)
FAST_BURN = _SECTIONS["slo"]["fast_burn"]["value"]
FAST_BURN_ERRORS = round(ERROR_BUDGET * FAST_BURN, 6)
SM_ACTIVE = _SECTIONS["gpu_starved"]["sm_active_max"]["value"]
WAITING = _SECTIONS["gpu_starved"]["waiting_min"]["value"]
QUEUE_DEPTH = _SECTIONS["queue"]["depth_min"]["value"]
HOT_THREAD = _SECTIONS["causes"]["hot_thread"]["value"]
PAUSE_SHARE = _SECTIONS["causes"]["pause_share"]["value"]
