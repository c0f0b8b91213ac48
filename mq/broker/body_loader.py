"""Loads the body stats of queues (:mod:`mq.broker.bodies`), when they are first needed."""

from __future__ import annotations

import hashlib
import itertools
from typing import Final

import trio

from mq import turns
from mq.broker.bodies import BodyStats
from mq.broker.core import Core
from mq.broker.index import QueueIndex
from mq.errors import CorruptMessage
from mq.message import Body
from mq.storage.interface import Entry

_BODIES_AT_ONCE: Final = 256
"""Bodies that are opened at a time."""


class BodyLoader:
    """Loads body stats."""

    def __init__(self, core: Core) -> None:
        self._storage = core.storage
        self._catalog = core.catalog
        self._one_at_a_time = trio.Lock()

    async def load(self, index: QueueIndex) -> None:
        """Load the queue's body stats, until no body is unread."""
        while index.bodies is None or not index.bodies.is_listed or index.bodies.unread:
            async with self._one_at_a_time:
                await self._load_some(index)

    async def _load_some(self, index: QueueIndex) -> None:
        if index.bodies is None:  # never loaded, or dropped by a change of settings
            await self._list(index)
        bodies, locks = index.bodies, self._catalog.locks
        if bodies is None or not bodies.unread:
            return
        id, *some = itertools.islice(bodies.unread, 1 + _BODIES_AT_ONCE)
        await locks.wait(id)
        there = {other: entry for other in (id, *some) if (entry := index.find(other)) is not None}
        await self._read(index, bodies, list(there.values()))
        if id not in locks and index.find(id) in (None, there.get(id)):
            bodies.unread.pop(id, None)  # the message has left the queue, or cannot be read

    async def _list(self, index: QueueIndex) -> None:
        """Note which messages there are. What comes and goes meanwhile is noted by the catalog."""
        bodies = index.bodies = BodyStats(self._catalog.on_their_way(index))
        async for entry in turns.in_turns(index.seen(), turns.LIGHT // 2):
            if index.bodies is bodies:
                bodies.arrived(entry.id)
        bodies.is_listed = True

    async def _read(self, index: QueueIndex, bodies: BodyStats, entries: list[Entry]) -> None:
        read = await self._storage.read(entries)
        async for entry, stored in turns.in_turns(zip(entries, read, strict=True), turns.FRAME):
            if stored is None:
                continue  # moved meanwhile: the next round finds it
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
