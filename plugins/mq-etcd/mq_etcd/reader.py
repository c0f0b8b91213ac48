"""Find, scan and read: what changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import Entry, Stored
from mq_etcd.bodies import unpack
from mq_etcd.client import Client
from mq_etcd.keys import Keys, decode_meta
from mq_etcd.values import Get, Operation, Page, end_of_prefix

READ_AT_ONCE: Final = 16
"""Messages in one reply: it has at most so many MiB."""
SCANNED_AT_ONCE: Final = 2000


class Reader:
    """Looks at messages.

    Args:
        lives: the queues that there are, with the revisions at which they were made.
    """

    def __init__(self, client: Client, keys: Keys, lives: Mapping[str, int]) -> None:
        self._client = client
        self._keys = keys
        self._lives = lives

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where a message is."""
        states = [state for state in (State.NEW, State.READY, State.DELAYED) if self._is_there(state, queue)]
        wanted = [Get(self._place(Entry(queue, id, state))) for state in states]
        for state, page in zip(states, await self._pages(wanted), strict=True):
            for place in page.found:
                return self._keys.entry(place.key, place.value, state)
        return None

    async def contains(self, id: MessageId) -> bool:
        """Return whether a message has that id: its body is there from its Write until its Unlink."""
        return bool((await self._client.range(self._keys.body(id), keys_only=True)).found)

    async def scan(self, state: State, queue: str | None, limit: int | None) -> list[Entry]:
        """Entries in a state; dropped queues excepted."""
        if queue is not None and not self._is_there(state, queue):
            return []
        folder = self._keys.folder(state, queue, self._lives.get(queue or "", 0))
        entries: list[Entry] = []
        size = min(limit or SCANNED_AT_ONCE, SCANNED_AT_ONCE)
        after, more = folder, True
        while more and (limit is None or len(entries) < limit):
            page = await self._client.range(after, end_of_prefix(folder), limit=size)
            listed = (self._keys.entry(place.key, place.value, state) for place in page.found)
            entries += filter(None, listed)
            more = page.more
            after = page.found[-1].key + "\0" if page.found else after
        return entries[:limit]

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """The messages at these places."""
        found: list[Stored | None] = []
        for start in range(0, len(entries), READ_AT_ONCE):
            found += await self._read(entries[start : start + READ_AT_ONCE])
        return found

    async def _read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        wanted = [[Get(self._place(entry)), Get(self._keys.body(entry.id))] for entry in entries]
        pages = await self._pages(list(itertools.chain.from_iterable(wanted)))
        stored: list[Stored | None] = []
        for entry, place, body in zip(entries, pages[::2], pages[1::2], strict=True):
            is_there = bool(place.found) and self._is_there(entry.state, entry.queue)
            is_meant = is_there and decode_meta(place.found[0].value) == entry.meta
            stored.append(unpack(body.found[0].value, entry.id) if is_meant and body.found else None)
        return stored

    async def _pages(self, wanted: Sequence[Operation]) -> list[Page]:
        seen = await self._client.txn([], wanted, repeats=True)
        return [answer for answer in seen.answers if isinstance(answer, Page)]

    def _is_there(self, state: State, queue: str) -> bool:
        return state is not State.READY or queue in self._lives

    def _place(self, entry: Entry) -> str:
        return self._keys.place(entry, self._lives.get(entry.queue, 0))
