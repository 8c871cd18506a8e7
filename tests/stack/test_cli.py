"""The command table: what a command needs, and how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from tailwatch_stack import cli


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a command `probe`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("probe_command", "for tests", "stack"))
    monkeypatch.delitem(sys.modules, "probe_command", raising=False)
    return tmp_path / "probe_command.py"


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main([name, "--help"])
    assert exit_info.value.code == 0
    assert cli.COMMANDS[name].help in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["up", "--docker"], "tailwatch up: unrecognized arguments: --docker; expected what "),
        (["exporter", "more"], "tailwatch exporter: unrecognized arguments: more; expected what "),
        (["rules", "build", "--x=1"], "tailwatch rules: unrecognized arguments: --x=1; expected "),
        (["exporter", "--path.procfs"], "tailwatch exporter: argument --path.procfs: expected one"),
        (["down"], "tailwatch: argument command: invalid choice: 'down' (choose from "),
        ([], "tailwatch: the following arguments are required: command; expected what "),
    ],
)
def test_wrong_usage_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(arguments)
    assert exit_info.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(error)
    assert line.endswith(" --help lists")


@pytest.mark.parametrize(
    ("ending", "code", "error"),
    [
        ("return 0", 0, ""),
        ("raise TailwatchError('port 1 is taken')", 1, "tailwatch probe: port 1 is taken\n"),
        ("raise UsageError('--n 0: expected 1')", 2, "tailwatch probe: --n 0: expected 1\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_an_ending_is_an_exit_code_and_one_line(
    command: Path, capsys: pytest.CaptureFixture[str], ending: str, code: int, error: str
) -> None:
    command.write_text(
        "from tailwatch_stack.errors import TailwatchError, UsageError\n"
        "def add_arguments(parser): pass\n"
        f"def run(args): {ending}\n"
    )
    assert cli.main(["probe"]) == code
    assert capsys.readouterr().err == error


def test_a_missing_package_is_named_with_the_extra_that_has_it(
    command: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.write_text("import no_such_package.part\n")
    assert cli.main(["probe"]) == 1
    assert capsys.readouterr().err == (
        "tailwatch probe: needs the Python package no_such_package: "
        "pip install 'tailwatch[stack]'\n"
    )


def test_the_exporter_needs_no_package_of_the_stack() -> None:
    code = (
        "import atexit, sys\n"
        "from tailwatch_stack import cli\n"
        "stack = {'yaml', 'rich', 'starlette', 'uvicorn', 'httpx'}\n"
        "atexit.register(lambda: print('\\nloaded:', *sorted(stack & set(sys.modules))))\n"
        "cli.main(['exporter', '--help'])\n"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output.splitlines()[-1] == "loaded:"
