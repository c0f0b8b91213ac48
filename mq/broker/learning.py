"""Reads what a queue has to know of its messages' bodies, when it has to and not before."""

from __future__ import annotations

import hashlib
from typing import Final

import trio

from mq.broker.bodies import Bodies
from mq.broker.index import QueueIndex
from mq.broker.transit import Transit
from mq.errors import CorruptMessage
from mq.message import Body
from mq.storage.interface import Entry, Storage

_AT_ONCE: Final = 256


class Learner:
    """Learns bodies.

    Args:
        storage: holds them.
        transit: the messages on their way.
    """

    def __init__(self, storage: Storage, transit: Transit) -> None:
        self._storage = storage
        self._transit = transit

    async def learn(self, index: QueueIndex) -> None:
        """Until the queue knows all its bodies.

        Raises:
            StorageError: they cannot be read.
        """
        if index.bodies is None:
            index.bodies = Bodies(entry.id for entry in index.entries())
        bodies = index.bodies
        while bodies.unread:
            id = next(iter(bodies.unread))
            await self._transit.wait(id)
            there = [entry for id in list(bodies.unread)[:_AT_ONCE] if (entry := index.find(id)) is not None]
            await self._read(index, bodies, there)
            if id in bodies.unread and id not in self._transit:
                bodies.unread.discard(id)  # it is not in the queue any more

    async def _read(self, index: QueueIndex, bodies: Bodies, entries: list[Entry]) -> None:
        for entry, stored in zip(entries, await self._storage.read(entries), strict=True):
            if stored is None:
                continue  # moved meanwhile
            try:
                digest = await _digest(stored.body) if index.settings.unique else None
            finally:
                with trio.CancelScope(shield=True):
                    await stored.body.aclose()
            if entry.id in bodies.unread:
                bodies.add(entry.id, stored.properties.size, digest)


async def _digest(body: Body) -> bytes | None:
    digest = hashlib.sha256()
    try:
        async for chunk in body:
            digest.update(chunk)
    except CorruptMessage:
        return None
    return digest.digest()
