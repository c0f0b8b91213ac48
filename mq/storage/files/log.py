r"""The log of a root: one flush makes a batch durable, before its file calls are made.

Files stay the truth while the machine is up. The log is for the power cut: a record says what a batch is about to do
(:mod:`mq.storage.files.logged`), and at the next start what the file system has lost of it is done again
(:mod:`mq.storage.files.redo`).

Two segments, ``state/log/0`` and ``state/log/1``, are written full with zeros and synced when they are made, and used
in turn: no write to them changes anything but bytes. Page 0 of each is its header::

    mqlog-2\0 | epoch u64 | size u64 | key 16 bytes | life 64 bytes | crc32 of all before

Records begin on page boundaries from page 1 on, with zeros up to the next one. Numbers are little endian::

    mqr1 | crc32 of all that follows | length u32 | epoch u64 | sequence u64 | key 16 bytes | flushed u64 | payload

A record counts when its magic, CRC, epoch and key are right and it follows the one before: its *sequence* is the
number of its first page, counted on through both segments, so an unreadable record's own is known from its place. The
*key* is drawn at random for each epoch: neither a record of an earlier use of the page nor a body that looks like a
record can have it. *Flushed* is the newest sequence that was on the medium when the record was written: an unreadable
record up to there is damage; any other one is the end of the log.

From a start until the next clean stop the log is *in use*: both segments exist, at least as long as their headers
state, and their epochs are consecutive, at each instant at which a power cut can come. Anything else means that a file
was lost, cut or replaced, and confirmed messages may be missing (:class:`LogDamaged`). A segment may be longer than its
header states: it was growing.

What a payload says is in :mod:`mq.storage.files.payload`.

A *checkpoint* brings the changes in a segment's records to the medium, and only then gives the segment a new epoch, and
with it room. Commits go on in the other segment meanwhile. When both are full, a commit waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Final, NamedTuple

from mq import threads
from mq.storage.files.barrier import close_all, sync_folder
from mq.storage.files.calls import NO_ROOM, OPEN_READ, Calls, FileKind

logger = logging.getLogger("mq.storage")

PAGE: Final = 4096
SMALLEST: Final = 1 << 20
"""Bytes of a segment at the beginning."""
LARGEST: Final = 32 << 20
"""Bytes of a segment at the most: it doubles each time it was full."""
AGE_SECONDS: Final = 5.0
"""After so long what the log says is brought to the medium, however little it is."""
_PARTS: Final = 4
"""A record is at most this part of the smaller segment."""
_MAGIC: Final = b"mqlog-2\0"
_RECORD_MAGIC: Final = b"mqr1"
_KEY_BYTES: Final = 16
_LIFE_BYTES: Final = 64
_HEADER: Final = struct.Struct(f"<8sQQ{_KEY_BYTES}s{_LIFE_BYTES}sI")
_RECORD: Final = struct.Struct(f"<4sIIQQ{_KEY_BYTES}sQ")
_CHECKED: Final = 8
"""Bytes of a record before those of which it has the CRC."""
_ZEROS: Final = bytes(1 << 20)
_LOOKS: Final = 100
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def _no_reserve() -> AbstractContextManager[bool]:
    return nullcontext(True)


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
        return pages(_RECORD.size + len(self.payload)) // PAGE


Bring = Callable[[int, int, Iterator[Record]], None]
"""Brings to the medium what a segment's records have done. Called with its file, its length in bytes, and them."""


class Segment:
    """One of the two files.

    Args:
        calls: the system.
        path: the file.
        header: its header.

    Raises:
        OSError: the medium failed.
    """

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
        head = self._calls.read_at(self.fd, _RECORD.size, at)
        if len(head) < _RECORD.size or self._read(at) is not None:
            return False
        magic, _, _, epoch, _, key, _ = _RECORD.unpack(head)
        return [magic == _RECORD_MAGIC, epoch == self.epoch, key == self.key].count(True) > 1

    def _read(self, at: int) -> Record | None:
        head = self._calls.read_at(self.fd, _RECORD.size, at)
        if len(head) < _RECORD.size or not head.startswith(_RECORD_MAGIC):
            return None
        _, crc, length, epoch, sequence, key, flushed = _RECORD.unpack(head)
        if (epoch, key) != (self.epoch, self.key) or length > self.size - at - _RECORD.size:
            return None
        payload = self._calls.read_at(self.fd, length, at + _RECORD.size)
        if zlib.crc32(payload, zlib.crc32(head[_CHECKED:])) != crc:
            return None
        return Record(sequence, payload, flushed)


