"""GPUs and drivers that come, go, hang and come back, seen from a scrape of the real command."""

from __future__ import annotations

import ctypes
import os
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exporters.support import GPU0, GPU1, ExporterProcess, NvmlMock, Values

Start = Callable[..., ExporterProcess]

GPU_ONLY = ("--no-collector.host", "--no-collector.threads", "--gpu.sampling-interval=0.1")
STATE_ONLY = {"gpu_up", "gpu_last_sample_timestamp_seconds", "gpu_nvml_errors_total"}


def is_up(page: Values, uuid: str) -> bool:
    return page("gpu_up", uuid=uuid) == 1


def reason(page: Values) -> str:
    (labels,) = page.of("nvml_up")
    return dict(labels)["reason"]


def last_sample(page: Values, uuid: str) -> float:
    at = page("gpu_last_sample_timestamp_seconds", uuid=uuid)
    assert at is not None
    return at


@pytest.fixture
def two(exporter: Start, mock: NvmlMock) -> ExporterProcess:
    """Two GPUs that are up."""
    mock.replace("n=2")
    process = exporter(*GPU_ONLY, mock=mock)
    process.wait(lambda page: is_up(page, GPU0) and is_up(page, GPU1))
    return process


def test_a_lost_gpu_does_not_take_the_others_along(two: ExporterProcess, mock: NvmlMock) -> None:
    mock.set("fail.*.1=15")
    page = two.wait(lambda page: not is_up(page, GPU1))
    assert page.names_of(GPU1) == STATE_ONLY
    assert page("gpu_nvml_errors_total", uuid=GPU1, call="nvmlDeviceGetPowerUsage", code="15")
    assert is_up(page, GPU0)
    seen = last_sample(page, GPU0)
    # Past the next enumeration, which cannot open it: it is still known, and still down.
    page = two.wait(lambda page: last_sample(page, GPU0) > seen + 1.0)
    assert page.names_of(GPU1) == STATE_ONLY
    assert page("gpu_devices") == 2
    assert reason(page) == "ok"
    mock.unset("fail.*.1")
    assert "gpu_power_watts" in two.wait(lambda page: is_up(page, GPU1)).names_of(GPU1)


def test_a_hanging_call_stops_its_own_gpu_only(two: ExporterProcess, mock: NvmlMock) -> None:
    mock.set("delay_us.nvmlDeviceGetPowerUsage.0=60000000", "exit_waits=1")
    page = two.wait(lambda page: not is_up(page, GPU0))
    assert page.names_of(GPU0) <= STATE_ONLY
    threads = thread_count(two)
    took = []
    for _ in range(20):
        start = time.perf_counter()
        page = two.scrape()
        took.append(time.perf_counter() - start)
    assert sorted(took)[10] < 0.1
    assert is_up(page, GPU1)
    assert time.time() - last_sample(page, GPU1) < 1.0
    assert thread_count(two) <= threads + 2  # a connection's thread may be ending still
    code, seconds, said = two.stop()
    assert (code, seconds < 2.0) == (0, True), said
    assert "a driver call hanging" in said


def test_a_gpu_is_up_again_when_its_call_returns(two: ExporterProcess, mock: NvmlMock) -> None:
    mock.set("delay_us.nvmlDeviceGetPowerUsage.0=60000000")
    two.wait(lambda page: not is_up(page, GPU0))
    mock.replace("n=2", "unhang=1")
    two.wait(lambda page: is_up(page, GPU0))


