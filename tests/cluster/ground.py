"""What a cluster stands on, without etcd: members with leases, and one store, in this process and by Trio's clock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import trio

from mq.amqp.model.declared import BINDING, EXCHANGE
from mq.cluster.coordinator import (
    CandidacyEnded,
    CoordinatorError,
    FoundQueue,
    Member,
    NameChange,
    SharedRecord,
    Snapshot,
)
from mq.cluster.record_keeper import CHANGES, SHARED_KINDS, USER
from mq.errors import StorageFailed
from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import QUEUE, Description, Drop, Entry, Operation, Outcome, Put, Result, Stored
from mq.storage.memory import MemoryStorage


class Ground:
    """Members and the store.

    Attributes:
        has_fence: whether a store of somebody who is no member any more refuses to change anything.
        voters: how many machines there would be.
        led_at: the node with which their leader would share a machine.
        masters: the numbers of those who opened the store, in order.
        is_mute: whether nobody is told what happens to names; who asks is answered.
        reserved: (node, queue) of each name that a node has reserved.
        history: what happened to the store's queues.
        swallows: whether whatever is done to the store from now on is done, and no answer comes.
    """

    def __init__(self, lease_seconds: float = 2.0) -> None:
        self.lease_seconds = lease_seconds
        self.store = MemoryStorage()
        self.has_fence = True
        self.swallows = False
        self.is_mute = False
        self.voters = 3
        self.led_at = ""
        self.masters: list[int] = []
        self.reserved: set[tuple[str, str]] = set()
        self.history: list[NameChange] = []
        self.shared_history: list[SharedRecord] = []
        self.seen: dict[int, int] = {}
        self.draining: set[int] = set()
        self._lives: dict[str, int] = {}
        self._until: dict[Member, float] = {}
        self._last = 0
        self._away: set[str] = set()
        self._news = trio.Event()

    def members(self) -> list[Member]:
        """Those whose lease runs, the oldest first."""
        now = trio.current_time()
        living = [member for member, until in self._until.items() if until > now]
        return [
            member._replace(seen=self.seen.get(member.number, 0), is_draining=member.number in self.draining)
            for member in living
        ]

    def has(self, member: Member) -> bool:
        return member.number in {each.number for each in self.members()}

    async def shared(self) -> list[SharedRecord]:
        """Exchanges, bindings and users."""
        return [
            SharedRecord(kind, key, value)
            for kind in (EXCHANGE, BINDING, USER, CHANGES)
            for key, value in (await self.store.records(kind)).items()
        ]

    def cut(self, node: str) -> None:
        """Nobody answers it."""
        self._away.add(node)

    def mend(self, node: str) -> None:
        """It is answered again."""
        self._away.discard(node)

    async def reach(self, node: str) -> None:
        """Ask, on behalf of a node.

        Raises:
            CoordinatorError: it is cut off; after a while.
        """
        await trio.sleep(0.001)
        if node in self._away:
            await trio.sleep(self.lease_seconds / 5)
            raise CoordinatorError("cut off")

    def add(self, node: str) -> Member:
        self._last += 1
        member = Member(node, self._last, 0.0)
        self._until[member] = trio.current_time() + self.lease_seconds
        self.tell()
        return member

    def renew(self, member: Member) -> None:
        if not self.has(member):
            raise CandidacyEnded("gone")
        self._until[member] = trio.current_time() + self.lease_seconds

    def drop(self, member: Member) -> None:
        self._until.pop(member, None)
        self.tell()

    async def found(self) -> dict[str, FoundQueue]:
        """The store's queues."""
        records = await self.store.records(QUEUE)
        # one that has just come has no life before its change is in the history
        return {
            queue: FoundQueue(self._lives[queue], record) for queue, record in records.items() if queue in self._lives
        }

    async def changed(self, queue: str) -> None:
        """Something was done to a queue's record."""
        number = len(self.history) + 1
        record = (await self.store.records(QUEUE)).get(queue)
        if record is None:
            self._lives.pop(queue, None)
        found = None if record is None else FoundQueue(self._lives.setdefault(queue, number), record)
        self.history.append(NameChange(number, queue, found))
        self.tell()

    def tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def is_away(self, node: str) -> bool:
        """Whether nobody answers it."""
        return node in self._away

    async def news(self) -> None:
        """Until members or names may have changed."""
        with trio.move_on_after(0.05):
            await self._news.wait()


class FakeCoordinator:
    """As one node sees the ground."""

    def __init__(self, ground: Ground, node: str) -> None:
        self._ground = ground
        self._node = node
        self.names = FakeNames(ground, node)

    async def join(self, node: str) -> FakeCandidacy:
        await self._ground.reach(self._node)
        return FakeCandidacy(self._ground, self._ground.add(node))

    async def members(self) -> list[Member]:
        await self._ground.reach(self._node)
        return self._ground.members()

    async def voters(self) -> int:
        await self._ground.reach(self._node)
        return self._ground.voters

    async def lead_elsewhere(self) -> bool:
        await self._ground.reach(self._node)
        is_here = self._ground.led_at == self._node
        if is_here:
            self._ground.led_at = "elsewhere"
        return is_here

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[None]]:
        await self._ground.reach(self._node)
        yield self._each()

    async def _each(self) -> AsyncIterator[None]:
        while True:
            await self._ground.news()
            yield None


