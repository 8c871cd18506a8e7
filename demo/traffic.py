"""The demo's clients: an open-loop load of real files on the demo service.

    python -m demo.traffic                          # the load of whatever fault is on
    python -m demo.traffic --rate 20 --burst 4      # a load of your own

Each request has a due time that nothing the service does can move, its latency counts from
there, and it is given up after the client's timeout: a service that falls behind is sent no
less. Every interval one line says what was sent and what came back.
"""

import argparse
import asyncio
import logging
import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from demo.arrivals import arrivals
from demo.settings import ADDRESS, CLIENT_TIMEOUT_SECONDS, SERVICE_PORT

logger = logging.getLogger("demo.traffic")

POLL_SECONDS = 1.0
MOST_FILES = 64
MOST_FILE_BYTES = 32 * 1024
FEWEST_FILE_BYTES = 64  # a smaller one may be answered without the model


@dataclass(frozen=True)
class Shape:
    """The load to send: `burst` requests together, `rate_per_second` on average."""

    rate_per_second: float
    burst: int


@dataclass
class Interval:
    """What happened since the last line."""

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)  # of answered requests, seconds
    lags: list[float] = field(default_factory=list)  # sent after due, seconds

    def line(self, seconds: float, shape: Shape) -> str:
        """Return the summary of an interval that lasted `seconds`."""
        return (
            f"offered {shape.rate_per_second:.1f}/s, sent {self.sent / seconds:.1f}/s"
            f" (lag p99 {1000 * quantile(self.lags, 0.99):.0f} ms);"
            + "".join(
                f" {name} {self.outcomes[name]}" for name in ("ok", "rejected", "timeout", "error")
            )
            + f"; p50 {1000 * quantile(self.latencies, 0.5):.0f} ms"
            f" p99 {1000 * quantile(self.latencies, 0.99):.0f} ms"
        )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of them do not exceed; 0.0 for none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def real_files() -> list[bytes]:
    """Return the content of files of many kinds: this checkout's and Python's own library."""
    by_suffix: dict[str, list[Path]] = {}
    for root in (Path(__file__).parent.parent, Path(os.__file__).parent):
        for path in _files_below(root):
            by_suffix.setdefault(path.suffix, []).append(path)
    chosen = [path for paths in by_suffix.values() for path in paths[:8]][:MOST_FILES]
    return [path.read_bytes() for path in chosen]


def _files_below(root: Path) -> Iterator[Path]:
    skipped = {"site-packages", "node_modules", "__pycache__", "build"}
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in skipped and name[0] != ".")
        for name in sorted(files):
            path = Path(folder, name)
            if path.is_file() and FEWEST_FILE_BYTES <= path.stat().st_size <= MOST_FILE_BYTES:
                yield path


