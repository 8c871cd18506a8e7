"""How a scenario judges, on a stack whose clock runs as fast as it is asked."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from demo.faults import FAULTS
from demo.scenarios import EXPECTATIONS, Delivery, Expectation, RunningStack, Trial, main

RULES = Path(__file__).parents[2] / "alert_rules"
PAGE = "GpuStarvedUnderLoad"
CAUSE = "one hot thread [preprocess-off-cpu]"
PAGES = Expectation("slow-preprocess", page=PAGE, cause=CAUSE, may_page=frozenset({"Allowed"}))
REJECTS = Expectation("overload", rejects=True)


@dataclass
class ScriptedStack:
    """Alerts fire between two times after the switch-on and -off; requests come at 10/s."""

    fires_after: float | None = 480.0
    ends_after: float = 600.0
    delivered: bool = True
    causes: str = f"{CAUSE}; something else [x]; "
    strangers: tuple[str, ...] = ()
    rejected: float = 0.0
    traffic: bool = True
    at: float = 0.0
    on_at: float | None = None
    off_at: float | None = None
    switched: list[str | None] = field(default_factory=list)

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def switch(self, fault: str | None) -> None:
        self.switched.append(fault)
        if fault:
            self.on_at = self.at
        elif self.on_at is not None and self.off_at is None:
            self.off_at = self.at

    def pages(self) -> frozenset[str]:
        if self.on_at is None:
            return frozenset()
        fires = self.fires_after is not None and self.at - self.on_at >= self.fires_after
        over = self.off_at is not None and self.at - self.off_at >= self.ends_after
        return frozenset((PAGE, *self.strangers)) if fires and not over else frozenset()

    def deliveries(self) -> Sequence[Delivery]:
        annotations = {"causes": self.causes, "runbook_url": f"http://viewer/runbooks/{PAGE}"}
        old = {"causes": CAUSE, "runbook_url": f"/runbooks/{PAGE}"}
        found = [Delivery(1, "/page", "firing", PAGE, old)]
        if self.delivered and self.on_at is not None and self.fires_after is not None:
            if self.at - self.on_at >= self.fires_after + 10:
                found.append(Delivery(2, "/page", "firing", PAGE, annotations))
            if self.off_at is not None and self.at - self.off_at >= self.ends_after + 60:
                found.append(Delivery(3, "/page", "resolved", PAGE, annotations))
        return found

    def outcomes(self) -> Mapping[str, float]:
        requests = 10 * self.at if self.traffic else 0.0
        during = 0.0 if self.on_at is None else 10 * (self.at - self.on_at)
        return {"ok": requests - during * self.rejected, "rejected": during * self.rejected}


def judge(expected: Expectation, stack: ScriptedStack) -> tuple[Trial, list[str]]:
    told: list[str] = []
    trial = Trial(expected, stack, told.append)
    assert trial.run() is not bool(trial.problems)
    return trial, told


def test_a_page_with_its_cause_and_its_end_passes() -> None:
    stack = ScriptedStack()
    trial, told = judge(PAGES, stack)
    assert trial.problems == []
    assert stack.switched == [None, "slow-preprocess", None]
    assert told == [
        "slow-preprocess: 180 s of traffic without a page",
        "slow-preprocess: on",
        "slow-preprocess: GpuStarvedUnderLoad fires 8:00 min after the start",
        "slow-preprocess: delivered 8:10 min after the start",
        f"    causes: {stack.causes}",
        "    runbook: http://viewer/runbooks/GpuStarvedUnderLoad",
        "slow-preprocess: off",
        "slow-preprocess: no page fires 10:00 min after the end",
    ]


@pytest.mark.parametrize(
    ("stack", "says"),
    [
        (ScriptedStack(fires_after=None), f"{PAGE} did not fire within 15 minutes"),
        (ScriptedStack(fires_after=910), f"{PAGE} did not fire within 15 minutes"),
        (ScriptedStack(delivered=False), f"{PAGE} fired but was not delivered to /page"),
        (ScriptedStack(causes="none located"), "was delivered with causes 'none located'"),
        (ScriptedStack(ends_after=1510), f"{PAGE} still fires 25 minutes after the end"),
        (ScriptedStack(ends_after=1480), f"the end of {PAGE} was not delivered"),
        (ScriptedStack(strangers=("Stranger",)), "Stranger pages, expected silent"),
        (ScriptedStack(traffic=False), "not quiet after 30 minutes: no traffic"),
    ],
)
def test_what_is_missing_or_too_much_is_named(stack: ScriptedStack, says: str) -> None:
    trial, _ = judge(PAGES, stack)
    assert says in "; ".join(trial.problems)
    assert stack.switched[-1] is None  # nothing stays switched on


def test_a_page_that_may_come_along_is_no_failure() -> None:
    assert judge(PAGES, ScriptedStack(strangers=("Allowed",)))[0].problems == []


def test_a_stack_that_already_pages_is_not_touched() -> None:
    class Paging(ScriptedStack):
        def pages(self) -> frozenset[str]:
            return frozenset({"TargetDown"})

    stack = Paging()
    trial, _ = judge(PAGES, stack)
    assert trial.problems == ["not quiet after 30 minutes: TargetDown fires"]
    assert stack.switched == [None]


@pytest.mark.parametrize(("share", "passes"), [(0.0, False), (0.05, True), (0.2, False)])
def test_some_requests_must_be_rejected_but_not_many(share: float, passes: bool) -> None:
    trial, told = judge(REJECTS, ScriptedStack(fires_after=None, rejected=share))
    assert (trial.problems == []) is passes
    assert f"overload: {100 * share:.1f} % of the requests rejected" in told


def test_a_fault_that_must_not_page_fails_when_it_does() -> None:
    trial, _ = judge(REJECTS, ScriptedStack(rejected=0.05))
    assert trial.problems == [f"{PAGE} pages, expected silent"]


def test_every_fault_has_an_expectation() -> None:
    assert sorted(FAULTS) == sorted(each.fault for each in EXPECTATIONS)


def test_expected_pages_and_causes_are_those_of_the_shipped_rules() -> None:
    def rules(folder: str) -> Iterator[dict[str, object]]:
        for path in (RULES / folder).glob("*.yaml"):
            for group in yaml.safe_load(path.read_text())["groups"]:
                yield from group["rules"]

    critical = {
        rule["alert"]: rule["labels"]["symptom"]
        for rule in rules("alerts")
        if rule["labels"]["severity"] == "critical"
    }
    causes = {
        (rule["labels"]["symptom"], f"{rule['labels']['title']} [{rule['labels']['cause']}]")
        for rule in rules("recording")
        if rule["record"] == "service:cause:active"
    }
    for expected in EXPECTATIONS:
        assert expected.may_page <= critical.keys()
        if expected.page:
            assert (critical[expected.page], expected.cause) in causes


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers like the stack's parts, as their documentation says."""

    switched_off = threading.Event()

    def do_DELETE(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.switched_off.set()

    def do_GET(self) -> None:
        labels = {"alertname": PAGE, "service": "content-type"}
        bodies = {
            "/api/v2/alerts": json.dumps(
                [
                    {"labels": {**labels, "severity": "critical"}},
                    {"labels": {"alertname": "Watchdog", "severity": "info"}},
                ]
            ),
            "/notifications": json.dumps(
                {
                    "notifications": [
                        {
                            "number": 7,
                            "received_at": "2026-03-01T03:12:05+00:00",
                            "path": "/page",
                            "notification": {
                                "alerts": [
                                    {
                                        "status": "firing",
                                        "labels": labels,
                                        "annotations": {"causes": CAUSE},
                                    }
                                ]
                            },
                        }
                    ]
                }
            ),
            "/metrics": 'inference_outcomes_total{service="content-type",outcome="ok"} 12\n'
            'inference_outcomes_total{service="content-type",outcome="rejected"} 3\n',
        }
        body = bodies[self.path.split("?")[0]].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def running_pages() -> Iterator[str]:
    Pages.switched_off.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_running_stack_is_read_over_http(running_pages: str) -> None:
    stack = RunningStack(running_pages, running_pages, running_pages)
    assert stack.pages() == {PAGE}
    assert stack.outcomes() == {"ok": 12, "rejected": 3}
    assert stack.deliveries() == [Delivery(7, "/page", "firing", PAGE, {"causes": CAUSE})]


def test_a_fault_does_not_outlive_its_trial() -> None:
    class Interrupted(ScriptedStack):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.on_at is not None:
                raise KeyboardInterrupt

    stack = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Trial(PAGES, stack, lambda _line: None).run()
    assert stack.switched == [None, "slow-preprocess", None]


def test_being_stopped_is_no_crash(running_pages: str) -> None:
    """A proxy of the environment is not asked for what is on this machine."""
    parts = [f"--{name}={running_pages}" for name in ("service", "alertmanager", "webhook")]
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.scenarios", *parts],
        cwd=RULES.parent,
        env={**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert Pages.switched_off.wait(30)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (130, "", "")


def test_a_stack_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--service", "http://127.0.0.1:9", "--fault", "stalls"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "http://127.0.0.1:9/faults" in error
