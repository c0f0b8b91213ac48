"""Reads what a queue has to know of its messages' bodies, when it has to and not before."""

from __future__ import annotations

import hashlib
import itertools
from typing import Final

import trio

from mq.broker.bodies import Bodies
from mq.broker.catalog import Catalog
from mq.broker.index import QueueIndex
from mq.errors import CorruptMessage
from mq.message import Body
from mq.storage.interface import Entry, Storage

_AT_ONCE: Final = 256


class Learner:
    """Learns bodies.

    Args:
        storage: holds them.
        catalog: knows which messages there are.
    """

    def __init__(self, storage: Storage, catalog: Catalog) -> None:
        self._storage = storage
        self._catalog = catalog
        self._one_at_a_time = trio.Lock()

    async def learn(self, index: QueueIndex) -> None:
        """Until the queue knows all its bodies.

        Raises:
            StorageError: they cannot be read.
        """
        while index.bodies is None or index.bodies.unread:
            async with self._one_at_a_time:
                await self._learn_some(index)

    async def _learn_some(self, index: QueueIndex) -> None:
        if index.bodies is None:  # never learnt, or to be learnt anew
            index.bodies = Bodies([*(entry.id for entry in index.entries()), *self._catalog.on_their_way(index)])
        bodies, transit = index.bodies, self._catalog.transit
        for id in itertools.islice(bodies.unread.copy(), 1):
            await transit.wait(id)
            some = itertools.islice(bodies.unread.copy(), _AT_ONCE)
            there = {other: entry for other in (id, *some) if (entry := index.find(other)) is not None}
            await self._read(index, bodies, list(there.values()))
            if id not in transit and index.find(id) in (None, there.get(id)):
                bodies.unread.pop(id, None)  # it is not in the queue any more, or cannot be read

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
