"""The file that a worker counts in: siblings read along, and its death loses nothing.

A header says whose it is; records follow, each naming one cell, with the cell's integers behind the
name. A record is written with its first word last: until then it is not there. The integers are
aligned words of 8 bytes, which processors store and load whole, so a reader needs no lock. Nothing
is ever moved: the file grows by segments, each mapped on its own, and what counts keeps its view.

All numbers are in the machine's byte order: the file never leaves it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import secrets
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import add
from pathlib import Path
from typing import NamedTuple

from tailwatch_tracing.cells import Labels
from tailwatch_tracing.page import no_pause

FORMAT = 1

_WORD = 8
_SEGMENT = 64 * 1024
_MAGIC = b"twcells\0"
_HEAD = struct.Struct("=8sII")  # magic, format, checksum of the identity: the same in all formats
_IDENTITY = struct.Struct("=16s40sQQQ")  # token, boot, pid namespace, pid, start
_NUMBER_WORD = 24  # behind both, with room
_HEADER_BYTES = 256
_RECORD = struct.Struct("=qIIII")  # length, kind, bytes of text, integers, checksum
_RECORD_WORDS = _RECORD.size // _WORD

_CELL = 1
_RENAMED = 2
_ABSORBED = 3

NOT_SERVING = -2
NO_NUMBER = -1


class Identity(NamedTuple):
    """A process: `start` is in clock ticks since boot, `namespace` the inode of its pids'."""

    token: str
    boot: str
    namespace: int
    pid: int
    start: int


class Key(NamedTuple):
    """Which cell."""

    metric: str
    owner: str
    values: Labels


