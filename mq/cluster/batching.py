"""Batches that can be read again, of this node's queues and of the cluster's."""

from __future__ import annotations

from collections.abc import Callable

from mq.broker import LARGEST_CLAIM, Batch, Browsed, Ranges, Standing
from mq.broker.api import BrowsingAPI, ClaimsAPI
from mq.broker.claiming import CLAIM_SECONDS
from mq.message import Message


class JointClaims:
    """As :class:`~mq.broker.claiming.Claiming`."""

    def __init__(self, local: ClaimsAPI, remote: ClaimsAPI, is_remote: Callable[[str], bool]) -> None:
        self._local = local
        self._remote = remote
        self._is_remote = is_remote

    async def consumers(self, queue: str) -> list[Standing]:
        """Every consumer of a queue."""
        return await self._of(queue).consumers(queue)

    async def consumer(self, queue: str, name: str) -> Standing:
        """How far a consumer is."""
        return await self._of(queue).consumer(queue, name)

    async def start(self, queue: str, name: str) -> Standing:
        """Begin a new epoch."""
        return await self._of(queue).start(queue, name)

    async def claim(
        self,
        queue: str,
        name: str,
        batch: int,
        epoch: int,
        *,
        most: int = LARGEST_CLAIM,
        most_bytes: int | None = None,
        up_to: int | None = None,
        lease: float = CLAIM_SECONDS,
    ) -> Batch | None:
        """Make a claim, or get the one that there is."""
        its = self._of(queue)
        return await its.claim(queue, name, batch, epoch, most=most, most_bytes=most_bytes, up_to=up_to, lease=lease)

    async def read(
        self, queue: str, name: str, batch: int, epoch: int, start: int, stop: int
    ) -> list[tuple[int, Message]]:
        """Messages of an open claim."""
        return await self._of(queue).read(queue, name, batch, epoch, start, stop)

    async def acknowledge(self, queue: str, name: str, batch: int, epoch: int) -> None:
        """Remove the messages of a claim."""
        await self._of(queue).acknowledge(queue, name, batch, epoch)

    async def forget(self, queue: str, name: str) -> None:
        """Let go of a consumer."""
        await self._of(queue).forget(queue, name)

    def _of(self, queue: str) -> ClaimsAPI:
        return self._remote if self._is_remote(queue) else self._local


class JointBrowsing:
    """As :class:`~mq.broker.browsing.Browsing`."""

    def __init__(self, local: BrowsingAPI, remote: BrowsingAPI, is_remote: Callable[[str], bool]) -> None:
        self._local = local
        self._remote = remote
        self._is_remote = is_remote

    async def browse(self, queue: str, *, after: int = 0, up_to: int | None = None, most: int = 100) -> Browsed:
        """Some READY messages by their sequence."""
        its = self._remote if self._is_remote(queue) else self._local
        return await its.browse(queue, after=after, up_to=up_to, most=most)

    async def ranges(self, queue: str, parts: int) -> Ranges:
        """The READY messages cut into parts."""
        return await (self._remote if self._is_remote(queue) else self._local).ranges(queue, parts)
