r"""What a record of the log says: its payload.

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

Paths are below the root, keys are percent-encoded. :class:`Payload` puts one together; :func:`decode` takes it apart.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from mq.lifecycle import State
from mq.message import encode_attributes
from mq.storage.files.layout import leaf_name
from mq.storage.interface import FRESH, Entry

LARGEST_INLINE: Final = 1 << 16
"""Bytes of a body that goes into the log. A larger one is brought to the medium by its own file."""
LINE_BYTES: Final = 600
"""More than any line of an operation takes, but for a record's key."""
_TEXT_LENGTH: Final = struct.Struct("<I")
"""What a payload begins with."""
_FOLDERS: Final = {state: state.value for state in State}


def place_of(entry: Entry) -> str:
    """The path of the entry's file below the root."""
    queue, id, state, meta = entry
    name = id if meta is FRESH else leaf_name(id, meta)
    return f"queues/{queue}/{name}" if state is State.READY else f"{_FOLDERS[state]}/{queue}:{name}"


class Wrote(NamedTuple):
    """A message is written.

    Attributes:
        path: its file.
        size, crc: of its body.
        attributes: as JSON; empty where there are none.
        body: its bytes; None where they are at `staged`.
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
                raise ValueError(
                    f"this version of mq does not support this record of the write-ahead log: {line[:40]!r}"
                )
    return found


def _quoted(key: str) -> str:
    return quote(key, safe="", errors="surrogatepass")
