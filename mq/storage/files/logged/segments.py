"""The two segments of a log: their headers and records, read and made. :mod:`mq.storage.files.logged.log` has the
format."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from mq.storage.files.calls import OPEN_READ, Calls, FileKind, opened, write_all_at
from mq.storage.files.sync import close_all, sync_folder

logger = logging.getLogger("mq.storage")

PAGE: Final = 4096
KEY_BYTES: Final = 16
LIFE_BYTES: Final = 64
RECORD: Final = struct.Struct(f"<4sIIQQ{KEY_BYTES}sQ")
RECORD_MAGIC: Final = b"mqr1"
_MAGIC: Final = b"mqlog-2\0"
_HEADER: Final = struct.Struct(f"<8sQQ{KEY_BYTES}s{LIFE_BYTES}sI")
_CHECKED: Final = 8
"""Bytes of a record before those of which it has the CRC."""
_ZEROS: Final = bytes(1 << 20)
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class LogDamaged(Exception):
    """A record or a segment that was on the medium cannot be read any more. The text says where."""


class Header(NamedTuple):
    """Page 0 of a segment.

    Attributes:
        epoch: of the records that count in it.
        size: bytes of the segment.
        key: random bytes of that epoch.
        life: what tells the mount in which the epoch was begun (:func:`life_of`).
    """

    epoch: int
    size: int
    key: bytes
    life: str


class Record(NamedTuple):
    """What was read of one record.

    Attributes:
        sequence: the number of its first page, from 1.
        payload: the bytes that were appended.
        flushed: the newest sequence that was on the medium when it was written.
    """

    sequence: int
    payload: bytes
    flushed: int

    @property
    def pages(self) -> int:
        """How many it takes."""
        return pages(RECORD.size + len(self.payload)) // PAGE


class Segment:
    """One of the two files."""

    def __init__(self, calls: Calls, path: str, header: Header) -> None:
        self._calls = calls
        self.path = path
        self.epoch, self.size, self.key, self.life = header
        self.fd = calls.open(path, _OPEN)

    def free(self, epoch: int, key: bytes, life: str) -> None:
        """Let nothing in it count any more, and what is appended from now on. Durable on return."""
        head = _HEADER.pack(_MAGIC, epoch, self.size, key, life.encode(), 0)[:-4]
        write_all_at(self._calls, self.fd, (head + struct.pack("<I", zlib.crc32(head))).ljust(PAGE, b"\0"), 0)
        self._calls.fdatasync(self.fd)
        self.epoch, self.key, self.life = epoch, key, life

    def grow(self, size: int) -> None:
        """Make it longer, by zeros that are on the medium on return."""
        _write_zeros(self._calls, self.fd, self.size, size)
        self._calls.fsync(self.fd)
        self.size = size

    def records(self, end: int | None = None) -> Iterator[tuple[int, Record]]:
        """Where it has pages that are records of its epoch, valid by themselves, in order, and those records; up to
        byte `end`, where that is given."""
        at = PAGE
        while self.epoch and at < (self.size if end is None else end):
            record = self._read(at)
            if record is None:
                at += PAGE
            else:
                yield at, record
                at += record.pages * PAGE

    def is_torn(self, at: int) -> bool:
        """Whether a record of its epoch begins at byte `at` and cannot be read."""
        head = self._calls.read_at(self.fd, RECORD.size, at)
        if len(head) < RECORD.size or self._read(at) is not None:
            return False
        magic, _, _, epoch, _, key, _ = RECORD.unpack(head)
        return [magic == RECORD_MAGIC, epoch == self.epoch, key == self.key].count(True) > 1

    def _read(self, at: int) -> Record | None:
        head = self._calls.read_at(self.fd, RECORD.size, at)
        if len(head) < RECORD.size or not head.startswith(RECORD_MAGIC):
            return None
        _, crc, length, epoch, sequence, key, flushed = RECORD.unpack(head)
        if (epoch, key) != (self.epoch, self.key) or length > self.size - at - RECORD.size:
            return None
        payload = self._calls.read_at(self.fd, length, at + RECORD.size)
        if zlib.crc32(payload, zlib.crc32(head[_CHECKED:])) != crc:
            return None
        return Record(sequence, payload, flushed)


def open_segment(calls: Calls, path: str) -> Segment:
    """Open a segment of a log in use.

    Raises:
        LogDamaged: it is not there, shorter than its header states, or its header cannot be read.
    """
    header = _header_of(calls, path)
    segment = Segment(calls, path, header)
    try:
        if (size := calls.file_size(segment.fd) or 0) < header.size:
            raise LogDamaged(f"{path} has only {size} of the {header.size} bytes that its header specifies")
    except BaseException:
        close_all(calls, [segment.fd])
        raise
    return segment


def _header_of(calls: Calls, path: str) -> Header:
    kind = calls.kind(path)
    if kind is not FileKind.FILE:
        raise LogDamaged(f"{path} is missing" if kind is None else f"{path} is not a file: move it elsewhere")
    with opened(calls, path, OPEN_READ) as fd:
        return read_header(calls, fd, path)


def make_segment(calls: Calls, path: str, size: int) -> Segment:
    """Open a segment of a log that is not in use, or make it if it is not as a log in use needs it.

    Raises:
        LogDamaged: something that is not a file is in its place.
        OSError: no room, or the medium failed.
    """
    try:
        return open_segment(calls, path)
    except LogDamaged:
        if calls.kind(path) not in (FileKind.FILE, None):
            raise
    with opened(calls, f"{path}.new", _OPEN | os.O_CREAT | os.O_TRUNC) as fd:
        calls.write_in_place(fd)
        _write_zeros(calls, fd, 0, size)
        calls.fsync(fd)
    if calls.kind(path) is not None:
        calls.unlink(path)
    calls.rename(f"{path}.new", path)
    return Segment(calls, path, Header(0, size, b"", ""))


def _check_folder(calls: Calls, folder: str) -> None:
    kind = calls.kind(folder)
    if kind is not FileKind.FOLDER:
        raise LogDamaged(f"{folder} is missing" if kind is None else f"{folder} is not a folder: move it elsewhere")


def open_both(calls: Calls, folder: str) -> list[Segment]:
    """Open the segments of a log in use.

    Raises:
        LogDamaged: one is missing, damaged, or an old copy.
    """
    _check_folder(calls, folder)
    segments: list[Segment] = []
    try:
        segments += (open_segment(calls, f"{folder}/{number}") for number in range(2))
        older, newer = sorted(segments, key=lambda segment: segment.epoch)
        if newer.epoch - older.epoch != 1:
            raise LogDamaged(
                f"the write-ahead log files {older.path} and {newer.path} are not consecutive (epochs "
                f"{older.epoch} and {newer.epoch}): one of the files is an old copy"
            )
    except (OSError, LogDamaged):
        close_all(calls, (segment.fd for segment in segments))
        raise
    return segments


def make_both(calls: Calls, folder: str, size: int) -> list[Segment]:
    """Open the segments of a log that is not in use; those that are missing are made with so many bytes.

    Raises:
        LogDamaged: something that is not a file or a folder is in their place.
        OSError: no room, or the medium failed.
    """
    if calls.kind(folder) is None:
        calls.mkdir(folder)
        sync_folder(calls, os.path.dirname(folder))
    _check_folder(calls, folder)
    segments: list[Segment] = []
    try:
        segments += (make_segment(calls, f"{folder}/{number}", size) for number in range(2))
        sync_folder(calls, folder)
    except (OSError, LogDamaged):
        close_all(calls, (segment.fd for segment in segments))
        raise
    return segments


def read_log(calls: Calls, folder: str) -> list[Record]:
    """The records that count in a log in use of an unserved root, in order. Changes nothing.

    Raises:
        LogDamaged: one that was on the medium is not among them.
    """
    segments = open_both(calls, folder)
    try:
        return read_segments(segments)
    finally:
        close_all(calls, (segment.fd for segment in segments))


def salvage(calls: Calls, folder: str) -> tuple[list[Record], list[str]]:
    """The records that can still be read in a damaged log, in order, and what of it is missing, in words."""
    try:
        _check_folder(calls, folder)
    except LogDamaged as error:
        return [], [str(error)]
    segments: list[Segment] = []
    flaws: list[str] = []
    for path in (f"{folder}/{number}" for number in range(2)):
        try:
            segments.append(open_segment(calls, path))
        except LogDamaged as error:
            flaws.append(str(error))
            with contextlib.suppress(LogDamaged):  # what is left of one that was cut
                segments.append(Segment(calls, path, _header_of(calls, path)))
    try:
        records = sorted(
            (record for segment in segments for _, record in segment.records()), key=lambda record: record.sequence
        )
    finally:
        close_all(calls, (segment.fd for segment in segments))
    gaps = [
        f"pages {before.sequence + before.pages} to {after.sequence - 1} of the log cannot be read"
        for before, after in pairwise(records)
        if after.sequence > before.sequence + before.pages
    ]
    return records, flaws + gaps


def read_header(calls: Calls, fd: int, path: str) -> Header:
    """The header of a segment. It is in one sector, which a power cut leaves as it was, or as it is to be."""
    head = calls.read_at(fd, _HEADER.size, 0)
    if len(head) == _HEADER.size:
        magic, epoch, size, key, life, crc = _HEADER.unpack(head)
        if magic == _MAGIC and crc == zlib.crc32(head[:-4]):
            return Header(epoch, size, key, life.rstrip(b"\0").decode(errors="replace"))
    raise LogDamaged(f"cannot read the header of {path}")


def read_segments(segments: Sequence[Segment]) -> list[Record]:
    """The records that count in both segments, in order.

    Raises:
        LogDamaged: one that was on the medium is not among them.
    """
    found: list[Record] = []
    missing: tuple[int, str] | None = None  # the sequence and the place of the first unreadable record
    wanted: int | None = None  # the sequence of the next one, once it is known
    flushed = 0
    older, newer = sorted(segments, key=lambda segment: segment.epoch)
    for segment in (older, newer):
        end = PAGE
        if segment is newer and not found:
            wanted = 0  # what stands in the older one was flushed before anything followed here
        for at, record in segment.records():
            before = (at - end) // PAGE
            if missing is None and before == 0 and wanted in (None, record.sequence):
                found.append(record)
                wanted = record.sequence + record.pages
                end = at + record.pages * PAGE
            else:
                first = record.sequence - before if wanted is None else wanted
                missing = missing or (first, f"{segment.path} at offset {end}")
            flushed = max(flushed, record.flushed)
        if segment.is_torn(end):
            logger.warning(
                "the write-ahead log ends with an unreadable record (%s at offset %d): either its batch was never "
                "confirmed, or this part of the file is damaged",
                segment.path,
                end,
            )
    if missing is not None and flushed >= missing[0]:
        unreadable = missing[1]
        raise LogDamaged(f"the write-ahead log contains confirmed changes that cannot be read: {unreadable}")
    return found


def pages(length: int) -> int:
    """So many bytes, up to the end of their last page."""
    return -(-length // PAGE) * PAGE


def _write_zeros(calls: Calls, fd: int, begin: int, end: int) -> None:
    for at in range(begin, end, len(_ZEROS)):
        write_all_at(calls, fd, _ZEROS[: min(len(_ZEROS), end - at)], at)
