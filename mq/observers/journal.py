"""The lifecycle journal: an observer that writes down every transition.

The broker's thread only appends to a list; a thread of the journal's own makes batches of it and writes them. Rows that
a slow or full disk cannot take are counted, and the journal notes them as a gap. The journal is no part of the broker's
promises: but for a life's first row nothing is synced before a segment ends, so a crash costs the last second. The
journal shows that: every life has its first row on the disk before anything happens in it, and a life that was cut off
has no last row. Needs pyarrow (the extra ``journal``).
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, NamedTuple

import pyarrow as pa

from mq import threads
from mq.errors import InvalidSetting
from mq.lifecycle import Kind, State, Transition
from mq.message import MessageId, shorten
from mq.observers.journal_rows import (
    CENSUS,
    GAP,
    LARGEST_BATCH,
    QUEUE,
    START,
    STOP,
    WIDTH,
    found_batch,
    note_batch,
    transitions_batch,
)
from mq.observers.journal_segments import BrokerLife, Limits, SegmentWriter

logger = logging.getLogger("mq.journal")

_FIELDS_OF_A_BATCH: Final = LARGEST_BATCH * WIDTH
_TIME: Final = Transition._fields.index("time_ns")

FLUSH_SECONDS: Final = 1.0
"""How long a transition waits for others before it is written."""
LONGEST_BACKLOG: Final = 16 * LARGEST_BATCH
"""How many transitions may wait for the disk before further ones are dropped."""


Whereabouts = tuple[str, int, Iterator[tuple[MessageId, State | None, int]]]
"""A queue's name, when it was made (nanoseconds since 1970), and for each message its id, its state (None: being
moved), and how often it was received."""


class _Gap(NamedTuple):
    missing: int
    since_ns: int


class Journal:
    """An observer of one broker.

    Args:
        clock_ns: the date, nanoseconds since 1970; from any thread.
        backlog: how many transitions may wait for the writer.
    """

    def __init__(
        self, writer: SegmentWriter, clock_ns: Callable[[], int] = time.time_ns, backlog: int = LONGEST_BACKLOG
    ) -> None:
        self._writer = writer
        self._clock_ns = clock_ns
        self._backlog = backlog * WIDTH
        self._fields: list[Any] = []  # of one transition after another: the garbage collector has no interest in them
        self._put_so_far = 0
        self._put_seen = 0
        self._refused: _Gap | None = None
        self._lost: _Gap | None = None
        self._notice_at = 1
        self._something = threading.Event()
        self._much = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write. The first row is on the disk on return, or counted as missing."""
        # Without that row nothing would tell of a life that is cut off at once, and its messages would seem lost.
        self._write(note_batch(START, self._clock_ns()))
        try:
            self._writer.sync()
        except OSError as error:
            logger.warning(
                "cannot sync the first journal entry to disk, so the entry may be lost in a power failure: %s",
                error.strerror,
            )
        self._thread = threads.start(self._run, name="mq-journal")

    def saw(self, transitions: Sequence[Transition]) -> None:
        """As :meth:`mq.lifecycle.Observer.saw`. The list's end belongs to this thread, its front to the writer."""
        if self._refused is not None:
            self._refuse(transitions)
            return
        fields = self._fields
        for transition in transitions:
            fields.extend(transition)
        if len(fields) >= self._notice_at:
            self._notify()

    def found(self, queues: Iterable[Whereabouts]) -> None:
        """Note where every message is as the life begins. Call it once, before any transition."""
        now_ns, total = self._clock_ns(), 0
        for queue, created_ns, messages in queues:
            count = 0
            while rows := list(islice(messages, LARGEST_BATCH)):
                count += len(rows)
                self._put(found_batch(queue, rows, now_ns))
            self._put(note_batch(QUEUE, now_ns, queue=queue, count=count, since_ns=max(created_ns, 0)))
            total += count
        self._put(note_batch(CENSUS, now_ns, count=total))

    def interrupted(self, queues: Iterable[tuple[str, Sequence[MessageId]]]) -> None:
        """Note the messages that the broker was moving when it ended: it is unknown whether they arrived."""
        for queue, ids in queues:
            for start in range(0, len(ids), LARGEST_BATCH):
                rows = [(id, None, 0) for id in ids[start : start + LARGEST_BATCH]]
                self._put(found_batch(queue, rows, self._clock_ns()))

    def close(self) -> None:
        """Write what is left, and end. Blocks until that is done."""
        self._note_refused()
        self._put(note_batch(STOP, self._clock_ns()))
        self._closing = True
        self._something.set()
        self._much.set()
        if self._thread is not None:
            self._thread.join()

    # The broker's thread

    def _put(self, item: pa.RecordBatch | _Gap) -> None:
        self._put_so_far += 1
        self._fields.extend([item] + [None] * (WIDTH - 1))
        self._notify()

    def _notify(self) -> None:
        self._something.set()
        if len(self._fields) >= self._backlog:
            self._refused = _Gap(0, self._clock_ns())
            self._much.set()
        elif len(self._fields) >= _FIELDS_OF_A_BATCH:
            self._notice_at = self._backlog
            self._much.set()
        else:
            self._notice_at = min(_FIELDS_OF_A_BATCH, self._backlog)

    def _refuse(self, transitions: Sequence[Transition]) -> None:
        """Count transitions for which there is no room. None is taken until half of it is free, so that gaps are
        few."""
        if len(self._fields) > self._backlog // 2:
            self._refused = _longer(self._refused, len(transitions), transitions[0].time_ns)
            return
        self._note_refused()
        self.saw(transitions)

    def _note_refused(self) -> None:
        refused, self._refused = self._refused, None
        if refused is not None and refused.missing:
            self._put(refused)

    # The writer's thread

    def _run(self) -> None:
        while not self._closing or self._fields:
            self._something.wait()
            self._much.wait(FLUSH_SECONDS)
            self._something.clear()
            self._much.clear()
            self._notice_at = 1
            self._write_out()
        self._finish()

    def _write_out(self) -> None:
        """Write the transitions that are there now."""
        count = len(self._fields)
        while count > 0:
            is_mixed = self._put_seen < self._put_so_far
            taken = self._fields[: min(count, _FIELDS_OF_A_BATCH)]
            for part in _parts(taken) if is_mixed else [taken]:
                self._put_seen += not isinstance(part, list)
                self._write(part)
            del self._fields[: len(taken)]  # not before they are written: what waits for the disk counts
            count -= len(taken)
        self._rotate()

    def _write(self, part: list[Any] | pa.RecordBatch | _Gap) -> None:
        if isinstance(part, _Gap):
            self._lost = _longer(self._lost, part.missing, part.since_ns)
            return
        batch = transitions_batch(part) if isinstance(part, list) else part
        since_ns = part[_TIME] if isinstance(part, list) else self._clock_ns()
        try:
            self._write_gap()
            self._writer.write(batch)
        except OSError as error:
            if self._lost is None:
                logger.warning(
                    "cannot write the journal, so message state changes are not being recorded: %s", error.strerror
                )
            self._lost = _longer(self._lost, batch.num_rows, since_ns)

    def _write_gap(self) -> None:
        lost = self._lost
        if lost is not None:
            gap = note_batch(GAP, self._clock_ns(), count=lost.missing, since_ns=lost.since_ns)
            self._writer.write(gap, missing=lost.missing - 1)
            self._lost = None
            logger.warning("message state changes missing from the journal: %d", lost.missing)

    def _rotate(self) -> None:
        try:
            self._writer.rotate()
        except OSError as error:
            logger.warning("cannot finish writing a journal file: %s", error.strerror)

    def _finish(self) -> None:
        try:
            self._write_gap()
            self._writer.close()
        except OSError as error:
            logger.warning("cannot finish writing the journal: %s", error.strerror)


