import subprocess
from pathlib import Path

import pytest

from tailwatch_stack.native.relocation import relocate

READS_ITS_TEMPLATE = """\
#!/bin/sh
cat /usr/share/prometheus/alertmanager/default.tmpl "$@"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An unpacked package, in a folder with a space in its name."""
    root = tmp_path / "my cache"
    share = root / "usr/share/prometheus/alertmanager"
    share.mkdir(parents=True)
    (share / "default.tmpl").write_text("a template\n")
    (root / "usr/bin").mkdir()
    for name, text in (("alertmanager", READS_ITS_TEMPLATE), ("other", "#!/bin/sh\n")):
        program = root / "usr/bin" / name
        program.write_text(text)
        program.chmod(0o755)
    return root


def test_a_relocated_program_reads_its_files_beside_it(root: Path, tmp_path: Path) -> None:
    relocate(root)
    (tmp_path / "argument").write_text("and an argument\n")
    output = subprocess.check_output(
        [root / "usr/bin/alertmanager", "argument"], cwd=tmp_path, text=True
    )
    assert output == "a template\nand an argument\n"


def test_a_program_without_the_path_stays_as_it_is(root: Path) -> None:
    relocate(root)
    assert (root / "usr/bin/other").read_text() == "#!/bin/sh\n"
    assert [p.name for p in (root / "usr/lib/tailwatch").iterdir()] == ["alertmanager"]


def test_the_replaced_path_keeps_the_program_s_length(root: Path) -> None:
    relocate(root)
    moved = root / "usr/lib/tailwatch/alertmanager"
    assert moved.stat().st_size == len(READS_ITS_TEMPLATE)


def test_another_package_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    relocate(tmp_path)
    assert [p.name for p in (tmp_path / "usr").iterdir()] == ["bin"]
