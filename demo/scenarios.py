"""Asserts the fault table for real: each injected cause must page, and nothing else may.

    python -m demo.scenarios                        # all faults, about two hours
    python -m demo.scenarios --fault stalls

It needs the running stack (service, traffic, Prometheus, Alertmanager, webhook) with the alert
rules as they are shipped: their durations decide how long a scenario takes, there is no short
form. For each fault: wait for a quiet service, switch the fault on, wait for its page in
Alertmanager and at the receiver with its cause and runbook, switch it off, wait for the end of
the page. Exit code 0: every fault behaved as the table says; 1: one did not, or the stack cannot
be reached; 130: stopped, with the fault switched off.
"""

import argparse
import json
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from demo.faults import FAULTS
from demo.settings import ADDRESS, SERVICE, SERVICE_PORT, WEBHOOK_PORT

POLL_SECONDS = 5.0
QUIET_SECONDS = 180.0  # traffic without a page before a fault is switched on
QUIET_DEADLINE = 30 * 60.0
FIRING_DEADLINE = 15 * 60.0
RESOLVED_DEADLINE = 25 * 60.0
WATCH_SECONDS = 12 * 60.0  # a fault that must not page is watched for longer than pages take
MOST_REJECTED = 0.10

# The stack is on this machine: a proxy of the environment is not asked for it.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Expectation:
    """What a fault must lead to. Any page that is not named here is a failure."""

    fault: str
    page: str | None = None  # the alert that must fire; None: none may
    cause: str = ""  # a part of its cause list
    may_page: frozenset[str] = frozenset()
    rejects: bool = False  # some requests must be rejected, at most a tenth


EXPECTATIONS = (
    Expectation(
        "slow-preprocess",
        page="GpuStarvedUnderLoad",
        cause="preprocessing on the CPU, one hot thread [preprocess-off-cpu]",
    ),
    Expectation("overload", rejects=True),
    Expectation(
        "stalls",
        page="LatencyTailDivergence",
        cause="garbage collection pauses [gc-pauses]",
    ),
    Expectation(
        "unbounded-queue",
        page="QueueBeyondTimeout",
        cause="the queue grows and nothing is rejected [cap-concurrency]",
        # Clients time out, and while the queue grows the slowest wait far longer than most.
        may_page=frozenset({"ErrorBudgetFastBurn", "LatencyTailDivergence"}),
    ),
)


class StackError(Exception):
    """A part of the stack cannot be reached or gives no sense."""


@dataclass(frozen=True)
class Delivery:
    """One alert of a notification that reached the receiver; notifications are numbered."""

    number: int
    path: str
    status: str
    alert: str
    annotations: Mapping[str, str]


class Stack(Protocol):
    """The running stack, as far as a scenario sees and touches it."""

    def now(self) -> float:
        """Return seconds from some start."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def pages(self) -> frozenset[str]:
        """Return the names of the critical alerts that fire in Alertmanager."""
        ...

    def deliveries(self) -> Sequence[Delivery]:
        """Return what the receiver got and still keeps, the newest last."""
        ...

    def outcomes(self) -> Mapping[str, float]:
        """Return the service's finished requests by outcome, since its start."""
        ...

    def switch(self, fault: str | None) -> None:
        """Turn a fault on, or off with None."""
        ...