class Unreadable(Exception):
    """A file that is not a worker's, or not as this version writes it."""

    def __init__(self, path: Path, reason: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.reason = reason


class WorkerFile:
    """This process's own file. Cells are allocated from any thread.

    It is locked as long as the process lives, by a descriptor of its own: a mapping outlives a
    fork, and would carry the lock over.

    Args:
        path: Where it appears, complete with its header.
        identity: Of this process.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self._lock = threading.RLock()  # a finaliser may count while a cell is being made
        self._end = _HEADER_BYTES
        self._size = 0
        self._base = 0
        self._words: memoryview[int]
        unfinished = path.with_suffix(".new")
        self._fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._inode = os.fstat(self._fd)
        self._lease = -1
        try:
            self._lease = os.open(unfinished, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._grow(0)
            self._words[: _HEADER_BYTES // _WORD] = _words(_header(identity))
            self._number = self._words[_NUMBER_WORD : _NUMBER_WORD + 1]
            os.rename(unfinished, path)
        except OSError:
            self.close()
            os.unlink(unfinished)
            raise

    @property
    def number(self) -> int:
        """The worker's number from 0, or NO_NUMBER, or NOT_SERVING."""
        return int(self._number[0])

    @number.setter
    def number(self, number: int) -> None:
        self._number[0] = number

    def allocate(self, owner: str, metric: str, values: Labels, size: int) -> memoryview[int]:
        """Return `size` zeros in the file.

        Raises:
            OSError: no room on the device.
        """
        return self._append(_CELL, _name(Key(metric, owner, values)), size)

    def rename(self, old: str, new: str) -> None:
        """Give an owner's cells to another name.

        Raises:
            OSError: no room on the device.
        """
        self._append(_RENAMED, json.dumps([old, new]).encode(), 0)

    @property
    def is_held(self) -> bool:
        """Whether siblings see that the worker lives: nobody has closed its descriptors."""
        return self._is_open(self._lease)

    def close(self) -> None:
        """Close the descriptors: for siblings the worker is dead then.

        In a forked child it is not: the lock is the parent's alone.
        """
        for fd in (self._fd, self._lease):
            if self._is_open(fd):
                os.close(fd)
        self._fd = self._lease = -1

    def _is_open(self, fd: int) -> bool:
        # A process that becomes a daemon closes all it has; the number may be another file's then.
        try:
            return os.path.samestat(os.fstat(fd), self._inode)
        except OSError:
            return False

    def _append(self, kind: int, text: bytes, size: int) -> memoryview[int]:
        record = _record(kind, text, size)
        length = len(record) + size * _WORD
        with self._lock:
            if self._end + length > self._size:
                self._grow(length)
            start = (self._end - self._base) // _WORD
            self._end += length
            stop = start + len(record) // _WORD
            words = self._words
            # The length comes last: a reader takes the record for written when it sees it.
            words[start + 1 : stop] = _words(record[_WORD:])
            words[start] = length
            return words[stop : stop + size]

    def _grow(self, length: int) -> None:
        # As much again, so that few mappings suffice. Reserved, not sparse: a store to a page that
        # a full device cannot give would end the process.
        size = max(_SEGMENT, self._size, -(-length // mmap.PAGESIZE) * mmap.PAGESIZE)
        if not self._is_open(self._fd):
            raise OSError(errno.EBADF, f"{self.path}: this process has closed its descriptor")
        os.posix_fallocate(self._fd, self._size, size)
        mapping = mmap.mmap(self._fd, size, offset=self._size)
        if 0 < self._end < self._size:
            self._words[(self._end - self._base) // _WORD] = self._end - self._size  # go on there
        self._words = memoryview(mapping).cast("q")
        self._base = self._size
        self._end = max(self._end, self._base)
        self._size += size


class Names:
    """Numbers the names of cells, for several files: a name is understood once, not per reading."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self._numbers: dict[tuple[bytes, int], int] = {}

    def number(self, name: bytes, size: int) -> int:
        """Return the number of a name in a record with so many integers.

        Of another size, as of another version, it has another number.

        Raises:
            ValueError, TypeError: it is not a cell's name.
        """
        number = self._numbers.get((name, size))
        if number is None:
            key = _key(name)
            number = self._numbers[name, size] = len(self.keys)
            self.keys.append(key)
        return number


class Sums:
    """Integers of cells, summed over files."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._counts: list[list[int] | None] = []
        self._single: dict[int, int] = {}  # of cells with one integer

    def add(
        self, cells: Cells, words: memoryview[int], pause: Callable[[], None] = no_pause
    ) -> None:
        """Add what a file has now, with pauses between its cells."""
        single = self._single
        for number, position in cells.singles:
            if number in single:
                single[number] += words[position]
            else:
                single[number] = words[position]
        counts = self._counts
        counts += [None] * (len(self.names.keys) - len(counts))
        for number, start, stop in cells.spans:
            pause()
            part = words[start:stop].tolist()
            known = counts[number]
            counts[number] = part if known is None else list(map(add, known, part))

    def items(self) -> Iterator[tuple[Key, list[int]]]:
        """Yield the cells with their sums."""
        keys = self.names.keys
        for number, count in self._single.items():
            yield keys[number], [count]
        for number, counts in enumerate(self._counts):
            if counts is not None:
                yield keys[number], counts


class Cells:
    """What a file has, read again and again: what is known of it stays, only the rest is parsed.

    Raises:
        Unreadable: it is not a worker's file of this version.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, names: Names) -> None:
        self.path = path
        self.absorbed: frozenset[str] = frozenset()
        self.is_torn = False
        self.singles: list[tuple[int, int]] = []  # number, place of a cell of one integer
        self.spans: list[tuple[int, int, int]] = []  # number, start and stop of others, in words
        self._names = names
        self._parsed = _HEADER_BYTES
        self.identity = parse_header(path, bytes(self._map()[: _HEADER_BYTES // _WORD]))

    def refresh(self) -> memoryview[int]:
        """Take in what was written since, and return the words of the file."""
        words = self._map()
        if len(words) * _WORD < self._parsed:
            raise Unreadable(self.path, "torn", "it shrank")
        self._parse(words)
        return words

    def number(self) -> int:
        """Return the worker's number as it is now."""
        return self._map()[_NUMBER_WORD]

    def _map(self) -> memoryview[int]:
        # Mapped, not read: a copy by the kernel need not be made of whole words.
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size // _WORD * _WORD
            if size < _HEADER_BYTES:
                raise Unreadable(self.path, "torn", f"{size} bytes, a header has {_HEADER_BYTES}")
            return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ)).cast("q")
        except ValueError:
            raise Unreadable(self.path, "torn", "it shrinks") from None
        finally:
            os.close(fd)

    def _parse(self, words: memoryview[int]) -> None:
        """Take in the records that were written since."""
        self.is_torn = False
        position, size = self._parsed, len(words) * _WORD
        while position + _WORD <= size:
            length = words[position // _WORD]
            if length == 0:
                break
            if length % _WORD or abs(length) > size - position:
                self.is_torn = True
                break
            record = words[position // _WORD : (position + length) // _WORD]
            # Below 0 it is the rest of a segment, too small for the next record.
            if length > 0 and not self._take(record, position // _WORD):
                self.is_torn = True
                break
            position += abs(length)
        self._parsed = position

    def _take(self, record: memoryview[int], position: int) -> bool:
        if len(record) * _WORD < _RECORD.size:
            return False
        length, kind, text_bytes, count, checksum = _RECORD.unpack(record[:_RECORD_WORDS].cast("B"))
        stop = len(record) - count
        octets = bytes(record[_RECORD_WORDS:stop].cast("B")) if stop > _RECORD_WORDS else b""
        text = octets[:text_bytes]
        if len(text) != text_bytes or _checksum(length, kind, text, count) != checksum:
            return False
        # A sound record that is not understood is another version's.
        with suppress(ValueError, TypeError):
            if kind == _CELL:
                number = self._names.number(text, count)
                if count == 1:
                    self.singles.append((number, position + stop))
                else:
                    self.spans.append((number, position + stop, position + len(record)))
            elif kind == _RENAMED:
                self._rename(*json.loads(text))
            elif kind == _ABSORBED:
                self.absorbed = frozenset(json.loads(text))
        return True

    def _rename(self, old: str, new: str) -> None:
        keys = self._names.keys

        def renamed(number: int, size: int) -> int:
            key = keys[number]
            if key.owner != old:
                return number
            return self._names.number(_name(key._replace(owner=new)), size)

        self.singles = [(renamed(number, 1), position) for number, position in self.singles]
        self.spans = [
            (renamed(number, stop - start), start, stop) for number, start, stop in self.spans
        ]


def _name(key: Key) -> bytes:
    return json.dumps([key.metric, key.owner, [str(value) for value in key.values]]).encode()


def _key(name: bytes) -> Key:
    metric, owner, values = json.loads(name)
    if not all(isinstance(each, str) for each in (metric, owner, *values)):
        raise ValueError(f"{name!r}: expected strings")
    return Key(metric, owner, tuple(values))


def parse_header(path: Path, header: bytes) -> Identity:
    """Return whose file it is.

    Raises:
        Unreadable: as `foreign` without our mark, `version` for another format, `torn` with a
            wrong checksum.
    """
    magic, format_, checksum = _HEAD.unpack_from(header)
    if magic != _MAGIC:
        raise Unreadable(path, "foreign", "not a worker's file")
    if format_ != FORMAT:
        raise Unreadable(path, "version", f"format {format_}, this version reads {FORMAT}")
    identity = header[_HEAD.size : _HEAD.size + _IDENTITY.size]
    if zlib.crc32(identity) != checksum:
        raise Unreadable(path, "torn", "the header's checksum is wrong")
    token, boot, namespace, pid, start = _IDENTITY.unpack(identity)
    return Identity(
        token.rstrip(b"\0").decode(), boot.rstrip(b"\0").decode(), namespace, pid, start
    )


def frozen(
    identity: Identity, absorbed: Iterable[str], cells: Iterable[tuple[Key, list[int]]]
) -> bytes:
    """Return a file of the same format that nobody counts in.

    `absorbed` are the tokens of files whose counts are in `cells`.
    """
    parts = [_header(identity), _record(_ABSORBED, json.dumps(sorted(absorbed)).encode(), 0)]
    for key, counts in cells:
        parts.append(_record(_CELL, _name(key), len(counts)))
        parts.append(struct.pack(f"={len(counts)}q", *map(_clamped, counts)))
    return b"".join(parts)


def _clamped(count: int) -> int:
    return max(-(2**63), min(count, 2**63 - 1))


def new_token() -> str:
    """Return a name that no other file has had."""
    return secrets.token_hex(8)


def _header(identity: Identity) -> bytes:
    packed = _IDENTITY.pack(
        identity.token.encode(),
        identity.boot.encode(),
        identity.namespace,
        identity.pid,
        identity.start,
    )
    head = _HEAD.pack(_MAGIC, FORMAT, zlib.crc32(packed)) + packed
    header = bytearray(head.ljust(_HEADER_BYTES, b"\0"))
    struct.pack_into("=q", header, _NUMBER_WORD * _WORD, NOT_SERVING)
    return bytes(header)


def _record(kind: int, text: bytes, count: int) -> bytes:
    """Return a record up to its integers."""
    padded = text.ljust(-(-len(text) // _WORD) * _WORD, b"\0")
    length = _RECORD.size + len(padded) + count * _WORD
    checksum = _checksum(length, kind, text, count)
    return _RECORD.pack(length, kind, len(text), count, checksum) + padded


def _checksum(length: int, kind: int, text: bytes, count: int) -> int:
    return zlib.crc32(struct.pack("=qII", length, kind, count) + text)


def _words(octets: bytes) -> memoryview[int]:
    return memoryview(octets).cast("q")