def open_segment(calls: Calls, path: str) -> Segment:
    """Open a segment of a log in use.

    Raises:
        LogDamaged: it is not there, shorter than its header states, or its header cannot be read.
        OSError: the medium failed.
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
        raise LogDamaged(f"{path} is missing" if kind is None else f"{path} is not a file: move it away")
    fd = calls.open(path, OPEN_READ)
    try:
        return _read_header(calls, fd, path)
    finally:
        calls.close(fd)


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
    fd = calls.open(f"{path}.new", _OPEN | os.O_CREAT | os.O_TRUNC)
    try:
        calls.write_in_place(fd)
        _write_zeros(calls, fd, 0, size)
        calls.fsync(fd)
    finally:
        calls.close(fd)
    if calls.kind(path) is not None:
        calls.unlink(path)
    calls.rename(f"{path}.new", path)
    return Segment(calls, path, Header(0, size, b"", ""))


class Log:
    """The log of one root: :meth:`read` it, :meth:`forget` what it said, and :meth:`begin`.

    Args:
        calls: the system.
        folder: where its segments are; made where it is missing.
        bring: brings what a segment says to the medium, before that is used again.
        fail: is told when the medium has failed.
        freed: is told of an epoch whose records count no more, with :attr:`lock`.
        life: what tells this mount from each earlier one; empty where nothing does.
        draw: random bytes, as many as asked for.
        smallest, largest: bytes of a segment at the beginning, and at the most.
        in_use: whether the log was in use when its last daemon ended: nothing of it is made then.
        in_thread: whether checkpoints are made in a thread, while commits go on. Else each is made where it is due, and
            none because of its age.
        clock: seconds from anywhere.
        spare_room: a context that gives whether a segment may take up all room that there is.

    Attributes:
        lock: held from before a record until its file calls are made.
        waited: how often a commit has waited for a checkpoint.
        checkpoints: how many have been made.
        largest_payload: bytes that one record can hold.
    """

    def __init__(
        self,
        calls: Calls,
        folder: str,
        bring: Bring,
        fail: Callable[[OSError], None],
        freed: Callable[[int], None] = lambda _: None,
        *,
        life: str = "",
        draw: Callable[[int], bytes] = os.urandom,
        smallest: int = SMALLEST,
        largest: int = LARGEST,
        in_use: bool = False,
        in_thread: bool = True,
        clock: Callable[[], float] = time.monotonic,
        spare_room: Callable[[], AbstractContextManager[bool]] = _no_reserve,
    ) -> None:
        self.lock = threading.RLock()
        self.waited = 0
        self.checkpoints = 0
        self._calls = calls
        self._bring = bring
        self._fail = fail
        self._freed = freed
        self._life = life
        self._draw = draw
        self._largest = largest
        self._in_thread = in_thread
        self._clock = clock
        self._spare_room = spare_room
        self._changed = threading.Condition(self.lock)
        self._worker: threading.Thread | None = None
        self._failure: OSError | None = None
        self._ends = False
        self._sequence = 0
        """Of the newest record."""
        self._next = 1
        """Of the one after it."""
        self._flushed = 0
        self._offset = PAGE
        self._since: float | None = None
        self._leaving: Segment | None = None
        self._left = PAGE
        """Where the records of the segment that is left end."""
        self._is_full = False
        """Whether the segment that is left was full."""
        self._segments = _open_both(calls, folder) if in_use else _make_both(calls, folder, smallest)
        self._current = self._segments[0]
        self.largest_payload = 0
        self._note_size()

    @property
    def survived(self) -> bool:
        """Whether the kernel still has what was written before: only the process has ended since."""
        return bool(self._life) and all(segment.life == self._life for segment in self._segments)

    @property
    def epoch(self) -> int:
        """That of the newest record."""
        return self._current.epoch

    @property
    def is_empty(self) -> bool:
        """Whether all that it says is on the medium."""
        return self._offset == PAGE and self._leaving is None and self._failure is None

    def read(self) -> list[Record]:
        """The records that count, in order.

        Raises:
            LogDamaged: one that was on the medium is not among them.
        """
        return _read(self._segments)

    def forget(self) -> None:
        """Let none of its records count any more: all that they say is on the medium. Durable on return."""
        older, newer = sorted(self._segments, key=lambda segment: segment.epoch)
        newest = newer.epoch
        older.free(newest + 1, self._draw(_KEY_BYTES), self._life)  # first: never a record without those before it
        newer.free(newest + 2, self._draw(_KEY_BYTES), self._life)
        self._current = older

    def begin(self) -> None:
        """Take records from now on. It has none."""
        if self._in_thread:
            self._worker = threads.start(self._work, name="mq-checkpoint")

    def record(self, payload: bytes, *, flushes: bool, flush: Callable[[int], object] | None = None) -> int:
        """Write a record for file calls that come next; its sequence. Only with :attr:`lock`, and keep that until they
        are made: meanwhile no other record is written, and the log changes no segment.

        Args:
            payload: says what the file calls do (:func:`encode`).
            flushes: the record is on the medium before this returns.
            flush: brings it there, as :meth:`flush` takes it.

        Raises:
            OSError: the medium has failed.
        """
        sequence = self.append(payload)
        if flushes:
            self.flush(flush)
        return sequence

    def append(self, payload: bytes) -> int:
        """Write a record; its sequence. Only with :attr:`lock`, and when all file calls of earlier records are made,
        for the log may change its segment.

        Raises:
            OSError: the medium has failed.
        """
        self._check()
        need = pages(_RECORD.size + len(payload))
        if self._offset + need > self._current.size:
            self._change(is_full=True)
        segment, sequence = self._current, self._next
        tail = struct.pack(f"<IQQ{_KEY_BYTES}sQ", len(payload), segment.epoch, sequence, segment.key, self._flushed)
        head = _RECORD_MAGIC + struct.pack("<I", zlib.crc32(payload, zlib.crc32(tail))) + tail
        try:
            write_all_at(self._calls, segment.fd, (head + payload).ljust(need, b"\0"), self._offset)
        except OSError as error:
            self._note_failure(error)
            raise
        self._offset += need
        self._sequence, self._next = sequence, sequence + need // PAGE
        if self._since is None:
            self._since = self._clock()
            self._changed.notify_all()
        return sequence

    def flush(self, flush: Callable[[int], object] | None = None) -> None:
        """Wait until all that was appended is on the medium. Only with :attr:`lock`.

        Args:
            flush: brings all bytes of an open file to the medium, and what else its maker wants there by the same
                flush; where not given, its own sync does.

        Raises:
            OSError: the medium has failed; whether it is there is not known.
        """
        if self._flushed == self._sequence:
            return
        try:
            (flush or self._calls.fdatasync)(self._current.fd)
        except OSError as error:
            self._note_failure(error)
            raise
        self._flushed = self._sequence

    def cut_off(self) -> None:
        """Note that the file calls of a record were not all made: it stays, for the next start to make them."""
        self._note_failure(OSError(errno.EIO, "writing a batch was interrupted"))

    def empty(self) -> None:
        """Bring to the medium all that it says, and wait for that. Not between a record and its file calls.

        Raises:
            OSError: the medium has failed.
        """
        with self.lock:
            if self._offset > PAGE:
                self._change(is_full=False)
            self._wait_for_checkpoint()

    def close(self, *, failed: bool = False) -> None:
        """End it: empty, unless the store has failed. Safe to call twice."""
        if not failed:
            with contextlib.suppress(OSError):  # what is left in it is done again at the next start
                self.empty()
        with self.lock:
            self._ends = True
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join()
            self._worker = None
        segments, self._segments = self._segments, []
        close_all(self._calls, (segment.fd for segment in segments))

    def _change(self, *, is_full: bool) -> None:
        """Go on in the other segment, once that is free; this one is checkpointed."""
        self._wait_for_checkpoint()
        self.flush()  # a segment is on the medium as a whole before a record follows in the other
        self._leaving, self._left, self._is_full = self._current, self._offset, is_full
        self._current = self._segments[1 - self._segments.index(self._current)]
        self._offset, self._since = PAGE, None
        if self._in_thread:
            self._changed.notify_all()
        else:
            self._checkpoint()

    def _wait_for_checkpoint(self) -> None:
        self._check()
        if self._leaving is not None:
            self.waited += 1
        while self._leaving is not None and self._failure is None:
            self._changed.wait()
        self._check()

    def _work(self) -> None:
        """Checkpoint what is left or has become old, until the end."""
        try:
            self._checkpoint_until_end()
        except BaseException:
            self._note_failure(OSError(errno.EIO, "the checkpoint thread failed"))  # no commit waits for it
            raise

    def _checkpoint_until_end(self) -> None:
        while True:
            with self.lock:
                while self._leaving is None:
                    if self._ends or self._failure is not None:
                        return
                    left = None if self._since is None else self._since + AGE_SECONDS - self._clock()
                    if left is not None and left <= 0:
                        try:
                            self._change(is_full=False)
                        except OSError:
                            return
                    else:
                        self._changed.wait(left)
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Free the segment that was left. Without the lock where a thread does it."""
        segment = self._leaving
        assert segment is not None, "no segment can be read"
        epoch = segment.epoch
        failure: OSError | None = OSError(errno.EIO, "writing a checkpoint was interrupted")
        try:
            self._bring(segment.fd, segment.size, (record for _, record in segment.records(self._left)))
            if self._is_full and segment.size < self._largest:
                self._grow(segment)
            segment.free(self._current.epoch + 1, self._draw(_KEY_BYTES), self._life)
            failure = None
        except OSError as error:
            failure = error
        finally:  # whatever it was, no commit waits for it any more
            if failure is not None:
                self._note_failure(failure)
            with self.lock:
                if failure is None:
                    self._freed(epoch)
                self._leaving = None
                self.checkpoints += 1
                self._changed.notify_all()

    def _note_size(self) -> None:
        self.largest_payload = min(segment.size for segment in self._segments) // _PARTS - _RECORD.size

    def _grow(self, segment: Segment) -> None:
        try:
            with self._spare_room() as is_spare:
                if is_spare:
                    segment.grow(min(segment.size * 2, self._largest))
                    self._note_size()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def _note_failure(self, error: OSError) -> None:
        """Let nothing be appended any more: what is on the medium is unknown, and a second try would hide that."""
        with self.lock:
            self._failure = self._failure or error
            self._changed.notify_all()
        self._fail(error)

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(errno.EIO, f"the write-ahead log has failed: {self._failure.strerror}") from self._failure