def test_a_gpu_that_went_while_it_hung_is_down_when_it_comes_back(
    exporter: Start, mock: NvmlMock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no second thread that would hang as well, and is no longer down once it answers."""
    log = tmp_path / "calls"
    monkeypatch.setenv("NVML_MOCK_LOG", str(log))
    mock.replace("n=2", "delay_us.nvmlDeviceGetPowerUsage.1=60000000")
    process = exporter(*GPU_ONLY, mock=mock)
    process.wait(lambda page: page("gpu_up", uuid=GPU1) == 0)
    mock.set("n=1")
    process.wait(lambda page: page("gpu_up", uuid=GPU1) is None)
    mock.set("n=2")
    page = process.wait(lambda page: page("gpu_up", uuid=GPU1) is not None)
    assert not is_up(page, GPU1)
    time.sleep(0.3)
    assert log.read_text().count("nvmlDeviceGetPowerUsage 1 ") == 1
    mock.replace("n=2", "unhang=1")
    process.wait(lambda page: is_up(page, GPU1))


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"])
def test_a_gpu_that_hangs_when_it_is_opened_keeps_no_other_from_being_found(
    exporter: Start, mock: NvmlMock, call: str
) -> None:
    """An exporter is started anew because of such a GPU: the others must come back."""
    mock.replace("n=2", f"delay_us.{call}.0=60000000", "exit_waits=1")
    process = exporter(*GPU_ONLY, mock=mock)
    page = process.wait(lambda page: is_up(page, GPU1))
    assert page("gpu_up", uuid=GPU0) is None
    assert page("gpu_devices") == 2
    time.sleep(1.5)  # beyond the next enumeration
    assert is_up(process.scrape(), GPU1)
    assert process.said().count("GPU 0: opening it takes more than 1 s") == 1
    assert thread_count(process) <= 8  # none is added with each enumeration
    mock.replace("n=2", "unhang=1")
    process.wait(lambda page: is_up(page, GPU0) and is_up(page, GPU1))
    mock.replace("n=2", f"delay_us.{call}.0=60000000", "exit_waits=1")
    time.sleep(2.0)
    assert is_up(process.scrape(), GPU0)  # open already: its samples go on
    code, seconds, said = process.stop()
    assert (code, seconds < 2.0) == (0, True), said


def test_a_gpu_that_stays_lost_is_started_anew_less_and_less_often(
    exporter: Start, mock: NvmlMock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "calls"
    monkeypatch.setenv("NVML_MOCK_LOG", str(log))
    mock.replace("n=1")
    process = exporter(*GPU_ONLY, mock=mock)
    process.wait(lambda page: is_up(page, GPU0))
    mock.set("fail.*.0=15")
    time.sleep(4.0)  # eight enumerations: the library starts anew at 0.5, 1.5 and 3.5 s at most
    page = process.scrape()
    assert page.names_of(GPU0) == STATE_ONLY
    starts = sum(line.startswith("nvmlInit") for line in log.read_text().splitlines())
    assert 2 <= starts <= 4
    mock.unset("fail.*.0")
    process.wait(lambda page: is_up(page, GPU0))


def test_one_stale_value_is_dropped_with_its_gpu_up(two: ExporterProcess, mock: NvmlMock) -> None:
    mock.set("fail.nvmlDeviceGetUtilizationRates=999")

    def without_utilization(page: Values) -> bool:
        return page("gpu_utilization_ratio", uuid=GPU0, engine="compute") is None

    page = two.wait(without_utilization)
    assert is_up(page, GPU0)
    assert page("gpu_power_watts", uuid=GPU0) == 120.0


@pytest.mark.parametrize("stale_code", [15, 18, 999])
def test_a_reloaded_driver_is_found_again(
    two: ExporterProcess, mock: NvmlMock, stale_code: int
) -> None:
    """After it the GPUs may be listed in another order; series follow the uuid."""
    mock.set("gpu.0.util=11", "gpu.1.util=22")
    before = two.wait(
        lambda page: page("gpu_utilization_ratio", uuid=GPU0, engine="compute") == 0.11
    )
    mock.set("epoch=1", f"stale_rc={stale_code}", "order=1,0")
    page = two.wait(lambda page: not is_up(page, GPU0) and not is_up(page, GPU1))
    assert page.names_of(GPU0) == STATE_ONLY
    page = two.wait(lambda page: is_up(page, GPU0) and is_up(page, GPU1))
    assert reason(page) == "ok"
    assert page("gpu_utilization_ratio", uuid=GPU0, engine="compute") == 0.11
    assert page("gpu_utilization_ratio", uuid=GPU1, engine="compute") == 0.22
    info = {dict(labels)["uuid"]: dict(labels)["index"] for labels in page.of("gpu_info")}
    assert info == {GPU0: "1", GPU1: "0"}
    for labels, value in before.of("gpu_busy_seconds_total").items():
        assert page[("gpu_busy_seconds_total", labels)] >= value


@pytest.mark.parametrize(
    ("code", "expected"), [(9, "driver_not_loaded"), (18, "version_mismatch"), (999, "error")]
)
def test_the_exporter_waits_for_the_driver(
    exporter: Start, mock: NvmlMock, code: int, expected: str
) -> None:
    mock.replace(f"fail.nvmlInitWithFlags={code}")
    process = exporter("--gpu.sampling-interval=0.1", "--gpu.exit-on-version-mismatch", mock=mock)
    page = process.wait(lambda page: reason(page) == expected)
    assert page("nvml_up", reason=expected) == 0
    assert page("gpu_devices") == 0
    assert page("exporter_collector_success", collector="gpu") == 1
    assert "host_cpu_seconds_total" in page.names()
    time.sleep(1.2)  # longer than the command takes to see that it should end
    mock.unset("fail.nvmlInitWithFlags")
    page = process.wait(lambda page: is_up(page, GPU0))
    assert page.of("nvml_up") == {frozenset({("reason", "ok")}): 1}


@pytest.mark.parametrize("exits", [True, False])
def test_a_replaced_driver_ends_the_exporter_where_asked(
    exporter: Start, mock: NvmlMock, exits: bool
) -> None:
    """The old library cannot be initialised again: only a new process helps."""
    mock.replace("n=1")
    process = exporter(*GPU_ONLY, *["--gpu.exit-on-version-mismatch"] * exits, mock=mock)
    process.wait(lambda page: is_up(page, GPU0))
    mock.replace("epoch=1", "stale_rc=18", "fail.nvmlInitWithFlags=18")
    if exits:
        assert process.process.wait(timeout=20) == 1
        assert process.said().endswith(
            "tailwatch exporter: the NVIDIA driver was replaced, its library is loaded at the "
            "next start only\n"
        )
    else:
        page = process.wait(lambda page: page("gpu_devices") == 0)
        assert page("nvml_up", reason="version_mismatch") == 0
        assert page.names_of(GPU0) == STATE_ONLY


def has_real_library() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_real_library(), reason="this machine has an NVIDIA driver")
def test_without_the_library_the_host_is_still_shown(exporter: Start) -> None:
    process = exporter("--gpu.sampling-interval=0.1")
    page = process.wait(lambda page: reason(page) == "library_not_found")
    assert page("nvml_up", reason="library_not_found") == 0
    assert page("gpu_devices") == 0
    assert "host_cpu_seconds_total" in page.names()
    assert process.said().count("libnvidia-ml.so.1") == 1


def test_no_gpu_is_not_no_driver(exporter: Start, mock: NvmlMock) -> None:
    mock.replace("n=0")
    page = exporter(*GPU_ONLY, mock=mock).wait(lambda page: reason(page) == "ok")
    assert page("nvml_up", reason="ok") == 1
    assert page("gpu_devices") == 0
    assert not page.of("gpu_up")


def test_a_driver_reloaded_without_a_gpu_is_found_again(exporter: Start, mock: NvmlMock) -> None:
    mock.replace("n=0")
    process = exporter(*GPU_ONLY, mock=mock)
    process.wait(lambda page: reason(page) == "ok")
    mock.replace("n=1", "epoch=1")
    process.wait(lambda page: is_up(page, GPU0))


def test_gpus_that_come_and_go_are_noticed(exporter: Start, mock: NvmlMock) -> None:
    mock.replace("n=1")
    process = exporter(*GPU_ONLY, mock=mock)
    process.wait(lambda page: is_up(page, GPU0))
    mock.replace("n=2", "gpu.0.mig=2")
    page = process.wait(lambda page: is_up(page, GPU1) and page("gpu_mig_enabled", uuid=GPU0) == 1)
    assert page("gpu_devices") == 2
    mock.replace("n=1")
    page = process.wait(lambda page: page("gpu_devices") == 1)
    assert not page.names_of(GPU1)
    assert is_up(page, GPU0)


def test_the_same_xid_twice_counts_twice(two: ExporterProcess, mock: NvmlMock) -> None:
    mock.set("xid_seq=1", "xid=31", "xid_gpu=1")
    two.wait(lambda page: page("gpu_xid_errors_total", uuid=GPU1, xid="31") == 1)
    mock.set("xid_seq=2")
    page = two.wait(lambda page: page("gpu_xid_errors_total", uuid=GPU1, xid="31") == 2)
    at = page("gpu_xid_last_timestamp_seconds", uuid=GPU1)
    assert at is not None and abs(time.time() - at) < 5


def test_xid_errors_are_heard_after_a_driver_reload(two: ExporterProcess, mock: NvmlMock) -> None:
    mock.set("xid_seq=1", "xid=79", "xid_gpu=0")
    two.wait(lambda page: page("gpu_xid_errors_total", uuid=GPU0, xid="79") == 1)
    mock.set("epoch=1")
    two.wait(lambda page: not is_up(page, GPU0))
    two.wait(lambda page: is_up(page, GPU0))
    mock.set("xid_seq=2")
    two.wait(lambda page: page("gpu_xid_errors_total", uuid=GPU0, xid="79") == 2)


def test_an_xid_is_still_shown_when_its_gpu_fell_off_the_bus(
    two: ExporterProcess, mock: NvmlMock
) -> None:
    mock.set("xid_seq=1", "xid=79", "xid_gpu=1")
    two.wait(lambda page: page("gpu_xid_errors_total", uuid=GPU1, xid="79") == 1)
    mock.set("fail.*.1=15")
    page = two.wait(lambda page: not is_up(page, GPU1))
    assert page("gpu_xid_errors_total", uuid=GPU1, xid="79") == 1


def test_the_xid_that_comes_with_the_loss_is_counted(two: ExporterProcess, mock: NvmlMock) -> None:
    """XID 79, fallen off the bus: from then on the GPU does not even tell its uuid."""
    mock.set("fail.*.1=15", "xid_seq=1", "xid=79", "xid_gpu=1")
    two.wait(lambda page: page("gpu_xid_errors_total", uuid=GPU1, xid="79") == 1)
    two.wait(lambda page: not is_up(page, GPU1))


def test_listening_that_hangs_hides_no_gpu(exporter: Start, mock: NvmlMock) -> None:
    mock.replace("n=2", "delay_us.nvmlDeviceRegisterEvents=60000000")
    process = exporter(*GPU_ONLY, mock=mock)
    page = process.wait(lambda page: is_up(page, GPU0) and is_up(page, GPU1))
    assert reason(page) == "ok"


def test_a_gpu_that_could_not_be_listened_to_is_tried_again(
    exporter: Start, mock: NvmlMock
) -> None:
    mock.replace("n=1", "fail.nvmlDeviceRegisterEvents=999")
    process = exporter(*GPU_ONLY, mock=mock)
    call = "nvmlDeviceRegisterEvents"
    process.wait(lambda page: page("gpu_nvml_errors_total", call=call, code="999") == 2)
    assert process.said().count(call) == 1
    mock.replace("n=1", "xid_seq=1", "xid=31")
    process.wait(lambda page: page("gpu_xid_errors_total", uuid=GPU0, xid="31") == 1)


def test_listening_that_fails_is_told(two: ExporterProcess, mock: NvmlMock) -> None:
    mock.set("fail.nvmlEventSetWait_v2=999")
    call = "nvmlEventSetWait_v2"
    two.wait(lambda page: page("gpu_nvml_errors_total", call=call, code="999") == 2)
    assert two.said().count(call) == 1


@pytest.mark.parametrize("code", [4, 15])
def test_a_gpu_that_cannot_be_opened_is_told_once(
    exporter: Start, mock: NvmlMock, code: int
) -> None:
    mock.replace("n=2", f"fail.*.1={code}")
    process = exporter(*GPU_ONLY, mock=mock)
    call = "nvmlDeviceGetHandleByIndex_v2"
    page = process.wait(lambda page: page("gpu_nvml_errors_total", call=call, code=str(code)) == 2)
    assert process.said().count(call) == 1
    assert page("gpu_devices") == 2
    assert page("gpu_up", uuid=GPU1) is None


def test_sixteen_gpus_with_slow_calls_stay_fresh(exporter: Start, mock: NvmlMock) -> None:
    """Serially two 20 ms calls on each of 16 GPUs would take two thirds of every second."""
    mock.replace("n=16", "delay_us.nvmlDeviceGetPcieThroughput=20000")
    process = exporter("--no-collector.host", "--no-collector.threads", mock=mock)
    process.wait(lambda page: sum(page.of("gpu_up").values()) == 16)
    for _ in range(8):
        time.sleep(0.25)
        page = process.scrape()
        ages = [time.time() - at for at in page.of("gpu_last_sample_timestamp_seconds").values()]
        assert len(ages) == 16
        assert max(ages) < 1.5


def test_the_driver_is_released_on_sigterm(
    exporter: Start, mock: NvmlMock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "calls"
    monkeypatch.setenv("NVML_MOCK_LOG", str(log))
    mock.replace("n=2", "gpm.2=40")
    process = exporter(*GPU_ONLY, mock=mock)
    process.wait(lambda page: page("gpu_sm_active_ratio", uuid=GPU1) is not None)
    code, seconds, said = process.stop()
    assert (code, said) == (0, "")
    assert seconds < 2.0
    calls = [line.split()[0] for line in log.read_text().splitlines()]
    counts = Counter(calls)
    assert counts["nvmlGpmSampleFree"] == counts["nvmlGpmSampleAlloc"] == 4
    assert counts["nvmlEventSetFree"] == counts["nvmlEventSetCreate"] == 1
    assert counts["nvmlShutdown"] == counts["nvmlInitWithFlags"] == 1
    assert calls[-1] == "nvmlShutdown"


def test_a_driver_that_hangs_at_the_start_does_not_hold_the_exporter(
    exporter: Start, mock: NvmlMock
) -> None:
    mock.replace("delay_us.nvmlInitWithFlags=60000000")
    process = exporter("--gpu.sampling-interval=0.1", mock=mock)
    page = process.scrape()
    assert page("nvml_up", reason="starting") == 0
    assert "host_cpu_seconds_total" in page.names()
    code, seconds, _ = process.stop()
    assert (code, seconds < 2.0) == (0, True)


def test_scrapes_make_no_nvml_call(
    exporter: Start, mock: NvmlMock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "calls"
    monkeypatch.setenv("NVML_MOCK_LOG", str(log))
    mock.replace("n=1")
    process = exporter(
        "--no-collector.host",
        "--no-collector.threads",
        "--gpu.sampling-interval=60s",
        mock=mock,
    )
    process.wait(lambda page: is_up(page, GPU0))
    calls = [line for line in log.read_text().splitlines() if "EventSetWait" not in line]
    for _ in range(10):
        urllib.request.urlopen(process.url + "/metrics", timeout=5).close()
    after = [line for line in log.read_text().splitlines() if "EventSetWait" not in line]
    assert after == calls


def thread_count(process: ExporterProcess) -> int:
    return len(os.listdir(f"/proc/{process.process.pid}/task"))
