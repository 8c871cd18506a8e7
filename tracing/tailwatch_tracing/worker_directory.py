"""The directory that the workers of one service share: who lives, and what the dead have counted.

Reading takes no lock, so that a scrape never waits for a worker that hangs. The counts of the dead
are moved into one archive under a lock, which whoever finds it taken leaves to the other.
"""

from __future__ import annotations

import copy
import enum
import fcntl
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tailwatch_tracing.cells import OVERFLOW
from tailwatch_tracing.page import no_pause
from tailwatch_tracing.worker_file import (
    NO_NUMBER,
    NOT_SERVING,
    Cells,
    Identity,
    Key,
    Names,
    Sums,
    Unreadable,
    WorkerFile,
    frozen,
    new_token,
)

_ARCHIVED_SERIES = 10_000  # label sets of a metric; workers that differ in them come and go
_KNOWN_NAMES = 100_000  # then all is read anew
_UNFINISHED_SECONDS = 60
_TRIES = 5

_ARCHIVE = "archive"
_LOCK = "lock"
_PORT_PREFIX = "port-"
_CELLS, _LEVELS, _NEW, _BROKEN = ".cells", ".levels", ".new", ".broken"


class Worker(NamedTuple):
    """A live process that serves; `number` is NO_NUMBER until it has one."""

    number: int
    pid: int
    token: str
    levels: Path


class Reading:
    """What the directory had."""

    def __init__(self, names: Names, archive_token: str | None) -> None:
        self.archive_token = archive_token
        self.sums = Sums(names)
        self.workers: list[Worker] = []
        self.skipped: list[Unreadable] = []
        self.has_dead = False


class _State(enum.Enum):
    ALIVE = enum.auto()
    DEAD = enum.auto()
    OF_AN_EARLIER_BOOT = enum.auto()
    ELSEWHERE = enum.auto()  # alive in another container


