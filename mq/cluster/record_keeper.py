"""The records that all nodes of a cluster share, as the leader keeps them: durable exchanges, bindings and users.

They stand in the cluster's store. Every node follows them there, and says up to which change they are in effect with
it: one record counts the changes, and is written after the records it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import trio

from mq.amqp.model.declared import BINDING, EXCHANGE, Binding, DurableRecord
from mq.amqp.model.names import encode
from mq.amqp.model.topology import PREDECLARED
from mq.broker import Broker
from mq.errors import Conflict, NoSuchQueue

SHARED_KINDS: Final = "amqp-"
"""What the kinds of shared records begin with."""
CHANGES: Final = "amqp-changes"
"""The kind of record that counts the changes."""
LAST: Final = "last"
"""Its only key."""
NUMBER: Final = "number"
USER: Final = "amqp-user"
"""The kind of a user's record: its key is the name, its value the user's table as in a users file. It begins as all of
these do: so a node hears of them in the order of their changes."""


def number_in(value: Mapping[str, Any] | None) -> int:
    """What a record counts; 0 where there is none."""
    return int(value[NUMBER]) if value is not None else 0


class RecordKeeper:
    """Checks and makes changes of the shared records, one after the other."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.declarations
        self._changing = trio.Lock()
        self._exchanges: dict[str, Any] = {}
        self._bindings: dict[str, Binding] = {}
        self._users: dict[str, Mapping[str, Any]] = {}
        self._number = 0

    async def load(self) -> None:
        """Read what there is, and drop bindings to queues that are gone."""
        self._exchanges = dict(await self._store.records(EXCHANGE))
        self._bindings = {key: Binding.stored(value) for key, value in (await self._store.records(BINDING)).items()}
        self._users = dict(await self._store.records(USER))
        self._number = number_in((await self._store.records(CHANGES)).get(LAST))
        ends = {key: binding.queue for key, binding in self._bindings.items()}
        lost = [key for key, queue in ends.items() if queue is not None and not self._store.knows(queue)]
        if lost:
            await self._make([], [DurableRecord(BINDING, key, {}) for key in lost])

    async def change(self, puts: Sequence[Sequence[Any]], drops: Sequence[Sequence[Any]]) -> int:
        """Put and drop records: (kind, key, value) each. With an exchange go all bindings from and to it.
        A user that is there is replaced.

        Returns:
            The number of the last change: once it is in effect at a node, this one is.

        Raises:
            Conflict: an exchange is there as another one; or an end of a binding is not there.
            NoSuchQueue: the queue of a binding is not there.
        """
        async with self._changing:
            new = [each for each in (DurableRecord(*put) for put in puts) if not self._has(each)]
            for each in new:
                if each.kind == BINDING:
                    self._check_ends(Binding.stored(each.value))
            gone = [record for drop in drops for record in self._with_bindings(DurableRecord(*drop))]
            if new or gone:
                await self._make(new, gone)
            return self._number

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue of the cluster, and before it the bindings to it.

        Raises:
            NoSuchQueue: it is not there.
        """
        async with self._changing:
            bound = [key for key, binding in self._bindings.items() if binding.queue == queue]
            if bound:
                await self._make([], [DurableRecord(BINDING, key, {}) for key in bound])
            await self._broker.delete_queue(queue)

    def _known(self, kind: str) -> dict[str, Any]:
        known: dict[str, dict[str, Any]] = {BINDING: self._bindings, USER: self._users, EXCHANGE: self._exchanges}
        return known[kind]

    def _has(self, record: DurableRecord) -> bool:
        if record.kind == BINDING:
            return record.key in self._bindings
        if record.kind == USER:
            return self._users.get(record.key) == record.value
        there = self._exchanges.get(record.key)
        if there is not None and there != record.value:
            raise Conflict(f"exchange {record.key} already exists with a different type or different arguments")
        return there is not None

    def _check_ends(self, binding: Binding) -> None:
        exchanges = [binding.source] if binding.to.is_queue else [binding.source, binding.to.name]
        for name in exchanges:
            if name not in PREDECLARED and encode(binding.vhost, name) not in self._exchanges:
                raise Conflict(
                    f"exchange '{name}' in vhost '{binding.vhost}' was deleted during the request. Declare it again"
                )
        if binding.queue is not None and not self._store.knows(binding.queue):
            raise NoSuchQueue(f"queue {binding.queue} was deleted during the request")

    def _with_bindings(self, record: DurableRecord) -> Iterator[DurableRecord]:
        """What goes with a record, and the record, as far as they are there."""
        if record.kind in (BINDING, USER):
            if record.key in self._known(record.kind):
                yield record
            return
        if self._exchanges.get(record.key) != record.value:
            return
        for key, each in self._bindings.items():
            ends = {each.source} if each.to.is_queue else {each.source, each.to.name}
            if any(encode(each.vhost, name) == record.key for name in ends):
                yield DurableRecord(BINDING, key, {})
        yield record

    async def _make(self, new: Sequence[DurableRecord], gone: Sequence[DurableRecord]) -> None:
        for record in gone:
            await self._store.drop(record.kind, record.key)
            self._known(record.kind).pop(record.key, None)
        for record in new:
            await self._store.put(*record)
            value = Binding.stored(record.value) if record.kind == BINDING else record.value
            self._known(record.kind)[record.key] = value
        await self._store.put(CHANGES, LAST, {NUMBER: self._number + 1})
        self._number += 1
