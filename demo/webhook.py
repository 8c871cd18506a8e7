"""Receives Alertmanager's notifications and prints what a person on call would read.

    python -m demo.webhook

POST /page and /ticket take Alertmanager's webhook payload (version 4); GET /notifications
returns the last ones as JSON, the newest last.
"""

import argparse
import json
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from demo import flags
from demo.settings import ADDRESS, WEBHOOK_PORT

KEPT = 200
MAX_BODY_BYTES = 4 << 20
RECEIVERS = {"/page": "PAGE", "/ticket": "ticket"}
# What a reader needs first; other annotations follow under their own names.
FIRST = ("summary", "description", "causes", "runbook_url")


def describe(kind: str, notification: Mapping[str, Any], now: datetime) -> str:
    """Return the text of a notification, one block per alert.

    Args:
        kind: PAGE or ticket.
        notification: Alertmanager's webhook payload.
        now: when it arrived.

    Raises:
        ValueError: the payload has no list of alerts, or an alert no labels.
    """
    alerts = notification.get("alerts")
    if not isinstance(alerts, list):
        raise ValueError("a notification has no list 'alerts'")
    return "\n".join(line for alert in alerts for line in _alert_lines(kind, alert, now))


def _alert_lines(kind: str, alert: Any, now: datetime) -> Iterator[str]:
    if not isinstance(alert, dict) or not isinstance(alert.get("labels"), dict):
        raise ValueError("an alert has no 'labels'")
    labels: Mapping[str, str] = alert["labels"]
    annotations: Mapping[str, str] = alert.get("annotations") or {}
    name = labels.get("alertname", "an alert without a name")
    subject = labels.get("service") or labels.get("host") or labels.get("instance") or ""
    state = "RESOLVED" if alert.get("status") == "resolved" else "FIRING"
    yield f"{now:%H:%M:%S} {kind} {state} {name} {subject}".rstrip()
    order = [*FIRST, *sorted(annotations.keys() - set(FIRST))]
    for key in order:
        if text := annotations.get(key, "").strip():
            indented = text.replace("\n", "\n" + " " * 17)
            yield f"    {key + ':':<13}{indented}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        kind = RECEIVERS.get(self.path)
        if kind is None:
            self._answer(404, {"error": f"no receiver {self.path}, there are /page and /ticket"})
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._answer(411, {"error": f"Content-Length is {length!r}, expected a number"})
            return
        size = int(length)
        if size > MAX_BODY_BYTES:
            self._answer(413, {"error": f"{size} bytes, expected at most {MAX_BODY_BYTES}"})
            return
        try:
            notification = json.loads(self.rfile.read(size))
            text = describe(kind, notification, datetime.now())
        except (ValueError, AttributeError) as error:
            self._answer(400, {"error": f"not Alertmanager's payload: {error}"})
            return
        self._receiver.keep(self.path, notification)
        print(text, flush=True)
        self._answer(200, {})

    def do_GET(self) -> None:
        if self.path == "/notifications":
            self._answer(200, {"notifications": self._receiver.notifications()})
        else:
            self._answer(404, {"error": f"no page {self.path}, there is /notifications"})

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal for the notifications."""

    @property
    def _receiver(self) -> "Receiver":
        assert isinstance(self.server, Receiver)
        return self.server

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Receiver(ThreadingHTTPServer):
    """The HTTP server; it keeps the last notifications.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True

    def __init__(self, address: str, port: int) -> None:
        super().__init__((address, port), _Handler)
        self._lock = threading.Lock()
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._received = 0

    def keep(self, path: str, notification: dict[str, Any]) -> None:
        """Remember a notification, forget the oldest one beyond the last 200."""
        at = datetime.now().astimezone().isoformat(timespec="seconds")
        with self._lock:
            self._received += 1
            self._kept.append(
                {
                    "number": self._received,
                    "received_at": at,
                    "path": path,
                    "notification": notification,
                }
            )

    def notifications(self) -> list[dict[str, Any]]:
        """Return what was kept, the newest last; they are numbered from 1 in order of arrival."""
        with self._lock:
            return list(self._kept)


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.webhook", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--host", default=ADDRESS, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=flags.port, default=WEBHOOK_PORT, help="port (%(default)s)")
    arguments = parser.parse_args(argv)
    try:
        receiver = Receiver(arguments.host, arguments.port)
    except OSError as error:
        print(
            f"demo webhook: cannot listen on {arguments.host}:{arguments.port}: {error.strerror}",
            file=sys.stderr,
        )
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with receiver:
        try:
            receiver.serve_forever()
        except KeyboardInterrupt:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