@dataclass
class Trial:
    """Runs one expectation against a stack and collects what went wrong."""

    expected: Expectation
    stack: Stack
    tell: Callable[[str], None]
    problems: list[str] = field(default_factory=list)
    last_number: int = -1  # of the notifications from before the fault

    def run(self) -> bool:
        """Return whether the fault behaved as expected; `problems` says how it did not."""
        self.stack.switch(None)
        if not self._wait_for_quiet():
            return False
        self.last_number = max((each.number for each in self.stack.deliveries()), default=-1)
        try:
            self.stack.switch(self.expected.fault)
            self.tell(f"{self.expected.fault}: on")
            if self.expected.page:
                self._wait_for_page(self.expected.page)
            else:
                self._watch()
        finally:
            self.stack.switch(None)
            self.tell(f"{self.expected.fault}: off")
        self._wait_for_end()
        return not self.problems

    def _wait_for_quiet(self) -> bool:
        began = quiet_since = self.stack.now()
        answered = self.stack.outcomes().get("ok", 0.0)
        last_answer = began
        while True:
            self.stack.sleep(POLL_SECONDS)
            now = self.stack.now()
            pages, ok = self.stack.pages(), self.stack.outcomes().get("ok", 0.0)
            if ok > answered:
                last_answer = now
            answered = ok
            if pages or now - last_answer > 3 * POLL_SECONDS:
                quiet_since = now
            if now - quiet_since >= QUIET_SECONDS:
                self.tell(f"{self.expected.fault}: {QUIET_SECONDS:.0f} s of traffic without a page")
                return True
            if now - began > QUIET_DEADLINE:
                why = f"{', '.join(sorted(pages))} fires" if pages else "no traffic"
                self.problems.append(f"not quiet after {QUIET_DEADLINE / 60:.0f} minutes: {why}")
                return False

    def _wait_for_page(self, page: str) -> None:
        began = self.stack.now()
        fired_at: float | None = None
        while True:
            self.stack.sleep(POLL_SECONDS)
            after = self.stack.now() - began
            pages = self.stack.pages()
            self._note_strangers(pages)
            if page in pages and fired_at is None:
                fired_at = after
                self.tell(f"{self.expected.fault}: {page} fires {minutes(after)} after the start")
            deliveries = self._fresh_deliveries()
            delivery = page_with_cause(deliveries, page, self.expected.cause)
            if fired_at is not None and delivery:
                self.tell(f"{self.expected.fault}: delivered {minutes(after)} after the start")
                self.tell(f"    causes: {delivery.annotations['causes']}")
                self.tell(f"    runbook: {delivery.annotations['runbook_url']}")
                return
            if after > FIRING_DEADLINE:
                self.problems.append(missing(page, self.expected.cause, deliveries, fired_at))
                return

    def _fresh_deliveries(self) -> Sequence[Delivery]:
        return [each for each in self.stack.deliveries() if each.number > self.last_number]

    def _watch(self) -> None:
        began = self.stack.now()
        first = self.stack.outcomes()
        while self.stack.now() - began < WATCH_SECONDS:
            self.stack.sleep(POLL_SECONDS)
            self._note_strangers(self.stack.pages())
        if self.expected.rejects:
            share = rejected_share(first, self.stack.outcomes())
            self.tell(f"{self.expected.fault}: {100 * share:.1f} % of the requests rejected")
            if not 0 < share <= MOST_REJECTED:
                self.problems.append(
                    f"{100 * share:.1f} % of the requests were rejected, expected some and at most"
                    f" {100 * MOST_REJECTED:.0f} %"
                )

    def _wait_for_end(self) -> None:
        began = self.stack.now()
        while pages := self.stack.pages():
            self._note_strangers(pages)
            if self.stack.now() - began > RESOLVED_DEADLINE:
                self.problems.append(
                    f"{', '.join(sorted(pages))} still fires {RESOLVED_DEADLINE / 60:.0f} minutes"
                    " after the end"
                )
                return
            self.stack.sleep(POLL_SECONDS)
        after = self.stack.now() - began
        self.tell(f"{self.expected.fault}: no page fires {minutes(after)} after the end")
        if not self.expected.page:
            return
        while not ended(self._fresh_deliveries(), self.expected.page):
            if self.stack.now() - began > RESOLVED_DEADLINE:
                self.problems.append(f"the end of {self.expected.page} was not delivered")
                return
            self.stack.sleep(POLL_SECONDS)

    def _note_strangers(self, pages: frozenset[str]) -> None:
        for stranger in sorted(pages - self.expected.may_page - {self.expected.page}):
            problem = f"{stranger} pages, expected silent"
            if problem not in self.problems:
                self.problems.append(problem)
                self.tell(f"{self.expected.fault}: {problem}")