def open_journal(
    folder: str,
    limits: Limits,
    *,
    store: str,
    peers: int,
    version: str,
    date_ns: Callable[[], int] = time.time_ns,
    is_dated: Callable[[], bool] = lambda: True,
) -> Journal:
    """The journal of a broker's life, which begins now. Its folder is made when it is missing. Start it.

    Args:
        folder: where its segments are. Each broker needs one of its own.
        peers: other programs that move messages of the same store.
        is_dated: whether that is right, as far as is known. No segment is too old while it may be wrong.

    Raises:
        InvalidSetting: nothing can be written there.
    """
    path = Path(folder)
    try:
        _make_private(path)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InvalidSetting(f"cannot write the journal to {shorten(folder)}: {error.strerror}") from error
    pid = os.getpid()
    name = f"{pid}-{secrets.token_hex(4)}"
    life = BrokerLife(name, socket.gethostname(), pid, version, store, peers, date_ns())
    writer = SegmentWriter(path, life, limits, date_ns=date_ns, is_dated=is_dated)
    return Journal(writer, date_ns)


def _make_private(folder: Path) -> None:
    """Make a folder, and those above it, for their owner alone whatever the umask is: the journal has what messages
    have. A folder that exists stays as it is."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(0o700, exist_ok=True)


def _longer(gap: _Gap | None, missing: int, since_ns: int) -> _Gap:
    return _Gap(missing, since_ns) if gap is None or not gap.missing else _Gap(gap.missing + missing, gap.since_ns)


def _parts(fields: list[Any]) -> Iterator[list[Any] | pa.RecordBatch | _Gap]:
    """Runs of transitions, and the notes between them, which stand in the place of a kind."""
    begin = 0
    for end in range(0, len(fields), WIDTH):
        if not isinstance(fields[end], Kind):
            if begin < end:
                yield fields[begin:end]
            yield fields[end]
            begin = end + WIDTH
    if begin < len(fields):
        yield fields[begin:]
