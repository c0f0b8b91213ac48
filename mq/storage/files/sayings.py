r"""What a record of the log says: a payload, its lines, and what each means.

A text, one line an operation, with fields between tabs, and behind the text the bytes that go with some of the lines,
in order (:class:`Wrote` and its kin)::

    length of the text, u32
    w  path  size  crc32  bytes of attributes                     a message; attributes and body follow
    s  path  size  crc32  bytes of attributes  staged path        a large one, whose file is on the medium already
    m  old path  new path                                         a message is moved
    u  path                                                       a message is taken away
    p  kind  key  bytes of the value                              a record is kept; its JSON follows
    d  kind  key                                                  a record is forgotten
    q  queue  path                                                a queue's folder is moved to that path
    v  sequence  numbers of operations                            these of an earlier record were refused

Paths are below the root, keys are percent-encoded.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from mq.storage.files.layout import encode_attributes

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


def encode(sayings: Sequence[Saying]) -> bytes:
    """A record's payload."""
    lines: list[str] = []
    blobs: list[bytes] = []
    for saying in sayings:
        # Of the three that nearly all are the type is asked: a pattern takes as long as all the rest of their line.
        if type(saying) is Wrote:
            path, size, crc, attributes, body, staged = saying
            kind, tail = ("w", "") if body is not None else ("s", f"\t{staged}")
            lines.append(f"{kind}\t{path}\t{size}\t{crc:08x}\t{len(attributes)}{tail}")
            blobs += (attributes, body or b"")
            continue
        if type(saying) is Moved:
            lines.append(f"m\t{saying.old}\t{saying.new}")
            continue
        if type(saying) is Removed:
            lines.append(f"u\t{saying.path}")
            continue
        match saying:
            case Kept(kind, key, value):
                blob = encode_attributes(value) or b"{}"
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
