"""The collector `host` on a recorded /proc and /sys."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tailwatch_exporters.host import HostCollector
from tests.exporters.support import PROC, SYS, Clock, scrape, scrape_text


def collector(proc: Path = PROC, clock: Clock | None = None) -> HostCollector:
    return HostCollector(proc, SYS, ticks_per_second=100, page_bytes=4096, clock=clock or Clock())


@pytest.fixture
def changing_proc(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROC, tmp_path / "proc"))


def test_page(golden: Callable[[str, str], None]) -> None:
    golden("host.prom", scrape_text(collector()))


def test_guest_time_is_counted_once() -> None:
    """user holds guest and nice holds guest_nice: a core's modes add up to wall time once."""
    page = scrape(collector())

    def seconds(mode: str) -> float | None:
        return page("host_cpu_seconds_total", cpu="0", mode=mode)

    assert (seconds("user"), seconds("guest")) == (0.0, 10.0)
    assert (seconds("nice"), seconds("guest_nice")) == (3.0, 2.0)
    cpu0 = [v for k, v in page.of("host_cpu_seconds_total").items() if ("cpu", "0") in k]
    assert sum(cpu0) == pytest.approx((1000 + 500 + 800 + 90000 + 100 + 4 + 8 + 30) / 100)


def test_small_steps_back_hold_the_earlier_value(changing_proc: Path) -> None:
    host = collector(changing_proc)
    rewrite(changing_proc, cpu0="1 1 1 1000 1 1 1 1", cpu1="1 1 1 1000 200 1 1 1")
    scrape(host)
    rewrite(changing_proc, cpu0="1 1 1 997 1 1 1 1", cpu1="1 1 1 1100 150 1 1 1")
    page = scrape(host)
    assert page("host_cpu_seconds_total", cpu="0", mode="idle") == 10.0
    assert page("host_cpu_seconds_total", cpu="1", mode="iowait") == 2.0
    assert page("host_cpu_seconds_total", cpu="1", mode="idle") == 11.0


def test_large_step_back_resets_that_core_only(changing_proc: Path) -> None:
    host = collector(changing_proc)
    rewrite(changing_proc, cpu0="500 0 0 9000 0 0 0 0", cpu1="500 0 0 9000 100 0 0 0")
    scrape(host)
    rewrite(changing_proc, cpu0="510 0 0 5000 0 0 0 0", cpu1="510 0 0 9100 90 0 0 0")
    page = scrape(host)
    assert page("host_cpu_seconds_total", cpu="0", mode="idle") == 50.0
    assert page("host_cpu_seconds_total", cpu="1", mode="iowait") == 1.0


@pytest.mark.parametrize("garbage", [2**64 - 1, 2**63, 2**53, 2**40])
def test_garbage_is_never_published(changing_proc: Path, garbage: int) -> None:
    host = collector(changing_proc)
    rewrite(changing_proc, cpu0="1 1 1 1000 1 1 1 7", cpu1=f"1 1 1 1000 1 1 1 {garbage}")
    first = scrape(host)
    assert first("host_cpu_seconds_total", cpu="1", mode="steal") is None
    assert first("host_cpu_seconds_total", cpu="1", mode="idle") == 10.0
    rewrite(changing_proc, cpu0=f"1 1 1 1100 1 1 1 {garbage}", cpu1="1 1 1 1100 1 1 1 9")
    second = scrape(host)
    assert second("host_cpu_seconds_total", cpu="0", mode="steal") == 0.07
    assert second("host_cpu_seconds_total", cpu="1", mode="steal") == 0.09


@pytest.mark.parametrize("guest", [2**64 - 1, 1011])
def test_guest_time_that_contradicts_user_time_resets_nothing(
    changing_proc: Path, guest: int
) -> None:
    host = collector(changing_proc)
    rewrite(changing_proc, cpu0="1000 0 0 1000 0 0 0 0 400 0")
    scrape(host)
    rewrite(changing_proc, cpu0=f"1010 0 0 1100 0 0 0 0 {guest} 0")
    assert scrape(host)("host_cpu_seconds_total", cpu="0", mode="user") == 6.0
    rewrite(changing_proc, cpu0="1020 0 0 1200 0 0 0 0 405 0")
    page = scrape(host)
    assert page("host_cpu_seconds_total", cpu="0", mode="user") == 6.15
    assert page("host_cpu_seconds_total", cpu="0", mode="idle") == 12.0


def test_cores_are_known_by_their_id(changing_proc: Path) -> None:
    """An offline core has no series, and the others keep theirs."""
    host = collector(changing_proc)
    rewrite(changing_proc, cpu0="1 1 1 1000 1 1 1 1", cpu1="1 1 1 1", cpu2="1 1 1 3000 1 1 1 1")
    scrape(host)
    rewrite(changing_proc, cpu0="1 1 1 1000 1 1 1 1", cpu2="1 1 1 3000 1 1 1 1")
    page = scrape(host)
    assert {dict(k)["cpu"] for k in page.of("host_cpu_seconds_total")} == {"0", "2"}
    assert page("host_cpu_seconds_total", cpu="2", mode="idle") == 30.0


