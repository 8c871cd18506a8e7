import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tailwatch_stack.errors import TailwatchError
from tailwatch_stack.native import binaries, debian


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty PATH, and a cache of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    path.chmod(0o755)
    return path


def says_version(path: Path, version: str) -> Path:
    return program(path, f'echo "{path.name}, version {version} (branch: HEAD)"')


def silent(line: str) -> None:
    pass


@pytest.mark.parametrize("version", ["2.42.0", "2.53.1", "3.16.0", "10.0.0"])
def test_a_new_enough_program_on_path_is_taken(path: Path, version: str) -> None:
    mine = says_version(path / "prometheus", version)
    assert binaries.locate("prometheus", silent) == mine


def test_debian_names_of_programs_are_known(path: Path) -> None:
    mine = says_version(path / "prometheus-alertmanager", "0.25.0")
    assert binaries.locate("alertmanager", silent) == mine


def test_without_apt_the_error_says_what_to_install(path: Path) -> None:
    with pytest.raises(TailwatchError) as error:
        binaries.locate("promtool", silent)
    assert str(error.value) == (
        "no promtool >= 2.42 on PATH: install it there (https://prometheus.io/download/); "
        "Debian's package could not be used: this machine has no apt-get"
    )


def test_a_program_that_is_too_old_is_named_with_its_version(path: Path) -> None:
    old = says_version(path / "prometheus", "2.31.2")
    with pytest.raises(TailwatchError) as error:
        binaries.locate("prometheus", silent)
    assert str(error.value).startswith(f"no prometheus >= 2.42 on PATH ({old} is 2.31): install")


def test_a_program_without_a_version_is_not_taken(path: Path) -> None:
    broken = program(path / "amtool", "exit 1")
    with pytest.raises(TailwatchError, match="is without a readable version") as error:
        binaries.locate("amtool", silent)
    assert str(broken) in str(error.value)


def fake_apt(path: Path, version: str = "2.42.0") -> Path:
    """An apt-get that makes an archive, slowly, and a dpkg-deb that unpacks it; returns a log."""
    log = path.parent / "apt.log"
    program(
        path / "apt-get",
        f"""
echo "$@" >> {log}
case "$*" in *download*) sleep 0.3; touch package.deb;; esac
""",
    )
    program(
        path / "dpkg-deb",
        f"""
[ "$1" = -f ] && exit
mkdir -p "$3/usr/bin"
printf '#!/bin/sh\\necho "prometheus, version {version}"\\n' > "$3/usr/bin/prometheus"
chmod +x "$3/usr/bin/prometheus"
""",
    )
    return log


def test_a_package_is_unpacked_into_the_cache_once(path: Path, tmp_path: Path) -> None:
    log = fake_apt(path)
    lines: list[str] = []
    for _ in range(2):
        found = binaries.locate("prometheus", lines.append)
        assert found == tmp_path / "cache/tailwatch/debian/prometheus/usr/bin/prometheus"
    assert lines == [f"downloading Debian's package prometheus into {debian.cache_dir()}/debian"]
    assert [line.split()[3:] for line in log.read_text().splitlines()] == [
        ["update"],
        ["download", "prometheus"],
    ]
    assert sorted(p.name for p in (debian.cache_dir() / "debian").iterdir()) == [
        ".lock",
        "prometheus",
    ]


def test_callers_at_the_same_time_share_one_download(path: Path) -> None:
    log = fake_apt(path)
    code = "from tailwatch_stack.native.binaries import locate; print(locate('prometheus'))"
    with ThreadPoolExecutor() as pool:
        answers = list(
            pool.map(
                lambda _: subprocess.check_output(
                    [sys.executable, "-c", code], text=True, stderr=subprocess.DEVNULL
                ),
                range(4),
            )
        )
    assert len(set(answers)) == 1
    assert log.read_text().count("download") == 1


def test_a_package_that_is_too_old_is_no_help(path: Path) -> None:
    fake_apt(path, version="2.31.2")
    with pytest.raises(TailwatchError, match=r"could not be used: .*/usr/bin/prometheus is 2\.31$"):
        binaries.locate("prometheus", silent)


def test_a_failed_download_is_one_line_and_leaves_nothing(path: Path) -> None:
    fake_apt(path)
    program(
        path / "apt-get",
        """
[ "$4" = update ] && echo 'W: Failed to fetch http://mirror/InRelease  No route to host' >&2 && exit
echo 'E: Unable to locate package prometheus' >&2; exit 100
""",
    )
    with pytest.raises(TailwatchError) as error:
        binaries.locate("prometheus", silent)
    assert str(error.value).endswith(
        "could not be used: apt-get download prometheus: "
        "Failed to fetch http://mirror/InRelease  No route to host"
    )
    assert [p.name for p in (debian.cache_dir() / "debian").iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_is_named(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_apt(path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(TailwatchError, match=r"/file/tailwatch/debian cannot be written: .*Not a"):
        binaries.locate("prometheus", silent)


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert debian.cache_dir() == tmp_path / ".cache" / "tailwatch"
