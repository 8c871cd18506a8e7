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
    update = _apt(config, work, "update")
    download = _apt(config, work, "download", package)
    archives = list(work.glob("*.deb"))
    if download.returncode != 0 or len(archives) != 1:
        complaint = _complaint(update) or _complaint(download) or "no reason given"
        raise TailwatchError(f"apt-get download {package}: {complaint}")
    files = work / "files"
    unpack = subprocess.run(
        ["dpkg-deb", "-x", archives[0], files],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if unpack.returncode != 0:
        raise TailwatchError(f"dpkg-deb -x {archives[0].name}: {unpack.stderr.strip()}")
    return files


def _apt(config: Path, work: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["apt-get", "-q", "-c", config, *command],
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
