"""The directory of the workers: who lives, what the dead leave, any moment to be killed at."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailwatch_tracing import worker_directory
from tailwatch_tracing.worker_directory import WorkerDirectory, process_start
from tailwatch_tracing.worker_file import Identity, Key, Unreadable, WorkerFile

REQUESTS = Key("requests", "s", ("/x",))


@pytest.fixture
def directory(tmp_path: Path) -> WorkerDirectory:
    return WorkerDirectory(tmp_path, "s")


def count(file: WorkerFile, number: int, key: Key = REQUESTS) -> None:
    file.allocate(key.owner, key.metric, key.values, 1)[0] += number


def die(file: WorkerFile) -> None:
    """As far as siblings can see: the lock of a dead process is free."""
    file.close()


def total(directory: WorkerDirectory, key: Key = REQUESTS) -> int:
    """By a reader that has seen nothing before, and without damage."""
    fresh = WorkerDirectory(directory.path.parent, "s")
    reading = fresh.read(None)
    assert reading.skipped == []
    return sum(counts[0] for found, counts in reading.sums.items() if found == key)


def files(directory: WorkerDirectory) -> set[str]:
    return set(os.listdir(directory.path)) - {"lock", "archive"}


def test_the_dead_are_merged_and_removed_the_living_stay(directory: WorkerDirectory) -> None:
    living, dead = directory.join(), [directory.join() for _ in range(3)]
    for number, file in enumerate((living, *dead), 1):
        count(file, 10**number)
        directory.levels_path(file).write_text("")
    for file in dead:
        die(file)
    assert directory.read(None).has_dead
    assert total(directory) == 11110
    directory.compact()
    assert files(directory) == {living.path.name, directory.levels_path(living).name}
    assert not directory.read(None).has_dead
    assert total(directory) == 11110
    count(living, 1)
    die(living)
    directory.compact()
    directory.compact()
    assert files(directory) == set()
    assert total(directory) == 11111


def test_a_service_does_not_meet_another(tmp_path: Path) -> None:
    one, other = WorkerDirectory(tmp_path, "a/b"), WorkerDirectory(tmp_path, "a")
    count(one.join(), 1)
    count(other.join(), 2)
    assert [counts for _, counts in one.read(None).sums.items()] == [[1]]
    assert [counts for _, counts in other.read(None).sums.items()] == [[2]]


def test_own_counts_are_left_to_the_caller(directory: WorkerDirectory) -> None:
    own, sibling = directory.join(), directory.join()
    count(own, 1)
    count(sibling, 2)
    assert [counts for _, counts in directory.read(own).sums.items()] == [[2]]


# --- killed at any moment ---

STEPS = ("replace", "unlink", "write_bytes", "flock")


def in_child(act: Callable[[], None], killed_before: int) -> bool:
    """Do it in a process that is killed before its n-th step; return whether it came to that."""
    pid = os.fork()
    if pid == 0:
        steps = iter(range(10**6))

        def dying(step: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                if next(steps) == killed_before:
                    os.kill(os.getpid(), signal.SIGKILL)
                return step(*args, **kwargs)

            return wrapped

        os.replace = dying(os.replace)
        Path.unlink = dying(Path.unlink)  # type: ignore[method-assign]
        Path.write_bytes = dying(Path.write_bytes)  # type: ignore[method-assign]
        worker_directory.fcntl.flock = dying(worker_directory.fcntl.flock)
        try:
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def test_a_compaction_killed_at_any_step_loses_nothing_and_takes_nothing_twice(
    directory: WorkerDirectory,
) -> None:
    expected = 0
    living = directory.join()
    count(living, 1)
    expected += 1
    for step in range(10**6):
        for _ in range(2):
            expected += 1000
            file = directory.join()
            count(file, 1000)
            directory.levels_path(file).write_text("")
            die(file)
        was_killed = in_child(directory.compact, step)
        assert total(directory) == expected
        if not was_killed:
            break
        # The next one is killed, too, and then one gets through every now and then.
        in_child(directory.compact, step // 2)
        assert total(directory) == expected
        if step % 3 == 2:
            directory.compact()
            assert total(directory) == expected
            assert files(directory) == {living.path.name}
    assert step > 8
    directory.compact()
    assert total(directory) == expected
    assert files(directory) == {living.path.name}


def test_a_half_written_archive_is_no_archive(
    directory: WorkerDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = directory.join()
    count(file, 5)
    die(file)
    (directory.path / "archive.new").write_bytes(b"twcells\0half")
    assert total(directory) == 5
    directory.compact()
    assert total(directory) == 5


@pytest.mark.parametrize("moment", ["_listing", "_state"])
def test_a_reading_during_a_compaction_is_done_anew(
    directory: WorkerDirectory, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Between the archive and the files, and between one file and the next."""
    dead = [directory.join() for _ in range(2)]
    for file in dead:
        count(file, 50)
        die(file)
    compactor = WorkerDirectory(directory.path.parent, "s")
    step = getattr(WorkerDirectory, moment)
    done = []

    def compacting(self: WorkerDirectory, *args: Any) -> Any:
        found = step(self, *args)
        if self is not compactor and not done:
            done.append(True)
            compactor.compact()
        return found

    monkeypatch.setattr(WorkerDirectory, moment, compacting)
    assert total(directory) == 100
    assert done


