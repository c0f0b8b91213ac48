"""A cluster's store in two: names and what all nodes share in the coordinator's, messages in one that carries load.

The coordinator's store says which queues there are; each change of it is fenced by the leader's candidacy. The other
one is fenced by the number of the same candidacy. Only a leader changes either, and it makes the two agree when it
opens them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final

from mq.cluster.record_keeper import SHARED_KINDS
from mq.errors import StorageError
from mq.storage.interface import (
    QUEUE,
    ClusterStorage,
    Description,
    Drop,
    Operation,
    Outcome,
    Put,
    Result,
    Storage,
    changes_queue,
)
from mq.storage.records import drop_record, put_record

CONFIRMED: Final = "confirmed"
"""The kind of records in the coordinator's store that say how far a store of messages has come."""
LIFE: Final = ("created", "incarnation")
"""The fields of a queue's record that tell one life of its name from the next."""


class ConfirmedRecord:
    """A :class:`~mq.storage.confirmed.LastConfirmed` in the coordinator's store. What came in the last second before a
    master died may not be noted.
    """

    def __init__(self, names: Storage) -> None:
        self._names = names
        self._noted: dict[str, int] = {}
        self._kept: dict[str, int] = {}

    async def recall(self, store: str) -> int:
        """As in LastConfirmed."""
        found = (await self._names.records(CONFIRMED)).get(store, {})
        return int(found.get("number", 0))

    def note(self, store: str, number: int) -> None:
        """As in LastConfirmed."""
        self._noted[store] = number

    async def flush(self) -> None:
        """As in LastConfirmed."""
        for store, number in list(self._noted.items()):
            if self._kept.get(store) != number:
                with suppress(StorageError):  # a master of before keeps nothing
                    await put_record(self._names, CONFIRMED, store, {"number": number})
                    self._kept[store] = number

    def forgetting(self, store: str) -> str:
        """As in LastConfirmed."""
        return f"stop the nodes, and delete the key of the record {CONFIRMED} {store} in etcd"


class SplitStorage:
    """A :class:`~mq.storage.interface.Storage` over two.

    Args:
        names: has the queues and what all nodes share; not open yet.
        messages: has the rest; not open yet.
    """

    def __init__(self, names: Storage, messages: ClusterStorage) -> None:
        self._names = names
        self._messages = messages
        self.stage, self.read, self.find, self.scan = messages.stage, messages.read, messages.find, messages.scan
        self.contains, self.changes = messages.contains, messages.changes
        self.check_reachable = messages.check_reachable  # whether the coordinator answers, the candidacy tells

    @property
    def description(self) -> Description:
        """The description of the messages' store."""
        return self._messages.description

    async def open(self) -> None:
        """Open both, and let the messages' store have the queues that there are, each in its present life."""
        await self._names.open()
        await self._messages.open()
        queues = await self._names.records(QUEUE)
        known = await self._messages.records(QUEUE)
        for queue in known.keys() - queues.keys():
            await drop_record(self._messages, QUEUE, queue)
        for queue, value in queues.items():
            await self._let_live(queue, value, known.get(queue))

    async def aclose(self) -> None:
        """Close both."""
        await self._messages.aclose()
        await self._names.aclose()

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of a kind."""
        return await self._of(kind).records(kind)

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do each operation where it belongs: a record where its kind does, all else in the messages' store."""
        if changes_queue(operations):
            return await self._change_queue(operations)
        outcomes: list[Outcome] = []
        for store, some in groupby(operations, key=self._store_of):
            outcomes += await store.commit(list(some))
        return outcomes

    async def _change_queue(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Change a queue in both, in the store of the names first: after that the other one has leftovers at most."""
        [change], [outcome] = operations, await self._names.commit(operations)
        if isinstance(change, Put) and outcome.result is Result.DONE:
            await self._let_live(change.key, change.value, (await self._messages.records(QUEUE)).get(change.key))
        elif isinstance(change, Drop) and outcome.result in (Result.DONE, Result.GONE):
            [dropped] = await self._messages.commit(operations)
            return [outcome if dropped.result is Result.GONE else dropped]
        return [outcome]

    def _store_of(self, operation: Operation) -> Storage:
        return self._of(operation.kind) if isinstance(operation, Put | Drop) else self._messages

    def _of(self, kind: str) -> Storage:
        return self._names if kind == QUEUE or kind.startswith(SHARED_KINDS) else self._messages

    async def _let_live(self, queue: str, value: Mapping[str, Any], known: Mapping[str, Any] | None) -> None:
        """Make sure that the messages' store has the queue, and nothing of an earlier one of its name."""
        life = {key: value.get(key, 0) for key in LIFE}
        if known == life:
            return
        if known is not None:
            await drop_record(self._messages, QUEUE, queue)
        await put_record(self._messages, QUEUE, queue, life)
