"""How a message's properties lie beside its bytes.

A message file holds exactly the posted bytes. What else is fixed at its writing is in extended attributes:

* ``user.mq.sum``: ``size:crc32`` in decimal and hexadecimal, then ``:a`` or ``:f`` where there are attributes,
  in the other extended attribute or in a side file. It is set *before* the bytes are written, so that a file
  torn by a power cut can be told from a whole one.
* ``user.mq.attributes``: the attributes as JSON.

A side file ``state/properties/<id>`` takes the place of both where the file system has no extended attributes,
and of the second where it would not fit. It is durable before the message's name appears.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mq.message import Properties, SharedAttributes

SUM: Final = "user.mq.sum"
ATTRIBUTES: Final = "user.mq.attributes"
LARGEST_ATTRIBUTES: Final = 800
"""Bytes of JSON above which a side file is used: ext4 holds all attributes of a file in one block, and that has 1,024
bytes on a small file system."""

_NOT_OURS: Final = (ValueError, OverflowError, RecursionError)
"""What JSON that mq never wrote can raise."""
_SUM = re.compile(rb"(0|[1-9][0-9]{0,18}):([0-9a-f]{8})(?::([af]))?")


class Sum(NamedTuple):
    """What ``user.mq.sum`` says.

    Attributes:
        size: length in bytes.
        checksum: CRC-32.
        attributes: where the attributes are: "" nowhere, "a" extended attribute, "f" side file.
    """

    size: int
    checksum: int
    attributes: str = ""

    def encode(self) -> bytes:
        """As the extended attribute holds it."""
        tail = f":{self.attributes}" if self.attributes else ""
        return f"{self.size}:{self.checksum:08x}{tail}".encode()

    @classmethod
    def decode(cls, value: bytes | None) -> Sum | None:
        """What is said there; None when nothing is, or nothing of mq's."""
        match = _SUM.fullmatch(value or b"")
        if match is None:
            return None
        return cls(int(match[1]), int(match[2], 16), (match[3] or b"").decode())


def announced_size(value: bytes | None) -> int | None:
    """The length that ``user.mq.sum`` begins with; None where that cannot be mq's."""
    digits = (value or b"").partition(b":")[0]
    return int(digits) if digits.isdigit() else None


def encode_attributes(attributes: Mapping[str, Any]) -> bytes:
    """Attributes as JSON; empty for none."""
    if not attributes:
        return b""
    if not isinstance(attributes, SharedAttributes):
        return _encode(dict(attributes))
    if attributes.written is None:
        attributes.written = _encode(attributes)
    return attributes.written


def encode_noted(attributes: Mapping[str, Any], size: int, crc: int, largest: int) -> tuple[bytes, bytes]:
    """What the two extended attributes of a file hold: its attributes, empty where there are none or more than
    `largest` bytes of them, and its sum, which says where they are."""
    encoded = encode_attributes(attributes)
    if len(encoded) > largest:
        return b"", Sum(size, crc, "f").encode()
    return encoded, Sum(size, crc, "a" if encoded else "").encode()


def decode_attributes(value: bytes | None) -> Mapping[str, Any]:
    """The attributes in `value`; none when it is not a JSON object."""
    try:
        found = json.loads(value or b"{}")
    except _NOT_OURS:
        return {}
    return found if isinstance(found, dict) else {}


def encode_side(properties: Properties) -> bytes:
    """A side file's content."""
    return _encode({"size": properties.size, "crc32": properties.checksum, "attributes": dict(properties.attributes)})


def decode_side(content: bytes) -> Properties | None:
    """What a side file says; None when it is damaged."""
    try:
        found = json.loads(content)
        return Properties(int(found["size"]), int(found["crc32"]), dict(found["attributes"]))
    except (*_NOT_OURS, KeyError, TypeError):
        return None


def _encode(value: Mapping[str, Any]) -> bytes:
    """JSON that json.loads reads back exactly, half characters (lone surrogates) included."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