class Traffic:
    """Sends the load until its time is over.

    Args:
        url: where the service is.
        shape: the load; None: ask the service which load belongs to the fault that is on.
        timeout_seconds: the client's patience.
        seed: fixes the due times and the order of the files.
        report_seconds: time between two summary lines.
    """

    def __init__(
        self,
        url: str,
        *,
        shape: Shape | None = None,
        timeout_seconds: float = CLIENT_TIMEOUT_SECONDS,
        seed: int = 1,
        report_seconds: float = 10.0,
    ) -> None:
        self._url = url.rstrip("/")
        self._fixed = shape
        self._shape = shape
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._seed = seed
        self._report_seconds = report_seconds
        self._files = real_files()
        self._interval = Interval()
        self._running: set[asyncio.Task[None]] = set()
        self.outcomes: Counter[str] = Counter()

    async def run(self, duration: float | None = None) -> None:
        """Send for `duration` seconds, without end for None, then wait for the last answers."""
        connector = aiohttp.TCPConnector(limit=0)  # a limit would be a queue that nobody measures
        async with aiohttp.ClientSession(connector=connector) as session:
            helpers = [asyncio.create_task(self._report())]
            if self._fixed is None:
                helpers.append(asyncio.create_task(self._follow(session)))
            try:
                async with asyncio.timeout(duration):
                    await self._send(session)
            except TimeoutError:
                pass
            finally:
                for helper in helpers:
                    helper.cancel()
                await asyncio.gather(*helpers, return_exceptions=True)
                await asyncio.gather(*self._running)

    async def _send(self, session: aiohttp.ClientSession) -> None:
        loop = asyncio.get_running_loop()
        sent = 0
        for phase in range(sys.maxsize):
            while self._shape is None:
                await asyncio.sleep(0.1)
            shape = self._shape
            start = loop.time()
            for due in arrivals(shape.rate_per_second, shape.burst, self._seed + phase):
                await asyncio.sleep(max(0.0, start + due - loop.time()))
                if self._shape != shape:
                    break
                content = self._files[sent % len(self._files)]
                task = loop.create_task(self._request(session, content, start + due))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                sent += 1

    async def _request(self, session: aiohttp.ClientSession, content: bytes, due: float) -> None:
        loop = asyncio.get_running_loop()
        self._interval.sent += 1
        self._interval.lags.append(loop.time() - due)
        try:
            async with session.post(
                f"{self._url}/classify", data=content, timeout=self._timeout
            ) as response:
                await response.read()
            outcome = {200: "ok", 429: "rejected"}.get(response.status, "error")
        except TimeoutError:
            outcome = "timeout"
        except aiohttp.ClientError:
            outcome = "error"
        if outcome == "ok":
            self._interval.latencies.append(loop.time() - due)
        self._interval.outcomes[outcome] += 1
        self.outcomes[outcome] += 1

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        """Keep the shape that the service names; keep the last one while it does not answer."""
        while True:
            try:
                async with session.get(f"{self._url}/faults", timeout=self._timeout) as response:
                    response.raise_for_status()
                    state = await response.json()
            except (aiohttp.ClientError, TimeoutError) as error:
                logger.debug("the service names no load: %s", error)
            else:
                shape = Shape(**state["load"])
                if shape != self._shape:
                    print(
                        f"traffic: {state['active'] or 'healthy'}:"
                        f" {shape.rate_per_second:.1f} requests/s in bursts of {shape.burst}",
                        flush=True,
                    )
                    self._shape = shape
            await asyncio.sleep(POLL_SECONDS)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._report_seconds)
            interval, self._interval = self._interval, Interval()
            if self._shape is None:
                print(f"traffic: waiting for {self._url}", flush=True)
            else:
                print(f"traffic: {interval.line(self._report_seconds, self._shape)}", flush=True)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line; a mistake in it ends with one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m demo.traffic", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--url", default=f"http://{ADDRESS}:{SERVICE_PORT}", help="%(default)s")
    parser.add_argument("--rate", type=float, help="requests per second (default: ask the service)")
    parser.add_argument("--burst", type=int, help="requests at once, with --rate (default: 1)")
    parser.add_argument("--duration", type=float, help="seconds (default: until stopped)")
    parser.add_argument("--interval", type=float, default=10, help="seconds a line (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the due times (%(default)s)")
    arguments = parser.parse_args(argv)
    for name in ("rate", "burst", "duration", "interval"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < math.inf:
            parser.error(f"--{name} is {value:g}, expected a number above 0")
    if arguments.burst and not arguments.rate:
        parser.error("--burst needs --rate: without it the service names the load")
    return arguments


async def _run_until_stopped(traffic: Traffic, duration: float | None) -> None:
    task = asyncio.create_task(traffic.run(duration))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def main(argv: list[str] | None = None) -> int:
    """Send until SIGINT, SIGTERM or the end of --duration; return the exit code."""
    arguments = parse_arguments(argv)
    traffic = Traffic(
        arguments.url,
        shape=Shape(arguments.rate, arguments.burst or 1) if arguments.rate else None,
        seed=arguments.seed,
        report_seconds=arguments.interval,
    )
    asyncio.run(_run_until_stopped(traffic, arguments.duration))
    counts = " ".join(f"{name} {count}" for name, count in sorted(traffic.outcomes.items()))
    print(f"traffic: {counts or 'nothing sent'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
