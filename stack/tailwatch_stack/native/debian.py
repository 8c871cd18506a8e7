"""Unpack a Debian package into the user's cache, without installing anything and without root."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tailwatch_stack.errors import TailwatchError
from tailwatch_stack.native.relocation import relocate

# The index and the caches are ours, so neither root nor an earlier `apt-get update` is needed.
# Hooks are cleared: they belong to the host's own updates (PackageKit, AppStream).
_APT_CONFIG = """\
Dir::State::lists "{work}/lists";
Dir::Cache "{work}/cache";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::DEP-11-icons;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
"""

# Dependencies that are only files, which a package links to by relative paths: the scripts and
# fonts of Prometheus' web pages. The others (libc6, adduser) are the host's.
_FILE_PACKAGES = ("libjs-", "fonts-")


def cache_dir() -> Path:
    """Return tailwatch's directory in the user's cache (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path is to be ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "tailwatch"


def unpacked(package: str, report: Callable[[str], None]) -> Path:
    """Return the directory with the package's files, downloading and unpacking it once.

    Raises:
        TailwatchError: there is no apt here, the cache cannot be written, or apt failed.
    """
    packages = cache_dir() / "debian"
    target = packages / package
    if target.is_dir():  # appears whole, by a rename
        return target
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise TailwatchError(f"this machine has no {missing[0]}")
    try:
        with _locked(packages, report):
            if not target.is_dir():
                report(f"downloading Debian's package {package} into {packages}")
                with tempfile.TemporaryDirectory(prefix=".partial-", dir=packages) as work:
                    _fetch(package, Path(work)).rename(target)
    except OSError as error:
        raise TailwatchError(f"{packages} cannot be written: {error}") from error
    return target


@contextmanager
def _locked(packages: Path, report: Callable[[str], None]) -> Iterator[None]:
    packages.mkdir(parents=True, exist_ok=True)
    with open(packages / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another tailwatch that is downloading")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in packages.glob(".partial-*"):  # of a download that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _fetch(package: str, work: Path) -> Path:
    (work / "lists" / "partial").mkdir(parents=True)
    (work / "cache" / "archives" / "partial").mkdir(parents=True)
    config = work / "apt.conf"
    config.write_text(_APT_CONFIG.format(work=work))
    # A failed source does not matter as long as the package is found in another one.
    update = _run(work, "apt-get", "-q", "-c", str(config), "update")
    files = work / "files"
    done: set[str] = set()
    wanted = {package}
    while wanted:
        download = _run(work, "apt-get", "-q", "-c", str(config), "download", *sorted(wanted))
        if download.returncode != 0:
            complaint = _complaint(update) or _complaint(download) or "no reason given"
            raise TailwatchError(f"apt-get download {package}: {complaint}")
        done |= wanted
        wanted = set()
        for archive in work.glob("*.deb"):
            unpack = _run(work, "dpkg-deb", "-x", archive.name, str(files))
            if unpack.returncode != 0:
                raise TailwatchError(f"dpkg-deb -x {archive.name}: {unpack.stderr.strip()}")
            wanted |= _file_packages(_run(work, "dpkg-deb", "-f", archive.name, "Depends").stdout)
            archive.unlink()
        wanted -= done
    # 210 MB of time zones as text, of which the web pages read the packed copy beside it.
    shutil.rmtree(files / "usr/share/javascript/moment-timezone/data", ignore_errors=True)
    relocate(files)
    return files


def _file_packages(depends: str) -> set[str]:
    """Return the packages of files only in a Depends field (deb-control(5))."""
    alternatives = (dependency.split("|")[0].split() for dependency in depends.split(","))
    names = (words[0].split(":")[0] for words in alternatives if words)
    return {name for name in names if name.startswith(_FILE_PACKAGES)}


def _run(work: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=work,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _complaint(result: subprocess.CompletedProcess[str]) -> str | None:
    lines = result.stderr.splitlines()
    return next((line[3:] for line in lines if line.startswith(("E: ", "W: Failed"))), None)
