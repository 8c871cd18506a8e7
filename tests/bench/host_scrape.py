"""A scrape of the host collector against node_exporter with the same collectors."""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tailwatch_stack.native.binaries import locate
from tests.bench.harness import Result, median_interval, mirrored
from tests.bench.scrape import Exporter, samples

SCRAPES = 30  # a slot and exporter, twice
SPACING_SECONDS = 0.01

GOAL = 0.8

OURS, PEER = "tailwatch", "node_exporter"

# What the host collector reads: processor, load, memory, swap and OOM kills (vmstat), network,
# retransmissions (netstat), disks, pressure, context switches (stat).
_COLLECTORS = (
    "cpu",
    "loadavg",
    "meminfo",
    "vmstat",
    "netdev",
    "netstat",
    "diskstats",
    "pressure",
    "stat",
)


def run(slots: int) -> list[Result]:
    """Scrape both in turn: neither does anything between scrapes."""
    with ExitStack() as stack:
        exporters = {
            name: stack.enter_context(Exporter(command)) for name, command in _commands().items()
        }
        measured = [_slot(exporters) for _ in range(slots)]
        pages = {name: exporter.scrape()[1] for name, exporter in exporters.items()}
    return [
        *(
            Result(
                "host_scrape",
                f"{name}, {samples(pages[name])} samples, p50",
                "ms",
                median_interval([slot[name] * 1e3 for slot in measured]),
            )
            for name in exporters
        ),
        Result(
            "host_scrape",
            f"{OURS} / {PEER}, p50 of a scrape",
            "x",
            median_interval([slot[OURS] / slot[PEER] for slot in measured]),
            GOAL,
        ),
    ]


def _slot(exporters: dict[str, Exporter]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in exporters}
    for _ in range(SCRAPES):
        for name in mirrored(list(exporters)):
            seconds[name].append(exporters[name].scrape()[0])
            time.sleep(SPACING_SECONDS)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _commands() -> dict[str, list[str]]:
    return {
        OURS: [
            str(Path(sys.executable).with_name("tailwatch")),
            "exporter",
            "--web.listen-address=127.0.0.1:{port}",
            "--no-collector.gpu",
            "--no-collector.threads",
        ],
        PEER: [
            str(locate("node_exporter")),
            "--web.listen-address=127.0.0.1:{port}",
            "--web.disable-exporter-metrics",
            "--collector.disable-defaults",
            *(f"--collector.{name}" for name in _COLLECTORS),
        ],
    }
