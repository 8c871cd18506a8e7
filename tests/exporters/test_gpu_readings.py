"""One GPU read call by call: the mock library behind the real pynvml, the clock the test's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailwatch_exporters._nvml import Device, Library, Process, ProcessUtilization
from tailwatch_exporters.gpu_device import DeviceSampler, DeviceTotals, Identity
from tailwatch_exporters.gpu_families import FAMILIES
from tailwatch_exporters.gpu_processes import ProcessProbe
from tailwatch_exporters.gpu_sample import SETTLED_SAMPLES, DeviceCalls, SampleBuilder
from tailwatch_tracing.exposition import render_samples
from tests.exporters.support import GPU0, Clock, NvmlMock, Values, parse, wait_until

EVERYTHING = (
    "gpm.2=40",
    "gpm.3=30",
    "gpm.5=20",
    "gpm.10=10",
    "fi.74=1500000000",
    "fi.82=72",
    "fi.138.0=1024",
    "fi.139.0=2048",
    "procs=4000000:1000:30",
)


class Gpu:
    """A sampler whose samples the test takes, one second apart."""

    def __init__(self, procfs: Path = Path("/nonexistent")) -> None:
        self.clock = Clock()
        library = Library()
        library.init()
        self.totals = DeviceTotals()
        self.sampler = DeviceSampler(
            library,
            library.device_by_uuid(GPU0),
            Identity(GPU0, 0, "550"),
            self.totals,
            1.0,
            procfs,
            self.clock,
            Clock(1.7e9),
        )

    def sample(self, seconds: float = 1.0) -> Values:
        """Take a sample; return its series, none when the GPU did not answer."""
        self.clock.now += seconds
        self.sampler.sample()
        snapshot = self.sampler.state.snapshot
        return parse("".join(snapshot.lines.values()) if snapshot else "")


@pytest.fixture
def gpu(nvml: NvmlMock) -> Iterator[Gpu]:
    gpu = Gpu()
    yield gpu
    gpu.sampler.close()


def value(page: Values, name: str, **labels: str) -> float | None:
    return page(name, uuid=GPU0, **labels)


# ---- one call fails ----

CLOCKS = ("graphics", "sm", "memory", "video")
UTILIZATION = "gpu_utilization_ratio", "gpu_busy_seconds_total"
GPM = {
    ("gpu_sm_active_ratio",),
    ("gpu_sm_occupancy_ratio",),
    ("gpu_tensor_active_ratio",),
    ("gpu_dram_active_ratio",),
}


def engine(*names: str) -> set[tuple[str, ...]]:
    return {(family, name) for family in UTILIZATION for name in names}


LOST_WITH = {  # function -> the series (family, label values beside uuid) that go with it
    "nvmlDeviceGetUtilizationRates": engine("compute", "memory_controller"),
    "nvmlDeviceGetEncoderUtilization": engine("encoder"),
    "nvmlDeviceGetDecoderUtilization": engine("decoder"),
    "nvmlDeviceGetJpgUtilization": engine("jpeg"),
    "nvmlDeviceGetOfaUtilization": engine("ofa"),
    "nvmlGpmQueryDeviceSupport": GPM | {("gpu_gpm_supported",)},
    "nvmlGpmSampleAlloc": GPM,
    "nvmlGpmSampleGet": GPM,
    "nvmlGpmMetricsGet": GPM,
    "nvmlDeviceGetMemoryInfo_v2": {("gpu_memory_reserved_bytes",)},
    "nvmlDeviceGetFieldValues": {
        ("gpu_clock_event_seconds_total", "sw_power_cap"),
        ("gpu_temperature_celsius", "memory"),
        ("gpu_nvlink_transmit_bytes_total", "0"),
        ("gpu_nvlink_receive_bytes_total", "0"),
    },
    "nvmlDeviceGetCurrPcieLinkGeneration": {("gpu_pcie_link_generation", "current")},
    "nvmlDeviceGetMaxPcieLinkGeneration": {("gpu_pcie_link_generation", "max")},
    "nvmlDeviceGetCurrPcieLinkWidth": {("gpu_pcie_link_width", "current")},
    "nvmlDeviceGetMaxPcieLinkWidth": {("gpu_pcie_link_width", "max")},
    "nvmlDeviceGetPcieReplayCounter": {("gpu_pcie_replays_total",)},
    "nvmlDeviceGetPcieThroughput": {
        ("gpu_pcie_transmit_bytes_per_second", "throughput"),
        ("gpu_pcie_receive_bytes_per_second", "throughput"),
    },
    "nvmlDeviceGetClockInfo": {("gpu_clock_hertz", domain) for domain in CLOCKS},
    "nvmlDeviceGetMaxClockInfo": {("gpu_clock_max_hertz", domain) for domain in CLOCKS},
    "nvmlDeviceGetPowerUsage": {("gpu_power_watts",)},
    "nvmlDeviceGetEnforcedPowerLimit": {("gpu_power_limit_watts",)},
    "nvmlDeviceGetTotalEnergyConsumption": {("gpu_energy_joules_total",)},
    "nvmlDeviceGetTemperature": {("gpu_temperature_celsius", "gpu")},
    "nvmlDeviceGetTotalEccErrors": {
        ("gpu_ecc_errors_total", *pair)
        for pair in (
            ("corrected", "volatile"),
            ("uncorrected", "volatile"),
            ("corrected", "aggregate"),
            ("uncorrected", "aggregate"),
        )
    },
    "nvmlDeviceGetRemappedRows": {
        ("gpu_remapped_rows_total", "corrected"),
        ("gpu_remapped_rows_total", "uncorrected"),
    },
    "nvmlDeviceGetMigMode": {("gpu_mig_enabled",)},
    "nvmlDeviceGetComputeRunningProcesses_v3": {("gpu_process_memory_bytes", "unknown")},
    "nvmlDeviceGetProcessUtilization": {("gpu_process_sm_utilization_ratio", "unknown")},
    "nvmlDeviceGetGraphicsRunningProcesses_v3": set(),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": set(),
    "nvmlDeviceGetName": set(),
    "nvmlDeviceGetPciInfo_v3": set(),
}


def series(page: Values) -> set[tuple[str, ...]]:
    """Name and label values beside uuid; gpu_info is the same series whatever it could read."""
    found: set[tuple[str, ...]] = set()
    for name, labels in page:
        if name != "gpu_info":
            keys = {key: text for key, text in labels if key != "uuid"}
            ordered = [keys[key] for key in ("type", "scope") if key in keys] or keys.values()
            found.add((name, *ordered))
    return found


@pytest.mark.parametrize("code", [3, 4, 13, 999])
@pytest.mark.parametrize("function", LOST_WITH)
def test_a_failing_call_takes_its_own_series_only(
    nvml: NvmlMock, caplog: pytest.LogCaptureFixture, function: str, code: int
) -> None:
    caplog.set_level("INFO")
    nvml.replace(*EVERYTHING)
    whole = Gpu()
    whole.sample()
    everything = series(whole.sample())
    whole.sampler.close()
    nvml.set(f"fail.{function}={code}")
    broken = Gpu()
    broken.sample()
    page = broken.sample()
    broken.sampler.close()
    assert everything - series(page) == LOST_WITH[function]
    assert series(page) - everything == set()
    assert broken.totals.errors[function, code] >= 1
    assert {key for key in broken.totals.errors if key[0] != "nvmlGpmSampleFree"} == {
        (function, code)
    }
    said = [r for r in caplog.records if function in r.message and f"code {code}" in r.message]
    assert len(said) == 1


def test_a_call_that_is_not_supported_rests(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("fail.nvmlDeviceGetPowerUsage=3")
    for _ in range(5):
        gpu.sample()
    assert gpu.totals.errors == {("nvmlDeviceGetPowerUsage", 3): 1}
    nvml.replace("power=5000")
    for _ in range(SETTLED_SAMPLES):
        page = gpu.sample()
    assert value(page, "gpu_power_watts") == 5.0


def test_a_call_that_fails_for_now_is_repeated(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("fail.nvmlDeviceGetPowerUsage=999")
    gpu.sample()
    gpu.sample()
    assert gpu.totals.errors == {("nvmlDeviceGetPowerUsage", 999): 2}
    nvml.replace("power=5000")
    assert value(gpu.sample(), "gpu_power_watts") == 5.0


@pytest.mark.parametrize("code", [1, 9, 15, 16, 18, 999])
def test_a_gpu_that_answers_nothing_has_no_sample(nvml: NvmlMock, gpu: Gpu, code: int) -> None:
    assert gpu.sample()
    nvml.replace(f"fail.*.0={code}")
    assert not gpu.sample()
    assert gpu.sampler.is_lost
    assert gpu.sampler.state.answered_at == 1.7e9


def test_a_lost_gpu_is_lost_though_the_driver_answers_from_memory(nvml: NvmlMock, gpu: Gpu) -> None:
    """Names, link maxima and modes come from the driver's memory after the GPU has gone."""
    cached = (
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetMaxClockInfo",
        "nvmlDeviceGetMigMode",
        "nvmlGpmQueryDeviceSupport",
    )
    nvml.replace("fail.*.0=15", *(f"fail.{function}.0=0" for function in cached))
    assert not gpu.sample()


