"""Second names: what a peer that was killed in the middle of a move leaves of a message, besides the name that counts.

Where a move is a link and an unlink, both names are there until the unlink. As long as peers of the killed broker go
on, nothing repairs the store. So a message that is removed has to go under all its names: from any other it comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from contextlib import suppress

from mq.broker.core import Core
from mq.broker.index import QueueIndex
from mq.broker.jobs import MoveJob
from mq.broker.leases import Leases
from mq.errors import NoSuchMessage
from mq.lifecycle import Kind, State
from mq.message import MessageId
from mq.storage.interface import Entry, Meta, Move


class SecondNames:
    """Removes the other names of messages that are removed."""

    def __init__(self, core: Core, leases: Leases) -> None:
        self._catalog = core.catalog
        self._storage = core.storage
        self._jobs = core.jobs
        self._leases = leases
        self._others_move = core.config.others_move

    @property
    def may_exist(self) -> bool:
        """Whether a message may have more than one name in the store."""
        return self._others_move and not self._storage.description.journaled

    def removal(self, entry: Entry) -> Move:
        """The move to REMOVED."""
        # Where a message may have more than one name, each needs one of its own in REMOVED.
        receipt = self._leases.meta(entry, 0).receipt if self.may_exist else None
        return Move(entry, State.REMOVED, Meta(receipt=receipt))

    async def remove(self, queue: str, id: MessageId, neighbours: Iterable[str]) -> None:
        """Remove a message under all the names that it still has. Does nothing where it has one name at the most.

        Raises:
            StorageError: some could not be removed.
        """
        if not self.may_exist:
            return
        # A list of every queue's folder would take too long: the index has them, but for what it has not heard of yet.
        known = [index.name for index in self._catalog.queues.values() if index.find(id) is not None]
        for name in dict.fromkeys([queue, *neighbours, *known]):
            await self._remove_from(name, id)

    async def remove_many(self, queue: str, ids: Set[MessageId], neighbours: Iterable[str]) -> None:
        """As :meth:`remove`, for many messages. Each queue is listed once, not once for each message."""
        if not self.may_exist or not ids:
            return
        known = [index.name for index in self._catalog.queues.values() if _has_one_of(index, ids)]
        for name in dict.fromkeys([queue, *neighbours, *known]):
            for state in (State.NEW, State.READY, State.DELAYED):
                for entry in await self._storage.scan(state, name):
                    if entry.id in ids:
                        await self._remove_from(name, entry.id)

    async def _remove_from(self, queue: str, id: MessageId) -> None:
        while True:
            await self._catalog.locks.wait(id)
            entry = await self._storage.find(queue, id)
            if id in self._catalog.locks:
                continue
            if entry is None:
                return
            self._catalog.begin(entry, is_leaving=True)
            job = MoveJob(self._catalog, self.removal(entry), Kind.REMOVE, "cannot remove the message")
            self._jobs.put([job])
            with suppress(NoSuchMessage):
                await job.future.get()


def _has_one_of(index: QueueIndex, ids: Set[MessageId]) -> bool:
    if len(ids) <= index.total:
        return any(index.find(id) is not None for id in ids)
    return any(entry.id in ids for entry in index.entries())
