"""``layered:ADDRESS`` keeps what must last in another store, and what need not in memory, as one store.

Transient messages (:attr:`~mq.storage.interface.Write.transient`) and transient queues (whose record says
``"transient": true``) live in memory and are gone with the process; all else is in the store below. Whoever uses it
sees one store with one order. A message stays in its layer; only one that moves to a transient queue comes up, for
there is no such queue below.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeGuard

import trio

from mq.errors import CorruptMessage, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import (
    QUEUE,
    Change,
    Description,
    Entry,
    Move,
    Operation,
    Outcome,
    Result,
    Staged,
    Storage,
    Stored,
    Unlink,
    Write,
)
from mq.storage.memory import MemoryStorage
from mq.storage.options import StorageOptions
from mq.storage.registry import make_storage

TRANSIENT: Final = "transient"
"""The key of a queue's record that says that it need not last."""


def make_layered(rest: str, options: StorageOptions) -> LayeredStorage:
    """The factory of ``layered:``.

    Raises:
        StorageUnusable: the store below cannot be made, or another process takes part, which has no memory of ours.
    """
    if options.shared or options.watched:
        raise StorageUnusable("layered: lives in one process: no peers, no separate mover or reaper can work on it")
    return LayeredStorage(make_storage(rest, options), options.max_memory)


class LayeredStorage:
    """Two stores as one.

    Args:
        below: what must last is kept there.
        max_memory: bytes of bodies that memory holds at the most; more is FULL.
    """

    def __init__(self, below: Storage, max_memory: int) -> None:
        self._below = below
        self._above = MemoryStorage()
        self._max_memory = max_memory
        self._sizes: dict[MessageId, int] = {}
        self._used = 0
        self._transient: set[str] = set()

    @property
    def description(self) -> Description:
        """That of the store below."""
        return self._below.description._replace(name=f"layered:{self._below.description.name}")

    async def open(self) -> None:
        """Open the store below; memory is empty."""
        await self._below.open()
        await self._above.open()
        for name, value in (await self._below.records(QUEUE)).items():
            await self._above.put_record(QUEUE, name, value)

    async def aclose(self) -> None:
        """Close the store below, and forget what is in memory."""
        try:
            await self._below.aclose()
        finally:
            with trio.CancelScope(shield=True):
                await self._above.aclose()

    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        """Keep a record; a transient one in memory only. A queue does not change its layer."""
        if kind != QUEUE:
            above = self._above if value.get(TRANSIENT) else self._below
            return await above.put_record(kind, key, value)
        if value.get(TRANSIENT):
            self._transient.add(key)
            return await self._above.put_record(kind, key, value)
        new = await self._below.put_record(kind, key, value)
        await self._above.put_record(kind, key, value)
        return new

    async def drop_record(self, kind: str, key: str) -> bool:
        """Forget a record, wherever it is."""
        if kind == QUEUE:
            for entry in await self._above.scan(State.READY, key):
                self._forget(entry.id)  # they go with their queue
        dropped = await self._above.drop_record(kind, key)
        if kind == QUEUE and key in self._transient:
            self._transient.discard(key)
            return dropped
        return await self._below.drop_record(kind, key) or dropped

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of a kind, of both layers."""
        below = await self._below.records(kind)
        above = await self._above.records(kind)
        return {**below, **{key: value for key, value in above.items() if value.get(TRANSIENT)}}

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        """Bring a large body to the store below. There it stays, even if its message is called transient."""
        return await self._below.stage(chunks)

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Each in its layer; memory has no barrier, and waits for none."""
        if not any(self._is_above(operation) or self._has_to_come_up(operation) for operation in operations):
            return await self._below.commit(operations)
        outcomes: dict[int, Outcome] = {}
        for place, operation in enumerate(operations):
            if self._is_above(operation):
                outcomes[place] = await self._commit_above(operation)
            elif self._has_to_come_up(operation):
                outcomes[place] = await self._bring_up(operation)
        rest = [place for place in range(len(operations)) if place not in outcomes]
        if rest:
            done = await self._below.commit([operations[place] for place in rest])
            outcomes.update(zip(rest, done, strict=True))
        return [outcomes[place] for place in range(len(operations))]

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """Each from its layer, in order."""
        below = [entry for entry in entries if entry.id not in self._sizes]
        found = iter(await self._below.read(below)) if below else iter(())
        return [
            next(found) if entry.id not in self._sizes else (await self._above.read([entry]))[0] for entry in entries
        ]

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where that message is."""
        return await (self._above if id in self._sizes else self._below).find(queue, id)

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """Entries of both layers."""
        below = [] if queue in self._transient and state is State.READY else await self._below.scan(state, queue, limit)
        return [*await self._above.scan(state, queue, limit), *below][:limit]

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Change]] | None:
        """What happens to the store below from outside; nobody else reaches memory."""
        return self._below.changes()

    # How it is done

    def _is_above(self, operation: Operation) -> bool:
        if isinstance(operation, Write):
            return isinstance(operation.body, bytes) and (operation.transient or operation.queue in self._transient)
        return operation.entry.id in self._sizes

    def _has_to_come_up(self, operation: Operation) -> TypeGuard[Move]:
        """A message from below that becomes part of a transient queue: from another one, or as a staged body."""
        if not isinstance(operation, Move) or operation.state is State.REMOVED:
            return False
        return (operation.queue or operation.entry.queue) in self._transient

    async def _commit_above(self, operation: Operation) -> Outcome:
        if isinstance(operation, Write):
            return await self._write(operation)
        [outcome] = await self._above.commit([operation])
        if isinstance(operation, Unlink):
            self._forget(operation.entry.id)
        return outcome

    async def _write(self, write: Write) -> Outcome:
        assert isinstance(write.body, bytes), "a staged body stays below"
        if self._used + len(write.body) > self._max_memory:
            return Outcome(Result.FULL, reason=f"{self._max_memory} bytes of transient messages are in memory")
        [outcome] = await self._above.commit([write])
        if outcome.result is Result.DONE:
            self._note(write.id, len(write.body))
        return outcome

    async def _bring_up(self, move: Move) -> Outcome:
        """A copy with the same id, then the removal of the original. A crash in between leaves the original."""
        [stored] = await self._below.read([move.entry])
        if stored is None:
            return Outcome(Result.GONE)
        try:
            body = await stored.body.read()
        except CorruptMessage as error:
            return Outcome(Result.FULL, reason=str(error))
        finally:
            with trio.CancelScope(shield=True):
                await stored.body.aclose()
        written = await self._write(
            Write(move.entry.queue, move.entry.id, body, stored.properties.attributes, move.entry.meta)
        )
        if written.entry is None:
            return written
        [removed] = await self._below.commit([Move(move.entry, State.REMOVED)])
        if removed.entry is None:
            await self._above.commit([Move(written.entry, State.REMOVED)])
            await self._commit_above(Unlink(written.entry._replace(state=State.REMOVED)))
            return removed
        await self._below.commit([Unlink(removed.entry)])
        [moved] = await self._above.commit([move._replace(entry=written.entry)])
        return moved

    def _note(self, id: MessageId, size: int) -> None:
        self._sizes[id] = size
        self._used += size

    def _forget(self, id: MessageId) -> None:
        self._used -= self._sizes.pop(id, 0)