# ---- utilisation ----


def test_busy_seconds_integrate_utilisation(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("util=50")
    gpu.sample()
    nvml.replace("util=100")
    gpu.sample(2.0)
    nvml.replace("util=25")
    page = gpu.sample(1.0)
    assert value(page, "gpu_busy_seconds_total", engine="compute") == pytest.approx(2.25)


def test_a_gap_is_not_busy_time(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("util=100")
    gpu.sample()
    page = gpu.sample(3600.0)
    assert value(page, "gpu_busy_seconds_total", engine="compute") == pytest.approx(3.0)


@pytest.mark.parametrize("sentinel", [101.5, 255, 4294967295])
def test_impossible_utilisation_is_rejected(nvml: NvmlMock, gpu: Gpu, sentinel: float) -> None:
    nvml.replace(f"util={sentinel}", "memutil=7")
    page = gpu.sample()
    if sentinel == 101.5:  # NVML's percentages are integers: 101 is rounding
        assert value(page, "gpu_utilization_ratio", engine="compute") == 1.0
        return
    assert value(page, "gpu_utilization_ratio", engine="compute") is None
    assert value(page, "gpu_utilization_ratio", engine="memory_controller") == 0.07
    assert value(page, "gpu_rejected_values_total", field="utilization_compute") == 1


def test_busy_and_active_are_both_there(nvml: NvmlMock, gpu: Gpu) -> None:
    """A GPU that runs one small kernel all the time: utilisation 1, SM activity 0.12."""
    nvml.replace("util=100", "gpm.2=12", "gpm.5=1", "gpm.10=3")
    gpu.sample()
    page = gpu.sample()
    assert value(page, "gpu_utilization_ratio", engine="compute") == 1.0
    assert value(page, "gpu_sm_active_ratio") == pytest.approx(0.12)
    assert value(page, "gpu_tensor_active_ratio") == pytest.approx(0.01)
    assert value(page, "gpu_dram_active_ratio") == pytest.approx(0.03)
    assert "a single kernel" in FAMILIES["gpu_utilization_ratio"][1]
    assert "warp resident" in FAMILIES["gpu_sm_active_ratio"][1]


def test_under_mig_the_parent_has_no_utilisation(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("mig=2")
    page = gpu.sample()
    assert value(page, "gpu_mig_enabled") == 1
    assert value(page, "gpu_utilization_ratio", engine="compute") is None


def mig_activity(page: Values) -> dict[str, float]:
    """GPU instance -> share of its SMs that were active."""
    series = page.of("gpu_mig_sm_active_ratio").items()
    return {dict(labels)["gpu_instance_id"]: active for labels, active in series}


def test_mig_instances_have_activity_of_their_own(nvml: NvmlMock, gpu: Gpu) -> None:
    instances = ("gpu.0.mig.0.gpm.2=40", "gpu.0.mig.1.gpm.2=5", "gpu.0.mig.1.gpm.10=25")
    nvml.replace("mig=2", *instances)
    gpu.sample()
    page = gpu.sample()
    assert mig_activity(page) == {"1": pytest.approx(0.40), "2": pytest.approx(0.05)}
    assert value(page, "gpu_mig_dram_active_ratio", gpu_instance_id="2") == pytest.approx(0.25)
    nvml.replace("mig=1", *instances)
    assert mig_activity(gpu.sample()) == {"1": pytest.approx(0.40)}
    nvml.replace("mig=2", *instances)
    assert mig_activity(gpu.sample()).keys() == {"1"}  # no mean over the time it was gone
    assert mig_activity(gpu.sample()).keys() == {"1", "2"}
    nvml.replace("mig=0", *instances)
    assert mig_activity(gpu.sample()) == {}


def test_an_instance_that_cannot_be_read_hides_nothing_else(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("mig=2", "gpu.0.mig.0.gpm.2=40", "fail.nvmlGpmMigSampleGet=3")
    gpu.sample()
    page = gpu.sample()
    assert mig_activity(page) == {}
    assert value(page, "gpu_mig_enabled") == 1
    assert value(page, "gpu_power_watts") == 120.0
    assert gpu.totals.errors["nvmlGpmMigSampleGet", 3] == 2  # once for each of them


@pytest.mark.parametrize("keys", [("gpm_supported=0",), ("fail.nvmlGpmSampleGet=3",)])
def test_without_gpm_only_its_families_are_missing(
    nvml: NvmlMock, gpu: Gpu, keys: tuple[str, ...]
) -> None:
    nvml.replace("gpm.2=40", *keys)
    gpu.sample()
    page = gpu.sample()
    assert value(page, "gpu_gpm_supported") == 0
    assert not {family for (family,) in GPM} & page.names()
    assert value(page, "gpu_power_watts") == 120.0


@pytest.mark.parametrize("answer", ["nan", "-1", "1e19"])
def test_impossible_gpm_answers_are_rejected(nvml: NvmlMock, gpu: Gpu, answer: str) -> None:
    nvml.replace(f"gpm.2={answer}", "gpm.3=30")
    gpu.sample()
    page = gpu.sample()
    assert value(page, "gpu_sm_active_ratio") is None
    assert value(page, "gpu_sm_occupancy_ratio") == pytest.approx(0.3)
    assert value(page, "gpu_rejected_values_total", field="gpm_2") == 1


# ---- memory ----


def test_no_two_samples_are_too_close_for_gpm(nvml: NvmlMock) -> None:
    """The samplers of many GPUs are spread over the interval from their second sample on."""
    begun: list[float] = []

    def wall_clock() -> float:
        begun.append(time.monotonic())
        return 1.7e9

    library = Library()
    library.init()
    sampler = DeviceSampler(
        library,
        library.device_by_uuid(GPU0),
        Identity(GPU0, 15, "550"),
        DeviceTotals(),
        0.4,
        Path("/nonexistent"),
        wall_clock=wall_clock,
    )
    sampler.start()
    wait_until(lambda: len(begun) > 1)
    sampler.signal_stop()
    assert sampler.join(5.0)
    assert 0.19 < begun[1] - begun[0] < 0.4


def test_used_memory_is_without_the_drivers_reserve(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("mem_total=1073741824", "mem_used=0", "mem_reserved=536870912")
    page = gpu.sample()
    assert value(page, "gpu_memory_used_bytes") == 0
    assert value(page, "gpu_memory_reserved_bytes") == 536870912
    assert value(page, "gpu_memory_free_bytes") == 536870912
    assert value(page, "gpu_memory_total_bytes") == 1073741824
    assert memory_api(page) == "v2"


def test_the_first_structure_is_flagged(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace(
        "mem_total=1073741824",
        "mem_used=0",
        "mem_reserved=536870912",
        "fail.nvmlDeviceGetMemoryInfo_v2=13",
    )
    page = gpu.sample()
    assert value(page, "gpu_memory_used_bytes") == 536870912
    assert value(page, "gpu_memory_reserved_bytes") is None
    assert memory_api(page) == "v1"


def test_a_used_that_holds_the_reserve_is_seen_from_the_sum(nvml: NvmlMock, gpu: Gpu) -> None:
    """nvml.h says both; only the sum tells which one a driver means."""
    nvml.replace(
        "mem_total=1000000000", "mem_used=400000000", "mem_reserved=300000000", "mem_free=600000000"
    )
    page = gpu.sample()
    assert value(page, "gpu_memory_used_bytes") == 100000000
    assert value(page, "gpu_memory_reserved_bytes") == 300000000


def test_memory_that_does_not_add_up_is_rejected(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("mem_total=1000000000", "mem_used=1", "mem_reserved=1", "mem_free=600000000")
    page = gpu.sample()
    assert not {name for name in page.names() if name.endswith("_bytes")}
    assert value(page, "gpu_rejected_values_total", field="memory") == 1


def test_unified_memory_has_no_device_memory(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("mem_total=N/A", "procs=4000000:1000")
    page = gpu.sample()
    assert value(page, "gpu_memory_unified") == 1
    assert not {name for name in page.names() if name.startswith("gpu_memory_") and "bytes" in name}
    assert value(page, "gpu_process_memory_bytes", group="unknown") == 1000
    assert value(gpu.sample(), "gpu_memory_unified") == 1


def test_unreadable_memory_is_not_called_unified(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("fail.nvmlDeviceGetMemoryInfo_v2=4", "fail.nvmlDeviceGetMemoryInfo=4")
    page = gpu.sample()
    assert value(page, "gpu_memory_unified") is None


def memory_api(page: Values) -> str:
    (labels,) = page.of("gpu_info")
    return dict(labels)["memory_api"]


# ---- PCIe, NVLink, fields ----


def test_byte_counters_that_agree_are_published(nvml: NvmlMock) -> None:
    transmit, receive = 5_000_000_000, 7_000_000_000
    gpu = Gpu()
    for _ in range(5):  # as 1 MB/s and 3 MB/s grow, in units of the test's own clock
        transmit += 1_000_000
        receive += 3_000_000
        nvml.replace(
            "pcie_tx_kb=1000", "pcie_rx_kb=3000", f"fi.197={transmit}", f"fi.198={receive}"
        )
        page = gpu.sample()
    assert value(page, "gpu_pcie_transmit_bytes_total", source="field") == transmit
    assert value(page, "gpu_pcie_receive_bytes_total", source="field") == receive
    assert "gpu_pcie_transmit_bytes_per_second" not in page.names()
    assert "gpu_rejected_values_total" not in page.names()


@pytest.mark.parametrize(
    ("transmit_rate", "receive_rate", "type_keys"),
    [(2_000_000_000, 1_000_000_000, ()), (1_000_000, 3_000_000, ("fit.197=1", "fit.198=1"))],
)
def test_byte_counters_that_disagree_or_wrap_are_rejected(
    nvml: NvmlMock, transmit_rate: int, receive_rate: int, type_keys: tuple[str, ...]
) -> None:
    gpu = Gpu()
    for second in range(1, 6):
        nvml.replace(
            "pcie_tx_kb=1000",
            "pcie_rx_kb=3000",
            f"fi.197={second * transmit_rate}",
            f"fi.198={second * receive_rate}",
            *type_keys,
        )
        page = gpu.sample()
    assert value(page, "gpu_pcie_transmit_bytes_per_second", source="throughput") == 1e6
    assert value(page, "gpu_pcie_receive_bytes_per_second", source="throughput") == 3e6
    assert value(page, "gpu_rejected_values_total", field="197") == 1
    assert value(page, "gpu_rejected_values_total", field="198") == 1
    assert not {
        name for name in page.names() if name.startswith("gpu_pcie_") and "_total" in name
    } - {"gpu_pcie_replays_total"}


def test_gpm_rates_come_before_the_slow_call(nvml: NvmlMock, gpu: Gpu, tmp_path: Path) -> None:
    nvml.replace("gpm.20=2", "gpm.21=3")
    gpu.sample()
    nvml.set("fail.nvmlDeviceGetPcieThroughput=999")
    page = gpu.sample()
    assert value(page, "gpu_pcie_transmit_bytes_per_second", source="gpm") == 2 * 2**20
    assert value(page, "gpu_pcie_receive_bytes_per_second", source="gpm") == 3 * 2**20
    assert not gpu.totals.errors


def test_nvlink_counts_kibibytes_per_link(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("fi.138.0=1000", "fi.139.0=2000", "fi.138.17=5")
    page = gpu.sample()
    assert value(page, "gpu_nvlink_transmit_bytes_total", link="0") == 1000 * 1024
    assert value(page, "gpu_nvlink_receive_bytes_total", link="0") == 2000 * 1024
    assert value(page, "gpu_nvlink_transmit_bytes_total", link="17") == 5 * 1024
    assert value(page, "gpu_nvlink_receive_bytes_total", link="17") is None
    assert not gpu.totals.errors


def test_only_links_that_exist_are_shown(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("fi.91=2", "fi.138=1000")
    page = gpu.sample()
    links = {dict(labels)["link"] for labels in page.of("gpu_nvlink_transmit_bytes_total")}
    assert links == {"0", "1"}


@pytest.mark.parametrize(("key", "field"), [("fit.82=7", "82"), ("fit.138.0=1", "138")])
def test_fields_of_a_wrong_type_are_rejected(
    nvml: NvmlMock, gpu: Gpu, key: str, field: str
) -> None:
    nvml.replace("fi.82=70", "fi.138.0=1000", key)
    page = gpu.sample()
    assert value(page, "gpu_rejected_values_total", field=field) == 1


@pytest.mark.parametrize("type_number", range(7))
def test_every_legal_type_is_read(nvml: NvmlMock, gpu: Gpu, type_number: int) -> None:
    nvml.replace("fi.82=70", f"fit.82={type_number}")
    assert value(gpu.sample(), "gpu_temperature_celsius", sensor="memory") == 70


def test_a_field_that_fails_is_counted_and_the_others_are_read(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("fi.82=!999", "fi.74=2000000000")
    page = gpu.sample()
    assert value(page, "gpu_temperature_celsius", sensor="memory") is None
    assert value(page, "gpu_clock_event_seconds_total", reason="sw_power_cap") == 2.0
    assert gpu.totals.errors == {("nvmlDeviceGetFieldValues", 999): 1}


@pytest.mark.parametrize(
    ("key", "family", "labels"),
    [
        ("power=4294967295", "gpu_power_watts", {}),
        ("temp=4294967295", "gpu_temperature_celsius", {"sensor": "gpu"}),
        ("energy=18446744073709551615", "gpu_energy_joules_total", {}),
        ("pcie_replay=4294967295", "gpu_pcie_replays_total", {}),
        ("clk_sm=4294967295", "gpu_clock_hertz", {"domain": "sm"}),
        ("pcie_gen=4294967295", "gpu_pcie_link_generation", {"kind": "current"}),
        ("remap_cor=4294967295", "gpu_remapped_rows_total", {"cause": "corrected"}),
    ],
)
def test_not_available_is_no_value(
    nvml: NvmlMock, gpu: Gpu, key: str, family: str, labels: dict[str, str]
) -> None:
    """Drivers write "not available" as the largest number of the type."""
    nvml.replace(key)
    page = gpu.sample()
    assert value(page, family, **labels) is None
    assert value(page, "gpu_rejected_values_total", field=family) == 1


def test_fields_that_are_not_available_have_no_value(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("fi.82=4294967295", "fit.82=1", "fi.74=18446744073709551615")
    page = gpu.sample()
    assert value(page, "gpu_temperature_celsius", sensor="memory") is None
    assert value(page, "gpu_clock_event_seconds_total", reason="sw_power_cap") is None
    assert value(page, "gpu_rejected_values_total", field="82") == 1
    assert value(page, "gpu_rejected_values_total", field="74") == 1


@pytest.mark.parametrize("answer", [("fi.91=nan", "fit.91=0"), ("fi.91=4294967295", "fit.91=1")])
def test_a_number_of_links_that_cannot_be_true_is_rejected(
    nvml: NvmlMock, gpu: Gpu, answer: tuple[str, str]
) -> None:
    nvml.replace(*answer, "fi.138.35=1000")
    page = gpu.sample()
    assert value(page, "gpu_nvlink_transmit_bytes_total", link="35") == 1_024_000
    assert value(page, "gpu_rejected_values_total", field="91") == 1


def test_an_accepted_byte_counter_that_is_not_available_for_once(nvml: NvmlMock, gpu: Gpu) -> None:
    for second in range(5):
        nvml.replace(f"fi.197={second * 1_000_000}", "pcie_tx_kb=1000")
        page = gpu.sample()
    assert value(page, "gpu_pcie_transmit_bytes_total", source="field") == 4e6
    nvml.replace("fi.197=18446744073709551615", "pcie_tx_kb=1000")
    page = gpu.sample()
    assert value(page, "gpu_pcie_transmit_bytes_total", source="field") is None
    assert value(page, "gpu_pcie_transmit_bytes_per_second", source="throughput") == 1e6
    assert value(page, "gpu_rejected_values_total", field="197") == 1
    nvml.replace("fi.197=6000000", "pcie_tx_kb=1000")
    assert value(gpu.sample(), "gpu_pcie_transmit_bytes_total", source="field") == 6e6


def test_units_are_base_units(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("power=120001", "energy=1234567", "clk_sm=1410", "remap_unc=3", "fi.269=1500000")
    page = gpu.sample()
    assert value(page, "gpu_power_watts") == 120.001
    assert value(page, "gpu_energy_joules_total") == 1234.567
    assert value(page, "gpu_clock_hertz", domain="sm") == 1.41e9
    assert value(page, "gpu_remapped_rows_total", cause="uncorrected") == 3
    assert value(page, "gpu_clock_event_seconds_total", reason="sw_thermal") == 0.0015


# ---- processes ----


def test_processes_are_grouped_by_name(nvml: NvmlMock, tmp_path: Path) -> None:
    for pid, comm in ((100, "python"), (101, "python"), (200, "tritonserver")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(comm + "\n")
    gpu = Gpu(tmp_path)
    nvml.replace("procs=100:1000,101:500,300:7")
    page = gpu.sample()
    assert value(page, "gpu_process_memory_bytes", group="python") == 1500
    assert value(page, "gpu_process_memory_bytes", group="unknown") == 7
    nvml.replace("procs=200:50")
    page = gpu.sample()
    assert page.of("gpu_process_memory_bytes") == {
        frozenset({("uuid", GPU0), ("group", "tritonserver")}): 50
    }


def sm_use(page: Values) -> dict[str, float]:
    """Process group -> share of the SMs."""
    series = page.of("gpu_process_sm_utilization_ratio").items()
    return {dict(labels)["group"]: ratio for labels, ratio in series}


def test_processes_share_the_sms_by_name(nvml: NvmlMock, tmp_path: Path) -> None:
    for pid, comm in ((100, "python"), (101, "python"), (200, "tritonserver")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(comm + "\n")
    gpu = Gpu(tmp_path)
    nvml.replace("procs=100:1:10,101:1:20,200:1:30")
    assert sm_use(gpu.sample()) == {}  # what the driver kept from before the exporter
    assert sm_use(gpu.sample()) == {"python": pytest.approx(0.3), "tritonserver": 0.3}
    nvml.replace("procs=200:1:50,101:1:4294967295")
    page = gpu.sample()
    assert sm_use(page) == {"tritonserver": 0.5}
    assert value(page, "gpu_rejected_values_total", field="process_sm") == 1


def test_no_process_on_the_gpu_is_no_error(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("procs=")
    for _ in range(2):
        assert sm_use(gpu.sample()) == {}
    assert gpu.totals.errors == {}


def test_of_several_samples_of_a_process_the_newest_counts(tmp_path: Path) -> None:
    """The driver keeps a second or more of them; each is asked for once."""

    class Kept(Device):
        def __init__(self) -> None:
            self.asked: list[int] = []

        def process_utilization(self, since_microseconds: int) -> list[ProcessUtilization]:
            self.asked.append(since_microseconds)
            kept = [ProcessUtilization(7, 300, 30), ProcessUtilization(7, 200, 90)]
            return [sample for sample in kept if sample.at_microseconds > since_microseconds]

        def _processes(self, symbol: str) -> list[Process]:
            return []

    def read(device: Device) -> dict[str, float]:
        builder = SampleBuilder(GPU0, Counter())
        probe.read(device, DeviceCalls("GPU", Counter()), builder)
        rendered = (render_samples(*family) for family in builder.samples.items())
        return sm_use(parse("".join(rendered)))

    device, probe = Kept(), ProcessProbe(tmp_path)
    probe._seen_microseconds = 100
    assert read(device) == {"unknown": 0.3}
    assert read(device) == {}
    assert device.asked == [100, 300]


def test_process_memory_that_the_driver_does_not_know_is_absent(nvml: NvmlMock, gpu: Gpu) -> None:
    nvml.replace("procs=100:-1")
    assert "gpu_process_memory_bytes" not in gpu.sample().names()


def test_process_groups_have_a_limit(nvml: NvmlMock, tmp_path: Path) -> None:
    for pid in range(100, 130):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"job{pid}\n")
    gpu = Gpu(tmp_path)
    nvml.replace("procs=" + ",".join(f"{pid}:{pid}" for pid in range(100, 125)))
    page = gpu.sample().of("gpu_process_memory_bytes")
    assert len(page) == 21
    assert sum(page.values()) == sum(range(100, 125))
    assert page[frozenset({("uuid", GPU0), ("group", "other")})] == sum(range(100, 105))
