"""The queues: made, deleted, set, emptied."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from mq.broker.catalog import Catalog
from mq.broker.commit import Committer
from mq.broker.config import BrokerConfig
from mq.broker.deaths import Deaths, arriving
from mq.broker.follow import Follower
from mq.broker.index import QueueIndex
from mq.broker.jobs import Change, Job
from mq.broker.keys import Settle
from mq.broker.learning import Learner
from mq.broker.mailbox import Mailbox
from mq.broker.queue_settings import DEFAULTS, QueueSettings
from mq.broker.upkeep import Upkeep
from mq.errors import Conflict, InvalidSetting, MQError, NoSuchMessage, NoSuchQueue, StorageError
from mq.lifecycle import Kind, State
from mq.message import MessageId, MessageIds, QueueName, shorten
from mq.storage.interface import QUEUE, Entry, Move, Storage

logger = logging.getLogger("mq.broker")

LARGEST_SLICE: Final = 1000


class QueueStatus(NamedTuple):
    """What a queue is, and what is in it.

    Attributes:
        name: its name.
        settings: what is set for it.
        ready: messages that can be fetched now, or in a moment.
        leased: messages that somebody holds.
        delayed: messages that cannot be fetched yet.
        oldest_ns: when the oldest ready message came into the queue, nanoseconds since 1970; None without one.
    """

    name: str
    settings: QueueSettings
    ready: int
    leased: int
    delayed: int
    oldest_ns: int | None


class Inventory(NamedTuple):
    """A queue, and where its messages are.

    Attributes:
        queue: its name.
        created_ns: when it was made, nanoseconds since 1970.
        entries: the messages that are not on their way from one place to another.
        moving: the ids of those that are.
    """

    queue: str
    created_ns: int
    entries: Iterator[Entry]
    moving: list[MessageId]


class Redriven(NamedTuple):
    """What became of messages that were to go back.

    Attributes:
        moved: how many went.
        left: how many ready messages are left.
    """

    moved: int
    left: int


class Queues:
    """All queues of a store.

    Args:
        storage: keeps them.
        catalog: knows them.
        committer: knows whether the medium has failed.
        follower: looks at the store again.
        upkeep: takes care of what a deleted queue leaves.
        deaths: knows where a message died.
        learner: reads what a queue has to know of its bodies.
        settle: called before messages leave their queue.
        jobs: where the save workers find work.
        ids: says when a queue was made.
        config: how the broker works.
    """

    def __init__(
        self,
        storage: Storage,
        catalog: Catalog,
        committer: Committer,
        follower: Follower,
        upkeep: Upkeep,
        deaths: Deaths,
        learner: Learner,
        settle: Settle,
        jobs: Mailbox[Sequence[Job]],
        ids: MessageIds,
        config: BrokerConfig,
    ) -> None:
        self._storage = storage
        self._catalog = catalog
        self._committer = committer
        self._follower = follower
        self._upkeep = upkeep
        self._deaths = deaths
        self._learner = learner
        self._settle = settle
        self._jobs = jobs
        self._ids = ids
        self._config = config
        self._changing = trio.Lock()

    async def get(self, queue: str) -> QueueIndex:
        """The queue's index.

        Raises:
            NoSuchQueue: it does not exist.
        """
        index = await self.look_up(queue)
        if index is None:
            raise NoSuchQueue(f"queue {shorten(queue)} does not exist. Create it with PUT /{queue}")
        return index

    async def look_up(self, queue: str, *, surely: bool = False) -> QueueIndex | None:
        """The queue's index. On a followed store what is known is a hint: `surely` looks at the store itself."""
        if self._config.followed and (surely or queue not in self._catalog.queues):
            await self._follower.load_queues()
        return self._catalog.queues.get(queue)

    async def settled(self, queue: str) -> QueueIndex:
        """The queue's index, with all in it that was published before.

        Raises:
            NoSuchQueue: it does not exist.
        """
        index = await self.get(queue)
        if self._config.followed:
            await self._follower.refresh(index)
        await self._upkeep.settle(index)
        return index

    async def create(
        self,
        name: QueueName,
        patch: Mapping[str, Any] = {},
        declared: Mapping[str, Any] | None = None,
        *,
        is_transient: bool = False,
    ) -> bool:
        """Make a queue. False when it is there already; then it stays as it is.

        Args:
            name: what it is called.
            patch: what is set for it.
            declared: kept with it, for whoever declared it.
            is_transient: it need not outlive this process.

        Raises:
            InvalidSetting: a setting is unknown or out of its range.
        """
        settings = DEFAULTS.changed(patch)
        async with self._changing:
            created = self._ids.new().time  # before looking: what a peer publishes in one that we do not see is younger
            if await self.look_up(name, surely=True) is not None:
                await self._make_sure(name)
                return False
            index = QueueIndex(name, created, settings, declared, is_transient=is_transient)
            with self._committer.noting_failure():
                made = await self._storage.put_record(QUEUE, name, index.record(settings))
            if self._config.followed:
                await self._follower.load_queues()  # a peer may have made it meanwhile, earlier than we
            self._catalog.queues.setdefault(name, index)
            return made

    async def delete(self, queue: str) -> None:
        """Delete a queue and all its messages.

        Raises:
            NoSuchQueue: it does not exist.
        """
        async with self._changing:
            index = await self.get(queue)
            with self._committer.noting_failure():
                dropped = await self._storage.drop_record(QUEUE, queue)
            self._upkeep.forget(index, remove=dropped)
            if not dropped:
                raise NoSuchQueue(f"queue {shorten(queue)} does not exist")
            await self._reap_deleted(queue)

    async def change_settings(self, queue: str, patch: Mapping[str, Any]) -> QueueSettings:
        """Change what is set for a queue; all of it or nothing. Durable on return.

        Raises:
            NoSuchQueue: it does not exist.
            InvalidSetting: a setting is unknown or out of its range, or two contradict each other.
            Conflict: a setting that cannot be kept here and now.
        """
        async with self._changing:
            await self.look_up(queue, surely=True)  # a peer may have set something else
            index = await self.get(queue)
            settings = index.settings.changed(patch)
            await self._check(index, settings)
            with self._committer.noting_failure():
                await self._storage.put_record(QUEUE, queue, index.record(settings))
            if settings.knows_bodies != index.settings.knows_bodies or settings.unique != index.settings.unique:
                index.bodies = None  # learnt anew when it is needed
            index.settings = settings
            self._upkeep.settings_changed(index)
        if settings.knows_bodies:
            with suppress(StorageError):  # what is set is set: it is learnt when it is needed
                await self._learner.learn(index)
            self._upkeep.trim(index)
        return settings

    def status(self, index: QueueIndex) -> QueueStatus:
        """What a queue is, and what is in it."""
        held_back = sum(entry.meta.deadline_ms is not None for entry in index.new.values())
        first = index.first(1)
        return QueueStatus(
            index.name,
            index.settings,
            ready=index.ready + index.delivering + len(index.new) - held_back,
            leased=index.leased + len(index.held),
            delayed=len(index.delayed) - index.leased + held_back,
            oldest_ns=MessageId.time_ns(first[0].joined) if first else None,
        )

    async def all(self) -> list[QueueStatus]:
        """Every queue, by name."""
        if self._config.followed:
            await self._follower.load_queues()
        return [self.status(self._catalog.queues[name]) for name in sorted(self._catalog.queues)]

    def inventory(self) -> Iterator[Inventory]:
        """Every queue as it is now. Take all of it without waiting for anything, or it changes meanwhile."""
        for index in self._catalog.queues.values():
            moving = self._catalog.on_their_way(index)
            yield Inventory(index.name, MessageId.time_ns(index.created), index.entries(), moving)

    async def purge(self, queue: str) -> int:
        """Remove all messages that nobody holds; how many there were.

        Raises:
            NoSuchQueue: the queue does not exist.
            StorageError: some could not be removed.
        """
        index = await self.get(queue)
        await self._upkeep.settle(index)
        purged = 0
        entries = [entry for entry in index.entries() if entry.meta.claim is None]
        for start in range(0, len(entries), LARGEST_SLICE):
            moves = [Move(entry, State.REMOVED) for entry in entries[start : start + LARGEST_SLICE]]
            purged += await self._do(index, moves, Kind.REMOVE, "remove the message")
        return purged

    async def redrive(
        self, queue: str, to: str | None = None, most: int = LARGEST_SLICE, ids: Sequence[str] | None = None
    ) -> Redriven:
        """Move ready messages back to the queues in which they died, or all of them to another one.

        Args:
            queue: where they are now.
            to: where they go, if not back.
            most: how many at the most.
            ids: only these.

        Raises:
            NoSuchQueue: one of the queues does not exist.
            StorageError: some could not be moved.
        """
        index = await self.get(queue)
        if to is not None and (await self.get(to)) is index:
            raise InvalidSetting(f"messages of {queue} are in {queue} already: name another queue")
        await self._upkeep.settle(index)
        wanted = None if ids is None else [index.find(MessageId(id)) for id in ids]
        moves: list[Move] = []
        for entry in index.in_order() if wanted is None else wanted:
            target = self._target(entry, to) if entry is not None and entry.state is State.READY else None
            if entry is not None and target is not None:
                meta = arriving(target, self._ids, self._upkeep.clock_ns)
                moves.append(Move(entry, State.READY, meta, target.name))
            if len(moves) >= most:
                break
        moved = await self._do(index, moves, Kind.REROUTE, "move the message")
        return Redriven(moved, index.ready)

    # How it is done

    async def _make_sure(self, name: str) -> None:
        """A peer has made the queue, and may have died before it was durable."""
        if self._config.followed:
            record = (await self._storage.records(QUEUE)).get(name)
            if record is not None:
                with self._committer.noting_failure():
                    await self._storage.put_record(QUEUE, name, {"created": 0, **record})

    def _target(self, entry: Entry, to: str | None) -> QueueIndex | None:
        deaths = self._deaths.history(entry)
        name = to or (deaths[0]["queue"] if deaths else None)
        target = self._catalog.queues.get(name) if name is not None else None
        if target is None or target.name == entry.queue or target.settings.unique:
            return None
        return target

    async def _do(self, index: QueueIndex, moves: Sequence[Move], kind: Kind, what: str) -> int:
        """Move what is still there, in one batch; how many."""
        await self._settle([move.entry.id for move in moves])
        jobs = []
        for move in moves:
            id = move.entry.id
            if id not in self._catalog.transit and id not in index.held and index.find(id) == move.entry:
                self._catalog.begin(move.entry, is_leaving=True)
                jobs.append(Change(self._catalog, move, kind, what))
        if jobs:
            self._jobs.put(jobs)
        done, failed = 0, None
        for job in jobs:
            try:
                await job.reply.get()
                done += 1
            except NoSuchMessage:
                pass  # somebody else was faster
            except MQError as error:
                failed = error
        if failed is not None:
            raise failed
        return done

    async def _check(self, index: QueueIndex, settings: QueueSettings) -> None:
        """Refuse what cannot be kept here and now."""
        if settings.unique and self._config.followed:
            raise Conflict("unique cannot be kept on a store that others change too: serve it with --peers=0")
        if settings.unique and any(
            other.settings.dead_letter_queue == index.name for other in self._catalog.queues.values()
        ):
            raise Conflict(f"{index.name} is a dead-letter queue: it must take every message, so it cannot be unique")
        if settings.dead_letter_queue is not None and settings.dead_letter_queue != index.settings.dead_letter_queue:
            await self._check_grave(index.name, settings.dead_letter_queue)

    async def _check_grave(self, queue: str, grave: str) -> None:
        path = [queue]
        name: str | None = grave
        while name is not None:
            if name in path:
                raise InvalidSetting(f"dead letters would go round: {' -> '.join([*path, name])}. Name another queue")
            path.append(name)
            index = await self.look_up(name)
            name = index.settings.dead_letter_queue if index is not None else None
        found = await self.look_up(grave, surely=True)
        if found is None:
            raise Conflict(f"the dead-letter queue {grave} does not exist. Create it first, with PUT /{grave}")
        if found.settings.unique:
            raise Conflict(f"{grave} is unique, so it would not take every message. Name another dead-letter queue")

    async def _reap_deleted(self, queue: str) -> None:
        """Let the reaper know what the deletion of a queue has brought to REMOVED."""
        try:
            with trio.CancelScope(shield=True):
                for entry in await self._storage.scan(State.REMOVED, queue):
                    self._catalog.place(entry)
        except StorageError as error:
            logger.warning("what was in queue %s is unlinked after the next start: %s", queue, error)
