"""A lock that another thread holds while its process forks is held by nobody in the child."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tailwatch_tracing import service, serving, workers


def take_a_scrape() -> None:
    serving._scrapes.page(False, False).result(10)


@pytest.mark.parametrize(
    ("lock", "act"),
    [
        (lambda: service._lock, lambda: service.service_named("another")),
        (lambda: serving._scrapes._lock, take_a_scrape),
        (lambda: workers.workers._lock, lambda: workers.workers.configure("s", None)),
    ],
    ids=["services", "scrapes", "workers"],
)
def test_a_child_does_not_wait_for_a_thread_of_its_parent(
    lock: Callable[[], AbstractContextManager[Any]], act: Callable[[], object]
) -> None:
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock():
            taken.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(10)
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        release.set()
        thread.join()
