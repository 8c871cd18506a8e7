"""The collector `threads` on a fake /proc, with a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tailwatch_exporters.threads import ThreadsCollector
from tests.exporters.support import Clock, FakeProc, Values, scrape, scrape_text


class Sampling:
    """A collector whose samples the test takes, five seconds apart."""

    def __init__(self, proc: FakeProc, group_limit: int = 100) -> None:
        self.clock = Clock()
        self.cpu_clock = Clock(0.0)
        self.collector = ThreadsCollector(
            proc.path, 5.0, group_limit, 100, self.clock, self.cpu_clock
        )
        self.collector.sample()

    def after(self, seconds: float = 5.0) -> Values:
        self.clock.now += seconds
        self.collector.sample()
        return scrape(self.collector)


def ratio(page: Values, group: str) -> float | None:
    return page("host_thread_cpu_max_ratio", group=group)


def test_page(proc: FakeProc, golden: Callable[[str, str], None]) -> None:
    proc.add(1, "init")
    proc.add(2, "kthreadd", flags=0x00200040)
    proc.add(40, "uvicorn", 1000, {41: 500, 42: 0})
    proc.add(50, "postgres", 300)
    sampling = Sampling(proc)
    proc.add(40, "uvicorn", 1010, {41: 900, 42: 0})
    proc.add(50, "postgres", 325)
    sampling.after()
    golden("threads.prom", scrape_text(sampling.collector))


def test_the_busiest_thread_counts_not_the_sum(proc: FakeProc) -> None:
    proc.add(40, "server", 1000, {41: 500, 42: 500})
    proc.add(50, "server", 0, {51: 0})
    sampling = Sampling(proc)
    proc.add(40, "server", 1100, {41: 900, 42: 600})
    proc.add(50, "server", 10, {51: 200})
    page = sampling.after()
    assert ratio(page, "server") == pytest.approx(400 / 100 / 5)
    assert page("host_group_threads", group="server") == 5


def test_a_thread_that_rested_is_measured_over_the_last_interval_only(proc: FakeProc) -> None:
    proc.add(40, "server", 100, {41: 500})
    sampling = Sampling(proc)
    for _ in range(3):
        assert ratio(sampling.after(), "server") == 0.0
    proc.add(40, "server", 100, {41: 1000})
    assert ratio(sampling.after(), "server") == pytest.approx(1.0)


def test_a_new_thread_counts_from_its_start(proc: FakeProc) -> None:
    proc.add(40, "server", 100)
    sampling = Sampling(proc)
    proc.add(40, "server", 110, {41: 250})
    assert ratio(sampling.after(), "server") == pytest.approx(0.5)


def test_the_time_of_ended_threads_is_not_the_last_ones(proc: FakeProc) -> None:
    """A server that starts a thread now and then, and runs in its main one."""
    proc.add(40, "server", 1000, ended=5000)
    sampling = Sampling(proc)
    proc.add(40, "server", 1500, {41: 0}, ended=5000)
    assert ratio(sampling.after(), "server") == pytest.approx(1.0)
    proc.remove(40)
    proc.add(40, "server", 1750, ended=5010)
    assert ratio(sampling.after(), "server") == pytest.approx(0.5)


def test_a_new_process_has_no_ratio_until_it_was_seen_twice(proc: FakeProc) -> None:
    sampling = Sampling(proc)
    proc.add(40, "old", 100_000, {41: 100_000})
    page = sampling.after()
    assert ratio(page, "old") is None
    assert page("host_group_threads", group="old") == 2


def test_a_number_given_to_another_process_is_a_new_process(proc: FakeProc) -> None:
    proc.add(40, "server", 1000)
    sampling = Sampling(proc)
    proc.add(40, "server", 1500, start=900)
    assert ratio(sampling.after(), "server") is None


def test_no_thread_exceeds_one_core(proc: FakeProc) -> None:
    proc.add(40, "server", 1000)
    sampling = Sampling(proc)
    proc.add(40, "server", 1503)
    assert ratio(sampling.after(), "server") == 1.0


def test_gone_groups_take_their_series_along(proc: FakeProc) -> None:
    proc.add(40, "job", 10)
    proc.add(50, "server", 10)
    sampling = Sampling(proc)
    assert ratio(sampling.after(), "job") == 0.0
    proc.remove(40)
    page = sampling.after()
    assert ratio(page, "job") is None
    assert page("host_group_threads", group="job") is None
    assert ratio(page, "server") == 0.0


def test_beyond_the_limit_the_busiest_groups_keep_their_names(proc: FakeProc) -> None:
    for pid in range(10, 30):
        proc.add(pid, f"idle{pid}", 10)
    proc.add(99, "zz-hot", 10)
    sampling = Sampling(proc, group_limit=3)
    for pid in range(10, 30):
        proc.add(pid, f"idle{pid}", 10)
    proc.add(99, "zz-hot", 400)
    proc.add(10, "idle10", 12)
    page = sampling.after()
    assert ratio(page, "zz-hot") == pytest.approx(0.78)
    groups = {dict(labels)["group"] for labels in page.of("host_group_threads")}
    assert len(groups) == 4 and "other" in groups
    assert sum(page.of("host_group_threads").values()) == 21


def test_the_named_groups_do_not_take_turns(proc: FakeProc) -> None:
    for pid in range(10, 20):
        proc.add(pid, f"g{pid}", 10)
    sampling = Sampling(proc, group_limit=3)
    first = set(sampling.after().of("host_group_threads"))
    for step in range(1, 5):
        proc.add(10 + step, f"g{10 + step}", 10 + step)
        assert set(sampling.after().of("host_group_threads")) == first


@pytest.mark.parametrize("comm", ['a "b" \\', "x) S 1 (y", "with space", "naïve", "a\nb"])
def test_any_name_is_published_as_it_is(proc: FakeProc, comm: str) -> None:
    proc.add(40, comm, 10)
    sampling = Sampling(proc)
    assert sampling.after()("host_group_threads", group=comm) == 1


def test_a_process_that_ends_within_the_walk_is_left_out(proc: FakeProc) -> None:
    proc.add(40, "server", 10)
    proc.add(41, "ending", 10)
    (proc.path / "41" / "stat").write_bytes(b"41 (ending) Z 1")
    (proc.path / "42").mkdir()
    page = Sampling(proc).after()
    assert page("host_group_threads", group="server") == 1
    assert page("exporter_collector_success", collector="threads") == 1


def test_a_proc_that_cannot_be_listed_reports_down_until_it_can(
    proc: FakeProc, caplog: pytest.LogCaptureFixture
) -> None:
    proc.add(40, "server", 10)
    sampling = Sampling(proc)
    proc.path.rename(proc.path.with_name("elsewhere"))
    page = sampling.after()
    assert page("exporter_collector_success", collector="threads") == 0
    assert "host_group_threads" not in page.names()
    assert f"No such file or directory: '{proc.path}'" in caplog.text
    proc.path.with_name("elsewhere").rename(proc.path)
    assert sampling.after()("host_group_threads", group="server") == 1


def test_a_stale_sample_is_not_published(proc: FakeProc) -> None:
    proc.add(40, "server", 10)
    sampling = Sampling(proc)
    assert "host_group_threads" in sampling.after().names()
    sampling.clock.now += 15.1
    assert "host_group_threads" not in scrape(sampling.collector).names()


def test_a_dear_walk_is_made_less_often(proc: FakeProc) -> None:
    """The walk has a budget of 2 % of a core, however many processes there are."""
    clock = Clock()
    cpu_seconds = iter((0.0, 0.3))
    collector = ThreadsCollector(proc.path, 5.0, 100, 100, clock, lambda: next(cpu_seconds))
    assert collector.sample() == pytest.approx(15.0)
    clock.now += 44.0
    assert scrape(collector)("exporter_collector_success", collector="threads") == 1


def test_scraping_reads_nothing(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers that scrape do not shorten each other's intervals."""
    proc.add(40, "server", 1000)
    sampling = Sampling(proc)
    proc.add(40, "server", 1100)
    expected = sampling.after()
    proc.remove(40)
    assert scrape(sampling.collector) == expected


def test_two_thousand_processes_cost_what_is_busy(proc: FakeProc) -> None:
    import time

    for pid in range(1000, 3000):
        proc.add(pid, f"worker{pid % 150}", 100, {100_000 + pid: 5})
    sampling = Sampling(proc)
    start = time.thread_time()
    page = sampling.after()
    assert time.thread_time() - start < 0.4  # 45 ms where this was written
    groups = page.of("host_group_threads")
    assert len(groups) == 101
    assert sum(groups.values()) == 4000
