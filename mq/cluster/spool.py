"""Large bodies on their way to the leader. A file without a name keeps one at the node that its client talks to, so it
can be sent again to the next leader."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Any, BinaryIO, Final, TypeVar, cast

import trio

from mq.broker import Upload
from mq.errors import StorageError, StorageFull
from mq.storage.interface import Staged

PIECE_BYTES: Final = 256 * 1024
"""Bytes of a piece: what one message of a link has of a large body."""

_T = TypeVar("_T")
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class _Elsewhere:
    """What the store has of a body that is not in it yet: nothing."""

    def __init__(self, size: int) -> None:
        self.size = self.unwritten = size
        self.checksum = 0

    async def discard(self) -> None:
        """Nothing to take away."""


def upload_of(size: int, digest: bytes) -> Upload:
    """An upload that tells of a body how long it is, and its SHA-256, and does not have it."""
    return Upload(cast(Staged, _Elsewhere(size)), digest)


class GatheredBody(Upload):
    """A body that is short enough for one message of a link, in memory."""

    def __init__(self, data: bytes) -> None:
        super().__init__(cast(Staged, _Elsewhere(len(data))), hashlib.sha256(data).digest())
        self.data = data


class SpooledBody(Upload):
    """A body in a file of this node's. :func:`spool` makes it."""

    def __init__(self, file: BinaryIO, size: int, digest: bytes) -> None:
        super().__init__(cast(Staged, _Elsewhere(size)), digest)
        self._file = file

    async def pieces(self) -> AsyncGenerator[bytes]:
        """The body from its beginning, as often as that is asked for."""
        for start in range(0, self.size, PIECE_BYTES):
            yield await _done(os.pread, self._file.fileno(), PIECE_BYTES, start)

    async def discard(self) -> None:
        """Let go of the file."""
        self._file.close()


def pieces_of(data: bytes) -> list[bytes]:
    """A body that is in memory, in pieces."""
    return [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]


async def spool(chunks: AsyncIterable[bytes], folder: str) -> SpooledBody:
    """Keep a body in a file. Errors of `chunks` pass through.

    Args:
        folder: of the file; empty for the system's folder of temporary files.

    Raises:
        StorageFull: there is no room.
    """
    file = cast(BinaryIO, await _done(_open, folder))
    size, digest, waiting = 0, hashlib.sha256(), bytearray()
    try:
        async for chunk in chunks:
            size += len(chunk)
            digest.update(chunk)
            waiting += chunk
            if len(waiting) >= PIECE_BYTES:
                await _done(_write, file, bytes(waiting))
                waiting.clear()
        await _done(_write, file, bytes(waiting))
    except BaseException:
        file.close()
        raise
    return SpooledBody(file, size, digest.digest())


def _open(folder: str) -> Any:
    return tempfile.TemporaryFile(buffering=0, dir=folder or None)


def _write(file: BinaryIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


async def _done(verb: Callable[..., _T], *args: object) -> _T:
    """Call it in a thread, which is waited for."""
    try:
        return await trio.to_thread.run_sync(verb, *args)
    except OSError as error:
        kind = StorageFull if error.errno in _NO_ROOM else StorageError
        raise kind(f"this node cannot buffer a large body for the master: {error.strerror}") from error
