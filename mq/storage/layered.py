"""``layered:ADDRESS`` is one store of two: what must last is in another store, what need not is in memory.

Transient messages (:attr:`~mq.storage.interface.Write.transient`) and transient queues (their record says
``"transient": true``) live in memory and are gone with the process; all else is in the store below. A caller sees one
store with one order. A message stays in its layer; only one that moves to a transient queue comes up, for there is no
such queue below.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeGuard

import trio

from mq.errors import CorruptMessage, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.groups import by_intent, undoing
from mq.storage.interface import (
    QUEUE,
    AnyOperation,
    Change,
    Description,
    Drop,
    Entry,
    Group,
    Health,
    Hear,
    InstantStorage,
    MessageColumns,
    MessageOperation,
    Move,
    Outcome,
    Put,
    Result,
    Sharing,
    Staged,
    Storage,
    Stored,
    TellingStorage,
    Unlink,
    Write,
    changes_queue,
    health_of,
    is_instant,
    reads_columns,
    tells,
    verifies,
)
from mq.storage.memory import MemoryStorage
from mq.storage.options import StorageOptions
from mq.storage.outcomes import Outcomes
from mq.storage.registry import make_storage

TRANSIENT: Final = "transient"
"""The key in a queue's record that says: it need not last."""
_ON_STORED: Final = (Move, Unlink)
"""Operations on messages that are stored already."""


def make_layered(rest: str, options: StorageOptions) -> LayeredStorage:
    """The factory of ``layered:``.

    Raises:
        StorageUnusable: the store below cannot be made, or another process takes part, which has no memory of ours.
    """
    if options.sharing is not Sharing.ALONE:
        raise StorageUnusable(
            'the storage backend "layered" can be used by only one process. Omit --peers, --no-mover and --no-reaper'
        )
    return LayeredStorage(make_storage(rest, options), options.max_memory)