def test_a_taken_lock_is_left_to_the_other(directory: WorkerDirectory) -> None:
    """A worker that hangs while it holds the lock keeps nobody waiting."""
    file, dead = directory.join(), directory.join()
    count(dead, 7)
    die(dead)
    other = WorkerDirectory(directory.path.parent, "s")
    with other._locked() as is_ours:
        assert is_ours
        directory.compact()
        directory.number(file)
        assert file.number == -1
        assert dead.path.exists()
        assert total(directory) == 7
    directory.number(file)
    assert file.number == 0


# --- who lives ---


def test_numbers_are_the_lowest_that_are_free(directory: WorkerDirectory) -> None:
    workers = [directory.join() for _ in range(4)]
    assert directory.workers() == []
    for file in workers:
        directory.number(file)
    assert [worker.number for worker in directory.workers()] == [0, 1, 2, 3]
    die(workers[1])
    successor = directory.join()
    directory.number(successor)
    assert successor.number == 1
    assert [worker.number for worker in directory.read(None).workers] != []
    assert [worker.number for worker in directory.workers()] == [0, 1, 2, 3]


def test_a_pid_that_another_process_has_now_is_dead(directory: WorkerDirectory) -> None:
    """Also while a child that the dead one has forked keeps its lock."""
    start = process_start(Path("/proc"), os.getpid())
    assert start is not None
    for identity, is_dead in (
        (directory_identity(directory, start), False),
        (directory_identity(directory, start + 1), True),
        (directory_identity(directory, start)._replace(pid=2**22 + 1), True),
    ):
        file = WorkerFile(directory.path / f"worker-1-{identity.token}.cells", identity)
        assert directory.read(None).has_dead == is_dead
        die(file)
        directory.compact()


def directory_identity(directory: WorkerDirectory, start: int) -> Identity:
    return directory.join().identity._replace(start=start)


def test_a_process_name_may_hold_anything(tmp_path: Path) -> None:
    stat = tmp_path / "12" / "stat"
    stat.parent.mkdir()
    fields = " ".join(str(number) for number in range(4, 53))
    stat.write_text(f"12 (a) R 1 (b) S {fields}")
    assert process_start(tmp_path, 12) == 22
    assert process_start(tmp_path, 13) is None


def test_who_cannot_be_asked_for_is_not_dead(directory: WorkerDirectory, tmp_path: Path) -> None:
    """Its counts would be archived, and its next file would have them again."""
    living = directory.join()
    proc = tmp_path / "proc"
    (proc / str(os.getpid()) / "stat").mkdir(parents=True)  # an error like any other
    directory._proc = proc
    with pytest.raises(IsADirectoryError):
        directory.compact()
    with pytest.raises(IsADirectoryError):
        directory.read(None)
    assert living.path.exists()


def write(directory: WorkerDirectory, **changes: Any) -> WorkerFile:
    identity = directory.join().identity._replace(**changes)
    name = f"worker-{identity.pid}-{identity.token}x.cells"
    return WorkerFile(directory.path / name, identity)


def test_an_earlier_boot_is_forgotten(directory: WorkerDirectory) -> None:
    file = write(directory, boot="another", token="earlier")
    count(file, 99)
    die(file)
    assert total(directory) == 0
    directory.compact()
    assert not file.path.exists()
    assert total(directory) == 0


