"""A commit by the log (:mod:`mq.storage.files.log`): one record, one flush, then the file calls without any sync.

The record says what the file calls will do. Its payload is a text, one line an operation, with fields between tabs, and
behind the text the bytes that go with some of the lines, in order (:class:`Saying` and its kin)::

    length of the text, u32
    w  path  size  crc32  bytes of attributes                     a message; attributes and body follow
    s  path  size  crc32  bytes of attributes  staged path        a large one, whose file is on the medium already
    m  old path  new path                                         a message is moved
    u  path                                                       a message is taken away
    p  kind  key  bytes of the value                              a record is kept; its JSON follows
    d  kind  key                                                  a record is forgotten
    q  queue  path                                                a queue's folder is moved to that path
    v  sequence  numbers of operations                            these of an earlier record were refused

Paths are below the root, keys are percent-encoded. What is refused though its record says it is done, such as a move
into a folder that cannot grow on a full disk, is taken back by a record of its own, before it is answered.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from mq.message import SharedAttributes, checksum
from mq.storage.files.barrier import Barrier
from mq.storage.files.batch import Batch, refusal
from mq.storage.files.folders import Folders
from mq.storage.files.hop import inline_hop
from mq.storage.files.layout import encode_attributes
from mq.storage.files.log import Log
from mq.storage.files.staging import StagedBody, StagedFile
from mq.storage.interface import Entry, Move, Operation, Outcome, Result, Unlink, Write

LARGEST_INLINE: Final = 1 << 16
"""Bytes of a body that goes into the log. A larger one is brought to the medium by its own file."""
_TEXT_LENGTH: Final = struct.Struct("<I")
_LINE_BYTES: Final = 600
"""More than any line of an operation takes."""
_REFUSED: Final = frozenset({Result.FULL, Result.EXISTS, Result.GONE, Result.NO_QUEUE})
"""What a record said would be done, and was not."""


class Wrote(NamedTuple):
    """A message is written.

    Attributes:
        path: its file.
        size, crc: of its body.
        attributes: as JSON; empty where there are none.
        body: its bytes; None where they are at `staged`.
        staged: where a large one was staged.
    """

    path: str
    size: int
    crc: int
    attributes: bytes
    body: bytes | None
    staged: str = ""


class Moved(NamedTuple):
    """A message is moved."""

    old: str
    new: str


class Removed(NamedTuple):
    """A message is taken away."""

    path: str


class Kept(NamedTuple):
    """A record is kept."""

    kind: str
    key: str
    value: Mapping[str, Any]


class Forgotten(NamedTuple):
    """A record is forgotten."""

    kind: str
    key: str


class QueueRemoved(NamedTuple):
    """A queue's folder is moved away, with all that is in it."""

    queue: str
    path: str


class Refused(NamedTuple):
    """Some of what an earlier record says was not done."""

    sequence: int
    numbers: tuple[int, ...]


Saying = Wrote | Moved | Removed | Kept | Forgotten | QueueRemoved | Refused
"""What one line of a payload says."""


def encode(sayings: Sequence[Saying]) -> bytes:
    """A record's payload."""
    lines, blobs = [], []
    for saying in sayings:
        match saying:
            case Wrote(path, size, crc, attributes, body, staged):
                kind, tail = ("w", "") if body is not None else ("s", f"\t{staged}")
                lines.append(f"{kind}\t{path}\t{size}\t{crc:08x}\t{len(attributes)}{tail}")
                blobs += [attributes, body or b""]
            case Moved(old, new):
                lines.append(f"m\t{old}\t{new}")
            case Removed(path):
                lines.append(f"u\t{path}")
            case Kept(kind, key, value):
                blob = json.dumps(dict(value), ensure_ascii=False).encode("utf-8", "surrogatepass")
                lines.append(f"p\t{kind}\t{_quoted(key)}\t{len(blob)}")
                blobs.append(blob)
            case Forgotten(kind, key):
                lines.append(f"d\t{kind}\t{_quoted(key)}")
            case QueueRemoved(queue, path):
                lines.append(f"q\t{queue}\t{path}")
            case Refused(sequence, numbers):
                lines.append(f"v\t{sequence}\t{','.join(map(str, numbers))}")
    text = "\n".join(lines).encode()
    return b"".join((_TEXT_LENGTH.pack(len(text)), text, *blobs))


