"""What the person on call reads."""

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from demo.webhook import KEPT, Receiver, describe, main

FIRING: dict[str, Any] = {
    "status": "firing",
    "labels": {
        "alertname": "GpuStarvedUnderLoad",
        "service": "content-type",
        "severity": "critical",
    },
    "annotations": {
        "runbook_url": "http://127.0.0.1:12162/runbooks/GpuStarvedUnderLoad",
        "summary": "content-type: requests wait while its GPU is idle.",
        "causes": "- preprocessing on the CPU, one hot thread\n- batch window too long",
        "dashboard": "/d/tailwatch-overview",
    },
}
NOW = datetime(2026, 3, 1, 3, 12, 5)


def payload(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {"version": "4", "status": "firing", "alerts": list(alerts)}


def test_a_page_reads_from_what_happened_to_where_to_look() -> None:
    assert describe("PAGE", payload(FIRING), NOW) == (
        "03:12:05 PAGE FIRING GpuStarvedUnderLoad content-type\n"
        "    summary:     content-type: requests wait while its GPU is idle.\n"
        "    causes:      - preprocessing on the CPU, one hot thread\n"
        "                 - batch window too long\n"
        "    runbook_url: http://127.0.0.1:12162/runbooks/GpuStarvedUnderLoad\n"
        "    dashboard:   /d/tailwatch-overview"
    )


def test_an_end_is_told_too_and_each_alert_on_its_own() -> None:
    over = {"status": "resolved", "labels": {"alertname": "TargetDown", "instance": "a:1"}}
    lines = describe("ticket", payload(FIRING, over), NOW).splitlines()
    assert lines[0].startswith("03:12:05 ticket FIRING")
    assert lines[-1] == "03:12:05 ticket RESOLVED TargetDown a:1"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver("127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def call(receiver: Receiver, path: str, body: bytes | None = None) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{receiver.server_port}{path}"
    try:
        with urllib.request.urlopen(url, body, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_notifications_are_printed_and_kept(
    receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(receiver, "/page", json.dumps(payload(FIRING)).encode()) == (200, {})
    assert "PAGE FIRING GpuStarvedUnderLoad" in capsys.readouterr().out
    status, answer = call(receiver, "/notifications")
    assert status == 200
    (kept,) = answer["notifications"]
    assert kept["path"] == "/page"
    assert kept["notification"]["alerts"] == [FIRING]


def test_only_the_last_notifications_are_kept(receiver: Receiver) -> None:
    for number in range(KEPT + 3):
        receiver.keep("/page", {"number": number})
    kept = receiver.notifications()
    assert [each["notification"]["number"] for each in kept] == list(range(3, KEPT + 3))
    assert [each["number"] for each in kept] == list(range(4, KEPT + 4))


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/pages", b"{}", 404, "no receiver /pages"),
        ("/page", b"not json", 400, "not Alertmanager's payload"),
        ("/page", b"[]", 400, "not Alertmanager's payload"),
        ("/ticket", b'{"alerts": [1]}', 400, "an alert has no 'labels'"),
        ("/nothing", None, 404, "no page /nothing"),
    ],
)
def test_what_is_no_notification_is_refused(
    receiver: Receiver, path: str, body: bytes | None, status: int, says: str
) -> None:
    answered, answer = call(receiver, path, body)
    assert answered == status
    assert says in answer["error"]
    assert receiver.notifications() == []


@pytest.mark.parametrize("length", [None, "-1", "many"])
def test_a_body_without_a_length_is_refused(receiver: Receiver, length: str | None) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.server_port, timeout=10)
    connection.putrequest("POST", "/page")
    if length is not None:
        connection.putheader("Content-Length", length)
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 411
    assert b"expected a number" in response.read()
    connection.close()


@pytest.mark.parametrize("port", ["0", "65536", "web"])
def test_what_is_no_port_is_told(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--port", port])
    assert exit_.value.code == 2
    assert f"--port: {port} is no port, expected 1 to 65535" in capsys.readouterr().err


def test_a_taken_port_is_one_line(receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", str(receiver.server_port)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"127.0.0.1:{receiver.server_port}" in error
