"""A large body, read from its file chunk by chunk."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mq.errors import CorruptMessage
from mq.message import checksum
from mq.storage.barrier import close_all
from mq.storage.folders import Folders, Opened
from mq.storage.staging import Hop


class FileBody:
    """A large body, read from its open file: it stays readable wherever the message moves."""

    def __init__(self, folders: Folders, fd: int, opened: Opened, hop: Hop) -> None:
        self._folders = folders
        self._fd: int | None = fd
        self._expected = opened.properties
        self._hop = hop

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self._expected.size

    async def read(self) -> bytes:
        """All of it."""
        return b"".join([chunk async for chunk in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Chunk by chunk; the last one only when the checksum is right."""
        assert self._fd is not None, "the body was closed"
        found, left = 0, self.size
        while left:
            try:
                chunk: bytes = await self._hop(self._folders.read_chunk, self._fd)
            except OSError as error:
                raise CorruptMessage(f"cannot be read: {error.strerror}") from error
            found, left = checksum(chunk, found), left - len(chunk)
            wrong = left == 0 and self._expected.checksum not in (None, found)
            if not chunk or left < 0 or wrong:
                raise CorruptMessage("the bytes are not those that were published")
            yield chunk

    async def aclose(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            close_all(self._folders.calls, [fd])
            if self._folders.reading is not None:
                self._folders.reading.keep()  # it may have been lent for this

    def __del__(self) -> None:
        if self._fd is not None:
            close_all(self._folders.calls, [self._fd])