def _check_folder(calls: Calls, folder: str) -> None:
    kind = calls.kind(folder)
    if kind is not FileKind.FOLDER:
        raise LogDamaged(f"{folder} is missing" if kind is None else f"{folder} is not a folder: move it away")


def _open_both(calls: Calls, folder: str) -> list[Segment]:
    _check_folder(calls, folder)
    segments: list[Segment] = []
    try:
        segments += (open_segment(calls, f"{folder}/{number}") for number in range(2))
        older, newer = sorted(segments, key=lambda segment: segment.epoch)
        if newer.epoch - older.epoch != 1:
            raise LogDamaged(
                f"the epochs of {older.path} and {newer.path} are not consecutive ({older.epoch} and "
                f"{newer.epoch}): one of the files is an old copy"
            )
    except (OSError, LogDamaged):
        close_all(calls, (segment.fd for segment in segments))
        raise
    return segments


def _make_both(calls: Calls, folder: str, size: int) -> list[Segment]:
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
        OSError: it cannot be read.
    """
    segments = _open_both(calls, folder)
    try:
        return _read(segments)
    finally:
        close_all(calls, (segment.fd for segment in segments))


def salvage(calls: Calls, folder: str) -> tuple[list[Record], list[str]]:
    """The records that can still be read in a damaged log, in order, and what of it is missing, in words.

    Raises:
        OSError: the medium failed.
    """
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
        records = sorted((record for segment in segments for _, record in segment.records()), key=_sequence)
    finally:
        close_all(calls, (segment.fd for segment in segments))
    gaps = [
        f"pages {before.sequence + before.pages} to {after.sequence - 1} of the log cannot be read"
        for before, after in pairwise(records)
        if after.sequence > before.sequence + before.pages
    ]
    return records, flaws + gaps


def _sequence(record: Record) -> int:
    return record.sequence


def lives_of(calls: Calls, folder: str) -> set[str]:
    """The lives (:func:`life_of`) in which the segments of a log were begun; its daemon may be using it.

    Raises:
        LogDamaged: a header cannot be read.
        OSError: it cannot be read.
    """
    return {_life_in(calls, f"{folder}/{number}") for number in range(2)}


def is_of_this_boot(life: str, boot_id: str = _BOOT_ID) -> bool:
    """Whether the machine was not started anew since a life began; True where that is not known, too."""
    return not life or life.partition(":")[0] == _boot(boot_id)


def _life_in(calls: Calls, path: str) -> str:
    fd = calls.open(path, OPEN_READ)
    try:
        for _ in range(_LOOKS):
            with contextlib.suppress(LogDamaged):  # half of it may be what a checkpoint writes just now
                return _read_header(calls, fd, path).life
        return _read_header(calls, fd, path).life
    finally:
        calls.close(fd)


def _read_header(calls: Calls, fd: int, path: str) -> Header:
    """The header of a segment. It is in one sector, which a power cut leaves as it was, or as it is to be."""
    head = calls.read_at(fd, _HEADER.size, 0)
    if len(head) == _HEADER.size:
        magic, epoch, size, key, life, crc = _HEADER.unpack(head)
        if magic == _MAGIC and crc == zlib.crc32(head[:-4]):
            return Header(epoch, size, key, life.rstrip(b"\0").decode(errors="replace"))
    raise LogDamaged(f"cannot read the header of {path}")


def _read(segments: Sequence[Segment]) -> list[Record]:
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
                "the log ends with an unreadable record (%s at offset %d): either its batch was never "
                "confirmed, or this part of the file is damaged",
                segment.path,
                end,
            )
    if missing is not None and flushed >= missing[0]:
        raise LogDamaged(f"a synced record cannot be read: {missing[1]}")
    return found


def pages(length: int) -> int:
    """So many bytes, up to the end of their last page."""
    return -(-length // PAGE) * PAGE


def write_all_at(calls: Calls, fd: int, data: bytes, offset: int) -> None:
    """Write every byte of `data` from `offset` on."""
    written = calls.write_at(fd, data, offset)
    while written < len(data):
        written += calls.write_at(fd, data[written:], offset + written)


def life_of(root_fd: int, boot_id: str = _BOOT_ID) -> str:
    """What tells this boot and this mount from every other: empty where the kernel has no such number of a mount
    (before 6.8), so that all of a log is done again.

    Args:
        root_fd: an open folder of the file system.
        boot_id: where the kernel tells its own.
    """
    mount, boot = _unique_mount_id(root_fd), _boot(boot_id)
    return "" if mount is None or not boot else f"{boot}:{mount}"[:_LIFE_BYTES]


def _boot(boot_id: str) -> str:
    """What tells this boot of the machine from every other; empty where nothing does."""
    try:
        with open(boot_id, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


_STATX_MNT_ID_UNIQUE: Final = 0x4000
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BYTES: Final = 256
_MNT_ID_AT: Final = 0x90


def _unique_mount_id(fd: int) -> int | None:
    """The mount's number, which no other mount has or had since the machine was started."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if not hasattr(libc, "statx") or libc.statx(fd, b"", _AT_EMPTY_PATH, _STATX_MNT_ID_UNIQUE, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("<I", buffer.raw)
    (number,) = struct.unpack_from("<Q", buffer.raw, _MNT_ID_AT)
    return int(number) if mask & _STATX_MNT_ID_UNIQUE else None


def _write_zeros(calls: Calls, fd: int, begin: int, end: int) -> None:
    for at in range(begin, end, len(_ZEROS)):
        write_all_at(calls, fd, _ZEROS[: min(len(_ZEROS), end - at)], at)
