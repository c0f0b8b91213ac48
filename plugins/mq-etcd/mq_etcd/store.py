"""The verbs of a store on etcd. What stands under which key: :mod:`mq_etcd.keys`.

One broker at a time has it (:mod:`mq_etcd.owner`), or the holder of the fence that its address names.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import trio

from mq.errors import StorageFailed, StorageFenced, StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageId, checksum
from mq.storage.interface import (
    QUEUE,
    AnyOperation,
    Description,
    Drop,
    Entry,
    Group,
    Outcome,
    Put,
    Result,
    Sharing,
    Staged,
    Stored,
    Unlink,
    Write,
)
from mq.storage.options import StorageOptions
from mq_etcd.address import Address, parse_address
from mq_etcd.batches import MOST_GROUP_BYTES, MOST_IN_GROUP, Batches
from mq_etcd.bodies import LARGEST_BODY, StagedBytes, bytes_of
from mq_etcd.client import Client
from mq_etcd.errors import EtcdError, NoSpace, Unavailable, Uncertain
from mq_etcd.keys import Keys, life_of
from mq_etcd.lanes import Lane
from mq_etcd.owner import Owner
from mq_etcd.reader import Reader
from mq_etcd.records import Records
from mq_etcd.room import Room

LANES: Final = 8
"""Transactions on their way at the same time."""


def make_etcd(rest: str, options: StorageOptions) -> EtcdStorage:
    """The factory of ``etcd:``, as in ``etcd:http://127.0.0.1:2379?prefix=/mq/orders``.

    Raises:
        StorageUnusable: the address makes no sense, or other processes are to take part.
    """
    if options.sharing is not Sharing.ALONE:
        raise StorageUnusable(
            'the storage backend "etcd" supports only one daemon at a time. Omit --peers, --no-mover and '
            "--no-reaper. Another daemon can take over after the first has stopped"
        )
    return EtcdStorage(f"etcd:{rest}", parse_address(rest))


class EtcdStorage:
    """A :class:`~mq.storage.interface.Storage` on etcd."""

    def __init__(self, name: str, address: Address) -> None:
        self._name = name
        self._address = address
        self._keys = Keys(address.prefix)
        self._client = Client(
            address.endpoints,
            user=address.user,
            tls=address.tls,
            patience=address.patience,
            deadline=address.deadline,
        )
        self._records = Records(self._client, self._keys, address.reserved)
        self._reader = Reader(self._client, self._keys, self._records.lives)
        self._owner: Owner | None = None
        self._batches: Batches | None = None
        self._room: Room | None = None
        self._changing = trio.Lock()
        self._is_stale = False

    @property
    def description(self) -> Description:
        """What it is."""
        return Description(
            self._name,
            durable=True,
            shared=False,
            max_body=LARGEST_BODY,
            journaled=True,
            places=True,
            groups=MOST_IN_GROUP,
            group_bytes=MOST_GROUP_BYTES,
        )

    async def open(self) -> None:
        """Take the store, and see to it that nothing lands any more that was sent before.

        Raises:
            StorageUnusable: etcd does not answer, or another broker has it.
        """
        session = secrets.token_hex(6)
        try:
            fence = self._address.fence
            if fence is None:
                self._owner = Owner(self._client, self._keys.owner, session)
                fence = await self._owner.take()
            lanes = [Lane(self._client, self._keys.lane(number), fence, session) for number in range(LANES)]
            for lane in lanes:
                await lane.open()
            await self._records.load()
        except (EtcdError, StorageFenced) as error:
            raise StorageUnusable(str(error)) from error
        self._batches = Batches(self._client, self._keys, self._records.lives, lanes)
        self._room = Room(self._client, self._keys.room, self._address.quota)

    async def aclose(self) -> None:
        """Give the store back, and let go of the connections."""
        with trio.CancelScope(shield=True):
            owner, self._owner = self._owner, None
            if owner is not None:
                await owner.give_back()
            await self._client.aclose()

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of a kind."""
        with self._translated():
            return await self._records.all(kind)

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        """Collect a large body in memory.

        Raises:
            StorageFull: it is longer than `max_body`.
        """
        data = bytearray()
        async for chunk in chunks:
            data += chunk
            if len(data) > LARGEST_BODY:
                raise StorageFull(_too_long(self._name))
        return StagedBytes([bytes(data)], len(data), checksum(bytes(data)))

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """Do a batch. Once begun it is not cancelled: it ends by itself, within the deadline and a little."""
        await trio.lowlevel.checkpoint()
        async with self._changing:
            with trio.CancelScope(shield=True):
                try:
                    outcomes = await self._commit(operations)
                except StorageFenced as error:
                    return [Outcome(Result.FENCED, reason=str(error))] * len(operations)
                except StorageFailed as error:
                    return [Outcome(Result.FAILED, reason=str(error))] * len(operations)
                except EtcdError as error:
                    return [Outcome(Result.FULL, reason=str(error))] * len(operations)
        return [outcomes[number] for number in range(len(operations))]

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """The messages at these places."""
        await trio.lowlevel.checkpoint()
        with self._translated():
            return await self._reader.read(entries)

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where that message is."""
        with self._translated():
            return await self._reader.find(queue, id)

    async def contains(self, queues: Collection[str], id: MessageId) -> bool:
        """Return whether the store has a message of that id, whichever queue it is in."""
        with self._translated():
            return await self._reader.contains(id)

    async def check_reachable(self) -> None:
        """Ask a member for its status.

        Raises:
            StorageFull: none answers.
        """
        with self._translated():
            await self._client.status()

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """Entries in a state."""
        with self._translated():
            entries = await self._reader.scan(state, queue, limit)
            if state is State.REMOVED and (limit is None or len(entries) < limit):
                entries += await self._records.graves(queue)
        return entries[:limit]

    def changes(self) -> None:
        """None: no other program changes it."""

    @property
    def _ready_batches(self) -> Batches:
        if self._batches is None:
            raise StorageFailed(f"the store {self._name} is not open")
        return self._batches

    async def _refresh(self) -> None:
        """Learn anew which queues there are, when the outcome of a change of them is unknown."""
        if self._is_stale:
            await self._ready_batches.settle()
            await self._records.load()
            self._is_stale = False

    async def _commit(self, operations: Sequence[AnyOperation]) -> dict[int, Outcome]:
        await self._ready_batches.settle()  # before room is made: what was there before can be read until then
        await self._refresh()
        outcomes: dict[int, Outcome] = {}
        numbered: list[tuple[int, AnyOperation]] = []
        for number, operation in enumerate(operations):
            if isinstance(operation, Unlink) and life_of(operation.entry) is not None:
                outcomes[number] = await self._records.level(self._ready_batches, operation.entry)
                continue
            if isinstance(operation, Put | Drop) and operation.kind == QUEUE:
                self._is_stale = True
                outcomes[number] = await self._records.change_queue(self._ready_batches, operation)
                self._is_stale = False
                continue
            refusal = await self._refusal(operation)
            if refusal:
                outcomes[number] = Outcome(Result.FULL, reason=refusal)
            else:
                numbered.append((number, operation))
        batches = self._ready_batches
        outcomes |= await batches.commit(numbered)
        if batches.met_no_space and self._room is not None and not batches.is_in_doubt:
            batches.met_no_space = False
            await self._room.mend()
        return outcomes

    async def _refusal(self, operation: AnyOperation) -> str:
        """Why what writes messages is not even tried; empty where it is."""
        parts = operation.operations if isinstance(operation, Group) else (operation,)
        sizes = [len(bytes_of(each.body) or b"") for each in parts if isinstance(each, Write)]
        if not sizes or self._room is None:
            return ""
        if max(sizes) > LARGEST_BODY:
            return _too_long(self._name)
        return await self._room.refusal(sum(sizes))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (Unavailable, Uncertain, NoSpace) as error:
            raise StorageFull(f"{error}. Try again later") from error
        except EtcdError as error:
            raise StorageFailed(str(error)) from error


def _too_long(name: str) -> str:
    return (
        f"{name} supports message bodies of up to {LARGEST_BODY} bytes. Store larger data elsewhere, and publish "
        "a reference to the data"
    )
