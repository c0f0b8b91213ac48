r"""What a record of the log says: its payload, and of plain operations the file calls that go with it.

A record's payload says what a batch does (:data:`Saying`): a text, one line an operation, with fields between tabs;
behind it the bytes that go with some of the lines, in order::

    length of the text, u32
    w  path  size  crc32  bytes of attributes                     a message; attributes and body follow
    s  path  size  crc32  bytes of attributes  staged path        a large one, whose bytes are in a file
    m  old path  new path                                         a message is moved
    u  path                                                       a message is taken away
    p  kind  key  bytes of the value                              a record is kept; its JSON follows
    d  kind  key                                                  a record is forgotten
    q  queue  path                                                a queue's folder is moved to that path
    v  sequence  numbers of operations                            these of an earlier record were refused

Paths are below the root, keys are percent-encoded.

Operations on messages with small bodies, each by itself, are nearly every batch. What the log says of them and what
their file calls need is worked out in one pass, with nothing made in between (:class:`Plain`): each message of every
client pays for it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from mq.message import checksum, encode_attributes
from mq.storage.files.calls import Step
from mq.storage.files.layout import LARGEST_ATTRIBUTES, Planned, noted_of, place_of
from mq.storage.interface import AnyOperation, Entry, Move, Outcome, Result, Unlink, Write

LARGEST_INLINE: Final = 1 << 16
"""Bytes of a body that goes into the log. A larger one is brought to the medium by its own file."""
LINE_BYTES: Final = 600
"""More than any line of an operation takes, but for a record's key."""
_DONE: Final = Result.DONE
_REMOVED: Final = Outcome(_DONE)
_TEXT_LENGTH: Final = struct.Struct("<I")


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


class Payload:
    """What a record says, while it is put together."""

    __slots__ = ("_blobs", "_lines")

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._blobs: list[bytes] = []

    def wrote(self, path: str, size: int, crc: int, attributes: bytes, body: bytes) -> None:
        """Say a :class:`Wrote` of a body that goes with it."""
        self._lines.append(f"w\t{path}\t{size}\t{crc:08x}\t{len(attributes)}")
        self._blobs += (attributes, body)

    def moved(self, old: str, new: str) -> None:
        """Say a :class:`Moved`."""
        self._lines.append(f"m\t{old}\t{new}")

    def removed(self, path: str) -> None:
        """Say a :class:`Removed`."""
        self._lines.append(f"u\t{path}")

    def say(self, saying: Saying) -> None:
        """Say what is next."""
        match saying:
            case Wrote(path, size, crc, attributes, None, staged):
                self._lines.append(f"s\t{path}\t{size}\t{crc:08x}\t{len(attributes)}\t{staged}")
                self._blobs.append(attributes)
            case Wrote(path, size, crc, attributes, bytes(body)):
                self.wrote(path, size, crc, attributes, body)
            case Moved(old, new):
                self.moved(old, new)
            case Removed(path):
                self.removed(path)
            case Kept(kind, key, value):
                blob = encode_attributes(value) or b"{}"
                self._lines.append(f"p\t{kind}\t{_quoted(key)}\t{len(blob)}")
                self._blobs.append(blob)
            case Forgotten(kind, key):
                self._lines.append(f"d\t{kind}\t{_quoted(key)}")
            case QueueRemoved(queue, path):
                self._lines.append(f"q\t{queue}\t{path}")
            case Refused(sequence, numbers):
                self._lines.append(f"v\t{sequence}\t{','.join(map(str, numbers))}")

    def encode(self) -> bytes:
        """As the record holds it."""
        text = "\n".join(self._lines).encode()
        return b"".join((_TEXT_LENGTH.pack(len(text)), text, *self._blobs))


def encode(sayings: Iterable[Saying]) -> bytes:
    """A record's payload."""
    payload = Payload()
    for saying in sayings:
        payload.say(saying)
    return payload.encode()


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
                raise ValueError(f"the log contains a record that this version of mq does not support: {line[:40]!r}")
    return found


