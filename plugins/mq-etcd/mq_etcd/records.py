"""Records, and with those of queues what becomes of their messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from mq.errors import StorageFull
from mq.storage.interface import QUEUE, Entry, Outcome, Result
from mq_etcd.batches import MOST_STEPS, Batches
from mq_etcd.client import Client
from mq_etcd.keys import Keys, buried, life_of, record_key
from mq_etcd.values import Delete, Get, KeyValue, Nested, Page, Put, end_of_prefix, present
from mq_etcd.values import Operation as EtcdOperation

LARGEST_RECORD: Final = 1 << 20
"""Bytes of JSON."""


class Records:
    """The records of a store.

    Attributes:
        lives: the queues that there are, with the revisions at which their records were made.

    Args:
        client: of etcd.
        keys: names what is there.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self.lives: dict[str, int] = {}

    async def load(self) -> None:
        """Learn which queues there are."""
        found = await self._found(QUEUE)
        self.lives.clear()
        self.lives.update({record_key(record.key): record.created for record in found})

    async def all(self, kind: str) -> dict[str, dict[str, Any]]:
        """The records of a kind, by key."""
        return {record_key(record.key): json.loads(record.value) for record in await self._found(kind)}

    async def put(self, batches: Batches, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        """Keep a record; True when it is new.

        Raises:
            StorageFull: it is longer than etcd takes.
        """
        name = self._keys.record(kind, key)
        data = json.dumps(value, separators=(",", ":")).encode("ascii")
        if len(data) > LARGEST_RECORD:
            raise StorageFull(f"a record of {len(data)} bytes: etcd takes {LARGEST_RECORD}. Keep less in it")
        outcome = await batches.change(Nested([], [Put(name, data), Get(name, keys_only=True)]))
        kept = outcome.answers[1].found[0] if outcome and isinstance(outcome.answers[1], Page) else None
        kept = kept or await self._client.get(name)
        assert kept is not None, "a record that was put is not there"
        if kind == QUEUE:
            self.lives[key] = kept.created
        return kept.version == 1

    async def drop(self, batches: Batches, kind: str, key: str) -> bool:
        """Forget a record; with a queue's, its READY messages await the reaper. False when it was not there."""
        name = self._keys.record(kind, key)
        kept = await self._client.get(name)
        if kept is None:
            return False
        dropping: list[EtcdOperation] = [Delete(name)]
        if kind == QUEUE:
            dropping.append(Put(self._keys.grave(key, kept.created), b""))
        await batches.change(Nested([present(name)], dropping))
        if kind == QUEUE:
            self.lives.pop(key, None)
        return True

    async def graves(self, queue: str | None) -> list[Entry]:
        """Dropped queues of which something is left."""
        prefix = self._keys.graves(queue)
        found = [page async for page in self._client.pages(prefix, end_of_prefix(prefix), keys_only=True)]
        return [buried(grave.key) for page in found for grave in page.found]

    async def level(self, batches: Batches, entry: Entry) -> Outcome:
        """Take away some of what was READY in a dropped queue; at last the queue itself."""
        life = life_of(entry)
        assert life is not None, f"not a dropped queue: {entry}"
        grave = self._keys.grave(entry.queue, life)
        if await self._client.get(grave) is None:
            return Outcome(Result.GONE)
        folder = self._keys.ready(entry.queue, life)
        page = await self._client.range(folder, end_of_prefix(folder), limit=MOST_STEPS // 2)
        going: list[EtcdOperation] = []
        for place in page.found:
            going += [Delete(place.key), Delete(self._keys.body_at(place.key, place.value))]
        if not page.more:
            going.append(Delete(grave))
        await batches.change(Nested([], going))
        return Outcome(Result.MORE if page.more else Result.DONE)

    async def _found(self, kind: str) -> list[KeyValue]:
        prefix = self._keys.records(kind)
        pages = [page async for page in self._client.pages(prefix, end_of_prefix(prefix), size=100)]
        return [record for page in pages for record in page.found]
