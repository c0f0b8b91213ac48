"""The verbs of a store on a memcached server. What stands under which key: :mod:`mq_memcached.keys`.

Two connections: changes do not wait for looks. Neither hops to a thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from mq.errors import StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageId, checksum
from mq.storage.interface import Description, Entry, Operation, Outcome, Result, Staged, Stored, Write
from mq.storage.options import StorageOptions
from mq_memcached.ballast import Ballast
from mq_memcached.batches import Batches
from mq_memcached.chains import Chains
from mq_memcached.keys import Keys
from mq_memcached.link import Link
from mq_memcached.own import OwnChanges
from mq_memcached.places import Parcel, pack
from mq_memcached.reader import Reader
from mq_memcached.records import Records
from mq_memcached.server import Address, parse_address

LARGEST_BODY: Final = 64 * 1024 * 1024
"""Bytes. Bodies pass through memory here."""
_SHARE_OF_MEMORY: Final = 8
"""One body may take this part of a server's memory at the most."""
_TIDY_AFTER: Final = 512
"""How many slots of a queue may have become useless before its chain is tidied."""


def make_memcached(rest: str, options: StorageOptions) -> MemcachedStorage:
    """The factory of ``memcached:``, as in ``memcached://127.0.0.1:11211``.

    Raises:
        StorageUnusable: that is not the address of a server.
    """
    return MemcachedStorage(f"memcached:{rest}", parse_address(rest))


@dataclass(frozen=True)
class StagedBytes:
    """A large body on its way: in memory, until its Write."""

    data: list[bytes]
    size: int
    checksum: int

    async def discard(self) -> None:
        """Let go of the bytes."""
        self.data.clear()


class MemcachedStorage:
    """A :class:`~mq.storage.interface.Storage` on one memcached server.

    Args:
        name: the store's address.
        address: where the server is.
    """

    def __init__(self, name: str, address: Address) -> None:
        self._name = name
        keys = Keys(address.prefix)
        self._changing = Link(address)
        self._watching = Link(address)
        chains = Chains(self._watching, keys)
        self._records = Records(self._watching, keys, chains)
        own = OwnChanges()
        self._reader = Reader(self._watching, keys, chains, self._records, own)
        self._ballast = Ballast(self._changing, keys)
        self._batches = Batches(self._changing, keys, Chains(self._changing, keys), self._records, self._ballast, own)
        self._one_batch = trio.Lock()
        self._useless: Counter[str] = Counter()
        self._max_body = LARGEST_BODY

    @property
    def description(self) -> Description:
        """What it is. Not durable: a plain memcached forgets everything when it ends."""
        return Description(
            self._name, durable=False, shared=True, ordered=False, max_body=self._max_body, journaled=True
        )

    async def open(self) -> None:
        """See that the server is there and fit.

        Raises:
            StorageUnusable: it is not.
        """
        try:
            await self._ballast.is_whole()
        except StorageFull as error:
            raise StorageUnusable(str(error)) from error
        self._max_body = min(LARGEST_BODY, self._changing.limits.memory // _SHARE_OF_MEMORY)

    async def aclose(self) -> None:
        """Let go of the connections."""
        with trio.CancelScope(shield=True):
            await self._changing.aclose()
            await self._watching.aclose()

    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        """Keep a record."""
        return await self._records.put(kind, key, value)

    async def drop_record(self, kind: str, key: str) -> bool:
        """Forget a record; with a queue's, its READY messages await the reaper."""
        return await self._records.drop(kind, key)

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of a kind."""
        return await self._records.all(kind)

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        """Collect a large body in memory.

        Raises:
            StorageFull: it is longer than `max_body`.
        """
        data = bytearray()
        async for chunk in chunks:
            data += chunk
            if len(data) > self._max_body:
                raise StorageFull(f"{self._name} takes bodies of up to {self._max_body} bytes")
        return StagedBytes([bytes(data)], len(data), checksum(bytes(data)))

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do a batch, in a few round trips. Once begun it is not cancelled: it ends by itself."""
        await trio.lowlevel.checkpoint()
        parcels: dict[int, Parcel] = {}
        too_long: set[int] = set()
        for number, operation in enumerate(operations):
            body = body_of(operation)
            if body is not None and len(body) <= self._max_body:
                parcels[number] = pack(body, operation.attributes)  # type: ignore[union-attr]
            elif body is not None:
                too_long.add(number)
        async with self._one_batch:
            with trio.CancelScope(shield=True):
                outcomes, left = await self._batches.commit(operations, parcels)
                await self._tidy(left)
        reason = f"{self._name} takes bodies of up to {self._max_body} bytes"
        return [
            Outcome(Result.FULL, reason=reason) if number in too_long else outcome
            for number, outcome in enumerate(outcomes)
        ]

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """The messages at these places."""
        return await self._reader.read(entries)

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where that message is."""
        return await self._reader.find(queue, id)

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """Entries in a state."""
        return await self._reader.scan(state, queue, limit)

    def changes(self) -> None:
        """None: memcached cannot tell, so brokers that share a store look at it again from time to time."""

    async def _tidy(self, left: Mapping[str, int]) -> None:
        self._useless.update(left)
        for queue in [queue for queue, count in self._useless.items() if count >= _TIDY_AFTER]:
            del self._useless[queue]
            await self._reader.tidy(queue)


def body_of(operation: Operation) -> bytes | None:
    """The bytes of a Write; None when it has none, or is none."""
    if not isinstance(operation, Write):
        return None
    if isinstance(operation.body, bytes):
        return operation.body
    assert isinstance(operation.body, StagedBytes), "a body that another store staged"
    return operation.body.data[0] if operation.body.data else None
