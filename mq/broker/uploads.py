"""Large bodies: they lie in the store before they are published."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing

import trio

from mq.errors import BodyTooLarge
from mq.storage.interface import Staged, Storage


class Upload:
    """A large body that lies in the store, waiting to be published.

    Args:
        staged: what the store made of it.
        digest: SHA-256 of its bytes.
    """

    def __init__(self, staged: Staged, digest: bytes) -> None:
        self.staged = staged
        self.digest = digest

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.staged.size

    async def discard(self) -> None:
        """Take it away again. Does nothing once it is published."""
        with trio.CancelScope(shield=True):
            await self.staged.discard()


async def stage(storage: Storage, chunks: AsyncIterable[bytes], longest: int) -> Upload:
    """Bring a body of at most `longest` bytes to the store. What `chunks` raises passes.

    Raises:
        BodyTooLarge: it is over the limit.
    """
    digest = hashlib.sha256()

    async def limited() -> AsyncGenerator[bytes]:
        size = 0
        async for chunk in chunks:
            size += len(chunk)
            check_size(size, longest)
            digest.update(chunk)
            yield chunk

    async with aclosing(limited()) as body:
        staged = await storage.stage(body)
    return Upload(staged, digest.digest())


def check_size(size: int, longest: int) -> None:
    """Refuse a body that is too long.

    Raises:
        BodyTooLarge: it is.
    """
    if size > longest:
        raise BodyTooLarge(f"the body is longer than {longest} bytes, the limit here")
