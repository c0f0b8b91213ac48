"""Large bodies: on their way to the medium, and read from their files chunk by chunk.

A body arrives in state/stage/ under a name that means nothing (:class:`StagedFile`); its Write gives it the message's.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from io import BytesIO

from mq.errors import CorruptMessage
from mq.message import checksum
from mq.storage.files.calls import OPEN_NEW, write_all
from mq.storage.files.folders import Folders, Opened
from mq.storage.files.hop import Hop
from mq.storage.files.layout import NO_ATTRIBUTES, SUM, Sum
from mq.storage.files.sync import close_all, sync


class StagedFile:
    """A body that is written chunk by chunk. It holds its file open until it is taken or discarded.

    Args:
        path: the temporary name; must not exist.

    Attributes:
        fd: the open file; None once it is taken or discarded.

    Raises:
        OSError: from the system, here and in :meth:`add`.
    """

    def __init__(self, folders: Folders, path: str) -> None:
        self.path = path
        self.size = 0
        self.checksum = 0
        self._calls = folders.calls
        self._reserve = folders.volume.reserve
        self._reserve.ensure()
        self.fd: int | None = self._calls.open(path, OPEN_NEW)
        try:
            if folders.largest_attributes != NO_ATTRIBUTES:
                # Before the first byte: a part of a body is never taken for a message, even if its name is durable
                # first.
                self._calls.set_attribute(self.fd, SUM, Sum(0, 0).encode())
        except OSError:
            self.discard()
            raise

    def add(self, chunk: bytes) -> None:
        """Append a chunk."""
        assert self.fd is not None, "the staged body is closed"
        self._reserve.ensure()
        write_all(self._calls, self.fd, chunk)
        self.size += len(chunk)
        self.checksum = checksum(chunk, self.checksum)

    def begin_write_out(self) -> None:
        """Let the added chunks go to the disk. Does nothing once it is taken or discarded.

        Raises:
            OSError: they will not be there.
        """
        if self.fd is not None:
            self._calls.write_out(self.fd, waits=False)

    def sync(self) -> None:
        """Bring the added chunks to the medium. Does nothing once it is taken or discarded.

        Raises:
            SyncFailed: they are not known to be there.
        """
        if self.fd is not None:
            sync(self._calls, self.fd)

    def take(self) -> int | None:
        """Hand over the open file: the caller closes it, and answers for the name. None when it was taken or discarded
        before.
        """
        fd, self.fd = self.fd, None
        return fd

    def give_back(self, fd: int) -> None:
        """Undo :meth:`take`."""
        self.fd = fd

    def discard(self) -> None:
        """Remove it, unless it has been taken."""
        fd = self.take()
        if fd is not None:
            with contextlib.suppress(OSError):
                self._calls.close(fd)
            with contextlib.suppress(OSError):  # what is left in state/stage/ goes at the next start
                self._calls.unlink(self.path)


class StagedBody:
    """A large body in state/stage/."""

    def __init__(self, file: StagedFile, hop: Hop, alone: AbstractAsyncContextManager[object]) -> None:
        self.file = file
        self._hop = hop
        self._alone = alone

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.file.size

    @property
    def checksum(self) -> int:
        """CRC-32 of the bytes."""
        return self.file.checksum

    @property
    def unwritten(self) -> int:
        """None of its bytes: they are on the disk."""
        return 0

    async def discard(self) -> None:
        """Remove it, unless its Write is done."""
        async with self._alone:
            await self._hop(self.file.discard)


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
        """All of it, gathered where it can be had without a copy."""
        out = BytesIO()
        async for chunk in self:
            out.write(chunk)
        return out.getvalue()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Chunk by chunk; the last one only when the checksum is right."""
        assert self._fd is not None, "the body was closed"
        found, left = 0, self.size
        while left:
            try:
                chunk: bytes = await self._hop(self._folders.read_chunk, self._fd)
            except OSError as error:
                raise CorruptMessage(f"cannot read the body: {error.strerror}") from error
            found, left = checksum(chunk, found), left - len(chunk)
            wrong = left == 0 and self._expected.checksum not in (None, found)
            if not chunk or left < 0 or wrong:
                raise CorruptMessage("the stored bytes do not match the checksum")
            yield chunk

    async def aclose(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            close_all(self._folders.calls, [fd])
            if self._folders.read_spare is not None:
                self._folders.read_spare.keep()  # it may have been lent for this

    def __del__(self) -> None:
        if self._fd is not None:
            close_all(self._folders.calls, [self._fd])