def test_an_archive_of_an_earlier_boot_is_forgotten(
    directory: WorkerDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = directory.join()
    count(dead, 99)
    die(dead)
    directory.compact()
    rebooted = WorkerDirectory(directory.path.parent, "s")
    rebooted._boot = "another"
    assert list(rebooted.read(None).sums.items()) == []
    file = rebooted.join()
    count(file, 1)
    die(file)
    rebooted.compact()
    assert [counts for _, counts in rebooted.read(None).sums.items()] == [[1]]


def test_a_process_of_another_container_is_skipped_while_it_lives(
    directory: WorkerDirectory,
) -> None:
    file = write(directory, namespace=1, token="elsewhere")
    count(file, 3)
    assert [error.reason for error in directory.read(None).skipped] == ["foreign"]
    directory.compact()
    assert file.path.exists()
    die(file)
    directory.compact()
    assert total(directory) == 3


def test_what_is_not_ours_is_counted_and_left_alone(directory: WorkerDirectory) -> None:
    directory.join()
    strange = {
        "notes.txt": (b"hello", "foreign"),
        "worker-1-empty.cells": (b"", "torn"),
        "worker-1-strange.cells": (b"x" * 4096, "foreign"),
        "worker-1-newer.cells": (b"twcells\0\2" + bytes(4096), "version"),
    }
    for name, (content, _) in strange.items():
        (directory.path / name).write_bytes(content)
    newer = os.open(directory.path / "worker-1-newer.cells", os.O_RDONLY)
    worker_directory.fcntl.flock(newer, worker_directory.fcntl.LOCK_EX)
    for _ in range(2):
        found = {error.path.name: error.reason for error in directory.read(None).skipped}
        assert found == {name: reason for name, (_, reason) in strange.items()}
        directory.compact()
    os.close(newer)  # the other version's process is dead: its file is provably ours to remove
    directory.compact()
    assert Counter(error.reason for error in directory.read(None).skipped) == {
        "foreign": 2,
        "torn": 1,
    }


def test_a_damaged_archive_is_counted_and_kept_aside_by_the_next_compaction(
    directory: WorkerDirectory,
) -> None:
    directory.join()
    archive = directory.path / "archive"
    archive.write_bytes(b"?" * 1000)
    assert [error.reason for error in directory.read(None).skipped] == ["foreign"]
    dead = directory.join()
    count(dead, 4)
    die(dead)
    directory.compact()
    assert total(directory) == 4
    assert (directory.path / "archive.broken").read_bytes() == b"?" * 1000


def test_the_archive_does_not_grow_with_every_label_that_ever_was(
    directory: WorkerDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_directory, "_ARCHIVED_SERIES", 10)
    for generation in range(5):
        file = directory.join()
        for i in range(10):
            count(file, 1, Key("requests", "s", (f"/{generation}/{i}", "GET")))
        die(file)
        directory.compact()
    counts = {key.values: values[0] for key, values in directory.read(None).sums.items()}
    assert sum(counts.values()) == 50
    assert len(counts) == 11
    assert counts[("__other__", "GET")] == 40


def test_leftovers_of_the_dead_are_swept(directory: WorkerDirectory) -> None:
    living = directory.join()
    begun = directory.path / "worker-9-aa.new"
    orphan = directory.path / "worker-9-bb.levels"
    for path in (begun, orphan, directory.levels_path(living)):
        path.write_text("")
    directory.compact()
    assert begun.exists()  # it may be being written
    for path in (begun, orphan, directory.levels_path(living)):
        os.utime(path, (1, 1))
    directory.compact()
    assert files(directory) == {living.path.name, directory.levels_path(living).name}


# --- whose directory ---


def test_it_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    directory = WorkerDirectory(tmp_path / "a" / "b", "s")
    directory.check()
    assert not (tmp_path / "a").exists()
    directory.join()
    for path in (directory.path, directory.path.parent):
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def nobody() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_one_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"file/service=s: \S*/file is not a directory$"):
        WorkerDirectory(tmp_path / "file", "s").check()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError, match=r"\S*/dangling is not a directory$"):
        WorkerDirectory(tmp_path / "dangling", "s").check()
    for root, service in ((tmp_path / ("d" * 256), "s"), (tmp_path, "s" * 256)):
        with pytest.raises(OSError, match=r"workers directory .*: File name too long$"):
            WorkerDirectory(root, service).check()
    open_to_all = WorkerDirectory(tmp_path / "open", "s")
    open_to_all.path.mkdir(parents=True)
    open_to_all.path.chmod(0o777)
    with pytest.raises(PermissionError, match="its mode is 777, expected that only its owner"):
        open_to_all.check()


def test_one_of_somebody_else_is_refused(tmp_path: Path, nobody: None) -> None:
    os.seteuid(0)
    theirs = WorkerDirectory(tmp_path, "s")
    theirs.path.mkdir()
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    os.seteuid(65534)
    with pytest.raises(PermissionError, match="it belongs to user 0, expected 65534"):
        theirs.check()
    with pytest.raises(PermissionError, match="it belongs to user 0, expected 65534"):
        theirs.join()


def test_unreadable_says_which_file() -> None:
    error = Unreadable(Path("/x/y"), "torn", "half")
    assert str(error) == "/x/y: half"
