"""The quota of the process's control group, as one container and another shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tailwatch_tracing import serving
from tailwatch_tracing.cgroup import CpuQuota, read_quota
from tailwatch_tracing.service import service_named
from tests.tracing.asgi import values

CONTAINER = Path(__file__).parents[1] / "fixtures/cgroup/container"

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

STAT_V2 = (
    "usage_usec {}\nuser_usec 1\nsystem_usec 1\nnr_periods {}\nnr_throttled {}\nthrottled_usec {}\n"
)
STAT_V1 = "nr_periods {}\nnr_throttled {}\nthrottled_time {}\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v1_mounts(root: str = "/", cpu: str = "cpu,cpuacct") -> str:
    """Mount points of version 1, as systemd and Docker make them."""
    return "".join(
        f"{40 + i} 30 0:{30 + i} {root} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
        for i, name in enumerate(("memory", *cpu.split(" ")))
    )


def test_a_container_of_version_2_sees_its_own_group_as_the_root() -> None:
    assert read_quota(CONTAINER) == CpuQuota(2.0, 42_500_000_000, 350_000_000, 700, 7)


def test_the_tightest_quota_of_a_pod_and_its_containers_is_in_force(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod/container"
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "proc/self/mountinfo": V2_MOUNT,
            f"{group}/cpu.max": "max 100000\n",
            f"{group}/cpu.stat": STAT_V2.format(1, 0, 0, 0),
            "sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/pod/cpu.stat": STAT_V2.format(2_000_000, 30, 3, 4_000),
            "sys/fs/cgroup/cpu.stat": "usage_usec 9\n",  # the root of a machine has no cpu.max
        },
    )
    assert read_quota(tmp_path) == CpuQuota(0.5, 2_000_000_000, 4_000_000, 30, 3)
    tree(tmp_path, {f"{group}/cpu.max": "150000 100000\n"})
    assert read_quota(tmp_path).limit_cores == 0.5  # type: ignore[union-attr]
    tree(tmp_path, {f"{group}/cpu.max": "25000 100000\n"})
    assert read_quota(tmp_path) == CpuQuota(0.25, 1000, 0, 0, 0)


@pytest.mark.parametrize("cpu", ["cpu,cpuacct", "cpu cpuacct"])
def test_version_1(tmp_path: Path, cpu: str) -> None:
    accounting = cpu.split(" ")[-1]
    controllers = cpu.replace(" ", ":/jobs\n3:")
    directory = f"sys/fs/cgroup/{cpu.split(' ')[0]}/jobs"
    tree(
        tmp_path,
        {
            "proc/self/cgroup": f"4:memory:/o\n2:{controllers}:/jobs\n1:name=systemd:/x\n0::/x\n",
            "proc/self/mountinfo": V2_MOUNT.replace("cgroup rw", "cgroup/unified rw")
            + v1_mounts(cpu=cpu),
            f"{directory}/cpu.cfs_quota_us": "150000\n",
            f"{directory}/cpu.cfs_period_us": "100000\n",
            f"{directory}/cpu.stat": STAT_V1.format(40, 4, 5_000_000_000),
            f"{directory}/../cpu.cfs_quota_us": "-1\n",
            f"sys/fs/cgroup/{accounting}/jobs/cpuacct.usage": "7000000000\n",
        },
    )
    assert read_quota(tmp_path) == CpuQuota(1.5, 7_000_000_000, 5_000_000_000, 40, 4)


@pytest.mark.parametrize("root", ["/docker/abc", "/docker/\\040odd"])
def test_a_container_of_version_1_sees_its_path_on_the_host(tmp_path: Path, root: str) -> None:
    """Without a namespace the path is the host's, and what is mounted is that very group."""
    directory = "sys/fs/cgroup/cpu,cpuacct"
    path = root.replace("\\040", " ")
    tree(
        tmp_path,
        {
            "proc/self/cgroup": f"4:cpu,cpuacct:{path}\n",
            "proc/self/mountinfo": v1_mounts(root),
            f"{directory}/cpu.cfs_quota_us": "50000\n",
            f"{directory}/cpu.cfs_period_us": "100000\n",
            f"{directory}/cpu.stat": STAT_V1.format(4, 3, 2),
            f"{directory}/cpuacct.usage": "1\n",
        },
    )
    assert read_quota(tmp_path) == CpuQuota(0.5, 1, 2, 4, 3)