def _quoted(key: str) -> str:
    return quote(key, safe="", errors="surrogatepass")


# Plain operations


class Plain(Payload):
    """As many plain operations as one record holds, and their file calls.

    Args:
        prefix: what the paths of the root begin with.
        room: bytes that the record can hold.

    Attributes:
        planned: the operations, worked out, in order.
        payload: what the log says of them, once all are there.
        steps: the file calls of each, as mq-native does them.
        expected: the outcome of each if nothing is in its way.
        room: bytes that the record can still hold.
        writes: whether one of them makes a file.
        flushes: whether the record has to be on the medium before they are answered.
    """

    __slots__ = ("_prefix", "expected", "flushes", "payload", "planned", "room", "steps", "writes")

    def __init__(self, prefix: str, room: int) -> None:
        super().__init__()
        self.planned: list[Planned] = []
        self.steps: list[Step] = []
        self.expected: list[Outcome] = []
        self.payload = b""
        self.room = room
        self.writes = self.flushes = False
        self._prefix = prefix

    def write(self, operation: Write, body: bytes, attributes: bytes) -> None:
        """Add one of a message with these bytes, and with these attributes as JSON."""
        queue, id, _, _, meta, _, _, state, _ = operation
        entry, size, crc = Entry(queue, id, state, meta), len(body), checksum(body)
        place = place_of(entry)
        path = self._prefix + place
        self.wrote(place, size, crc, attributes, body)
        self.planned.append(Planned(operation, entry, path, "", attributes, size, crc))
        attributes, noted = noted_of(attributes, size, crc, LARGEST_ATTRIBUTES)
        self.steps.append((path, body, noted, attributes))
        self.expected.append(Outcome(_DONE, entry))
        self.writes = self.flushes = True

    def move(self, operation: Move) -> None:
        """Add one that moves a message."""
        entry, state, meta, queue, durable, _ = operation
        target = Entry(queue or entry.queue, entry.id, state, meta)
        left, place = place_of(entry), place_of(target)
        source, path = self._prefix + left, self._prefix + place
        self.moved(left, place)
        self.planned.append(Planned(operation, target, path, source))
        self.steps.append((source, path))
        self.expected.append(Outcome(_DONE, target))
        self.flushes |= durable

    def remove(self, operation: Unlink) -> None:
        """Add one that takes a message away."""
        place = place_of(operation.entry)
        path = self._prefix + place
        self.removed(place)
        self.planned.append(Planned(operation, operation.entry, path))
        self.steps.append((path,))
        self.expected.append(_REMOVED)
        self.flushes |= operation.durable


def plain_portions(prefix: str, operations: Sequence[AnyOperation], largest: int) -> list[Plain] | None:
    """All of a batch; None where one of its operations is not plain.

    Args:
        prefix: what the paths of the root begin with.
        operations: in order.
        largest: bytes that a record can hold.
    """
    longest = min(LARGEST_INLINE, largest // 2)
    portions: list[Plain] = []
    for operation in operations:
        body = attributes = b""
        if isinstance(operation, Write):
            if not isinstance(operation.body, bytes):
                return None
            body = operation.body
            if operation.attributes:
                attributes = encode_attributes(operation.attributes)
            if len(body) > longest or len(attributes) > LARGEST_ATTRIBUTES:
                return None
        more = LINE_BYTES + len(body) + len(attributes)
        if not portions or more > portions[-1].room:
            portions.append(Plain(prefix, largest))
        plain = portions[-1]
        plain.room -= more
        if isinstance(operation, Write):
            plain.write(operation, body, attributes)
        elif isinstance(operation, Move):
            plain.move(operation)
        elif isinstance(operation, Unlink):
            plain.remove(operation)
        else:
            return None
    for plain in portions:
        plain.payload = plain.encode()
    return portions
