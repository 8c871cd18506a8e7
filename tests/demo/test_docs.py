"""What docs/how-to/demo.md says is what the demo does."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from demo import scenarios, service, traffic, webhook
from demo.faults import FAULTS
from demo.scenarios import EXPECTATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "demo.md").read_text()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_row_with_its_page_and_cause(fault: str) -> None:
    (expected,) = (each for each in EXPECTATIONS if each.fault == fault)
    table = PAGE[PAGE.index("| fault | what is injected |") : PAGE.index("A page takes")]
    (row,) = re.findall(rf"^\| `{fault}` \|.*", table, re.MULTILINE)
    must_page = row.split("|")[3]
    if expected.page:
        assert f"[{expected.page}](../../runbooks/{expected.page}.md)" in must_page
        assert f'"{expected.cause.partition(" [")[0]}"' in must_page
    else:
        assert must_page.strip().startswith("nothing")
    for name in expected.may_page:
        assert name in must_page


@pytest.mark.parametrize("run", [service.main, traffic.main, webhook.main, scenarios.main])
def test_every_flag_is_on_the_page(
    run: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["--help"])
    flags = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert flags
    assert [flag for flag in sorted(flags) if flag not in PAGE] == []


def test_the_page_links_to_what_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert links
    folder = Path(__file__).parents[2] / "docs" / "how-to"
    assert [link for link in links if not (folder / link).exists()] == []
