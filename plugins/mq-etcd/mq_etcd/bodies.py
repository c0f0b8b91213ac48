"""A message's bytes as etcd holds them: a line of JSON (length, checksum, attributes), then the bytes themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mq.message import BytesBody, DamagedBody, MessageId, Properties, checksum
from mq.storage.files.layout import Senseless, decode_side, encode_side
from mq.storage.interface import Staged, Stored

LARGEST_BODY: Final = 1 << 20
"""Bytes. etcd takes requests of 1.5 MiB, and holds everything in memory: large bodies are not for it."""
LARGEST_VALUE: Final = LARGEST_BODY + (1 << 18)
"""Bytes of a body with its attributes."""


@dataclass(frozen=True)
class StagedBytes:
    """A large body on its way: in memory, until its Write."""

    data: list[bytes]
    size: int
    checksum: int

    @property
    def unwritten(self) -> int:
        """All of its bytes: its Write brings them to etcd."""
        return self.size

    async def discard(self) -> None:
        """Let go of the bytes."""
        self.data.clear()


def bytes_of(body: bytes | Staged) -> bytes | None:
    """The bytes of a Write; None when what was staged is discarded."""
    if isinstance(body, bytes):
        return body
    assert isinstance(body, StagedBytes), "a body that another store staged"
    return body.data[0] if body.data else None


def pack(body: bytes, attributes: Mapping[str, Any]) -> bytes:
    """The value under a body's key."""
    return encode_side(Properties(len(body), checksum(body), attributes)) + b"\n" + body


def unpack(value: bytes, id: MessageId) -> Stored:
    """A message, out of the value under its body's key."""
    line, _, body = value.partition(b"\n")
    try:
        properties = decode_side(line)
    except Senseless:
        damage = f"message {id} is damaged: its value in etcd is not in a format of mq"
        return Stored(Properties(0, None), DamagedBody(0, damage))
    if len(body) != properties.size or checksum(body) != properties.checksum:
        damage = f"message {id} is damaged: its contents differ from what was published"
        return Stored(properties, DamagedBody(properties.size, damage))
    return Stored(properties, BytesBody(body))
