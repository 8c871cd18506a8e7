"""The file format: what is written is read, what is damaged is skipped, nothing raises."""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path

import pytest

from tailwatch_tracing import worker_file
from tailwatch_tracing.worker_file import (
    NOT_SERVING,
    Cells,
    Identity,
    Key,
    Names,
    Sums,
    Unreadable,
    WorkerFile,
    frozen,
)

ME = Identity("0123456789abcdef", "6c5b5b3e-5f5e-4c8e-9d3c-1b2a3c4d5e6f", 4026531836, 7, 123456)


def make(path: Path) -> WorkerFile:
    return WorkerFile(path, ME)


def read(path: Path) -> dict[Key, list[int]]:
    sums = Sums(Names())
    cells = Cells(path, sums.names)
    sums.add(cells, cells.refresh())
    return dict(sums.items())


def test_what_is_counted_is_read_at_any_moment(tmp_path: Path) -> None:
    file = make(tmp_path / "w.cells")
    names = Names()
    reader = Cells(file.path, names)

    def read_again() -> list[tuple[Key, list[int]]]:
        sums = Sums(names)
        sums.add(reader, reader.refresh())
        return list(sums.items())

    counts = file.allocate("s", "requests", ("/ü", 'a "b"\n', "\udc80"), 3)
    assert list(counts) == [0, 0, 0]
    counts[0] += 1
    counts[2] -= 2**62
    key = Key("requests", "s", ("/ü", 'a "b"\n', "\udc80"))
    assert read_again() == [(key, [1, 0, -(2**62)])]
    assert reader.number() == NOT_SERVING
    counts[0] += 1
    file.allocate("", "pauses", (), 1)[0] = 9
    file.number = 5
    assert read_again() == [(Key("pauses", "", ()), [9]), (key, [2, 0, -(2**62)])]
    assert reader.number() == 5
    assert reader.identity == ME
    assert not reader.is_torn


def test_cells_stay_where_they_are_while_the_file_grows(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    file = make(tmp_path / "w.cells")
    cells = [file.allocate("s", "m", (str(i),), 1 + i % 80) for i in range(2000)]
    big = file.allocate("s", "big", (), 100_000)
    for i, cell in enumerate(cells):
        cell[len(cell) - 1] += i
    big[99_999] = 1
    found = read(file.path)
    assert len(found) == 2001
    for i in range(2000):
        assert found[Key("m", "s", (str(i),))] == [0] * (i % 80) + [i]
    assert found[Key("big", "s", ())][-1] == 1
    # A mapping holds a descriptor: one for each piece it grew by, none for each cell.
    assert len(os.listdir("/proc/self/fd")) - descriptors < 50


def test_a_renamed_owner_keeps_its_cells(tmp_path: Path) -> None:
    file = make(tmp_path / "w.cells")
    file.allocate("unnamed", "m", (), 1)[0] = 3
    file.rename("unnamed", "s")
    file.allocate("s", "n", (), 1)
    assert read(file.path) == {Key("m", "s", ()): [3], Key("n", "s", ()): [0]}


def test_a_record_is_there_when_its_first_word_is(tmp_path: Path) -> None:
    """A writer that is killed before leaves nothing, whatever it has written behind."""
    file = make(tmp_path / "w.cells")
    file.allocate("s", "first", (), 1)[0] = 1
    whole = file.path.read_bytes()
    file.allocate("s", "second", (), 1)[0] = 2
    both = bytearray(file.path.read_bytes())
    start = next(i for i in range(len(whole)) if whole[i] != both[i])
    start -= start % 8
    both[start : start + 8] = bytes(8)
    torn = tmp_path / "torn.cells"
    torn.write_bytes(both)
    assert read(torn) == {Key("first", "s", ()): [1]}
    reader = Cells(torn, Names())
    reader.refresh()
    assert not reader.is_torn


def sample() -> bytes:
    cells = [(Key("m", "s", (str(i),)), [i, 2 * i]) for i in range(6)]
    return frozen(ME, ["aa", "bb"], cells)


def test_a_frozen_file_says_whose_counts_it_has(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(sample())
    cells = Cells(path, Names())
    cells.refresh()
    assert cells.absorbed == {"aa", "bb"}
    assert read(path) == {Key("m", "s", (str(i),)): [i, 2 * i] for i in range(6)}


def test_a_file_cut_at_any_length_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "w.cells"
    path.write_bytes(sample())
    whole = list(read(path).items())
    seen = set()
    for length in range(len(sample())):
        path.write_bytes(sample()[:length])
        try:
            part = list(read(path).items())
        except Unreadable as error:
            assert error.reason == "torn"
            assert length < 256
            continue
        assert part == whole[: len(part)]
        seen.add(len(part))
    assert seen == set(range(6))


def test_a_flipped_bit_is_never_an_error_and_never_another_name(tmp_path: Path) -> None:
    path = tmp_path / "w.cells"
    path.write_bytes(sample())
    names = set(read(path))
    reasons = set()
    for position in range(len(sample())):
        damaged = bytearray(sample())
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            assert set(read(path)) <= names
        except Unreadable as error:
            reasons.add(error.reason)
    assert reasons == {"foreign", "version", "torn"}


def test_noise_is_never_an_error(tmp_path: Path) -> None:
    path = tmp_path / "w.cells"
    noise = random.Random(4)
    for _ in range(300):
        damaged = bytearray(sample())
        for _ in range(noise.randrange(1, 40)):
            start = noise.randrange(64, len(damaged))
            damaged[start : start + 8] = noise.randbytes(8)
        path.write_bytes(damaged)
        try:
            read(path)
        except Unreadable:
            pass


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((1, text) for text in (b"[1]", b"{}", b"nonsense", b'["m", 3, null]', b'["m","s",[1]]')),
        (2, b"[1]"),
        (3, b"7"),
        (99, b"[]"),
    ],
)
def test_a_sound_record_of_another_version_is_passed_over(
    tmp_path: Path, kind: int, text: bytes
) -> None:
    path = tmp_path / "w.cells"
    strange = worker_file._record(kind, text, 1) + bytes(8)
    path.write_bytes(sample()[:256] + strange + sample()[256:])
    cells = Cells(path, Names())
    cells.refresh()
    assert not cells.is_torn
    assert len(read(path)) == 6


def test_a_label_that_is_no_string_is_written_as_one(tmp_path: Path) -> None:
    file = make(tmp_path / "w.cells")
    file.allocate("s", "m", (404, None), 1)[0] = 2  # type: ignore[arg-type]
    assert read(file.path) == {Key("m", "s", ("404", "None")): [2]}


def test_a_header_of_another_format_is_a_version(tmp_path: Path) -> None:
    path = tmp_path / "w.cells"
    path.write_bytes(struct.pack("=8sII", b"twcells\0", 2, zlib.crc32(b"")) + bytes(300))
    with pytest.raises(Unreadable, match="format 2, this version reads 1") as error:
        Cells(path, Names())
    assert error.value.reason == "version"
