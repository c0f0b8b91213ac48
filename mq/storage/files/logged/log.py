r"""The log of a root: one flush makes a batch durable, before its file calls are made.

Files stay the truth while the machine is up. The log is for the power cut: a record says what a batch is about to do
(:mod:`mq.storage.files.logged.commit`), and at the next start what the file system has lost of it is done again
(:mod:`mq.storage.files.logged.redo`).

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
header states: it was growing. What a payload says is in :mod:`mq.storage.files.logged.record`.

A *checkpoint* brings the changes in a segment's records to the medium, and only then gives the segment a new epoch, and
with it room. Commits go on in the other segment meanwhile. When both are full, a commit waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from mq import threads
from mq.storage.files.calls import NO_ROOM, Calls, write_all_at
from mq.storage.files.logged.segments import (
    KEY_BYTES,
    PAGE,
    RECORD,
    RECORD_MAGIC,
    Record,
    Segment,
    make_both,
    open_both,
    pages,
    read_segments,
)
from mq.storage.files.sync import close_all

SMALLEST: Final = 1 << 20
"""Bytes of a segment at the beginning."""
LARGEST: Final = 32 << 20
"""A segment doubles each time it was full, up to so many bytes; only a single longer record makes it longer."""
AGE_SECONDS: Final = 5.0
"""After so long what the log says is brought to the medium, however little it is."""
_PARTS: Final = 4
"""What several operations share as one record is at most this part of the smaller segment."""


Bring = Callable[[int, int, Iterator[Record]], None]
"""Brings to the medium what a segment's records have done. Called with its file, its length in bytes, and them."""


class Log:
    """The log of one root: :meth:`read` it, :meth:`forget` what it said, and :meth:`begin`.

    Args:
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
        largest_payload: bytes that operations share as one record. For one that is longer ask :meth:`takes`.
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
        spare_room: Callable[[], AbstractContextManager[bool]] = lambda: nullcontext(True),
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
        self._sequence = 0  # of the newest record
        self._next = 1  # of the one after it
        self._flushed = 0
        self._offset = PAGE
        self._since: float | None = None
        self._leaving: Segment | None = None
        self._left = PAGE  # where the records of the segment that is left end
        self._is_full = False  # whether that segment was full
        self._segments = open_both(calls, folder) if in_use else make_both(calls, folder, smallest)
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
        return read_segments(self._segments)

    def forget(self) -> None:
        """Let none of its records count any more: all that they say is on the medium. Durable on return."""
        older, newer = sorted(self._segments, key=lambda segment: segment.epoch)
        newest = newer.epoch
        older.free(newest + 1, self._draw(KEY_BYTES), self._life)  # first: never a record without those before it
        newer.free(newest + 2, self._draw(KEY_BYTES), self._life)
        self._current = older

    def begin(self) -> None:
        """Take records from now on. It has none."""
        if self._in_thread:
            self._worker = threads.start(self._work, name="mq-checkpoint")

    def append(self, payload: bytes, *, flushes: bool = False, flush: Callable[[int], object] | None = None) -> int:
        """Write a record; its sequence. Only with :attr:`lock`, and when all file calls of earlier records are made,
        for the log may change its segment. Keep the lock until those of this one are made.

        Args:
            payload: says what the file calls do (:func:`mq.storage.files.logged.record.encode`).
            flushes: the record is on the medium before this returns: by `flush`, as :meth:`flush` takes it.
        """
        self._check()
        need = -(-(RECORD.size + len(payload)) // PAGE) * PAGE  # as pages() has it, a call less for each batch
        if self._offset + need > self._current.size:
            self._change(is_full=True)
        if PAGE + need > self._current.size:  # takes() was not asked: a start would not find such a record
            error = OSError(errno.EFBIG, "a write-ahead log record is too long for the log file")
            self._note_failure(error)
            raise error
        segment, sequence = self._current, self._next
        tail = struct.pack(f"<IQQ{KEY_BYTES}sQ", len(payload), segment.epoch, sequence, segment.key, self._flushed)
        head = RECORD_MAGIC + struct.pack("<I", zlib.crc32(payload, zlib.crc32(tail))) + tail
        try:
            record = (head + payload).ljust(need, b"\0")
            written = self._calls.write_at(segment.fd, record, self._offset)
            if written < need:
                write_all_at(self._calls, segment.fd, record[written:], self._offset + written)
        except OSError as error:
            self._note_failure(error)
            raise
        self._offset += need
        self._sequence, self._next = sequence, sequence + need // PAGE
        if self._since is None:
            self._since = self._clock()
            self._changed.notify_all()
        if flushes:
            self.flush(flush)
        return sequence

    def takes(self, size: int) -> bool:
        """Return whether a record of so many bytes finds room. If both segments are too short, they are emptied and
        made longer first. Not between a record and its file calls."""
        with self.lock:
            self._check()
            size = PAGE + pages(RECORD.size + size)
            if size <= min(segment.size for segment in self._segments):
                return True
            try:
                with self._spare_room() as is_spare:
                    return is_spare and self._make_longer(size)
            except OSError as error:
                self._note_failure(error)
                raise

    def _make_longer(self, size: int) -> bool:
        """Empty both segments, and make them so long. False if the disk has no room."""
        self._change(is_full=False)
        self._wait_for_checkpoint()
        for segment in self._segments:
            if segment.size < size:
                try:
                    segment.grow(size)
                except OSError as error:
                    if error.errno in NO_ROOM:
                        return False
                    raise
                segment.free(segment.epoch, self._draw(KEY_BYTES), self._life)  # its header has its size
        self._note_size()
        return True

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
        self._note_failure(OSError(errno.EIO, "a batch was interrupted after it was written to the write-ahead log"))

    def empty(self) -> None:
        """Bring to the medium all that it says, and wait for that. Not between a record and its file calls."""
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
            self._note_failure(
                OSError(errno.EIO, "the write-ahead log's checkpoint thread failed")
            )  # no commit waits for it
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
        failure: OSError | None = OSError(errno.EIO, "a write-ahead log checkpoint was interrupted")
        try:
            self._bring(segment.fd, segment.size, (record for _, record in segment.records(self._left)))
            if self._is_full and segment.size < self._largest:
                self._grow(segment)
            segment.free(self._current.epoch + 1, self._draw(KEY_BYTES), self._life)
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
        self.largest_payload = min(segment.size for segment in self._segments) // _PARTS - RECORD.size

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
