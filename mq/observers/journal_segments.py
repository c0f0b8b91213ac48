"""The lifecycle journal's files: written batch by batch, rotated, removed when they are old, and read again.

A segment is an Arrow IPC stream. Each batch is written whole with one call and carries a checksum, so what a crash
leaves can be read up to the last batch that is whole. Needs pyarrow (the extra ``journal``).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from mq.observers.journal_rows import SCHEMA, checksum, numbered

Write = Callable[[int, Any], int]

SUFFIX: Final = ".arrow"
_CHECKSUM: Final = b"crc32"
_LARGEST_SEGMENT: Final = 64 << 20
_FEWEST_SEGMENTS: Final = 8
_LONGEST_SECONDS: Final = 3600.0


class Limits(NamedTuple):
    """How much of a journal is kept.

    Attributes:
        bytes: in all segments together. Only whole segments go, oldest first; the one being written stays.
        seconds: age of a segment, since it was last written to.
    """

    bytes: int = 1 << 30
    seconds: float = 7 * 86_400.0

    @property
    def segment_bytes(self) -> int:
        """After how many bytes the next segment begins."""
        return max(1, min(_LARGEST_SEGMENT, self.bytes // _FEWEST_SEGMENTS))

    @property
    def segment_seconds(self) -> float:
        """After how many seconds the next segment begins."""
        return min(_LONGEST_SECONDS, self.seconds / _FEWEST_SEGMENTS)


class BrokerLife(NamedTuple):
    """A broker's life. The head of every segment has these fields, as text.

    Attributes:
        broker: a name that no other life of a broker has.
        started_ns: when the life began, nanoseconds since 1970.
    """

    broker: str
    host: str
    pid: int
    version: str
    store: str
    peers: int
    started_ns: int

    def head(self, number: int) -> dict[str, str]:
        """The head of the segment `number`."""
        fields = {name: str(value) for name, value in self._asdict().items()}
        return {"mq.journal": "1", "segment": str(number), **fields}


class SegmentWriter:
    """Writes batches to one segment after another.

    Args:
        write: as ``os.write``, for tests of disks that refuse.
        clock: seconds that only go on.
        date_ns: the date, nanoseconds since 1970.
        is_dated: whether that is right, as far as is known. No segment is too old while it may be wrong.
    """

    def __init__(
        self,
        folder: Path,
        life: BrokerLife,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        write: Write = os.write,
        clock: Callable[[], float] = time.monotonic,
        date_ns: Callable[[], int] = time.time_ns,
        is_dated: Callable[[], bool] = lambda: True,
    ) -> None:
        self._folder = folder
        self._life = life
        self._limits = limits
        self._write = write
        self._clock = clock
        self._date_ns = date_ns
        self._is_dated = is_dated
        self._segment: _JournalFile | None = None
        self._number = 0
        self._sequence = 0

    def write(self, batch: pa.RecordBatch, missing: int = 0) -> None:
        """Add a batch; it is the kernel's on return.

        Args:
            missing: how many rows it stands for besides its own.

        Raises:
            OSError: nothing of it was written. The next batch goes to a segment of its own.
        """
        segment = self._segment or self._begin()
        try:
            segment.write(numbered(batch, self._sequence))
        except OSError:
            self._segment = None
            segment.give_up()
            raise
        self._sequence += batch.num_rows + missing

    def sync(self) -> None:
        """Make this segment durable.

        Raises:
            OSError: it may not be.
        """
        if self._segment is not None:
            self._segment.sync()
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def rotate(self) -> None:
        """End the segment that is being written, if it is large or old enough.

        Raises:
            OSError: as :meth:`close`.
        """
        segment = self._segment
        if segment is not None:
            age = self._clock() - segment.begun
            if segment.size >= self._limits.segment_bytes or age >= self._limits.segment_seconds:
                self.close()

    def close(self) -> None:
        """End the segment that is being written, and delete the oldest where there are too many, or where they are too
        old.

        Raises:
            OSError: the segment does not end in order, or others could not be removed. What was written is there.
        """
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close(self._date_ns())
            self._remove_old()

    def _begin(self) -> _JournalFile:
        started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._life.started_ns // 10**9))
        path = self._folder / f"{started}-{self._life.broker}-{self._number:06}{SUFFIX}"
        self._segment = _JournalFile(path, self._life.head(self._number), self._write, self._clock())
        self._number += 1
        return self._segment

    def _remove_old(self) -> None:
        # The wall clock of the machine may be wrong for a while, so the date and the files' times are the broker's.
        oldest = self._date_ns() / 1e9 - self._limits.seconds if self._is_dated() else -math.inf
        total = 0
        for path, size, written in reversed(_sizes(self._folder)):
            total += size
            if total > self._limits.bytes or written < oldest:
                path.unlink(missing_ok=True)


class _JournalFile:
    def __init__(self, path: Path, head: dict[str, str], write: Write, begun: float) -> None:
        self.begun = begun
        self.size = 0
        self._path = path
        self._write = write
        self._handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._parts = _Parts()
        self._stream: Any = pa.ipc.new_stream(self._parts, SCHEMA.with_metadata(head))

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.write_batch(batch, custom_metadata={_CHECKSUM: checksum(batch)})
        self._flush()

    def sync(self) -> None:
        os.fsync(self._handle)

    def close(self, date_ns: int) -> None:
        """End it in order, and on the disk. It is `date_ns` then, by which it becomes too old."""
        try:
            self._stream.close()
            self._flush()
            os.utime(self._handle, ns=(date_ns, date_ns))
            os.fsync(self._handle)
        finally:
            os.close(self._handle)

    def give_up(self) -> None:
        """Leave the batches that are whole, and nothing else."""
        try:
            os.ftruncate(self._handle, self.size)
            if not self.size:
                self._path.unlink(missing_ok=True)
        except OSError:
            pass  # then it ends with a torn batch, at which readers stop
        finally:
            os.close(self._handle)

    def _flush(self) -> None:
        data = memoryview(self._parts.take())
        end = self.size + len(data)
        while data:
            data = data[self._write(self._handle, data) :]
        self.size = end


class _Parts:
    """A file for pyarrow: keeps what is written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """There is nothing behind it."""

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


class JournalSegment:
    """A segment as it is on the disk.

    Attributes:
        head: what is said of the life; empty where not even that is whole.
        torn: whether :meth:`batches` found an incomplete batch.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False
        self._data = path.read_bytes()
        self._stream: Any = None
        try:
            self._stream = pa.ipc.open_stream(self._data)
        except (pa.ArrowInvalid, OSError):
            self.torn = True
        metadata = self._stream.schema.metadata if self._stream is not None else None
        self.head = {name.decode(): value.decode() for name, value in (metadata or {}).items()}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The complete batches, in order."""
        while self._stream is not None:
            try:
                batch, notes = self._stream.read_next_batch_with_custom_metadata()
                whole = notes is not None and notes.get(_CHECKSUM, b"").decode() == checksum(batch)
            except StopIteration:
                return
            except (pa.ArrowInvalid, OSError, UnicodeDecodeError):
                whole = False
            if not whole:
                self.torn = True
                return
            yield batch


def segment_paths(folder: Path) -> list[Path]:
    """The segments in a folder, oldest first, as far as names can tell."""
    return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file())


def _sizes(folder: Path) -> list[tuple[Path, int, float]]:
    """Path, size and last change of each segment, by last change."""
    found = []
    for path in segment_paths(folder):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # another process tidies up here, too
        found.append((path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda each: each[2])