def decode(payload: bytes) -> list[Saying]:
    """What a payload says, in order."""
    (length,) = _TEXT_LENGTH.unpack_from(payload)
    at = _TEXT_LENGTH.size + length

    def taken(size: int) -> bytes:
        nonlocal at
        at += size
        return payload[at - size : at]

    found: list[Saying] = []
    for line in payload[_TEXT_LENGTH.size : at].decode().split("\n"):
        match line.split("\t"):
            case ["w", path, size, crc, attributes]:
                found.append(Wrote(path, int(size), int(crc, 16), taken(int(attributes)), taken(int(size))))
            case ["s", path, size, crc, attributes, staged]:
                found.append(Wrote(path, int(size), int(crc, 16), taken(int(attributes)), None, staged))
            case ["m", old, new]:
                found.append(Moved(old, new))
            case ["u", path]:
                found.append(Removed(path))
            case ["p", kind, key, size]:
                found.append(Kept(kind, unquote(key, errors="surrogatepass"), json.loads(taken(int(size)))))
            case ["d", kind, key]:
                found.append(Forgotten(kind, unquote(key, errors="surrogatepass")))
            case ["q", queue, path]:
                found.append(QueueRemoved(queue, path))
            case ["v", sequence, numbers]:
                found.append(Refused(int(sequence), tuple(map(int, numbers.split(",")))))
            case _:
                raise ValueError(f"a record of the log says what this version does not know: {line[:40]!r}")
    return found


def _quoted(key: str) -> str:
    return quote(key, safe="", errors="surrogatepass")


def commit(folders: Folders, log: Log, operations: Sequence[Operation]) -> list[Outcome]:
    """Do a batch, by as few records as hold it. One outcome for each operation, in order."""
    outcomes: list[Outcome] = []
    for portion in _portions([_encoding_once(operation) for operation in operations], log.largest_payload):
        outcomes += _commit(folders, log, portion)
    return outcomes


@contextmanager
def said(log: Log, *sayings: Saying) -> Iterator[None]:
    """The block's file calls do what these say, which is on the medium before.

    Raises:
        OSError: the medium has failed.
    """
    payload = encode(sayings)
    with log.room(len(payload)):
        sequence = log.append(payload)
        log.flush()
        try:
            yield
        except OSError:
            log.append(encode([Refused(sequence, tuple(range(len(sayings))))]))
            log.flush()
            raise
        except BaseException:
            log.cut_off()
            raise


def _portions(operations: Sequence[Operation], largest: int) -> Iterator[list[Operation]]:
    """The operations in order, as many at a time as one record holds."""
    portion: list[Operation] = []
    size = 0
    for operation in operations:
        more = _LINE_BYTES
        if isinstance(operation, Write):
            more += len(encode_attributes(operation.attributes))
            more += _inline_bytes(operation, largest) or 0
        if portion and size + more > largest:
            yield portion
            portion, size = [], 0
        portion.append(operation)
        size += more
    if portion or not operations:
        yield portion


def _encoding_once(operation: Operation) -> Operation:
    """The operation, whose attributes are encoded once for the record, the file and the reckoning of both."""
    if isinstance(operation, Write) and operation.attributes and not isinstance(operation.attributes, SharedAttributes):
        return operation._replace(attributes=SharedAttributes(operation.attributes))
    return operation


