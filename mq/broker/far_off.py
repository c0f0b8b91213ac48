"""A queue's messages whose time is far off. A year of them has to fit into memory, so each is integers and no Entry."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import Entry, Meta

_KEY_BITS: Final = 128
_KEY: Final = (1 << _KEY_BITS) - 1
_FEW: Final = 64
"""Deadlines of messages that are gone may stay in the heap up to this number, and more in a long one."""


class FarOff:
    """Delayed messages of one queue, by their deadlines.

    One that was never leased, and has no time to live, costs a key, its deadline, and both as one integer in a heap.

    Args:
        queue: the queue's name.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._there: dict[int, int | Entry] = {}
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._there)

    def __iter__(self) -> Iterator[Entry]:
        return (self._entry(key) for key in self._there)

    def add(self, entry: Entry) -> None:
        """Add a delayed message that no delivery holds, or replace its entry."""
        key, meta = entry.id.key, entry.meta
        deadline_ms = _deadline_ms(entry)
        is_plain = not meta.receives and meta.order is None and meta.expires_ms is None
        self._there[key] = deadline_ms if is_plain else entry
        heapq.heappush(self._heap, deadline_ms << _KEY_BITS | key)

    def find(self, id: MessageId) -> Entry | None:
        """The message of that id; None without it."""
        if not self._there:
            return None
        key = id.key
        return self._entry(key) if key in self._there else None

    def discard(self, id: MessageId) -> Entry | None:
        """Take a message out; None when it was not there."""
        entry = self.find(id)
        if entry is not None:
            del self._there[id.key]
            self._compact()
        return entry

    def take(self, up_to_ms: int, most: int) -> list[Entry]:
        """Take out up to `most` messages, those whose deadlines come first, and none whose deadline is later than
        `up_to_ms`."""
        taken: list[Entry] = []
        while self._heap and len(taken) < most and self._heap[0] >> _KEY_BITS <= up_to_ms:
            first = heapq.heappop(self._heap)
            key = first & _KEY
            if key in self._there and _deadline_ms(entry := self._entry(key)) == first >> _KEY_BITS:
                del self._there[key]
                taken.append(entry)
        return taken

    def after(self, key: int, count: int) -> list[Entry]:
        """The first `count` messages by their ids, from the one after `key` on. Takes time in proportion to all."""
        return [self._entry(found) for found in heapq.nsmallest(count, (each for each in self._there if each > key))]

    def _entry(self, key: int) -> Entry:
        there = self._there[key]
        if isinstance(there, int):
            return Entry(self._queue, MessageId.from_key(key), State.DELAYED, Meta(there))
        return there

    def _compact(self) -> None:
        """Rebuild the heap when most of its deadlines are of messages that were taken out."""
        if len(self._heap) > 2 * len(self._there) + _FEW:
            self._heap = [_deadline_ms(self._entry(key)) << _KEY_BITS | key for key in self._there]
            heapq.heapify(self._heap)


def _deadline_ms(entry: Entry) -> int:
    assert entry.meta.deadline_ms is not None, "what has no deadline is not delayed"
    return entry.meta.deadline_ms