def test_a_group_outside_what_is_mounted_is_the_mounted_one(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../elsewhere\n",
            "proc/self/mountinfo": V2_MOUNT.replace(" / /sys", " /mine /sys"),
            "sys/fs/cgroup/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/cpu.stat": STAT_V2.format(1, 2, 3, 4),
        },
    )
    assert read_quota(tmp_path) == CpuQuota(1.0, 1000, 4000, 2, 3)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/\n"},
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "20 1 0:5 / / rw - ext4 /dev/vda rw\n",
        },
        {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2_MOUNT},
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.max": "max 100000\n",
        },
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.max": "what\n",
        },
        {"proc/self/cgroup": "nonsense\n", "proc/self/mountinfo": V2_MOUNT},
    ],
    ids=["no proc", "no mounts", "not mounted", "no controller", "no quota", "damaged", "foreign"],
)
def test_without_a_quota_that_can_be_read_there_is_none(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert read_quota(tree(tmp_path, files)) is None


def test_without_a_quota_there_is_no_sample() -> None:
    service_named("s")
    assert values("cgroup_cpu_limit_cores") == {}
    assert values("cgroup_cpu_throttled_seconds_total") == {}


def test_an_unlimited_service_beside_it_has_the_same_group() -> None:
    service_named("a")
    service_named("b")
    serving.runtime.root = CONTAINER
    assert values("cgroup_cpu_throttled_seconds_total", "service") == {("a",): 0.35, ("b",): 0.35}


# --- the kernel's own ---

QUOTA, PERIOD = 20_000, 100_000  # microseconds

THROTTLED = """
import json, time
from tailwatch_tracing import serve_metrics
from tailwatch_tracing.cgroup import read_quota
from tailwatch_tracing.runtime import runtime

serve_metrics(0, service="s")
time.sleep(2)
print(json.dumps([read_quota(), runtime.gil.waited.counts[0] / 1e9]))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A real control group with a fifth of a core, version 1 or 2."""
    for parent, quota in (
        (Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_period_us": PERIOD, "cpu.cfs_quota_us": QUOTA}),
        (Path("/sys/fs/cgroup"), {"cpu.max": f"{QUOTA} {PERIOD}"}),
    ):
        directory = parent / f"tailwatch-test-{os.getpid()}"
        try:
            directory.mkdir()
        except OSError:
            continue
        try:
            for name, value in quota.items():
                with open(directory / name, "r+") as file:  # it is there, or the controller is not
                    file.write(str(value))
            yield directory
            return
        except OSError:
            continue
        finally:
            with suppress(OSError):
                directory.rmdir()
    pytest.skip("no control group for CPU can be made here")


def test_a_throttled_process_sees_what_the_kernel_does_to_it(group: Path) -> None:
    def join_group() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=join_group)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", THROTTLED],
            preexec_fn=join_group,
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        )
        outside = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    finally:
        burner.kill()
        burner.wait()
    quota, waited_for_the_lock = json.loads(ran.stdout)
    limit_cores, usage_ns, throttled_ns, periods, throttled_periods = quota
    assert limit_cores == QUOTA / PERIOD
    assert 0 < throttled_periods <= int(outside["nr_throttled"])
    assert throttled_periods <= periods <= int(outside["nr_periods"])
    assert abs(periods - int(outside["nr_periods"])) <= 5, "it was read just before its end"
    total = int(outside.get("throttled_time", 0)) or int(outside["throttled_usec"]) * 1000
    assert 0.5 * total < throttled_ns <= total
    assert throttled_ns > 0.5e9, "the quota did not bite"
    if usage_ns is not None:  # None where CPU is accounted in a hierarchy of its own
        assert 0 < usage_ns <= (periods + 3) * QUOTA * 1000 * 1.5
    assert waited_for_the_lock < 0.05, "a wait for the quota is no wait for the lock"
