"""Finds the messages that a batch consumer's claim has lost: in their queue, in others, or removed, and for which
reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from mq import turns
from mq.broker.catalog import Catalog
from mq.broker.dead_letters import DROPPED, EXPIRED, LIMIT, REJECTED, DeadLetters
from mq.broker.index import QueueIndex
from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import Entry


class LostTo:
    """Where a message is that a claim has lost."""

    READY: Final = "ready"
    """In its queue: the claim can have it again."""
    DELAYED: Final = "delayed"
    """In its queue, and READY by itself later."""
    LEASED: Final = "leased"
    """Another consumer has it."""
    DEAD_LETTERED: Final = "dead_lettered"
    """In another queue, since it was dead-lettered."""
    QUEUE_DELETED: Final = "queue_deleted"
    """Deleted together with the queue into which it was dead-lettered. This and the next three are known until the
    broker ends."""
    EXPIRED: Final = "expired"
    """Removed, because its time to live was over."""
    DROPPED: Final = "dropped"
    """Removed to make room in its queue."""
    REJECTED: Final = "rejected"
    """Removed, because another consumer rejected it."""
    REMOVED: Final = "removed"
    """Removed: acknowledged by another consumer, deleted, or purged."""


class DeadLettered(NamedTuple):
    """Dead letters among the messages that a claim has lost.

    Attributes:
        queue: where they are now.
        reason: why they were dead-lettered last.
        messages: how many.
    """

    queue: str
    reason: str
    messages: int


class LostMessages(NamedTuple):
    """The messages that a claim has lost.

    Attributes:
        missing: their number by where they are, of :class:`LostTo`.
        dead_letters: the dead-lettered ones by queue and reason.
    """

    missing: Mapping[str, int] = MappingProxyType({})
    dead_letters: tuple[DeadLettered, ...] = ()


async def find_lost(
    catalog: Catalog, dead_letters: DeadLetters, index: QueueIndex, consumer: object, ids: Sequence[MessageId]
) -> LostMessages:
    """Find the messages that a claim has lost.

    Args:
        catalog: the queues.
        dead_letters: knows which messages died, and why.
        index: the queue of the claim.
        consumer: whose claim it is.
        ids: the messages.
    """
    search = _Search(catalog, dead_letters, index, consumer)
    async for id in turns.in_turns(ids, turns.LIGHT // 2):
        search.add(id)
    for other in list(catalog.queues.values()) if search.left else ():
        if len(search.left) < other.total:
            async for id in turns.in_turns(list(search.left), turns.LIGHT // 4):
                search.add_found(other.find(id))
        else:
            async for entry in turns.in_turns(other.seen(), turns.LIGHT // 4):
                search.add_found(entry)
    return search.found()


class _Search:
    """Counts lost messages by where they are.

    Attributes:
        left: dead letters that are neither in the queue nor in its dead-letter queue: redriven to another one, or
            dead-lettered before the settings were changed.
    """

    def __init__(self, catalog: Catalog, dead_letters: DeadLetters, index: QueueIndex, consumer: object) -> None:
        self.left: set[MessageId] = set()
        self._catalog = catalog
        self._dead_letters = dead_letters
        self._index = index
        self._consumer = consumer
        self._missing: Counter[str] = Counter()
        self._dead: Counter[tuple[str, str]] = Counter()

    def add(self, id: MessageId) -> None:
        """Count a message, or leave it for a look at the other queues."""
        entry = self._index.find(id)
        if entry is not None:
            self._missing[self._fate(entry)] += 1
        elif id in self._catalog.locks:  # it is being moved
            self._missing[LostTo.LEASED] += 1
        elif (entry := self._dead_letters.find(self._index, id)) is not None:
            self._add_dead(entry)
        elif self._dead_letters.has_history(id):
            self.left.add(id)
        else:
            self._missing[_REMOVALS.get(self._dead_letters.removal(id) or "", LostTo.REMOVED)] += 1

    def add_found(self, entry: Entry | None) -> None:
        """Count a message of another queue, if it is one of those that are left."""
        if entry is not None and entry.id in self.left:
            self.left.discard(entry.id)
            self._add_dead(entry)

    def found(self) -> LostMessages:
        """All messages that were added. Those that are left are in no queue."""
        dead = tuple(DeadLettered(queue, reason, count) for (queue, reason), count in self._dead.items())
        return LostMessages(self._missing + Counter({LostTo.QUEUE_DELETED: len(self.left)}), dead)

    def _fate(self, entry: Entry) -> str:
        index, id = self._index, entry.id
        is_claimed = index.claims.get(id, self._consumer) is not self._consumer
        if id in index.held or entry.meta.receipt is not None or is_claimed:
            return LostTo.LEASED
        return LostTo.DELAYED if entry.state is State.DELAYED else LostTo.READY

    def _add_dead(self, entry: Entry) -> None:
        deaths = self._dead_letters.history(entry)
        self._missing[LostTo.DEAD_LETTERED] += 1
        self._dead[entry.queue, deaths[0]["reason"] if deaths else ""] += 1


_REMOVALS: Final = {
    EXPIRED: LostTo.EXPIRED,
    DROPPED: LostTo.DROPPED,
    REJECTED: LostTo.REJECTED,
    LIMIT: LostTo.REJECTED,
}
"""How a message went, by the reason of its removal."""
