"""The store watcher keeps the index up to date where others change the store: peers, or a separate mover and reaper.

The index then has hints only. A move on a stale one fails, for the store lets one of many racing moves win.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import trio

from mq import turns
from mq.broker.config import GLANCE_SECONDS, POLL_SECONDS, STRANDED_SECONDS
from mq.broker.core import Core
from mq.broker.index import QueueIndex, incarnation_of, sequence_of
from mq.broker.second_names import SecondNames
from mq.broker.settings import QueueSettings
from mq.broker.waiters import Waiters
from mq.errors import StorageError
from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import QUEUE, WRITE_JOBS, Change, Entry, Sharing

logger = logging.getLogger("mq.broker")

_SORTED_TOGETHER: Final = 2048
"""Entries that are sorted in one step."""
_REST_FACTOR: Final = 4
"""The pause after a look at the store is at least this many times the time of the look. So a large and slow store takes
up a fifth of the time at the most."""
_LONGEST_REST_SECONDS: Final = 0.4
"""The longest pause after a glance: a waiting request hears of another broker's messages within a second, even where a
look takes half of that."""


class StoreWatcher:
    """Brings the catalog up to date with the store.

    Args:
        waiters: called for queues that others have changed or deleted.
    """

    def __init__(self, core: Core, waiters: Waiters, second_names: SecondNames) -> None:
        self._catalog = core.catalog
        self._storage = core.storage
        self._ids = core.ids
        self._waiters = waiters
        self._second_names = second_names
        self._others_move = core.config.others_move
        self._sweep = core.config.sharing is Sharing.PEERS and core.config.mover
        self._stranded_since: dict[Entry, float] = {}
        self._loaded: Mapping[str, Mapping[str, Any]] | None = None

    async def load(self) -> None:
        """Load all queues and messages of the store."""
        await self.load_queues()
        for index in list(self._catalog.queues.values()):
            await self._learn(await self._storage.scan(State.READY, index.name))
        for state in (State.DELAYED, State.NEW, State.REMOVED):
            await self._learn(await self._storage.scan(state))

    async def load_queues(self) -> None:
        """Load the queues and their settings."""
        known = set(self._catalog.queues)  # without those made during the scan, which are not gone
        records = await self._storage.records(QUEUE)
        if records is self._loaded:
            return  # a store gives the same again where nothing has changed
        for name, record in records.items():
            settings = QueueSettings.stored(record.get("settings", {}))
            index = self._catalog.queues.get(name)
            if index is None:
                created = int(record.get("created") or 0)
                self._ids.observe(created)
                self._catalog.add_queue(
                    QueueIndex(
                        name,
                        created,
                        settings,
                        record.get("declared"),
                        incarnation=incarnation_of(record),
                        purges=int(record.get("purges") or 0),
                        owner=record.get("owner"),
                    )
                )
            elif name in known:
                index.incarnation = incarnation_of(record)  # a peer that made it at the same time may have won
                if index.settings != settings:
                    index.settings, index.bodies = settings, None
                    self._waiters.call(index)
                elif index.settings.sqs != settings.sqs:
                    index.settings = settings
        for name in known & self._catalog.queues.keys() - records.keys():
            index = self._catalog.queues[name]
            self._catalog.drop_queue(name)
            index.deleted = True
            self._waiters.call(index)
        self._loaded = records

    async def refresh(self, index: QueueIndex) -> None:
        """Load which messages of one queue are READY."""
        async for entry in turns.in_turns(await self._storage.scan(State.READY, index.name), turns.LIGHT):
            self._appeared(entry)

    async def run(self) -> None:
        """Keep up for ever: by the store's notices of changes, or by scans where it gives none."""
        async with trio.open_nursery() as nursery:
            changes = self._storage.changes()
            if changes is None:
                nursery.start_soon(do_every, POLL_SECONDS, self._look_again)
                nursery.start_soon(do_every, GLANCE_SECONDS, self._glance, _LONGEST_REST_SECONDS)
                return
            if self._sweep:
                nursery.start_soon(do_every, STRANDED_SECONDS, self._look_again)
            async with changes as told:
                await self._look_again()
                async for change in told:
                    await self._apply(change)

    async def _glance(self) -> None:
        """Load the READY messages of the queues that requests wait for: all at once, so that none waits for others."""
        async with trio.open_nursery() as nursery:
            for index in self._waiters.waited_for():
                nursery.start_soon(self._glance_at, index)

    async def _glance_at(self, index: QueueIndex) -> None:
        try:
            await self.refresh(index)
        except StorageError as error:
            logger.debug("temporarily unable to read from storage: %s", error)

    async def _look_again(self) -> None:
        """Compare the whole index with the store."""
        try:
            await self.load_queues()
            for index in list(self._catalog.queues.values()):
                await self._compare(index, State.READY, await self._storage.scan(State.READY, index.name))
            delayed: dict[str, list[Entry]] = {}
            async for entry in turns.in_turns(await self._storage.scan(State.DELAYED), turns.LIGHT // 4):
                delayed.setdefault(entry.queue, []).append(entry)
            for index in list(self._catalog.queues.values()):
                await self._compare(index, State.DELAYED, delayed.get(index.name, []))
            if self._sweep:
                await self._take_over()
        except StorageError as error:
            logger.warning("temporarily unable to read from storage: %s", error)

    async def _compare(self, index: QueueIndex, state: State, there: list[Entry]) -> None:
        ids = {entry.id for entry in there}
        async for entry in turns.in_turns(index.seen(), turns.LIGHT // 2):
            is_gone = entry.state is state and entry.id not in ids and not index.is_out(entry.id)
            # It may have moved by now, or be on its way.
            if is_gone and index.find(entry.id) == entry and entry.id not in self._catalog.locks:
                _forget(index, entry.id)
        async for entry in turns.in_turns(there, turns.LIGHT):
            self._appeared(entry)

    async def _take_over(self) -> None:
        """Deliver and reap messages that have lain in NEW or REMOVED for long: the broker that had them died."""
        now, before = trio.current_time(), self._stranded_since
        entries = await self._storage.scan(State.NEW) + await self._storage.scan(State.REMOVED)
        self._stranded_since = {entry: before.get(entry, now) for entry in entries}
        for entry, since in self._stranded_since.items():
            if now - since < STRANDED_SECONDS:
                continue
            if entry.state is State.NEW:
                self._appeared(entry)
            else:
                # A peer may have been killed in the middle of the removal. What goes with the message would be gone.
                await self._second_names.remove(entry.queue, entry.id, ())
                if entry.id not in self._catalog.locks:
                    self._catalog.place(entry)

    async def _apply(self, change: Change) -> None:
        entry = change.entry
        if entry is None:
            await self._look_again()
        elif not change.present:
            self._vanished(entry)
        elif entry.state in (State.READY, State.DELAYED):
            self._appeared(entry)

    async def _learn(self, entries: list[Entry]) -> None:
        async for entry in turns.in_turns(await _sorted(entries), turns.LIGHT):
            if entry.state is not State.REMOVED:  # those of a deleted queue are named by a clock that nothing checks
                self._ids.observe(sequence_of(entry))
            if entry.id in self._catalog.locks:
                continue  # a peer has moved it since an earlier scan, and this broker is removing it
            if entry.state is State.REMOVED:
                if not (self._sweep and self._second_names.may_exist):  # else it is taken over later
                    self._catalog.place(entry)
            elif entry.queue in self._catalog.queues:
                self._place(self._catalog.queues[entry.queue], entry)
            elif entry.queue not in self._catalog.strangers:
                self._catalog.strangers.add(entry.queue)
                if entry.queue != WRITE_JOBS:
                    logger.warning(
                        "found messages of queue %s in the folder %s/. The queue does not exist, so mq ignores them",
                        entry.queue,
                        entry.state.value,
                    )

    def _appeared(self, entry: Entry) -> None:
        index = self._catalog.queues.get(entry.queue)
        if index is not None and entry.id not in self._catalog.locks:
            self._place(index, entry)

    def _place(self, index: QueueIndex, entry: Entry) -> None:
        """Let the index have a message where it was found, and nowhere else."""
        known = index.find(entry.id) if self._others_move else None
        if known is not None:
            # No message comes back to NEW: there lies what a killed peer has left of its move, or the look is old.
            if known == entry or entry.state is State.NEW:
                return
            index.discard(entry.id)
        self._catalog.place(entry)

    def _vanished(self, entry: Entry) -> None:
        index = self._catalog.queues.get(entry.queue)
        if index is not None and entry.id not in self._catalog.locks and index.find(entry.id) == entry:
            _forget(index, entry.id)


async def do_every(seconds: float, look: Callable[[], Awaitable[None]], longest_rest: float = math.inf) -> None:
    """Call `look` every so many seconds for ever, less often when it takes long.

    Args:
        longest_rest: the longest pause, in seconds, however long a look takes.
    """
    while True:
        await trio.sleep(seconds)
        began = trio.current_time()
        await look()
        rest = min(_REST_FACTOR * (trio.current_time() - began), longest_rest)
        await trio.sleep(max(0.0, rest - seconds))


async def _sorted(entries: list[Entry]) -> Iterable[Entry]:
    """The entries by their ids. To sort a million in one step would take most of a second."""
    slices = turns.slices(entries, turns.JOB // _SORTED_TOGETHER)
    runs = [sorted(some, key=_key) async for some in slices]
    return runs[0] if len(runs) == 1 else heapq.merge(*runs, key=_key)


def _key(entry: Entry) -> int:
    return entry.id.key


def _forget(index: QueueIndex, id: MessageId) -> None:
    index.discard(id)
    if index.bodies is not None:
        index.bodies.left(id)