class FakeNames:
    """The names, as one node sees them."""

    def __init__(self, ground: Ground, node: str) -> None:
        self._ground = ground
        self._node = node

    async def find(self, queues: Sequence[str]) -> Snapshot:
        await self._ground.reach(self._node)
        found = await self._ground.found()
        return Snapshot(len(self._ground.history), {queue: found[queue] for queue in queues if queue in found})

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[tuple[Snapshot, AsyncIterator[NameChange]]]:
        await self._ground.reach(self._node)
        number = len(self._ground.history)
        yield Snapshot(number, await self._ground.found()), self._each(number)

    async def _each(self, told: int) -> AsyncIterator[NameChange]:
        while True:
            await self._ground.news()
            is_told = not (self._ground.is_away(self._node) or self._ground.is_mute)
            while is_told and told < len(self._ground.history):
                told += 1
                yield self._ground.history[told - 1]

    async def shared(self, kind: str, key: str) -> Mapping[str, Any] | None:
        await self._ground.reach(self._node)
        return (await self._ground.store.records(kind)).get(key)

    @asynccontextmanager
    async def follow_shared(self) -> AsyncIterator[tuple[list[SharedRecord], AsyncIterator[SharedRecord]]]:
        await self._ground.reach(self._node)
        number = len(self._ground.shared_history)
        async with aclosing(self._each_shared(number)) as each:
            yield await self._ground.shared(), each

    async def _each_shared(self, told: int) -> AsyncGenerator[SharedRecord]:
        while True:
            await self._ground.news()
            is_told = not (self._ground.is_away(self._node) or self._ground.is_mute)
            while is_told and told < len(self._ground.shared_history):
                told += 1
                yield self._ground.shared_history[told - 1]

    async def reserve(self, node: str, queue: str) -> bool:
        await self._ground.reach(self._node)
        if queue in await self._ground.found():
            return False
        self._ground.reserved.add((node, queue))
        return True

    async def release(self, node: str, queue: str) -> None:
        await self._ground.reach(self._node)
        self._ground.reserved.discard((node, queue))

    async def reserved(self, node: str) -> set[str]:
        await self._ground.reach(self._node)
        return {queue for its, queue in self._ground.reserved if its == node}


class FakeCandidacy:
    def __init__(self, ground: Ground, member: Member) -> None:
        self.number = member.number
        self._ground = ground
        self._member = member

    async def renew(self) -> None:
        await self._ground.reach(self._member.node)
        self._ground.renew(self._member)

    async def note(self, seen: int, *, is_draining: bool) -> None:
        await self._ground.reach(self._member.node)
        if not self._ground.has(self._member):
            raise CandidacyEnded("gone")
        self._ground.seen[self._member.number] = seen
        (self._ground.draining.add if is_draining else self._ground.draining.discard)(self._member.number)
        self._ground.tell()

    async def leave(self) -> None:
        await self._ground.reach(self._member.node)
        self._ground.drop(self._member)

    def storage(self, messages: str = "") -> FencedStorage:
        return FencedStorage(self._ground, self._member)


class FencedStorage:
    """The ground's store, for one member."""

    def __init__(self, ground: Ground, member: Member) -> None:
        self._ground = ground
        self._member = member
        self._store = ground.store

    @property
    def description(self) -> Description:
        return self._store.description

    async def open(self) -> None:
        await self._reach()
        self._ground.masters.append(self._member.number)

    async def aclose(self) -> None:
        pass

    def _note(self, change: SharedRecord) -> None:
        if change.kind.startswith(SHARED_KINDS):
            self._ground.shared_history.append(change)
            self._ground.tell()

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        return await self._store.records(kind)

    async def stage(self, chunks: Any) -> Any:
        return await self._store.stage(chunks)

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        await self._reach()
        if self._is_out():
            return [Outcome(Result.FENCED)] * len(operations)
        records = [each for each in operations if isinstance(each, Put | Drop)]
        for each in records:
            nodes = [node for node, queue in self._ground.reserved if queue == each.key]
            if (
                nodes
                and isinstance(each, Put)
                and each.kind == QUEUE
                and each.key not in await self._store.records(QUEUE)
            ):
                reason = f"queue {each.key} is there already, on node {nodes[0]} alone: delete it there first"
                return [Outcome(Result.EXISTS, reason=reason)]
        outcomes = await self._store.commit(operations)
        for each in records:
            self._note(SharedRecord(each.kind, each.key, each.value if isinstance(each, Put) else None))
            if each.kind == QUEUE:
                await self._ground.changed(each.key)
        if self._ground.swallows:
            await trio.sleep_forever()
        return outcomes

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        return await self._store.read(entries)

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        return await self._store.find(queue, id)

    async def contains(self, queues: Collection[str], id: MessageId) -> bool:
        await self._reach()
        return await self._store.contains(queues, id)

    async def check_reachable(self) -> None:
        await self._reach()

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        return await self._store.scan(state, queue, limit)

    def changes(self) -> None:
        return None

    async def _reach(self) -> None:
        try:
            await self._ground.reach(self._member.node)
        except CoordinatorError as error:
            raise StorageFailed(str(error)) from error

    def _is_out(self) -> bool:
        return self._ground.has_fence and not self._ground.has(self._member)
