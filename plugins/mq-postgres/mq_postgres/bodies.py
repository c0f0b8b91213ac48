"""Large bodies: more than a mebibyte lies in chunks of one, and is sent and read a chunk at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from mq.errors import CorruptMessage, StorageError
from mq.message import BytesBody, DamagedBody, checksum

CHUNK_BYTES: Final = 1 << 20

ReadChunk = Callable[[int, int], Awaitable[bytes | None]]
"""(number of a message, part) -> its bytes."""


class StagedBody:
    """A large body on its way.

    Attributes:
        data: all of it, where it is one chunk at most; else None.
        number: under which its chunks are; None where it is in memory.
        size: length in bytes.
        checksum: CRC-32 of the bytes.
        unwritten: 0: a longer one is in the table already, and a chunk is no longer than what a group always takes.

    Args:
        drop: takes the chunks away again, if the message has not been written.
    """

    def __init__(
        self,
        data: bytes | None,
        number: int | None,
        size: int,
        checksum: int,
        drop: Callable[[int], Awaitable[None]],
    ) -> None:
        self.data = data
        self.number = number
        self.size = size
        self.unwritten = 0
        self.checksum = checksum
        self._drop = drop
        self.is_discarded = False

    async def discard(self) -> None:
        """Take it away again, unless it has become a message."""
        self.is_discarded = True
        if self.number is not None:
            await self._drop(self.number)


class ChunkedBody:
    """A body that is read a chunk at a time.

    Attributes:
        size: length in bytes.
    """

    def __init__(self, number: int, size: int, checksum: int, read_chunk: ReadChunk) -> None:
        self.size = size
        self._number = number
        self._checksum = checksum
        self._read_chunk = read_chunk

    async def read(self) -> bytes:
        """All of it.

        Raises:
            CorruptMessage: the bytes are not those that were published.
            StorageError: it was removed meanwhile, or PostgreSQL does not answer.
        """
        return b"".join([chunk async for chunk in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Chunk by chunk; raises as :meth:`read` does, at the end at the latest."""
        crc = length = 0
        for part in range(-(-self.size // CHUNK_BYTES)):
            chunk = await self._read_chunk(self._number, part)
            if chunk is None:
                raise StorageError(
                    "the message was removed while its body was being read. Read the body before the lease ends"
                )
            crc, length = checksum(chunk, crc), length + len(chunk)
            if length == self.size and crc != self._checksum:
                break
            yield chunk
        if (length, crc) != (self.size, self._checksum):
            raise CorruptMessage(_damage(self._number))

    async def aclose(self) -> None:
        """It holds nothing."""


def small_body(number: int, size: int, crc: int, data: bytes) -> BytesBody | DamagedBody:
    """A body that came with its row."""
    if (len(data), checksum(data)) != (size, crc):
        return DamagedBody(size, _damage(number))
    return BytesBody(data)


def _damage(number: int) -> str:
    return f"message {number} in PostgreSQL is damaged: its contents differ from what was published"
