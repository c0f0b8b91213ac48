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

Paths are below the root, keys are percent-encoded. :func:`encode` makes a payload; :func:`decode` takes it apart.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from mq.message import encode_attributes
from mq.storage.files.staging import StagedBody
from mq.storage.files.writes import Planned
from mq.storage.interface import Move, Write

LARGEST_INLINE: Final = 1 << 16
"""Bytes of a body that goes into the log. A larger one is brought to the medium by its own file."""
LINE_BYTES: Final = 600
"""More than any line of an operation takes, but for a record's key."""
_TEXT_LENGTH: Final = struct.Struct("<I")
"""What a payload begins with."""
# These lines are made from operations as well as from sayings.
_WROTE: Final = "w\t%s\t%d\t%08x\t%d"
_WROTE_STAGED: Final = f"s{_WROTE[1:]}\t%s"
_MOVED: Final = "m\t%s\t%s"
_REMOVED: Final = "u\t%s"


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


def encode(recorded: Iterable[Planned | Saying], root: str = "") -> bytes:
    """Return a record's payload.

    Args:
        recorded: what the record says, in order. A planned operation says where its message is written or moved, or
            that it is taken away.
        root: what the paths of planned operations begin with.
    """
    below = len(root)
    lines: list[str] = []
    blobs: list[bytes] = []
    for each in recorded:
        if not isinstance(each, Planned):
            lines.append(_line_of(each, blobs))
            continue
        operation, _, path, source, size, crc, encoded, *_ = each
        place = path[below:]
        if isinstance(operation, Write):
            body = operation.body
            if isinstance(body, bytes):
                lines.append(_WROTE % (place, size, crc, len(encoded)))
                blobs += (encoded, body)
            else:
                assert isinstance(body, StagedBody), "staged in another store"
                lines.append(_WROTE_STAGED % (place, size, crc, len(encoded), body.file.path[below:]))
                blobs.append(encoded)
        elif isinstance(operation, Move):
            lines.append(_MOVED % (source[below:], place))
        else:
            lines.append(_REMOVED % place)
    text = "\n".join(lines).encode()
    return b"".join((_TEXT_LENGTH.pack(len(text)), text, *blobs))


def _line_of(saying: Saying, blobs: list[bytes]) -> str:
    """Return the line, and add the bytes that go with it to `blobs`."""
    match saying:
        case Wrote(path, size, crc, attributes, None, staged):
            blobs.append(attributes)
            return _WROTE_STAGED % (path, size, crc, len(attributes), staged)
        case Wrote(path, size, crc, attributes, bytes(body)):
            blobs += (attributes, body)
            return _WROTE % (path, size, crc, len(attributes))
        case Moved(old, new):
            return _MOVED % (old, new)
        case Removed(path):
            return _REMOVED % path
        case Kept(kind, key, value):
            blob = encode_attributes(value) or b"{}"
            blobs.append(blob)
            return f"p\t{kind}\t{_quoted(key)}\t{len(blob)}"
        case Forgotten(kind, key):
            return f"d\t{kind}\t{_quoted(key)}"
        case QueueRemoved(queue, path):
            return f"q\t{queue}\t{path}"
        case Refused(sequence, numbers):
            return f"v\t{sequence}\t{','.join(map(str, numbers))}"
    raise AssertionError("no other line is in a record")


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
                raise ValueError(f"this version of mq does not support this write-ahead log record: {line[:40]!r}")
    return found


def _quoted(key: str) -> str:
    return quote(key, safe="", errors="surrogatepass")
