"""Looking at messages without taking them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Final, NamedTuple

from mq.broker.deaths import Deaths
from mq.broker.index import QueueIndex
from mq.broker.transit import Transit
from mq.errors import StorageError
from mq.lifecycle import State
from mq.message import Message, MessageId
from mq.storage.interface import Entry, Storage

READY: Final = "ready"
LEASED: Final = "leased"
DELAYED: Final = "delayed"


class Seen(NamedTuple):
    """A message that was looked at.

    Attributes:
        message: as it is; close its body. Its receipt is that of the delivery that holds it.
        state: ``ready``, ``leased`` or ``delayed``.
        sequence: its place in its queue; None where that was not asked for.
    """

    message: Message
    state: str
    sequence: int | None = None


class Looking:
    """Shows messages.

    Args:
        storage: holds them.
        transit: the messages on their way.
        deaths: knows their histories.
    """

    def __init__(self, storage: Storage, transit: Transit, deaths: Deaths) -> None:
        self._storage = storage
        self._transit = transit
        self._deaths = deaths

    async def show(self, index: QueueIndex, id: MessageId) -> Seen | None:
        """One message, wherever it is."""
        while True:
            await self._transit.wait(id)
            entry = index.find(id) or await self._storage.find(index.name, id)
            if id in self._transit:
                continue
            seen = await self.see(index, [entry]) if entry is not None else []
            if seen or entry is None or (id not in self._transit and index.find(id) in (None, entry)):
                return seen[0] if seen else None

    async def page(self, index: QueueIndex, state: str, after: MessageId | None, most: int) -> list[Seen]:
        """Some messages of a queue, in their order, from the one after `after` on."""
        if state == READY:
            entries = index.after(after, most)
        else:
            start = -1 if after is None else after.key
            there = [each for each in index.delayed.values() if state_of(each) == state and each.id.key > start]
            if state == LEASED:
                there += [each for each in index.held.values() if each.id.key > start]
            entries = heapq.nsmallest(most, there, key=lambda entry: entry.id.key)
        return await self.see(index, entries)

    async def see(
        self, index: QueueIndex, entries: Sequence[Entry], sequences: Iterable[int | None] = repeat(None)
    ) -> list[Seen]:
        """Those of the entries that are still there, each with its sequence where that is given."""
        with suppress(StorageError):  # a message is worth more than its history
            await self._deaths.learn(entries)
        stored = await self._storage.read(entries)
        held, history = index.held, self._deaths.history
        seen = []
        for (queue, id, place, meta), found, sequence, entry in zip(entries, stored, sequences, entries, strict=False):
            if found is not None:
                properties, body = found
                state = LEASED if id in held else READY if place is State.READY else state_of(entry)
                message = Message(queue, id, body, properties, meta.receives, meta.claim or "", history(entry))
                seen.append(Seen(message, state, sequence))
        return seen


def state_of(entry: Entry) -> str:
    """How an entry is called to people: what is in NEW is ready in a moment, unless it has to wait."""
    if entry.meta.claim is not None:
        return LEASED
    if entry.state is State.DELAYED or (entry.state is State.NEW and entry.meta.deadline_ms is not None):
        return DELAYED
    return READY