def minutes(seconds: float) -> str:
    """Return seconds as minutes and seconds, "7:05 min"."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def page_with_cause(deliveries: Sequence[Delivery], page: str, cause: str) -> Delivery | None:
    """Return the first delivery to /page of a firing `page` that names the cause and a runbook."""
    for delivery in deliveries:
        if (
            (delivery.path, delivery.status, delivery.alert) == ("/page", "firing", page)
            and cause in delivery.annotations.get("causes", "")
            and delivery.annotations.get("runbook_url", "").endswith(f"/runbooks/{page}")
        ):
            return delivery
    return None


def ended(deliveries: Sequence[Delivery], page: str) -> bool:
    """Return whether the last delivery of `page` told its end."""
    states = [delivery.status for delivery in deliveries if delivery.alert == page]
    return states[-1:] == ["resolved"]


def missing(page: str, cause: str, deliveries: Sequence[Delivery], fired_at: float | None) -> str:
    """Return in one line which part of an expected page did not come within the deadline."""
    within = f"within {FIRING_DEADLINE / 60:.0f} minutes"
    if fired_at is None:
        return f"{page} did not fire {within}"
    mine = [each for each in deliveries if each.alert == page and each.path == "/page"]
    if not mine:
        return f"{page} fired but was not delivered to /page {within}"
    causes = mine[-1].annotations.get("causes", "")
    runbook = mine[-1].annotations.get("runbook_url", "")
    return (
        f"{page} was delivered with causes {causes!r} and runbook {runbook!r}, expected {cause!r}"
    )


def rejected_share(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return the share of rejected requests among those finished between two counts."""
    finished = sum(after.values()) - sum(before.values())
    rejected = after.get("rejected", 0.0) - before.get("rejected", 0.0)
    return rejected / finished if finished else 0.0


@dataclass(frozen=True)
class RunningStack:
    """The real stack, over HTTP."""

    service_url: str
    alertmanager_url: str
    webhook_url: str

    def now(self) -> float:
        """Return the monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let real time pass."""
        time.sleep(seconds)

    def pages(self) -> frozenset[str]:
        """Return the critical alerts that Alertmanager holds active."""
        url = f"{self.alertmanager_url}/api/v2/alerts?active=true&silenced=false&inhibited=false"
        return frozenset(
            alert["labels"]["alertname"]
            for alert in _json(url)
            if alert["labels"].get("severity") == "critical"
        )

    def deliveries(self) -> Sequence[Delivery]:
        """Return what the demo's webhook keeps."""
        kept = _json(f"{self.webhook_url}/notifications")["notifications"]
        return [
            Delivery(
                each["number"],
                each["path"],
                alert["status"],
                alert["labels"]["alertname"],
                alert["annotations"],
            )
            for each in kept
            for alert in each["notification"]["alerts"]
        ]

    def outcomes(self) -> Mapping[str, float]:
        """Return the service's own counters."""
        page = _get(f"{self.service_url}/metrics").decode()
        found = re.findall(
            rf'^inference_outcomes_total{{service="{SERVICE}",outcome="(\w+)"}} (\S+)$', page, re.M
        )
        if not found:
            raise StackError(f"{self.service_url}/metrics has no inference_outcomes_total")
        return {outcome: float(count) for outcome, count in found}

    def switch(self, fault: str | None) -> None:
        """Tell the service."""
        url = f"{self.service_url}/faults"
        if fault is None:
            _get(url, method="DELETE")
        else:
            _get(url, method="POST", body=json.dumps({"name": fault}).encode())


def _json(url: str) -> Any:
    try:
        return json.loads(_get(url))
    except ValueError as error:
        raise StackError(f"{url} answers no JSON: {error}") from error


def _get(url: str, method: str = "GET", body: bytes | None = None) -> bytes:
    request = urllib.request.Request(
        url, data=body, method=method, headers={"Content-Type": "application/json"}
    )
    try:
        with _OPENER.open(request, timeout=60) as response:
            content: bytes = response.read()
            return content
    except urllib.error.HTTPError as error:
        with error:
            raise StackError(f"{method} {url}: {error.code} {error.read().decode()}") from error
    except OSError as error:
        raise StackError(f"{method} {url}: {error}") from error


def main(argv: list[str] | None = None) -> int:
    """Run the scenarios; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.scenarios", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--fault", action="append", choices=tuple(FAULTS), help="only this one; repeatable"
    )
    for name, port in (
        ("service", SERVICE_PORT),
        ("alertmanager", 9093),
        ("webhook", WEBHOOK_PORT),
    ):
        parser.add_argument(f"--{name}", default=f"http://{ADDRESS}:{port}", help="%(default)s")
    arguments = parser.parse_args(argv)
    stack = RunningStack(arguments.service, arguments.alertmanager, arguments.webhook)

    def tell(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    failed = False
    for expected in EXPECTATIONS:
        if arguments.fault and expected.fault not in arguments.fault:
            continue
        trial = Trial(expected, stack, tell)
        try:
            passed = trial.run()
        except StackError as error:
            print(f"demo scenarios: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        failed |= not passed
        tell(f"{expected.fault}: {'PASSED' if passed else 'FAILED: ' + '; '.join(trial.problems)}")
    return int(failed)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the fault is switched off then too
    sys.exit(main())
