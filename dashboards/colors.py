"""One colour per thing, the same on every dashboard (Grafana's named palette).

Green, orange and red are for good, near a limit and beyond it, wherever a thing can be either.
"""

from __future__ import annotations

GOOD = "green"
WARN = "orange"
BAD = "red"
CALM = "blue"
MUTED = "#8e8e9a"

TP50 = "light-blue"
TP99 = "purple"
LIMIT = "red"

# In the order in which a request meets them.
STAGES = {
    "ingress": "blue",
    "batch_wait": "yellow",
    "preprocess": "orange",
    "h2d": "light-purple",
    "inference": "green",
    "d2h": "dark-purple",
    "postprocess": "purple",
    "unattributed": MUTED,
}

# Outcomes that count against the SLO, worst last.
ERRORS = {
    "rejected": "yellow",
    "timeout": "orange",
    "error": "red",
    "error_midstream": "dark-red",
}

OUTCOMES = {
    "ok": "green",
    "client_error": "light-blue",
    "client_disconnect": "purple",
    "cancelled": MUTED,
    **ERRORS,
}

PRESSURE = {"cpu": "blue", "memory": "purple", "io": "yellow"}

CPU_MODES = {
    "user": "green",
    "system": "orange",
    "nice": "light-green",
    "irq": "yellow",
    "softirq": "light-orange",
    "steal": "red",
    "iowait": "purple",
    "guest": "light-blue",
}
