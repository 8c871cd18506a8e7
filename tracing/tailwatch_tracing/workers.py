"""One page for all workers of a service: this process's part in it.

Off unless a directory is named, by TAILWATCH_WORKERS_DIR or an option. Then a process counts in a
file of that directory from the moment it serves, and a scrape of any worker sums over all of them.
The gauges are told by a thread, four times a second. A forked child counts anew, in a file of its
own: what its parent has counted stays the parent's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tailwatch_tracing import families, service
from tailwatch_tracing.cells import PRIVATE, Cell, CellStore, Counts, Labels
from tailwatch_tracing.page import PROCESS, Level, Series, Snapshot, is_published
from tailwatch_tracing.runtime import Runtime, runtime
from tailwatch_tracing.servers import configured_workers
from tailwatch_tracing.worker_directory import Worker, WorkerDirectory
from tailwatch_tracing.worker_file import NO_NUMBER, Unreadable, WorkerFile
from tailwatch_tracing.worker_levels import LevelsFile, exemplar_lines, read_into

logger = logging.getLogger("tailwatch_tracing")

DIRECTORY_VARIABLE = "TAILWATCH_WORKERS_DIR"

_BEAT_SECONDS = 0.25
_BEATS_TO_EXEMPLARS = 4
_BEATS_TO_COMPACTION = 20


class Workers:
    """What this process knows of itself as one of several."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._directory: WorkerDirectory | None = None
        self._configured: int | None = None
        self._is_warned = False
        self._begin()

    def _begin(self) -> None:
        """Set what is this process's alone."""
        self._lock = threading.RLock()
        self._file: WorkerFile | None = None
        self._is_serving = False
        self._heart: Heart | None = None
        self._told: set[Path] = set()

    # --- from a middleware, or serve_metrics ---

    def configure(self, name: str | None, root: str | os.PathLike[str] | None) -> None:
        """Set the directory and the service's name in it; the first call of a process decides.

        Without a name it is that of the process's first service.

        Without a directory, and on a server with more than one worker, say once that the page is
        of one of them.

        Raises:
            OSError: the directory cannot be used; the message says why.
            TypeError: it is not a path.
            ValueError: this process has another one.
        """
        if root is not None and not isinstance(root, str | os.PathLike):
            raise TypeError(f"workers_dir={root!r}: expected a path")
        with self._lock:
            if self._configured is None:
                self._configured = configured_workers()
            if self._directory is not None:
                self._check_same(root)
                return
            root = root or os.environ.get(DIRECTORY_VARIABLE)
            if root:
                name = name or service.process_name()
                directory = WorkerDirectory(Path(root), name)
                directory.check()
                self._directory = directory
            elif not self._is_warned and (self._configured or 1) > 1:
                self._is_warned = True
                logger.warning(
                    "%s workers, and each counts for itself: a scrape shows any one of them. "
                    "To see all, set %s=/dev/shm/NAME, or workers_dir",
                    self._configured,
                    DIRECTORY_VARIABLE,
                )

    def _check_same(self, root: str | os.PathLike[str] | None) -> None:
        assert self._directory is not None
        used = self._directory.path.parent
        if root and Path(root).resolve() != used.resolve():
            raise ValueError(f"workers_dir={str(root)!r}: this process counts in {str(used)!r}")

    def serve(self) -> None:
        """Note that this process serves: it has a number and tells its siblings of itself.

        Again is harmless. It fails into counting for itself, never into the caller.
        """
        if self._is_serving or self._directory is None:
            return
        with self._lock:
            if self._is_serving:
                return
            self._is_serving = True
            if self._file is None:
                self._join(carry=True)
            self._heart = Heart(self, self._directory)
            try:
                self._heart.start()
            except RuntimeError:  # the process may not have another thread
                service.default_service().note_error("workers")

    def at_every_beat(self, duty: Callable[[], None]) -> Callable[[], None] | None:
        """Have something done four times a second; return what ends that, None without siblings."""
        self.serve()
        return None if self._heart is None else self._heart.add(duty)

    def port_path(self, address: str, port: int) -> Path | None:
        """Return the file that the sibling which serves on a port holds locked."""
        self.serve()
        if self._directory is None or self._file is None:
            return None
        return self._directory.port_path(address, port)

    # --- from a scrape ---

    @property
    def are_shared(self) -> bool:
        """Whether a page is of several workers, any of which may answer the next scrape."""
        return self._directory is not None

    def snapshot_into(self, snapshot: Snapshot) -> None:
        """Add what siblings and the dead have counted, and what siblings tell of now.

        Raises:
            OSError: they cannot be read, as without a free descriptor.
        """
        self.serve()
        configured = self._configured
        if configured is not None:
            snapshot.add_levels(PROCESS, [Level(families.WORKERS, ("configured",), configured)])
        directory = self._directory
        if directory is None:
            return
        own = self._file
        try:
            reading = directory.read(own, snapshot.pause)
        except OSError as error:
            if own is not None:  # without siblings' counts it would go back for this one scrape
                raise
            self.note_unwritable(error)
            return
        for key, counts in reading.sums.items():
            snapshot.pause()
            if is_published(key.metric, key.values, len(counts)):
                if key.owner != PROCESS:
                    snapshot.add_service(key.owner)
                snapshot.add_counts(key.metric, Series(key.owner, key.values), counts)
        for worker in reading.workers:
            snapshot.pause()
            if own is None or worker.token != own.identity.token:
                try:
                    read_into(snapshot, worker.levels, time.monotonic_ns())
                except Unreadable as torn:
                    reading.skipped.append(torn)
        alive = len(reading.workers) + (own is None)
        snapshot.add_levels(PROCESS, [Level(families.WORKERS, ("alive",), alive)])
        for skipped in reading.skipped:
            self._note_skipped(skipped)
        if reading.has_dead and self._heart is not None:
            self._heart.compact()

    def numbered(self) -> list[Worker]:
        """Return the live workers that have a number, in its order; none without a directory."""
        if self._directory is None:
            return []
        try:
            workers = self._directory.workers()
        except OSError as error:
            self.note_unwritable(error)
            return []
        return [worker for worker in workers if worker.number != NO_NUMBER]

    # --- of cells ---

    def allocate(self, owner: str, metric: str, values: Labels, size: int) -> Counts:
        """Allocate in this worker's file; in this process alone when the device is full."""
        try:
            assert self._file is not None
            return self._file.allocate(owner, metric, values, size)
        except OSError as error:
            self.note_unwritable(error)
            return PRIVATE.allocate(owner, metric, values, size)

    def rename(self, old: str, new: str) -> None:
        """Let a service's cells go on under another name."""
        try:
            assert self._file is not None
            self._file.rename(old, new)
        except OSError as error:
            self.note_unwritable(error)

    def _join(self, *, carry: bool) -> None:
        assert self._directory is not None
        self._skipped()
        try:
            self._file = self._directory.join()
        except OSError as error:
            self.note_unwritable(error)
            return
        service.use_memory(self)
        for store in _stores(self.runtime):
            store.move(self, carry=carry)

    def _skipped(self) -> Cell:
        return self.runtime.store.counter(families.WORKER_FILES_SKIPPED)

    def ensure_file(self) -> WorkerFile | None:
        """Return this worker's file; a new one if it is gone, or could not be made so far."""
        with self._lock:
            before = self._file
            is_dead = before is not None and not before.is_held  # for siblings, who keep its counts
            if before is None or is_dead or not before.path.exists():
                self._file = None
                self._join(carry=not is_dead)
                if before is not None:
                    before.close()
            return self._file

    def note_unwritable(self, error: OSError) -> None:
        """Count a refusal of the directory; the first is logged."""
        skipped = self._skipped()
        index = families.WORKER_FILES_SKIPPED.row.index("unwritable")
        skipped.counts[index] += 1
        if skipped.counts[index] == 1:
            logger.warning(
                "workers directory: %s; what is not written there is on this worker's page alone",
                error,
            )

    def _note_skipped(self, error: Unreadable) -> None:
        self._skipped().counts[families.WORKER_FILES_SKIPPED.row.index(error.reason)] += 1
        if error.path not in self._told and len(self._told) < 100:
            self._told.add(error.path)
            logger.warning("skipped %s", error)

    # --- around a fork ---

    def before_fork(self) -> None:
        """Keep what a parent has counted that will never serve, as gunicorn's with --preload."""
        if self._directory is None or self._file is not None or self._is_serving:
            return
        cells = (cell for store in _stores(self.runtime) for cell in store.cells.values())
        if any(any(cell.counts) for cell in cells):
            with self._lock:
                self._join(carry=True)

    def begin_child(self) -> None:
        """Count anew after a fork."""
        parents = self._file
        self._begin()
        service.use_memory(PRIVATE)
        if self._directory is not None:
            self._directory = self._directory.in_child()
        if parents is not None:
            parents.close()
            self._join(carry=False)
        if self._file is None:
            for store in _stores(self.runtime):
                store.move(PRIVATE, carry=False)