def test_missing_stat_reports_down_and_the_rest_is_served(changing_proc: Path) -> None:
    (changing_proc / "stat").unlink()
    page = scrape(collector(changing_proc))
    assert page("exporter_collector_success", collector="host") == 0
    assert "host_cpu_seconds_total" not in page.names()
    assert page("host_load1") == 0.72


@pytest.mark.parametrize(
    ("file", "family"),
    [
        ("loadavg", "host_load1"),
        ("meminfo", "host_memory_total_bytes"),
        ("vmstat", "host_oom_kills_total"),
        ("net/dev", "host_network_receive_bytes_total"),
        ("net/snmp", "host_network_retransmits_total"),
        ("diskstats", "host_disk_reads_total"),
        ("pressure/io", None),
    ],
)
def test_what_a_kernel_lacks_is_absent_and_no_error(
    changing_proc: Path, file: str, family: str | None
) -> None:
    (changing_proc / file).unlink()
    page = scrape(collector(changing_proc))
    assert page("exporter_collector_success", collector="host") == 1
    if family is None:
        assert page("host_pressure_waiting_seconds_total", resource="io") is None
        assert page("host_pressure_waiting_seconds_total", resource="cpu") == 23.456789
    else:
        assert family not in page.names()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("stat", "cpu0 1 2\n", "/proc/stat: cpu0 has 2 numbers, need at least 4"),
        ("stat", "cpu0 1 2 x 4\n", "/proc/stat: cpu0 has '1 2 x 4', need numbers"),
        ("loadavg", "much\n", "/proc/loadavg: 'much', need three numbers first"),
        ("meminfo", "MemTotal: x kB\n", "/proc/meminfo: MemTotal is 'x', need a number"),
        ("vmstat", "pswpin x\n", "/proc/vmstat: pswpin is 'x', need a number"),
        ("net/dev", "-\n-\neth0: 1 2\n", "/proc/net/dev: 'eth0: 1 2', need nine numbers or more"),
        ("diskstats", "8 0 sda 1\n", "/proc/diskstats: '8 0 sda 1', need fourteen columns"),
        ("pressure/cpu", "some total=x\n", "/proc/pressure: total is 'x', need a number"),
    ],
)
def test_a_file_that_cannot_be_parsed_takes_its_families_only(
    changing_proc: Path, caplog: pytest.LogCaptureFixture, file: str, text: str, message: str
) -> None:
    (changing_proc / file).write_text(text)
    host = collector(changing_proc)
    page = scrape(host)
    assert page("exporter_collector_success", collector="host") == 0
    untouched = "host_load1" if file == "stat" else "host_cpu_seconds_total"
    assert untouched in page.names()
    assert message in caplog.text


def test_an_unreadable_file_is_named(changing_proc: Path, caplog: pytest.LogCaptureFixture) -> None:
    (changing_proc / "meminfo").unlink()
    (changing_proc / "meminfo").mkdir()
    page = scrape(collector(changing_proc))
    assert page("exporter_collector_success", collector="host") == 0
    assert page("host_load1") == 0.72
    assert f"Is a directory: '{changing_proc}/meminfo'" in caplog.text


def test_links_without_a_speed_have_no_series() -> None:
    page = scrape(collector())
    assert page.of("host_network_speed_bytes") == {frozenset({("device", "eth0")}): 25e9 / 8}


def test_link_speed_is_read_once_a_minute(tmp_path: Path, changing_proc: Path) -> None:
    sysfs = Path(shutil.copytree(SYS, tmp_path / "sys"))
    clock = Clock()
    host = HostCollector(changing_proc, sysfs, 100, 4096, clock)
    scrape(host)
    (sysfs / "class/net/eth0/speed").write_text("10000\n")
    clock.now += 59
    assert scrape(host)("host_network_speed_bytes", device="eth0") == 25e9 / 8
    clock.now += 1
    assert scrape(host)("host_network_speed_bytes", device="eth0") == 10e9 / 8


def test_partitions_and_loop_devices_are_not_counted_beside_their_disks() -> None:
    page = scrape(collector())
    devices = {dict(labels)["device"] for labels in page.of("host_disk_reads_total")}
    assert devices == {"nvme0n1", "sda"}


def test_no_file_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead network mount blocks statvfs for good; a scrape must not depend on one."""

    def hang(*_: object) -> None:
        raise AssertionError("a scrape asked a file system")

    for name in ("statvfs", "fstatvfs", "stat", "lstat", "scandir", "listdir"):
        monkeypatch.setattr(os, name, hang)
    assert scrape(collector())("exporter_collector_success", collector="host") == 1


def test_many_cores_stay_cheap(changing_proc: Path) -> None:
    import time

    cores = {f"cpu{n}": "100 2 300 4000 5 6 7 8 9 1" for n in range(256)}
    rewrite(changing_proc, **cores)
    host = collector(changing_proc)
    assert len(scrape(host).of("host_cpu_seconds_total")) == 2560
    took = []
    for _ in range(20):
        start = time.thread_time()
        scrape_text(host)
        took.append(time.thread_time() - start)
    assert sorted(took)[10] < 0.015  # 4 ms where this was written; client_python needs 11


def rewrite(proc: Path, **cpus: str) -> None:
    lines = [f"{name} {ticks}\n" for name, ticks in cpus.items()]
    (proc / "stat").write_text("cpu  0 0 0 0\n" + "".join(lines) + "ctxt 5\n")
