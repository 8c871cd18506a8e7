"""The whole GPU page, from the real command over the mock library."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version

from tailwatch_exporters.gpu_families import FAMILIES
from tests.exporters.support import GPU0, GPU1, ExporterProcess, NvmlMock, Values

GPU2 = "GPU-00000002-0000-0000-0000-000000000000"

# Only a GPU split into MIG instances has these.
OF_MIG = {family for family in FAMILIES if family.startswith("gpu_mig_")} - {"gpu_mig_enabled"}
GPM = (2, 3, 5, 10)

# What goes on while the page is made; all other values stand in the mock's file.
MOVING = re.compile(
    r"^((?:gpu_(?:last_sample|xid_last)_timestamp_seconds|gpu_busy_seconds_total"
    r"|gpu_nvml_errors_total|gpu_rejected_values_total"
    r"|exporter_collector_duration_seconds|gpu_pcie_\w+_bytes_total)(?:\{.*\})?) \S+$",
    re.MULTILINE,
)


def test_page(
    golden: Callable[[str, str], None],
    exporter: Callable[..., ExporterProcess],
    mock: NvmlMock,
) -> None:
    """GPU 0 has believable byte counters, GPU 1 counters of 32 bits, GPU 2 GPM's rates."""
    mock.replace(
        "n=3",
        "util=55",
        "memutil=21",
        "enc=3",
        "energy=123456789",
        "temp=61",
        "mem_used=6442450944",
        "gpm.2=47.5",
        "gpm.3=31.25",
        "gpm.5=12.5",
        "gpm.10=33",
        "gpu.2.gpm.20=200",
        "gpu.2.gpm.21=300",
        "pcie_tx_kb=20000",
        "pcie_rx_kb=60000",
        "pcie_gen=4",
        "pcie_replay=7",
        "fi.197=1+2e7/s",
        "fi.198=1+6e7/s",
        "gpu.1.fit.197=1",
        "gpu.1.fit.198=1",
        "gpu.2.fi.197=N/A",
        "gpu.2.fi.198=N/A",
        "fi.138.0=2097152",
        "fi.139.0=3145728",
        "fi.74=1500000000",
        "fi.76=0",
        "fi.269=250000000",
        "fi.270=0",
        "fi.271=0",
        "fi.82=72",
        "ecc.0.0=2",
        "ecc.0.1=12",
        "remap_cor=1",
        "procs=4000000:3221225472:40",
        "fail.nvmlDeviceGetOfaUtilization.1=3",
        "xid_seq=1",
        "xid=31",
        "xid_gpu=1",
    )
    process = exporter(
        "--no-collector.host",
        "--no-collector.threads",
        "--gpu.sampling-interval=0.1",
        mock=mock,
    )

    def is_complete(page: Values) -> bool:
        return (
            page("gpu_pcie_receive_bytes_total", uuid=GPU0, source="field") is not None
            and page("gpu_sm_active_ratio", uuid=GPU2) is not None
            and page("gpu_xid_errors_total", uuid=GPU1, xid="31") is not None
        )

    page = process.wait(is_complete)
    assert set(FAMILIES) - OF_MIG <= page.names()
    golden("gpu.prom", without_moving(process.get()))


def test_page_of_a_gpu_that_is_split(
    golden: Callable[[str, str], None],
    exporter: Callable[..., ExporterProcess],
    mock: NvmlMock,
) -> None:
    activity = (f"gpu.0.mig.{i}.gpm.{metric}={40 - 20 * i}" for i in (0, 1) for metric in GPM)
    mock.replace("mig=2", "energy=123456789", *activity)
    process = exporter(
        "--no-collector.host",
        "--no-collector.threads",
        "--gpu.sampling-interval=0.1",
        mock=mock,
    )
    page = process.wait(lambda page: OF_MIG <= page.names())
    assert page("gpu_utilization_ratio", uuid=GPU0, engine="compute") is None
    golden("gpu_mig.prom", without_moving(process.get()))


def without_moving(text: str) -> str:
    text = text.replace(f'version="{version("tailwatch")}"', 'version="0.0.0"')
    return MOVING.sub(r"\1 0.0", text)
