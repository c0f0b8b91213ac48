"""Keeping up with others who change the same store: other brokers (peers), or a mover and a reaper of their own.

What is learned here are hints. Whoever acts on a stale one finds out at the move, which one of many wins.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from mq.broker.catalog import Catalog
from mq.broker.config import GLANCE_SECONDS, POLL_SECONDS, STRANDED_SECONDS
from mq.broker.index import QueueIndex
from mq.broker.queue_settings import QueueSettings
from mq.errors import StorageError
from mq.lifecycle import State
from mq.message import MessageId, MessageIds
from mq.storage.interface import QUEUE, Change, Entry, Storage

logger = logging.getLogger("mq.broker")

_REST: Final = 4
"""Who looks rests for so many times as long as the look took, if that is longer than the usual pause: a store of many
queues far away takes up a fifth of the time, and not all of it."""


class Follower:
    """Brings a catalog up to date with its store.

    Args:
        catalog: what is brought up to date.
        storage: what is looked at.
        ids: kept younger than everything seen.
        clock_ns: wall clock, nanoseconds since 1970.
        changed: told of queues that others have set anew or deleted.
        waited_for: the queues in whose lines somebody stands.
        sweep: also take over what a dead peer left in NEW and REMOVED.
    """

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        ids: MessageIds,
        clock_ns: Callable[[], int],
        changed: Callable[[QueueIndex], None],
        waited_for: Callable[[], list[QueueIndex]],
        *,
        sweep: bool,
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._ids = ids
        self._clock_ns = clock_ns
        self._changed = changed
        self._waited_for = waited_for
        self._sweep = sweep
        self._strangers: set[str] = set()

    async def load(self) -> None:
        """Learn all that is in the store."""
        await self.load_queues()
        for index in list(self._catalog.queues.values()):
            self._learn(await self._storage.scan(State.READY, index.name))
        for state in (State.DELAYED, State.NEW, State.REMOVED):
            self._learn(await self._storage.scan(state))

    async def load_queues(self) -> None:
        """Learn which queues there are."""
        known = set(self._catalog.queues)  # one that is made while we look is not among them, and not gone
        records = await self._storage.records(QUEUE)
        for name, record in records.items():
            settings = QueueSettings.stored(record.get("settings", {}))
            index = self._catalog.queues.get(name)
            if index is None:
                created = int(record.get("created") or 0)
                self._ids.observe(created)
                self._catalog.queues[name] = QueueIndex(name, created, settings, record.get("declared"))
            elif index.settings != settings and name in known:
                index.settings, index.bodies = settings, None
                self._changed(index)
        for name in known & self._catalog.queues.keys() - records.keys():
            index = self._catalog.queues.pop(name)
            index.deleted = True
            self._changed(index)

    async def refresh(self, index: QueueIndex) -> None:
        """Learn which messages of one queue are READY."""
        for entry in await self._storage.scan(State.READY, index.name):
            self._appeared(entry)

    async def run(self) -> None:
        """Keep up for ever: as the store tells, and by looking again from time to time where it cannot."""
        async with trio.open_nursery() as nursery:
            changes = self._storage.changes()
            if changes is None:
                nursery.start_soon(do_every, POLL_SECONDS, self._look_again)
                nursery.start_soon(do_every, GLANCE_SECONDS, self._glance)
                return
            if self._sweep:
                nursery.start_soon(do_every, STRANDED_SECONDS, self._look_again)
            async with changes as told:
                await self._look_again()
                async for change in told:
                    await self._apply(change)

    async def _glance(self) -> None:
        """Look at the queues that somebody waits for, and at nothing else."""
        try:
            for index in self._waited_for():
                await self.refresh(index)
        except StorageError as error:
            logger.debug("cannot look at the store now: %s", error)

    async def _look_again(self) -> None:
        """Compare everything: what is there, and what is there no more."""
        try:
            await self.load_queues()
            for index in list(self._catalog.queues.values()):
                self._compare(index, State.READY, await self._storage.scan(State.READY, index.name))
            delayed = await self._storage.scan(State.DELAYED)
            for index in list(self._catalog.queues.values()):
                self._compare(index, State.DELAYED, [entry for entry in delayed if entry.queue == index.name])
            if self._sweep:
                await self._take_over()
        except StorageError as error:
            logger.warning("cannot look at the store now: %s", error)

    def _compare(self, index: QueueIndex, state: State, there: list[Entry]) -> None:
        ids = {entry.id for entry in there}
        for id in index.ids(state) - ids:
            if id not in self._catalog.transit:
                _forget(index, id)
        for entry in there:
            self._appeared(entry)

    async def _take_over(self) -> None:
        """What lies in NEW or REMOVED for long was left by a broker that died: finish it."""
        before = self._clock_ns() - round(STRANDED_SECONDS * 1e9)
        for entry in await self._storage.scan(State.NEW) + await self._storage.scan(State.REMOVED):
            if entry.id.published_ns >= before:
                continue
            if entry.state is State.NEW:
                self._appeared(entry)
            elif entry.id not in self._catalog.transit:
                self._catalog.place(entry)

    async def _apply(self, change: Change) -> None:
        entry = change.entry
        if entry is None:
            await self._look_again()
        elif not change.present:
            self._vanished(entry)
        elif entry.state in (State.READY, State.DELAYED):
            self._appeared(entry)

    def _learn(self, entries: list[Entry]) -> None:
        for entry in sorted(entries, key=lambda entry: entry.id.key):
            self._ids.observe(entry.joined)
            if entry.id in self._catalog.transit:
                continue  # a peer has moved it since we saw it elsewhere, and it is on its way out
            if entry.queue in self._catalog.queues or entry.state is State.REMOVED:
                self._catalog.place(entry)
            elif entry.queue not in self._strangers:
                self._strangers.add(entry.queue)
                logger.warning("messages of %s lie in %s/: no such queue", entry.queue, entry.state.value)

    def _appeared(self, entry: Entry) -> None:
        index = self._catalog.queues.get(entry.queue)
        if index is None or entry.id in self._catalog.transit:
            return
        if index.find(entry.id) != entry:
            index.discard(entry.id)
            self._catalog.place(entry)

    def _vanished(self, entry: Entry) -> None:
        index = self._catalog.queues.get(entry.queue)
        if index is not None and entry.id not in self._catalog.transit and index.find(entry.id) == entry:
            _forget(index, entry.id)


async def do_every(seconds: float, look: Callable[[], Awaitable[None]]) -> None:
    """Look for ever, every so many seconds, and less often when it takes long."""
    while True:
        await trio.sleep(seconds)
        began = trio.current_time()
        await look()
        await trio.sleep(max(0.0, _REST * (trio.current_time() - began) - seconds))


def _forget(index: QueueIndex, id: MessageId) -> None:
    index.discard(id)
    if index.bodies is not None:
        index.bodies.left(id)