class WorkerDirectory:
    """`<root>/service=<name>`, made for this user alone.

    Args:
        root: A directory that is there or can be made; a tmpfs is best.
        service: Services that share a root do not meet.
        proc: Where procfs is.

    Raises:
        OSError: there is no procfs.
    """

    def __init__(self, root: Path, service: str, proc: Path = Path("/proc")) -> None:
        self.path = root.absolute() / f"service={quote(service, safe='')}"
        self._proc = proc
        try:
            self._boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
            self._namespace = os.stat(proc / "self/ns/pid").st_ino
        except OSError as error:
            raise OSError(
                error.errno, f"workers directory {self.path}: it needs Linux: {error}"
            ) from None
        self._names = Names()
        self._known: dict[str, Cells] = {}
        self._archive: _Archive | None = None
        self._reading = threading.Lock()
        self._locks: set[int] = set()  # descriptors of the lock, of threads that hold it or ask

    def check(self) -> None:
        """Make sure that the directory can be used, without making it.

        Raises:
            OSError: it cannot; the message says why.
        """
        place = self.path
        try:
            while not (place.exists() or place.is_symlink()):
                place = place.parent
        except OSError as error:  # as for a name that is too long
            raise OSError(error.errno, f"workers directory {self.path}: {error.strerror}") from None
        if not place.is_dir():
            raise NotADirectoryError(f"workers directory {self.path}: {place} is not a directory")
        if place == self.path:
            self._check_owner()
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(f"workers directory {self.path}: {place} is not writable")

    def join(self) -> WorkerFile:
        """Return a new file for this process.

        Raises:
            OSError: the directory or the file cannot be made.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self._check_owner()
        pid = os.getpid()
        start = process_start(self._proc, pid)
        if start is None:
            raise OSError(f"workers directory {self.path}: {self._proc}/{pid}/stat is unreadable")
        identity = Identity(new_token(), self._boot, self._namespace, pid, start)
        return WorkerFile(self.path / f"worker-{pid}-{identity.token}{_CELLS}", identity)

    def levels_path(self, file: WorkerFile) -> Path:
        """Return where a worker's levels are."""
        return file.path.with_suffix(_LEVELS)

    def port_path(self, address: str, port: int) -> Path:
        """Return the file that whoever serves on the port holds locked."""
        return self.path / f"{_PORT_PREFIX}{quote(address, safe='')}-{port}"

    def read(self, own: WorkerFile | None, pause: Callable[[], None] = no_pause) -> Reading:
        """Read everything but the counts of `own`, with pauses on the way.

        The dead's counts are in their file or in the archive. Between the two only a new archive
        stands: with it the reading is done anew, so that no count is missed or taken twice.
        """
        tries = 0
        while True:
            with self._reading:
                reading = self._read_once(own, pause)
            tries += 1
            if tries == _TRIES or self._archive_token()[0] == reading.archive_token:
                return reading

    def workers(self) -> list[Worker]:
        """Return the live processes that serve, by number; what cannot be read is left out."""
        workers: list[Worker] = []
        for name in self._listing():
            if name.endswith(_CELLS):
                with suppress(Unreadable, FileNotFoundError):
                    cells = Cells(self.path / name, Names())
                    if self._state(cells) is _State.ALIVE:
                        _add_worker(workers, cells, cells.number())
        return sorted(workers)

    def number(self, own: WorkerFile) -> None:
        """Give `own` the lowest number that no live worker has, unless others are at it now.

        Raises:
            OSError: the directory cannot be written.
        """
        own.number = NO_NUMBER
        with self._locked() as is_ours:
            if is_ours:
                taken = {worker.number for worker in self.workers()}
                own.number = min(set(range(len(taken) + 1)) - taken)

    def compact(self) -> None:
        """Move what the dead have counted into the archive, and remove their files.

        The archive names the files whose counts it has. Its renaming is the one moment at which
        they pass over: whoever is killed before leaves all as it was, whoever is killed after
        leaves files that nobody counts any more and the next one removes.

        Raises:
            OSError: the directory cannot be written.
        """
        with self._locked() as is_ours:
            if is_ours:
                self._merge_dead()
                self._sweep_leftovers()

    def in_child(self) -> WorkerDirectory:
        """Return the same for a forked child.

        A lock of the directory that another thread of the parent held is left to the parent.
        """
        for fd in self._locks:
            os.close(fd)
        child = copy.copy(self)
        child._forget()
        child._reading = threading.Lock()
        child._locks = set()
        return child

    def _forget(self) -> None:
        self._names = Names()
        self._known = {}
        self._archive = None

    def _check_owner(self) -> None:
        about = os.stat(self.path)
        if about.st_uid != os.geteuid():
            raise PermissionError(
                f"workers directory {self.path}: it belongs to user {about.st_uid}, "
                f"expected {os.geteuid()}"
            )
        if about.st_mode & 0o022:
            raise PermissionError(
                f"workers directory {self.path}: its mode is {about.st_mode & 0o777:o}, "
                "expected that only its owner can write, as 700"
            )

    def _read_once(self, own: WorkerFile | None, pause: Callable[[], None]) -> Reading:
        if len(self._names.keys) > _KNOWN_NAMES:
            self._forget()
        archive_token, wrong = self._archive_token()
        archive = self._archive
        if archive is None or archive.token != archive_token:
            archive, wrong = self._read_archive(self._names)
            self._archive = archive
        reading = Reading(self._names, archive.token if archive else None)
        reading.skipped += archive.wrong if archive else wrong
        if archive is not None:
            reading.sums.add(archive.cells, archive.words, pause)
        absorbed = archive.cells.absorbed if archive else ()
        names = self._listing()
        self._known = {name: self._known[name] for name in names if name in self._known}
        for name in names:
            if not name.endswith(_CELLS):
                if not _is_ours(name):
                    path = self.path / name
                    reading.skipped.append(Unreadable(path, "foreign", "not a worker's file"))
                continue
            pause()
            try:
                cells = self._cells(name)
                token = cells.identity.token
                if own is not None and token == own.identity.token:
                    _add_worker(reading.workers, cells, own.number)
                elif token not in absorbed:
                    self._add(reading, cells, pause)
            except Unreadable as error:
                reading.skipped.append(error)
            except FileNotFoundError:  # compacted just now: there is another archive
                continue
        return reading

    def _add(self, reading: Reading, cells: Cells, pause: Callable[[], None]) -> None:
        state = self._state(cells)
        if state is _State.ELSEWHERE:
            reason = "its process lives in another pid namespace"
            raise Unreadable(cells.path, "foreign", reason)
        if state is not _State.ALIVE:
            reading.has_dead = True
        if state is not _State.OF_AN_EARLIER_BOOT:
            reading.sums.add(cells, cells.refresh(), pause)
            if state is _State.ALIVE:
                _add_worker(reading.workers, cells, cells.number())
            if cells.is_torn:
                raise Unreadable(cells.path, "torn", "a record is damaged; those before it count")

    def _archive_token(self) -> tuple[str | None, list[Unreadable]]:
        """Return which archive there is, None without one of this boot, and what is wrong."""
        try:
            identity = Cells(self.path / _ARCHIVE, Names()).identity
        except FileNotFoundError:
            return None, []
        except Unreadable as error:
            return None, [error]
        return (identity.token if identity.boot == self._boot else None), []

    def _read_archive(self, names: Names) -> tuple[_Archive | None, list[Unreadable]]:
        token, wrong = self._archive_token()
        if token is None:
            return None, wrong
        try:
            cells = Cells(self.path / _ARCHIVE, names)
            words = cells.refresh()
        except Unreadable as error:
            return None, [error]
        if cells.is_torn:
            wrong = [Unreadable(cells.path, "torn", "a record is damaged; those before it count")]
        return _Archive(cells.identity.token, cells, words, wrong), wrong

    def _listing(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))
        except FileNotFoundError:
            return []

    def _cells(self, name: str) -> Cells:
        cells = self._known.get(name)
        if cells is None:
            cells = self._known[name] = Cells(self.path / name, self._names)
        return cells

    def _state(self, cells: Cells) -> _State:
        identity = cells.identity
        if identity.boot != self._boot:
            return _State.OF_AN_EARLIER_BOOT
        if not is_locked(cells.path):
            return _State.DEAD
        if identity.namespace != self._namespace:
            return _State.ELSEWHERE
        # The lock alone would take a process for alive whose child has kept its descriptors.
        if process_start(self._proc, identity.pid) != identity.start:
            return _State.DEAD
        return _State.ALIVE

    def _merge_dead(self) -> None:
        sums = Sums(Names())
        archive, wrong = self._read_archive(sums.names)
        absorbed = archive.cells.absorbed if archive else ()
        if archive is not None:
            sums.add(archive.cells, archive.words)
        merged: list[Cells] = []
        for name in self._listing():
            if not name.endswith(_CELLS):
                continue
            path = self.path / name
            with suppress(FileNotFoundError):
                try:
                    cells = Cells(path, sums.names)
                    state = self._state(cells)
                    if state is _State.OF_AN_EARLIER_BOOT or cells.identity.token in absorbed:
                        self._remove(path)
                    elif state is _State.DEAD:
                        sums.add(cells, cells.refresh())
                        merged.append(cells)
                except Unreadable as error:
                    if error.reason == "version" and not is_locked(path):
                        self._remove(path)
        if not merged:
            return
        if wrong and archive is None:  # kept once, for whoever wants to look into it
            os.replace(self.path / _ARCHIVE, self.path / f"{_ARCHIVE}{_BROKEN}")
        identity = Identity(new_token(), self._boot, self._namespace, 0, 0)
        unfinished = self.path / f"{_ARCHIVE}{_NEW}"
        tokens = [cells.identity.token for cells in merged]
        unfinished.write_bytes(frozen(identity, tokens, _bounded(sums)))
        os.replace(unfinished, self.path / _ARCHIVE)
        for cells in merged:
            self._remove(cells.path)

    def _sweep_leftovers(self) -> None:
        """Remove what was begun by a process that is dead, and levels without a worker."""
        for name in self._listing():
            path = self.path / name
            with suppress(FileNotFoundError):
                if name.startswith("worker-") and path.suffix in (_LEVELS, _NEW):
                    age = time.time() - path.stat().st_mtime
                    if age > _UNFINISHED_SECONDS and not (
                        path.with_suffix(_CELLS).exists() or is_locked(path)
                    ):
                        path.unlink()

    def _remove(self, path: Path) -> None:
        for each in (path.with_suffix(_LEVELS), path):
            each.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the directory's lock if nobody else does; say whether that is so."""
        fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._locks.add(fd)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                yield True
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)  # a child forked meanwhile has the descriptor, too
        finally:
            self._locks.discard(fd)
            os.close(fd)


