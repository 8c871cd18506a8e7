"""docs/reference/exporter.md tells the flags, the families and the tests that there are."""

from __future__ import annotations

import argparse
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailwatch_exporters.cli import add_arguments
from tailwatch_exporters.gpu_manager import REASONS
from tests.exporters.support import ROOT

REFERENCE = (ROOT / "docs" / "reference" / "exporter.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in REFERENCE.splitlines()
    if line.startswith("| `")
]
FAMILIES = {
    row[0].strip("`"): (row[1], frozenset(row[2].split(", ")) - {""})
    for row in ROWS
    if len(row) == 4 and row[1] in ("counter", "gauge")
}


def published() -> dict[str, tuple[str, frozenset[str]]]:
    """Name -> type and labels, from the golden pages."""
    found = {}
    for name in ("host", "threads", "gpu", "gpu_mig"):
        page = (ROOT / "tests" / "golden" / f"{name}.prom").read_text()
        for family in text_string_to_metric_families(page):
            full_name = family.samples[0].name
            labels = frozenset(key for sample in family.samples for key in sample.labels)
            found[full_name] = (family.type, labels - {"uuid"})
    return found


def test_every_family_with_its_type_and_labels() -> None:
    assert published() == FAMILIES


def test_every_flag() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    told = {flag for row in ROWS for flag in re.findall(r"`(--[\w.-]+)`", row[0])}
    assert told == flags - {"-h", "--help"}


def test_every_reason() -> None:
    told = {word for row in ROWS if len(row) == 3 for word in re.findall(r"^`(\w+)`$", row[0])}
    assert set(REASONS.values()) | {"ok", "starting", "hung", "error"} <= told


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", REFERENCE))
    assert len(named) > 25
    source = "".join(path.read_text() for path in (ROOT / "tests/exporters").glob("test_*.py"))
    missing = {name for name in named if f"def {name}(" not in source}
    assert not missing


@pytest.mark.parametrize("value", ["127.0.0.1:12160", "1s", "5s"])
def test_defaults_are_told(value: str) -> None:
    assert f"| {value} |" in REFERENCE
