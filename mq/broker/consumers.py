"""Consumers that take batches: what is durable of each, in one record a consumer.

A consumer's record has its epoch, the number of the last batch that it acknowledged, and its claim: the batch that is
open or, until the next one is made, the one that was acknowledged. Then its messages may still be on their way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from mq.broker.commit import Committer
from mq.broker.index import QueueIndex
from mq.errors import Conflict, StorageFull
from mq.message import MessageId
from mq.storage.interface import Entry, Storage

KIND: Final = "consumer"
"""The kind of the records."""
MOST_CONSUMERS: Final = 1000
"""Of one queue: each is a record for ever."""


class Claim(NamedTuple):
    """What a consumer has claimed.

    Attributes:
        batch: the number of it.
        tag: 10 hexadecimal digits with which the claims of its leases begin, and those of no others.
        ids: its messages, in order.
    """

    batch: int
    tag: str
    ids: tuple[MessageId, ...]


class State(NamedTuple):
    """What is durable of a consumer.

    Attributes:
        epoch: of its last start; 0 for none.
        acknowledged: the number of the last batch that it acknowledged.
        claim: the last one that was made.
    """

    epoch: int = 0
    acknowledged: int = 0
    claim: Claim | None = None

    @property
    def open(self) -> Claim | None:
        """The claim, while it is not acknowledged."""
        return self.claim if self.claim is not None and self.claim.batch > self.acknowledged else None

    @property
    def is_acknowledged(self) -> bool:
        """Whether there is a claim, and it was acknowledged."""
        return self.claim is not None and self.open is None


class Consumer:
    """One consumer of one queue.

    Args:
        name: what it calls itself.
        created: when its queue was made, in UUID ticks: another queue of that name has other consumers.

    Attributes:
        state: what is durable.
        lock: one change at a time.
        lease_ends: when the first lease of its claim ends (Trio's clock); 0 where that is not known.
        is_finished: whether all messages of an acknowledged claim are known to be gone.
    """

    def __init__(self, name: str, created: int, state: State = State()) -> None:  # noqa: B008 - frozen
        self.name = name
        self.created = created
        self.state = state
        self.lock = trio.Lock()
        self.lease_ends = 0.0
        self.is_finished = False

    @property
    def ids(self) -> tuple[MessageId, ...]:
        """The messages of its claim."""
        return self.state.claim.ids if self.state.claim is not None else ()

    @property
    def tag(self) -> str:
        """With which the receipts of its claim begin."""
        return self.state.claim.tag if self.state.claim is not None else ""

    def has_leased(self, entry: Entry) -> bool:
        """Whether a message is leased by this consumer's claim."""
        return bool(self.tag) and entry.meta.claim is not None and entry.meta.claim.startswith(self.tag)


class Consumers:
    """The consumers of all queues, and their records.

    Args:
        storage: keeps them.
        committer: is told when the medium fails.
    """

    def __init__(self, storage: Storage, committer: Committer) -> None:
        self._storage = storage
        self._committer = committer
        self._known: dict[str, dict[str, Consumer]] = {}

    async def load(self, queues: Mapping[str, QueueIndex]) -> None:
        """Learn what is in the store. What belongs to a queue that is no more is forgotten.

        Raises:
            StorageError: it cannot be read.
        """
        for key, record in (await self._storage.records(KIND)).items():
            queue, _, name = key.partition("/")
            index = queues.get(queue)
            if index is None or record.get("created") != index.created:
                with suppress(StorageFull):  # what is of no use any more can wait
                    await self._storage.drop_record(KIND, key)
            else:
                self._known.setdefault(queue, {})[name] = Consumer(name, index.created, _state(record))

    def unfinished(self, queues: Mapping[str, QueueIndex]) -> Iterator[tuple[QueueIndex, Consumer]]:
        """Those whose acknowledged messages may still be there."""
        for queue in self._known:
            for consumer in self._known[queue].values():
                if consumer.state.is_acknowledged:
                    yield queues[queue], consumer

    def of(self, index: QueueIndex) -> list[Consumer]:
        """All of a queue, by name."""
        known = self._known.get(index.name, {})
        return [known[name] for name in sorted(known) if known[name].created == index.created]

    def get(self, index: QueueIndex, name: str) -> Consumer | None:
        """The one of that name."""
        consumer = self._known.get(index.name, {}).get(name)
        return consumer if consumer is not None and consumer.created == index.created else None

    def get_or_make(self, index: QueueIndex, name: str) -> Consumer:
        """The one of that name; durable with its first :meth:`keep`.

        Raises:
            Conflict: there are too many.
        """
        consumer = self.get(index, name)
        if consumer is None:
            if len(self.of(index)) >= MOST_CONSUMERS:
                raise Conflict(f"queue {index.name} has {MOST_CONSUMERS} consumers: delete those that are of no use")
            consumer = self._known.setdefault(index.name, {})[name] = Consumer(name, index.created)
        return consumer

    async def keep(self, index: QueueIndex, consumer: Consumer, state: State) -> None:
        """This is how far it is from now on; durable on return.

        Raises:
            StorageError: it is not known to be.
        """
        with self._committer.noting_failure(), trio.CancelScope(shield=True):
            await self._storage.put_record(KIND, f"{index.name}/{consumer.name}", _record(consumer, state))
        consumer.state = state
        consumer.is_finished = False

    async def drop(self, index: QueueIndex, consumer: Consumer) -> None:
        """It is no more.

        Raises:
            StorageError: it may still be there.
        """
        with self._committer.noting_failure():
            await self._storage.drop_record(KIND, f"{index.name}/{consumer.name}")
        self._known.get(index.name, {}).pop(consumer.name, None)


def _record(consumer: Consumer, state: State) -> dict[str, Any]:
    claim = state.claim
    record = {"created": consumer.created, "epoch": state.epoch, "acknowledged": state.acknowledged}
    return record if claim is None else {**record, "claim": [claim.batch, claim.tag, list(claim.ids)]}


def _state(record: Mapping[str, Any]) -> State:
    kept = record.get("claim")
    claim = None if kept is None else Claim(kept[0], kept[1], tuple(map(MessageId, kept[2])))
    return State(record["epoch"], record["acknowledged"], claim)
