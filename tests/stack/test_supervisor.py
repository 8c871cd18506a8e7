import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.stack.running import Running, running, wait_until

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def stubs(folder: Path, *services: str, prefix: Sequence[str] = ()) -> Iterator[Running]:
    command = [*prefix, sys.executable, "-m", "tests.stack.stub_stack", *services]
    with running(
        command, folder, PYTHONPATH=str(ROOT), INTERRUPTED=str(folder / "interrupted")
    ) as run:
        yield run


def pids(run: Running, start: int = 0) -> list[int]:
    """The process ids that were told when all ran, and after each `start` again."""

    def told() -> list[str]:
        return [line for line in run.output.split("\n")[:-1] if line.startswith("pids ")]

    wait_until(lambda: len(told()) > start, "process ids")
    return [int(pid) for pid in told()[start].split()[1:]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_running_stops_everything_with_code_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    with stubs(tmp_path, "quick", "slow") as run:
        pids(run)
        assert len(run.survivors()) == 5  # itself, the cleaner (sh and cat), two services
        began = time.monotonic()
        run.send(number)
        assert run.exit_code() == 0
        assert time.monotonic() - began < 5  # they were asked to end, not killed after 10 s
        run.assert_nothing_left()


def test_ctrl_c_on_the_terminal_is_not_for_the_services(tmp_path: Path) -> None:
    with stubs(tmp_path, "quick", "slow") as run:
        pids(run)
        run.press_ctrl_c()
        assert run.exit_code() == 0
        run.assert_nothing_left()
        assert not (tmp_path / "interrupted").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_starting_stops_everything_with_its_code(
    tmp_path: Path, number: signal.Signals
) -> None:
    with stubs(tmp_path, "quick", "slow") as run:
        run.wait_for_output("starting slow")
        run.send(number)
        assert run.exit_code() == 128 + number
        run.assert_nothing_left()
        assert "starting slow ... stopped" in run.output


def test_a_hangup_is_ignored_where_the_caller_ignores_it(tmp_path: Path) -> None:
    """As under nohup(1)."""
    with stubs(tmp_path, "quick", prefix=["env", "--ignore-signal=HUP"]) as run:
        pids(run)
        run.send(signal.SIGHUP)
        time.sleep(0.5)  # a signal that does nothing leaves nothing to wait for
        assert run.survivors()
        run.send(signal.SIGTERM)
        assert run.exit_code() == 0


def test_no_moment_of_the_start_leaves_anything(tmp_path: Path) -> None:
    delays = [0.05 * step for step in range(24)]
    with contextlib.ExitStack() as stack:
        runs = []
        for index, delay in enumerate(delays):
            folder = tmp_path / str(index)
            folder.mkdir()
            started = time.monotonic()
            run = stack.enter_context(stubs(folder, "quick", "slow"))
            runs.append((started + delay, run))
            if len(runs) == 6:  # a few at a time: the delays should mean something
                for due, other in sorted(runs, key=lambda pair: pair[0]):
                    time.sleep(max(0.0, due - time.monotonic()))
                    other.send(signal.SIGINT)
                for _, other in runs:
                    other.exit_code()
                    other.assert_nothing_left()
                runs = []


def test_a_killed_service_is_reported_and_started_again(tmp_path: Path) -> None:
    with stubs(tmp_path, "quick", "slow") as run:
        quick, slow = pids(run)
        os.kill(quick, signal.SIGKILL)
        again, same = pids(run, start=1)
        assert again != quick
        assert same == slow
        assert len(run.survivors()) == 5
        assert "the last lines of quick:\n" in run.output
        killed = f"quick (pid {quick}) was killed by signal 9 (Killed), starting it again now\n"
        assert killed in run.output
        run.send(signal.SIGTERM)
        assert run.exit_code() == 0
        run.assert_nothing_left()


def test_a_service_that_keeps_ending_is_started_again_ever_later(tmp_path: Path) -> None:
    with stubs(tmp_path, "slow", "brief") as run:
        slow, first = pids(run)
        run.wait_for_output(f"brief (pid {first}) ended with exit code 7, starting it again now")
        for start, wait in ((1, 1), (2, 2)):
            same, brief = pids(run, start)
            assert same == slow
            run.wait_for_output(
                f"brief (pid {brief}) ended with exit code 7, starting it again in {wait} s"
            )
        ended = time.monotonic()
        pids(run, start=3)
        assert time.monotonic() - ended > 1.5
        run.wait_for_output("starting it again in 4 s")
        run.send(signal.SIGTERM)  # while it is not there
        assert run.exit_code() == 0
        run.assert_nothing_left()


def test_a_service_that_cannot_be_started_again_is_tried_further(tmp_path: Path) -> None:
    with stubs(tmp_path, "quick", "vanishing") as run:
        pids(run)
        run.wait_for_output("/vanishing: No such file or directory, starting it again in 2 s")
        assert run.output.count("vanishing cannot be started: ") == 2
        assert len(run.survivors()) == 4  # itself, the cleaner, and the other service
        run.send(signal.SIGTERM)
        assert run.exit_code() == 0
        run.assert_nothing_left()


def test_a_service_that_fails_to_start_shows_its_last_lines(tmp_path: Path) -> None:
    with stubs(tmp_path, "quick", "broken", "slow") as run:
        assert run.exit_code() == 1
        run.assert_nothing_left()
        _, after = run.output.split("starting broken ... ")
        assert "starting slow" not in after
        failed, title, first, second, stopping, error = after.splitlines()
        assert (failed, title) == ("failed", "the last lines of broken:")
        assert (first, second) == ("    first", "    the disk is full")
        assert stopping == "stopping"
        assert error.startswith("error: broken (pid ")
        assert error.endswith("ended with exit code 1")


def test_a_service_that_fails_without_a_word(tmp_path: Path) -> None:
    with stubs(tmp_path, "silent") as run:
        assert run.exit_code() == 1
        assert "silent wrote nothing" in run.output
        assert "ended with exit code 3" in run.output


def test_a_second_signal_ends_a_stubborn_service_at_once(tmp_path: Path) -> None:
    with stubs(tmp_path, "stubborn") as run:
        pids(run)
        began = time.monotonic()
        run.send(signal.SIGINT)
        time.sleep(0.5)  # the first one is being waited for
        assert any("SIG_IGN" in line for line in run.survivors())
        run.send(signal.SIGINT)
        assert run.exit_code() == 0
        assert time.monotonic() - began < 5  # the patience with it is 10 s
        run.assert_nothing_left()


def test_a_terminal_that_closes_tells_twice_and_nothing_is_killed_for_it(tmp_path: Path) -> None:
    with stubs(tmp_path, "stubborn") as run:
        pids(run)
        for _ in range(2):
            run.send(signal.SIGHUP)
            time.sleep(0.5)  # it is being waited for
        assert any("SIG_IGN" in line for line in run.survivors())
        run.send(signal.SIGINT)
        assert run.exit_code() == 0
        run.assert_nothing_left()


def test_killing_the_supervisor_leaves_nothing(tmp_path: Path) -> None:
    with stubs(tmp_path, "quick", "stubborn") as run:
        pids(run)
        run.send(signal.SIGKILL)
        run.exit_code()
        wait_until(lambda: not run.survivors(), "all processes gone")
        run.assert_nothing_left()


def test_status_is_one_line_per_service(tmp_path: Path) -> None:
    with stubs(tmp_path, "quick", "slow") as run:
        run.wait_for_output("slow: running")
        lines = run.output.splitlines()
        assert lines[-2:] == ["quick: running", "slow: running"]
        assert lines[0].startswith("starting quick ... ready after ")
        run.send(signal.SIGTERM)
        assert run.exit_code() == 0
