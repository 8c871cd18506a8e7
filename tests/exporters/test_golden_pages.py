"""The golden pages are what Prometheus' own checker and others' parsers accept."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client.openmetrics import parser as openmetrics

from tailwatch_exporters.gpu_families import FAMILIES
from tailwatch_exporters.host import HostCollector
from tailwatch_stack.native.binaries import locate
from tailwatch_tracing.exposition import Family, render_families
from tests.exporters.support import PROC, ROOT, SYS, Clock, Values, parse

GOLDEN = ROOT / "tests" / "golden"
PAGES = ("host", "threads", "gpu", "gpu_mig")


@pytest.fixture(scope="module")
def promtool() -> Path:
    return locate("promtool")


@pytest.mark.parametrize("name", PAGES)
def test_promtool_has_no_complaint(name: str, promtool: Path) -> None:
    page = (GOLDEN / f"{name}.prom").read_bytes()
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("name", PAGES)
def test_the_text_parser_reads_it(name: str) -> None:
    assert isinstance(parse((GOLDEN / f"{name}.prom").read_text()), Values)


def test_the_openmetrics_parser_reads_it() -> None:
    gpu = [Family(name, kind, text, [("", 1)]) for name, (kind, text) in FAMILIES.items()]
    host = HostCollector(PROC, SYS, 100, 4096, Clock()).collect()
    page = render_families([*host, *gpu], openmetrics=True).decode()
    families = {f.name: f.type for f in openmetrics.text_string_to_metric_families(page)}
    assert families["host_cpu_seconds"] == "counter"
    assert families["gpu_sm_active_ratio"] == "gauge"


def test_names_say_their_type() -> None:
    for name, (kind, help_text) in FAMILIES.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert help_text.endswith("."), name
