"""The records that all nodes of a cluster share, as one of its nodes knows them: durable exchanges,
bindings and users.

A node keeps these records in its own root, too. So a start without the coordinator knows its users, and has the
exchanges to which its own queues are bound.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import trio

from mq.amqp.model.declared import BINDING, SHARED, Binding, DurableRecord
from mq.broker.queues import Declarations, TellShared
from mq.cluster.coordinator import CoordinatorError, Member, NameRegistry, SharedRecord
from mq.cluster.directory import PATIENCE_SECONDS
from mq.cluster.record_keeper import CHANGES, LAST, USER, number_in
from mq.errors import NotServed, StorageError

logger = logging.getLogger("mq.cluster")

RETRY_SECONDS: Final = 0.2
LOOK_SECONDS: Final = 0.05
KNOWN_USER: Final = "cluster-user"
"""The kind under which this node's root has the cluster's users."""
TellUsers = Callable[[Mapping[str, Mapping[str, Any]]], None]
"""Called with the tables of all users of the cluster, by name, whenever they change. They are in effect on return."""


class SharedRecords:
    """The shared records.

    Args:
        find: finds out whether the cluster has a queue, as :meth:`~mq.cluster.name_space.Names.find` does.

    Attributes:
        number: of the last change that is in effect here.
        users: the tables of the cluster's users that are in effect here, by name.
    """

    def __init__(self, registry: NameRegistry, local: Declarations, find: Callable[[str], Awaitable[bool]]) -> None:
        self.records: dict[tuple[str, str], DurableRecord] = {}
        self.number = 0
        self._members: Sequence[Member] = ()
        self._is_member: Callable[[], bool] = _not_yet
        self._registry = registry
        self._local = local
        self._find = find
        self._told: TellShared | None = None
        self.users: dict[str, Mapping[str, Any]] = {}
        self._told_users: TellUsers | None = None
        self._news = trio.Event()

    def on_shared(self, told: TellShared) -> None:
        """Call `told` with each record that comes or goes."""
        self._told = told

    @property
    def has_users(self) -> bool:
        """Whether this node takes the cluster's users."""
        return self._told_users is not None

    def on_users(self, told: TellUsers) -> None:
        """Call `told` with the users, whenever they change. Before :meth:`load`."""
        self._told_users = told

    async def load(self) -> None:
        """Load the records that this node knew when it ended."""
        for kept in (await self._local.records(SHARED)).values():
            self.records[kept["kind"], kept["key"]] = DurableRecord(kept["kind"], kept["key"], kept["value"])
        for name, table in (await self._local.records(KNOWN_USER)).items():
            self.records[USER, name] = DurableRecord(USER, name, table)
            self.users[name] = table
        self._tell_users()

    # How far this node and the others are

    @property
    def is_caught_up(self) -> bool:
        """Whether every answered change is in effect here."""
        return self._is_member()

    async def catch_up(self) -> None:
        """Wait until :attr:`is_caught_up`.

        Raises:
            NotServed: it is not in time.
        """
        with trio.move_on_after(PATIENCE_SECONDS):
            while not self.is_caught_up:  # noqa: ASYNC110 - a membership ends by a clock that need not be Trio's
                await trio.sleep(LOOK_SECONDS)
            return
        raise NotServed(
            "this node is not a member of its cluster at the moment and may not know all bindings of the exchange. "
            "Try again when the cluster's coordinator responds"
        )

    async def begin(self, lasts: Callable[[], bool]) -> None:
        """Note that this node has become a member: the others wait for it from its last change before that on.

        Args:
            lasts: whether it certainly still is one.

        Raises:
            CoordinatorError: the last change is not known.
        """
        await self.wait_for(number_in(await self._registry.shared(CHANGES, LAST)))
        self._is_member = lasts

    def end(self) -> None:
        """Note that this node is no member any more."""
        self._is_member = _not_yet

    async def wait_for(self, number: int) -> None:
        """Wait until a change is in effect here."""
        while self.number < number:
            await self._news.wait()

    def note_members(self, members: Sequence[Member]) -> None:
        """Note the members now, and how far each of them is."""
        self._members = members
        self._tell_news()

    async def wait_everywhere(self, number: int, deadline: float) -> None:
        """Wait until a change is in effect at all members, and here.

        Raises:
            NotServed: it is not in time.
        """
        while True:
            behind = [member.node for member in self._members if member.seen < number]
            if self._members and not behind and self.number >= number:
                return
            with trio.move_on_at(deadline) as patience:
                await self._news.wait()
            if patience.cancelled_caught:
                nodes = f"node {' and '.join(behind)}" if behind else "this node"
                raise NotServed(
                    f"the change is stored, but is not yet in effect on {nodes}. You can safely repeat the "
                    "request to wait until the change takes effect"
                )

    # Keeping up

    async def run(self) -> None:
        """Follow the coordinator for ever."""
        while True:
            try:
                async with self._registry.follow_shared() as (now, changes):
                    await self._take_up(now)
                    async for change in changes:
                        await self._learn(change)
            except (CoordinatorError, StorageError) as error:
                logger.debug("cannot watch for changes to the cluster's exchanges and bindings: %s", error)
            await trio.sleep(RETRY_SECONDS)

    async def _take_up(self, now: Sequence[SharedRecord]) -> None:
        users = {each.key: each.value for each in now if each.kind == USER and each.value is not None}
        if self.users != users:
            self.users = users
            self._tell_users()  # once: each time all of them are read
        there = {(each.kind, each.key) for each in now}
        gone = [SharedRecord(kind, key, None) for kind, key in self.records if (kind, key) not in there]
        # Bindings go before their exchanges, and come after them. The number comes last.
        for change in sorted(gone, key=lambda each: each.kind):
            await self._learn(change)
        for change in sorted(now, key=lambda each: (each.kind == CHANGES, each.kind == BINDING)):
            await self._learn(change)

    async def _learn(self, change: SharedRecord) -> None:
        if change.kind == CHANGES:
            self.number = number_in(change.value)
            self._tell_news()
            return
        if change.kind == USER:
            await self._learn_user(change)
            return
        known = self.records.get((change.kind, change.key))
        if known is not None and known.value != change.value:
            await self._tell(known, is_gone=True)
            await self._local.drop(SHARED, _kept_as(change))
            del self.records[change.kind, change.key]
        if change.value is not None:
            record = DurableRecord(change.kind, change.key, change.value)
            if (change.kind, change.key) not in self.records:
                await self._local.put(SHARED, _kept_as(change), record._asdict())
                self.records[change.kind, change.key] = record
            await self._tell(record, is_gone=False)  # also if it was known: an end of it may have come since

    async def _learn_user(self, change: SharedRecord) -> None:
        """Take up a user. It is in effect before it is kept: one that was removed gets nothing more here, also while
        the root takes no changes. A record that could not be dropped is dropped when all are taken up anew."""
        name, table = change.key, change.value
        if self.users.get(name) != table:
            if table is None:
                del self.users[name]
            else:
                self.users[name] = table
            self._tell_users()
        known = self.records.get((USER, name))
        if table is None:
            if known is not None:
                await self._local.drop(KNOWN_USER, name)
                del self.records[USER, name]
        elif known is None or known.value != table:
            await self._local.put(KNOWN_USER, name, table)
            self.records[USER, name] = DurableRecord(USER, name, table)

    def _tell_users(self) -> None:
        if self._told_users is not None:
            self._told_users(self.users)

    def _tell_news(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def _tell(self, record: DurableRecord, *, is_gone: bool) -> None:
        if self._told is None:
            return  # it reads all of them when it begins to listen
        if record.kind == BINDING and not is_gone:
            queue = Binding.stored(record.value).queue
            if queue is not None:
                await self._find(queue)  # what tells of queues may be behind
        await self._told(record, is_gone)


def _not_yet() -> bool:
    return False


def _kept_as(change: SharedRecord) -> str:
    return f"{change.kind}.{change.key}"