class _Archive(NamedTuple):
    token: str
    cells: Cells
    words: memoryview[int]  # they never change
    wrong: list[Unreadable]


def _bounded(sums: Sums) -> list[tuple[Key, list[int]]]:
    """Return the sums, those of a metric with too many cells in one of `__other__`."""
    kept: list[tuple[Key, list[int]]] = []
    cells: Counter[tuple[str, str]] = Counter()
    rest: dict[tuple[Key, int], list[int]] = {}
    for key, counts in sums.items():
        cells[key.metric, key.owner] += 1
        if cells[key.metric, key.owner] <= _ARCHIVED_SERIES or not key.values:
            kept.append((key, counts))
            continue
        key = key._replace(values=(OVERFLOW, *key.values[1:]))
        known = rest.setdefault((key, len(counts)), [0] * len(counts))
        rest[key, len(counts)] = [a + b for a, b in zip(known, counts, strict=True)]
    return kept + [(key, counts) for (key, _), counts in rest.items()]


def process_start(proc: Path, pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None if there is none.

    Source: proc_pid_stat(5), field 22; the name in parentheses may hold anything.

    Raises:
        OSError: it cannot be known, as without a free descriptor: nobody is dead for that.
    """
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(b")")[2].split()[19])


def is_locked(path: Path) -> bool:
    """Return whether a process holds the file locked."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _add_worker(workers: list[Worker], cells: Cells, number: int) -> None:
    if number != NOT_SERVING:
        identity = cells.identity
        levels = cells.path.with_suffix(_LEVELS)
        workers.append(Worker(number, identity.pid, identity.token, levels))


def _is_ours(name: str) -> bool:
    return (
        name in (_LOCK, _ARCHIVE, _ARCHIVE + _NEW, _ARCHIVE + _BROKEN)
        or name.startswith(_PORT_PREFIX)
        or (name.startswith("worker-") and name.endswith((_LEVELS, _NEW)))
    )
