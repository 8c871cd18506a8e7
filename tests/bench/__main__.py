"""`python -m tests.bench [name ...]`: run, print a table, exit 1 if a goal is not proven met."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version

from tests.bench.harness import MINIMUM_SLOTS, Result, Verdict, table

BENCHES = (
    "middleware",
    "routes",
    "stages",
    "spans",
    "memory",
    "growth",
    "merge",
    "render",
    "scrape_overlap",
    "throughput",
    "gpu_scrape",
    "host_scrape",
)
PEERS = (
    "starlette",
    "asgi-runway",
    "prometheus-fastapi-instrumentator",
    "starlette-exporter",
    "prometheus-client",
    "fastapi",
    "opentelemetry-instrumentation-fastapi",
    "nvitop-exporter",
)


def main(argv: list[str] | None = None) -> int:
    """Return 0 when every goal is met by its whole interval, 1 when not, 2 on wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("benches", nargs="*", metavar="name", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--slots", type=int, default=10, help="passes over all variants (10)")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.benches) - set(BENCHES))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}, expected of {', '.join(BENCHES)}")
    if args.slots < MINIMUM_SLOTS:
        parser.error(f"--slots {args.slots}, expected at least {MINIMUM_SLOTS}")

    print(_machine(), flush=True)
    results: list[Result] = []
    for name in args.benches or BENCHES:
        started, waited = time.monotonic(), _cpu_pressure_seconds()
        try:
            results += importlib.import_module(f"tests.bench.{name}").run(args.slots)
        except (RuntimeError, ValueError) as error:  # a variant that does not do what is timed
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        took = time.monotonic() - started
        busy = (_cpu_pressure_seconds() - waited) / took
        print(f"{name}: {took:.0f} s, some task waited for a CPU {busy:.0%} of it", flush=True)
    print(table(results))
    failed = [r for r in results if r.verdict in (Verdict.MISSED, Verdict.NOISY)]
    for result in failed:
        print(f"{result.bench}: {result.what}: {result.verdict.value}", file=sys.stderr)
    return 1 if failed else 0


def _machine() -> str:
    peers = ", ".join(f"{name} {version(name)}" for name in PEERS)
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {_processor()}, {os.cpu_count()} CPUs, "
        f"Linux {platform.release()}, Python {platform.python_version()}, {peers}"
    )


def _processor() -> str:
    with open("/proc/cpuinfo") as cpuinfo:
        for line in cpuinfo:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _cpu_pressure_seconds() -> float:
    """Return the seconds since boot in which some task waited for a CPU; 0 without PSI."""
    try:
        with open("/proc/pressure/cpu") as pressure:
            some = pressure.readline()
    except OSError:
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6


if __name__ == "__main__":
    sys.exit(main())
