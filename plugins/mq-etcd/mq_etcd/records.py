"""Records, and with those of queues what becomes of their messages."""

from __future__ import annotations

import json
from typing import Any

from mq.storage.interface import QUEUE, Drop, Entry, Outcome, Put, Result
from mq_etcd.batches import MOST_IN_GROUP, Batches
from mq_etcd.client import Client
from mq_etcd.keys import Keys, buried, id_at, life_of, record_key
from mq_etcd.names import reserved_by
from mq_etcd.steps import LARGEST_RECORD, encode_record, too_long
from mq_etcd.values import Delete, Get, KeyValue, Nested, Page, absent, end_of_prefix, present
from mq_etcd.values import Operation as EtcdOperation
from mq_etcd.values import Outcome as EtcdOutcome
from mq_etcd.values import Put as EtcdPut


class Records:
    """The records of a store.

    Attributes:
        lives: the queues that there are, with the revisions at which their records were made.

    Args:
        reserved: the beginning of the keys that reserve names; None where none are reserved.
    """

    def __init__(self, client: Client, keys: Keys, reserved: str | None = None) -> None:
        self._client = client
        self._keys = keys
        self._reserved = reserved
        self.lives: dict[str, int] = {}

    async def load(self) -> None:
        """Learn which queues there are."""
        found = await self._found(QUEUE)
        self.lives.clear()
        self.lives.update({record_key(record.key): record.created for record in found})

    async def all(self, kind: str) -> dict[str, dict[str, Any]]:
        """The records of a kind, by key."""
        return {record_key(record.key): json.loads(record.value) for record in await self._found(kind)}

    async def change_queue(self, batches: Batches, operation: Put | Drop) -> Outcome:
        """Put or drop a queue; when it is dropped, its READY messages await the reaper. EXISTS when it would be made,
        and a node has reserved its name."""
        if isinstance(operation, Put):
            return await self._put(batches, operation)
        queue = operation.key
        name = self._keys.record(QUEUE, queue)
        kept = await self._client.get(name)
        if kept is None:
            return Outcome(Result.GONE)
        grave = EtcdPut(self._keys.grave(queue, kept.created), b"")
        await batches.change(Nested([present(name)], [Delete(name), grave]))
        self.lives.pop(queue, None)
        return Outcome(Result.DONE)

    async def _put(self, batches: Batches, put: Put) -> Outcome:
        queue = put.key
        name = self._keys.record(QUEUE, queue)
        data = encode_record(put.value)
        if len(data) > LARGEST_RECORD:
            return Outcome(Result.FULL, reason=too_long(data))
        putting = Nested([], [EtcdPut(name, data), Get(name, keys_only=True)])
        reserving = None if self._reserved is None else reserved_by(self._reserved, queue)
        if reserving is not None:
            again = putting._replace(compares=[present(name)])
            putting = putting._replace(compares=[absent(reserving, end_of_prefix(reserving))], otherwise=[again])
        kept = _kept(await batches.change(putting)) or await self._client.get(name)
        if kept is None and reserving is not None:
            return Outcome(Result.EXISTS, reason=await self._reserved_by(queue, reserving))
        assert kept is not None, "a record that was put is not there"
        self.lives[queue] = kept.created
        return Outcome(Result.DONE, existed=kept.version > 1)

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
        page = await self._client.range(folder, end_of_prefix(folder), limit=MOST_IN_GROUP - 1)
        going: list[EtcdOperation] = []
        for place in page.found:
            going += [Delete(place.key), Delete(self._keys.body(id_at(place.key)))]
        if not page.more:
            going.append(Delete(grave))
        await batches.change(Nested([], going))
        return Outcome(Result.MORE if page.more else Result.DONE)

    async def _reserved_by(self, queue: str, begin: str) -> str:
        page = await self._client.range(begin, end_of_prefix(begin), keys_only=True)
        nodes = " and ".join(found.key.removeprefix(begin) for found in page.found) or "another node"
        return (
            f"queue {queue} already exists on node {nodes} as a local queue: delete it there first, or choose "
            "another name"
        )

    async def _found(self, kind: str) -> list[KeyValue]:
        prefix = self._keys.records(kind)
        pages = [page async for page in self._client.pages(prefix, end_of_prefix(prefix), size=100)]
        return [record for page in pages for record in page.found]


def _kept(outcome: EtcdOutcome | None) -> KeyValue | None:
    """The key that a transaction has written; None where it has not, or where its answer was lost."""
    last = outcome.answers[-1] if outcome is not None and outcome.answers else None
    if isinstance(last, EtcdOutcome):
        return _kept(last)
    return last.found[0] if isinstance(last, Page) and last.found else None