class LayeredStorage:
    """Two stores as one.

    Args:
        below: what must last is kept there.
        max_memory: as the `max_bytes` of :class:`~mq.storage.memory.MemoryStorage`.
    """

    def __init__(self, below: Storage, max_memory: int) -> None:
        self._below = below
        self._telling: TellingStorage | None = None  # the same, where it tells of first outcomes
        self._instant: InstantStorage | None = None  # the same, where its batches wait for nothing
        self._above = MemoryStorage(max_memory)
        self.no_room_for = self._above.no_room_for
        self.limits_memory = self._above.limits_memory
        self._below_places = True
        self._transient: set[str] = set()
        self._is_used = False  # memory may hold messages, or has held some

    @property
    def description(self) -> Description:
        below = self._below.description
        return below._replace(name=f"layered:{below.name}")

    @property
    def places_transient(self) -> bool:
        """That memory does, whatever the store below does."""
        return True

    @property
    def tells(self) -> bool:
        return tells(self._below)

    @property
    def is_instant(self) -> bool:
        return self._instant is not None

    @property
    def engine(self) -> object:
        """The file engine below and why it was chosen, as text; None if there is none."""
        return getattr(self._below, "engine", None)

    @property
    def is_native(self) -> bool:
        return bool(getattr(self._below, "is_native", False))

    @property
    def health(self) -> Health | None:
        return health_of(self._below)

    async def open(self) -> None:
        """Open the store below; memory is empty."""
        await self._below.open()
        self._telling = self._below if tells(self._below) else None
        self._instant = self._below if is_instant(self._below) else None
        self._below_places = self._below.description.places
        await self._above.open()
        await self._above.commit([Put(QUEUE, *each) for each in (await self._below.records(QUEUE)).items()])

    async def aclose(self) -> None:
        """Close the store below, and forget what is in memory."""
        try:
            await self._below.aclose()
        finally:
            with trio.CancelScope(shield=True):
                await self._above.aclose()

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of a kind, those of transient queues included."""
        below = await self._below.records(kind)
        if kind != QUEUE:
            return below
        return {
            **below,
            **{key: value for key, value in (await self._above.records(QUEUE)).items() if value.get(TRANSIENT)},
        }

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        """Bring a large body to the store below. It stays there, also when its message is called transient."""
        return await self._below.stage(chunks)

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """Do each operation in its layer. Those in memory wait for no barrier."""
        if self._is_below(operations):
            return await self._commit_below(operations)
        if changes_queue(operations):
            return await self._change_queue(operations)
        self._is_used = True
        outcomes: dict[int, Outcome] = {}
        together = _Together()
        for place, operation in enumerate(operations):
            if isinstance(operation, Group) and self._is_above(operation):
                outcomes |= await self._commit_above(together)
                together = _Together()
                outcomes[place] = await self._commit_group(operation)
            elif (full := self._full(operation)) is not None:
                outcomes[place] = full
            elif self._is_above(operation) or together.has_put(operation):
                together.add(place, operation)
            elif self._has_to_come_up(operation):
                outcomes |= await self._commit_above(together)
                together = _Together()
                outcomes[place] = await self._bring_up(operation)
        outcomes |= await self._commit_above(together)
        rest = [place for place in range(len(operations)) if place not in outcomes]
        done = Outcomes()
        if rest:
            below = await self._commit_below([operations[place] for place in rest])
            outcomes.update(zip(rest, below, strict=True))
            if isinstance(below, Outcomes):
                done.heard_late = below.heard_late
        done += [outcomes[place] for place in range(len(operations))]
        done.in_memory = len(operations) - len(rest)
        return done

    async def commit_in_parts(self, operations: Sequence[AnyOperation], hear: Hear) -> list[Outcome]:
        """As :meth:`commit`; in parts where the store below can, and all of it is for that."""
        if self._telling is not None and self._is_below(operations):
            return await self._telling.commit_in_parts(self._for_below(operations), hear)  # type: ignore[arg-type] # as below
        return await self.commit(operations)

    def commit_now(self, operations: Sequence[MessageOperation]) -> list[Outcome] | None:
        """As :meth:`commit`, in the caller's step; None if the operations are in both layers, or move between them."""
        if self._is_below(operations):
            return None if self._instant is None else self._instant.commit_now(operations)
        if not all(map(self._is_above, operations)):
            return None
        self._is_used = True
        return self._above.commit_now(operations)

    async def _change_queue(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """Put or drop a queue: a transient one in memory only, any other one in both layers. It keeps its layer."""
        [change] = operations
        assert isinstance(change, Put | Drop)
        if isinstance(change, Put) and change.value.get(TRANSIENT):
            self._transient.add(change.key)
        if change.key in self._transient:
            outcomes = await self._above.commit(operations)
            if isinstance(change, Drop):
                self._transient.discard(change.key)
            return outcomes
        outcomes = await self._commit_below(operations)
        if outcomes[0].result in (Result.DONE, Result.GONE):
            with trio.CancelScope(shield=True):  # a queue is in both layers or in none
                await self._above.commit(operations)
        return outcomes

    async def _commit_below(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        # This store is described as the one below: no Group comes that the one below cannot do by itself.
        return await self._below.commit(self._for_below(operations))  # type: ignore[arg-type]

    def _for_below(self, operations: Sequence[AnyOperation]) -> Sequence[AnyOperation]:
        if self._below_places and not self._transient:
            return operations  # nearly always
        return list(map(self._to_new, operations))

    def _to_new(self, operation: AnyOperation) -> AnyOperation:
        """A message that cannot be placed below, which is transient or for a transient queue, and too large for memory.
        It waits in NEW; one for a transient queue comes up from there."""
        if isinstance(operation, Group):
            return Group(tuple(map(self._to_new, operation.operations)))  # type: ignore[arg-type] # of the same kinds
        if not isinstance(operation, Write) or operation.state is State.NEW:
            return operation
        if self._below_places and operation.queue not in self._transient:
            return operation
        return operation._replace(state=State.NEW)

    async def _commit_group(self, group: Group) -> Outcome:
        """Do a group that has a part in memory. That part is first, for a crash takes it anyway."""
        above: list[Write | Move] = []
        rest: list[Write | Move | Put | Drop] = []
        for each in group.operations:
            if (full := self._full(each)) is not None:
                return full
            if isinstance(each, Write | Move) and self._is_above(each):
                above.append(each)
            elif self._has_to_come_up(each):
                return await by_intent(self, group)
            else:
                rest.append(each)
        with trio.CancelScope(shield=True):
            [outcome] = await self._above.commit([Group(tuple(above))])
            if outcome.result is Result.DONE and rest:
                [outcome] = await self._commit_below([Group(tuple(rest))])
                if outcome.result is not Result.DONE:
                    await self._above.commit(list(undoing(above)))
        return outcome

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """Each from its layer, in order."""
        is_above = [self._above.holds(entry) for entry in entries]  # looked at once: queues go while others are read
        if not any(is_above):
            return await self._below.read(entries)
        above = [entry for entry, in_memory in zip(entries, is_above, strict=True) if in_memory]
        below = [entry for entry, in_memory in zip(entries, is_above, strict=True) if not in_memory]
        from_above = iter(await self._above.read(above))
        from_below = iter(await self._below.read(below) if below else ())
        return [next(from_above if in_memory else from_below) for in_memory in is_above]

    async def read_columns(
        self, queue: str, messages: Sequence[int | Entry], base: int, most_bytes: int
    ) -> MessageColumns | None:
        """From the store below, up to the first that is in memory."""
        if queue in self._transient or not reads_columns(self._below):
            return None
        return await self._below.read_columns(queue, messages, base, most_bytes)

    async def verify(self, entries: Sequence[Entry]) -> None:
        """In the store below; memory does not rot."""
        if verifies(self._below):
            await self._below.verify(entries)

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        return await self._above.find(queue, id) or await self._below.find(queue, id)

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        below = [] if queue in self._transient and state is State.READY else await self._below.scan(state, queue, limit)
        return [*await self._above.scan(state, queue, limit), *below][:limit]

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Change]] | None:
        """What happens to the store below from outside; memory is out of every other process's reach."""
        return self._below.changes()

    def _is_below(self, operations: Sequence[AnyOperation]) -> bool:
        """Whether a batch is the store below's alone."""
        can_leave = bool(self._transient) or (self._is_used and not self._above.is_empty)  # nearly never
        for each in operations:
            if (can_leave or not isinstance(each, _ON_STORED)) and self._concerns_memory(each):
                return False
        return True

    def _concerns_memory(self, operation: AnyOperation) -> bool:
        """Whether an operation is done in memory, brings a message up there, or would if there were room. A queue is in
        both layers."""
        if isinstance(operation, Write):
            if isinstance(operation.body, bytes):
                return operation.transient or operation.queue in self._transient
            return self._full(operation) is not None
        if isinstance(operation, Put | Drop):
            return operation.kind == QUEUE
        return self._is_above(operation) or self._has_to_come_up(operation)

    def _full(self, operation: AnyOperation) -> Outcome | None:
        """Why a message for a transient queue, too large to be written to memory, would have no room there when it
        comes up; None for all else."""
        if not isinstance(operation, Write) or isinstance(operation.body, bytes):
            return None
        if operation.queue not in self._transient:
            return None
        return self._above.no_room_for(operation.queue, operation.body.size)

    def _is_above(self, operation: AnyOperation) -> bool:
        if isinstance(operation, Write):
            return isinstance(operation.body, bytes) and (operation.transient or operation.queue in self._transient)
        if isinstance(operation, Put | Drop):
            return False
        if isinstance(operation, Group):
            return any(map(self._concerns_memory, operation.operations))
        return self._above.holds(operation.entry)

    def _has_to_come_up(self, operation: AnyOperation) -> TypeGuard[Move]:
        if not isinstance(operation, Move) or operation.state is State.REMOVED:
            return False
        return (operation.queue or operation.entry.queue) in self._transient

    async def _commit_above(self, together: _Together) -> dict[int, Outcome]:
        # All in one step of the event loop: with a step each, every operation would wait for a round of all other
        # tasks.
        if not together.operations:
            return {}
        done = await self._above.commit(list(together.operations.values()))
        return dict(zip(together.operations, done, strict=True))

    async def _bring_up(self, move: Move) -> Outcome:
        """Copy a message to the target with the same id, then remove the original, which is what a crash in between
        leaves."""
        [stored] = await self._below.read([move.entry])
        if stored is None:
            return Outcome(Result.GONE)
        try:
            size = stored.properties.size
            if (full := self._above.no_room_for(move.queue or move.entry.queue, size)) is not None:
                return full  # before its body is read into memory
            body = await stored.body.read()
        except CorruptMessage as error:
            return Outcome(Result.FULL, reason=str(error))
        finally:
            with trio.CancelScope(shield=True):
                await stored.body.aclose()
        [written] = await self._above.commit(
            [Write(move.entry.queue, move.entry.id, body, stored.properties.attributes, move.entry.meta)]
        )
        if written.entry is None:
            return written
        [moved] = await self._above.commit([move._replace(entry=written.entry)])
        if moved.entry is None:  # its queue has just gone: the message stays where it was
            await self._take_away(written.entry)
            return moved
        [removed] = await self._below.commit([Move(move.entry, State.REMOVED)])
        if removed.entry is None:
            await self._take_away(moved.entry)
            return removed
        await self._below.commit([Unlink(removed.entry)])
        return moved

    async def _take_away(self, entry: Entry) -> None:
        """Remove a copy that was brought up in vain."""
        removed = Move(entry, State.REMOVED)
        await self._above.commit([removed, Unlink(entry._replace(state=State.REMOVED, meta=removed.meta))])


class _Together:
    """Operations in memory that are done in one step, by their places in the batch."""

    def __init__(self) -> None:
        self.operations: dict[int, AnyOperation] = {}
        self._put: set[MessageId] = set()

    def add(self, place: int, operation: AnyOperation) -> None:
        self.operations[place] = operation
        if isinstance(operation, Write | Move):
            self._put.add(operation.id if isinstance(operation, Write) else operation.entry.id)

    def has_put(self, operation: AnyOperation) -> bool:
        """Whether what it moves or unlinks is written or moved by one of them."""
        return isinstance(operation, Move | Unlink) and operation.entry.id in self._put
