"""docs/why/public-faults.md: every report has tests, and they are there and run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[1] / "docs/why/public-faults.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if "`test_" in line and line.startswith("| ")
]
REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+")
SKIPS = re.compile(r"\bpytest\.(mark\.)?(skip|skipif|xfail|importorskip)\b")
NAMED = {test for row in ROWS for test in re.findall(r"`(test_\w+\.py::test_\w+)`", row[-1])}


def running_tests() -> set[str]:
    """Return file::name of every test that nothing in its file skips."""
    found: set[str] = set()
    for path in FOLDER.glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if SKIPS.search(ast.unparse(node)):
                if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                    break  # a mark of the whole file
            elif isinstance(node, ast.FunctionDef):
                found.add(f"{path.name}::{node.name}")
    return found


def test_every_row_has_a_report_what_is_right_and_tests() -> None:
    assert len(ROWS) == 19
    for reports, fault, right, tests in ROWS:
        assert REPORT.search(reports) or "LitServe" in reports
        assert fault
        assert right
        assert re.fullmatch(r"`test_\w+\.py::test_\w+`(, `test_\w+\.py::test_\w+`)*", tests)


def test_every_test_that_is_named_exists_and_runs() -> None:
    running = running_tests()
    assert len(running) > 400
    assert NAMED - running == set()


def test_every_report_that_a_test_names_is_in_the_table() -> None:
    told = set(REPORT.findall(PAGE))
    for path in FOLDER.glob("test_*.py"):
        assert set(REPORT.findall(path.read_text(encoding="utf-8"))) - told == set(), path.name