def _inline_bytes(operation: Write, largest: int) -> int | None:
    """Bytes of a body that goes into the log; None where it does not."""
    body = operation.body
    if not isinstance(body, bytes) or len(body) > min(LARGEST_INLINE, largest // 2):
        return None
    return len(body)


def _commit(folders: Folders, log: Log, operations: Sequence[Operation]) -> list[Outcome]:
    """Do what one record holds."""
    large = _LargeBodies(folders, log)
    try:
        prepared = [large.staged(operation) for operation in operations]
        large.sync()
    except OSError as error:
        folders.fail(error)
    if folders.failure:
        return Batch(folders, operations).run()  # which says so of each
    doing = [each for each in prepared if not isinstance(each, Outcome)]
    done = iter(_record_and_do(folders, log, doing) if doing else ())
    outcomes = [each if isinstance(each, Outcome) else next(done) for each in prepared]
    large.discard(outcome.result is Result.DONE for outcome in outcomes)
    return outcomes


def _record_and_do(folders: Folders, log: Log, operations: list[Operation]) -> list[Outcome]:
    payload = encode([_saying(folders, operation) for operation in operations])
    try:
        with log.room(len(payload)):
            sequence = log.append(payload)
            if any(isinstance(operation, Write) or operation.durable for operation in operations):
                log.flush()
            outcomes = Batch(folders, operations).run()
            refused = tuple(_refused(operations, outcomes))
            if refused:
                log.append(encode([Refused(sequence, refused)]))
                log.flush()
    except OSError as error:
        folders.fail(error)
        return Batch(folders, operations).run()  # which says so of each
    except BaseException:
        log.cut_off()
        raise
    return outcomes


def _refused(operations: Sequence[Operation], outcomes: Sequence[Outcome]) -> Iterator[int]:
    """The numbers of operations that must not be done again from their record."""
    for number, (operation, outcome) in enumerate(zip(operations, outcomes, strict=True)):
        is_gone = isinstance(operation, Unlink) and outcome.result is Result.GONE  # to take it away changes nothing
        if outcome.result in _REFUSED and not is_gone:
            yield number


def _saying(folders: Folders, operation: Operation) -> Saying:
    layout = folders.layout
    if isinstance(operation, Move):
        entry = operation.entry
        moved = Entry(operation.queue or entry.queue, entry.id, operation.state, operation.meta)
        return Moved(layout.below_root(layout.path(entry)), layout.below_root(layout.path(moved)))
    if isinstance(operation, Unlink):
        return Removed(layout.below_root(layout.path(operation.entry)))
    path = layout.below_root(layout.path(operation.entry))
    attributes = encode_attributes(operation.attributes)
    body = operation.body
    if isinstance(body, bytes):
        return Wrote(path, len(body), checksum(body), attributes, body)
    assert isinstance(body, StagedBody), "staged in another store"
    return Wrote(path, body.size, body.checksum, attributes, None, layout.below_root(body.file.path))


class _LargeBodies:
    """Bodies that do not go into the log: they are on the medium before a record names them."""

    def __init__(self, folders: Folders, log: Log) -> None:
        self._folders = folders
        self._largest = log.largest_payload
        self._made: list[StagedFile | None] = []
        self._any = False

    def staged(self, operation: Operation) -> Operation | Outcome:
        """The operation as it can be recorded, or why it is refused.

        Raises:
            OSError: the medium has failed.
        """
        self._made.append(None)
        if not isinstance(operation, Write) or _inline_bytes(operation, self._largest) is not None:
            return operation
        body = operation.body
        try:
            if isinstance(body, bytes):
                self._folders.reserve.ensure()
                path = f"{self._folders.stage}/{operation.id}"
                file = StagedFile(self._folders.calls, path, self._folders.reserve.ensure, xattrs=self._folders.xattrs)
                self._made[-1] = file
                file.add(body)
                body = StagedBody(file, inline_hop, nullcontext())
            assert isinstance(body, StagedBody), "staged in another store"
            body.file.sync()
        except OSError as error:
            self._discard(len(self._made) - 1)
            return refusal(error)
        self._any = True
        return operation._replace(body=body)

    def sync(self) -> None:
        """Bring their names to the medium."""
        if self._any:
            barrier = Barrier(self._folders.syncs)  # which finds a way where no more files can be opened
            barrier.add_folders(self._folders.stage)
            barrier.flush()

    def discard(self, done: Iterable[bool]) -> None:
        """Take away what was staged here for nothing.

        Args:
            done: of each operation, in order.
        """
        for number, is_done in enumerate(done):
            if not is_done:
                self._discard(number)

    def _discard(self, number: int) -> None:
        file = self._made[number]
        if file is not None:
            file.discard()