class Heart:
    """The thread of a serving worker, and what it does."""

    def __init__(self, workers: Workers, directory: WorkerDirectory) -> None:
        self._workers = workers
        self._directory = directory
        self._file: WorkerFile | None = None
        self._levels: LevelsFile | None = None
        self._exemplars = ""
        self._beats = 0
        self._duties: list[Callable[[], None]] = []

    def start(self) -> None:
        """Do all once, so that it shows at once, and go on in a thread."""
        self.beat()
        threading.Thread(target=self._go_on, name="tailwatch-workers", daemon=True).start()

    def add(self, duty: Callable[[], None]) -> Callable[[], None]:
        """Do one more thing at every beat; return what ends that."""
        self._duties.append(duty)
        return lambda: self._duties.remove(duty)

    def compact(self) -> None:
        """Move the counts of the dead into the archive; if not now, then later."""
        self._try(self._directory.compact)

    def _go_on(self) -> None:
        while True:
            time.sleep(_BEAT_SECONDS)
            self.beat()

    def beat(self) -> None:
        """Do what is due now."""
        is_slow = self._beats % _BEATS_TO_COMPACTION == 0
        if is_slow or self._file is not None:
            self._try(self._look_after_file)
        if self._file is not None and self._file.number < 0:
            self._try(self._take_number)
        if self._beats % _BEATS_TO_EXEMPLARS == 0:
            self._exemplars = exemplar_lines(_stores(self._workers.runtime))
        self._try(self._write_levels)
        if is_slow and self._file is not None:
            self._try(self._directory.compact)
        self._beats += 1
        for duty in list(self._duties):
            self._try(duty)

    def _look_after_file(self) -> None:
        file = self._workers.ensure_file()
        if file is not self._file:
            self._file = file
            self._levels = None if file is None else LevelsFile(self._directory.levels_path(file))

    def _take_number(self) -> None:
        assert self._file is not None
        self._directory.number(self._file)

    def _write_levels(self) -> None:
        self._workers.runtime.tell_stalls()
        if self._levels is not None:
            self._levels.write(_levels(self._workers.runtime), self._exemplars, time.monotonic_ns())

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:  # tried again at the next beat
            self._workers.note_unwritable(error)
        except Exception:
            service.default_service().note_error("workers")


def _stores(runtime: Runtime) -> list[CellStore]:
    return [*(each.store for each in service.services()), runtime.store]


def _levels(runtime: Runtime) -> Iterator[tuple[str, Level]]:
    for each in service.services():
        for level in each.levels():
            yield each.name, level
    for level in runtime.levels():
        yield PROCESS, level


workers = Workers(runtime)
os.register_at_fork(before=workers.before_fork, after_in_child=workers.begin_child)
