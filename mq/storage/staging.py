"""A large body on its way to the medium: a file in state/stage/ under a name that means nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from mq.message import checksum
from mq.storage.calls import OPEN_NEW, Calls
from mq.storage.properties import SUM, Sum

Hop = Callable[..., Awaitable[Any]]
"""How a synchronous verb is called: in a thread, or at once where nothing can block."""


class StagedFile:
    """A body that is written chunk by chunk. It holds its file open until it is taken or discarded.

    Args:
        calls: the system.
        path: the temporary name; must not exist.
        need_room: is called before anything is written, and raises when nothing new may be.
        xattrs: whether the file system has extended attributes. One is set before the first byte, so that a name that
            became durable before what its file holds does not make a part of a body a message.

    Raises:
        OSError: from the system, here and in :meth:`add`.
    """

    def __init__(self, calls: Calls, path: str, need_room: Callable[[], None], *, xattrs: bool) -> None:
        self.path = path
        self.size = 0
        self.checksum = 0
        self._calls = calls
        self._need_room = need_room
        need_room()
        self._fd: int | None = calls.open(path, OPEN_NEW)
        if xattrs:
            self._note_unfinished(self._fd)

    def _note_unfinished(self, fd: int) -> None:
        try:
            self._calls.set_attribute(fd, SUM, Sum(0, 0).encode())
        except OSError:
            self.discard()
            raise

    def add(self, chunk: bytes) -> None:
        """Append a chunk."""
        assert self._fd is not None, "the staged body is closed"
        self._need_room()
        write_all(self._calls, self._fd, chunk)
        self.size += len(chunk)
        self.checksum = checksum(chunk, self.checksum)

    def take(self) -> int | None:
        """Hand over the open file: from now on whoever called closes it and answers for the name.

        None when it was taken or discarded before.
        """
        fd, self._fd = self._fd, None
        return fd

    def give_back(self, fd: int) -> None:
        """What was taken is not used after all."""
        self._fd = fd

    def discard(self) -> None:
        """Take it away, unless it has been taken."""
        fd = self.take()
        if fd is not None:
            with contextlib.suppress(OSError):
                self._calls.close(fd)
            with contextlib.suppress(OSError):  # what is left in state/stage/ goes at the next start
                self._calls.unlink(self.path)


class StagedBody:
    """A large body in state/stage/."""

    def __init__(self, file: StagedFile, hop: Hop, alone: Callable[[], AbstractAsyncContextManager[None]]) -> None:
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

    async def discard(self) -> None:
        """Take it away, unless its Write is done."""
        async with self._alone():
            await self._hop(self.file.discard)


def write_all(calls: Calls, fd: int, data: bytes) -> None:
    """Write every byte, however few the system takes at a time."""
    written = calls.write(fd, data)
    if written == len(data):
        return
    rest = memoryview(data)[written:]
    while rest:
        taken = calls.write(fd, rest)
        rest = rest[taken:]
