"""Operations on whole queues (:class:`Queues`), and for servers (:class:`Declarations`): declared queues, which keep a
value of the protocol's own, and records.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from mq import turns
from mq.broker.bodies import BodyStats
from mq.broker.body_loader import BodyLoader
from mq.broker.catalog import Catalog
from mq.broker.commit import Future
from mq.broker.config import BrokerConfig
from mq.broker.core import Core
from mq.broker.dead_letters import DeadLetters, DeadLetterSink, DeadLetterSinks, arriving
from mq.broker.index import QueueIndex, sequence_of
from mq.broker.jobs import MoveJob, last_error
from mq.broker.message_groups import MessageGroups
from mq.broker.second_names import SecondNames
from mq.broker.settings import DEFAULTS, REJECT, QueueSettings
from mq.broker.shared import StoreWatcher
from mq.broker.upkeep import Upkeep
from mq.errors import (
    Conflict,
    InvalidName,
    InvalidSetting,
    MQError,
    NoSuchQueue,
    OverLimit,
    StorageError,
    StorageFull,
)
from mq.lifecycle import OWNER, Kind, QueueOwner, State
from mq.message import MessageId, QueueName, no_such_queue, shorten
from mq.storage import groups
from mq.storage.interface import QUEUE, WRITE_JOBS, Drop, Entry, Move, Result, Sharing
from mq.storage.records import drop_record, error_of, put_record

logger = logging.getLogger("mq.broker")

REGROUPED_AT_ONCE = 256
"""Messages whose groups begin before other tasks run: a millisecond. Not Final: tests make it smaller."""
_FREED_AT_ONCE: Final = 2048
"""Groups, or digests of bodies, that are freed before other tasks run."""
LARGEST_SLICE: Final = 1000
"""Messages that are moved in one batch."""


Record = tuple[str, str, Mapping[str, Any]]
"""A record of a server's: its kind, its key, and JSON."""
TellShared = Callable[[Record, bool], Awaitable[None]]
"""Called with a record that all nodes of a cluster share, and whether it is gone. Returns once that is in effect."""


class QueueStatus(NamedTuple):
    """A queue's settings and counts.

    Attributes:
        ready: messages that can be fetched now, or in a moment.
        leased: messages that are leased or held, or on their way from or to a lease.
        delayed: messages that cannot be fetched yet.
        oldest_ns: when the first ready message came into the queue, nanoseconds since 1970; None without one.
        created_ns: when the queue was made, nanoseconds since 1970.
        store: where it lives: ``disk``, ``memory``, or in a cluster ``node`` and ``cluster``.
    """

    name: str
    settings: QueueSettings
    ready: int
    leased: int
    delayed: int
    oldest_ns: int | None
    created_ns: int = 0
    store: str = "disk"


class Inventory(NamedTuple):
    """A queue, and where its messages are.

    Attributes:
        created_ns: when it was made, nanoseconds since 1970.
        entries: its messages, without those that are being moved.
    """

    queue: str
    created_ns: int
    entries: Iterator[Entry]
    moving: list[MessageId]


class Redriven(NamedTuple):
    """The result of a redrive.

    Attributes:
        left: how many ready messages are left.
    """

    moved: int
    left: int


class Queues:
    """The queues of a store: made, deleted, set, emptied, redriven."""

    def __init__(
        self,
        core: Core,
        watcher: StoreWatcher,
        upkeep: Upkeep,
        dead_letters: DeadLetters,
        loader: BodyLoader,
        second_names: SecondNames,
    ) -> None:
        self._storage = core.storage
        self._catalog = core.catalog
        self._committer = core.committer
        self._watcher = watcher
        self._upkeep = upkeep
        self._dead_letters = dead_letters
        self._loader = loader
        self._second_names = second_names
        self._core = core
        self._secure_keys = core.secure_keys
        self._jobs = core.jobs
        self._ids = core.ids
        self._config = core.config
        self._others_move = core.config.others_move
        self._store = core.config.store
        self._incarnations = itertools.count(int(core.writer, 16))
        self._changing = trio.Lock()

    async def get(self, queue: str, *, is_wanted: bool = True) -> QueueIndex:
        """The queue's index.

        Args:
            queue: its name.
            is_wanted: False for a request that removes something, whose caller would not create the queue.

        Raises:
            NoSuchQueue: it does not exist.
        """
        index = await self.look_up(queue)
        if index is None:
            raise no_such_queue(queue) if is_wanted else NoSuchQueue(f"queue {shorten(queue)} does not exist")
        return index

    async def look_up(self, queue: str, *, surely: bool = False) -> QueueIndex | None:
        """The queue's index; None without such a queue. `surely` reads the store itself, where others change it."""
        if self._others_move and (surely or queue not in self._catalog.queues):
            await self._watcher.load_queues()
        return self._catalog.queues.get(queue)

    async def get_caught_up(self, queue: str) -> QueueIndex:
        """The queue's index, with every message delivered that was published before.

        Raises:
            NoSuchQueue: it does not exist.
        """
        index = await self.get(queue)
        if self._others_move:
            await self._watcher.refresh(index)
        await self._upkeep.caught_up(index)
        return index

    async def create(
        self,
        name: QueueName,
        patch: Mapping[str, Any] = {},
        declared: Mapping[str, Any] | None = None,
        *,
        is_transient: bool = False,
        refuses_other: bool = False,
    ) -> bool:
        """Make a queue. False when it is there already; then it stays as it is.

        Args:
            patch: its settings, by their JSON names; the others are at their defaults.
            declared: a server's own value, kept with it.
            refuses_other: whether one that is there has to be as `is_transient` says.

        Raises:
            Conflict: it is there, and ends with this process where the other one would not, or the other way round.
            InvalidName: mq uses that name itself.
            InvalidSetting: a setting is unknown or out of its range.
            OverLimit: the user for whom it is made has as many queues as the limit allows.
        """
        if name == WRITE_JOBS:
            raise InvalidName(f"the queue name {name} is reserved for internal use by mq. Choose another name")
        settings = DEFAULTS.changed(patch)
        if settings.groups:
            check_groups(self._config)
        await self.settled(name)
        async with self._changing:
            if (found := await self.look_up(name, surely=True)) is not None:
                if refuses_other and found.is_transient != is_transient:
                    where = "in memory" if found.is_transient else ("in this daemon's store")
                    raise Conflict(
                        f"queue {name} already exists {where}. Delete that queue first, or omit the store parameter"
                    )
                await self._make_sure(name)
                return False
            owner = OWNER.get()
            if owner is not None:
                self._check_number(owner)
            leftovers = await self._leftovers(name)
            if self._config.sharing is not Sharing.PEERS:
                await self._remove(leftovers)
            index = QueueIndex(
                name,
                self._ids.new().time,
                settings,
                declared,
                is_transient=is_transient,
                incarnation=next(self._incarnations),
                owner=None if owner is None else owner.name,
            )
            with self._committer.noting_failure():
                made = await put_record(self._storage, QUEUE, name, index.record(settings))
            if made and self._config.sharing is Sharing.PEERS:
                await self._remove(leftovers)  # only now: if a peer has made the queue, they are its messages
            if self._others_move:
                await self._watcher.load_queues()  # a peer may have made it at the same time, before us
            self._catalog.add_queue(index)
            return made

    def _check_number(self, owner: QueueOwner) -> None:
        """Refuse one more queue of a user who has as many as the limit allows."""
        most = owner.most_queues
        if most is not None and self._catalog.owned(owner.name) >= most:
            raise OverLimit(
                f"user {owner.name} already has {most} queues, the maximum for this user (max_queues). Delete some "
                "queues first"
            )

    async def settled(self, name: str) -> None:
        """Wait until nothing is under way of a deleted queue of that name. Other queues can be made meanwhile."""
        await self._catalog.has_left(name)

    async def delete(self, queue: str) -> None:
        """Delete a queue and all its messages.

        Raises:
            NoSuchQueue: it does not exist.
        """
        async with self._changing:
            index = await self.get(queue, is_wanted=False)
            before = {*index.new.values(), *index.all_delayed()} if self._others_move else None
            index.is_going = True
            try:
                with self._committer.noting_failure():
                    dropped = await drop_record(self._storage, QUEUE, queue)
                left = index.outside_folder()
                if before is not None:  # a later one may belong to a queue that a peer has made anew
                    left = iter([entry for entry in left if entry in before])
                self._upkeep.forget(index, left, is_ours=dropped)
            finally:
                index.is_going = False
        if not dropped:
            raise NoSuchQueue(f"queue {shorten(queue)} does not exist")
        left_over = index.bodies, index.groups
        index.bodies = index.groups = None
        await self._reap_deleted(queue)
        await _let_go(*left_over)

    async def change_settings(self, queue: str, patch: Mapping[str, Any]) -> QueueSettings:
        """Change settings of a queue: all of `patch` or nothing. Durable on return.

        Raises:
            NoSuchQueue: it does not exist.
            InvalidSetting: a setting is unknown or out of its range, or two contradict each other.
            Conflict: a setting that cannot be kept here and now.
        """
        async with self._changing:
            await self.look_up(queue, surely=True)  # a peer may have changed settings
            index = await self.get(queue)
            settings = index.settings.changed(patch)
            await self._check(index, settings)
            with self._committer.noting_failure():
                await put_record(self._storage, QUEUE, queue, index.record(settings))
            bodies = None
            if settings.knows_bodies != index.settings.knows_bodies or settings.unique != index.settings.unique:
                bodies, index.bodies = index.bodies, None  # loaded anew when needed
            before, index.settings = index.settings, settings
            if settings.groups != before.groups:
                await self._regroup(index)
            self._upkeep.settings_changed(index)
        await _let_go(bodies)
        if settings.knows_bodies:
            with suppress(StorageError):  # the settings are durable; the bodies are loaded when needed
                await self._loader.load(index)
            self._upkeep.trim(index)
        return settings

    def status(self, index: QueueIndex) -> QueueStatus:
        """The queue's settings and counts."""
        held_back = _held_back(index)
        delivering = len(index.delivering) + len(index.dropping)
        first = index.first(1) if index.ready else None
        return QueueStatus(
            index.name,
            index.settings,
            ready=index.ready + len(index.delivering) + len(index.new) - held_back,
            leased=index.leased + len(index.held) + len(index.claimed) + index.moving - delivering,
            delayed=len(index.delayed) + len(index.far_off) - index.leased + held_back,
            oldest_ns=MessageId.time_ns(sequence_of(first[0])) if first else None,
            created_ns=MessageId.time_ns(index.created),
            store="memory" if index.is_transient else self._store,
        )

    async def all(self) -> list[QueueStatus]:
        """The status of every queue, sorted by name."""
        if self._others_move:
            await self._watcher.load_queues()
        found: list[QueueStatus] = []
        async for name in turns.in_turns(sorted(self._catalog.queues), turns.LIGHT):
            index = self._catalog.queues.get(name)
            if index is not None:
                found.append(self.status(index))
        return found

    def inventory(self) -> Iterator[Inventory]:
        """Every queue as it is now. Read all of it without an await in between, or it changes meanwhile."""
        for index in self._catalog.queues.values():
            moving = self._catalog.on_their_way(index)
            yield Inventory(index.name, MessageId.time_ns(index.created), index.entries(), moving)

    def messages(self) -> int:
        """How many messages all queues have together."""
        return sum(index.total for index in self._catalog.queues.values())

    async def purge(self, queue: str) -> int:
        """Remove all messages that are not leased, held or claimed; how many were removed.

        Raises:
            NoSuchQueue: the queue does not exist.
            StorageError: some could not be removed.
        """
        index = await self.get(queue, is_wanted=False)
        await self._upkeep.caught_up(index)
        entries = await self._purged(index)
        neighbours = await self._neighbours(index, entries) if self._second_names.may_exist else set()
        purged: set[MessageId] = set()
        count = 0
        entries.reverse()
        try:
            while entries:  # what is done is let go of: to free all at the end would be one long step
                moves = [self._second_names.removal(entry) for entry in reversed(entries[-LARGEST_SLICE:])]
                del entries[-LARGEST_SLICE:]
                done = purged if self._second_names.may_exist else set[MessageId]()
                count -= len(done)
                await self._do(index, moves, Kind.REMOVE, "cannot remove the message", done)
                count += len(done)
        finally:
            if self._second_names.may_exist:  # also of a purge that failed: no later one finds what is gone from here
                await self._second_names.remove_many(queue, purged, neighbours)
        return count

    async def _purged(self, index: QueueIndex) -> list[Entry]:
        """The messages that a purge removes. In a queue with message groups, the keys that a purge ends have ended for
        all messages up to now, and for no later one.

        Raises:
            StorageError: that cannot be kept; nothing has ended.
        """
        late: set[MessageId] = set()
        if index.settings.groups:
            seen, late = await self._end_keys(index)
            await self._upkeep.caught_up(index)
        else:
            seen = index.seen()
        found = [entry async for entry in turns.in_turns(seen, turns.LIGHT // 4) if entry.meta.receipt is None]
        late_ones = (index.find(id) for id in late)
        return found + [entry for entry in late_ones if entry is not None and entry.meta.receipt is None]

    async def _end_keys(self, index: QueueIndex) -> tuple[Iterator[Entry], set[MessageId]]:
        """End the keys of all messages up to now: those in the queue, and the ids of those on their way there."""
        async with self._changing:
            if self._catalog.queues.get(index.name) is not index:
                raise no_such_queue(index.name)  # the record would make it again
            # First the keys: after a crash in between, a message may be stored twice, and none is lost.
            with self._committer.noting_failure():
                await put_record(
                    self._storage, QUEUE, index.name, index.record(index.settings, purges=index.purges + 1)
                )
            index.purges += 1
            # From here to the end of the block nothing awaits: what is published later has a later key.
            seen, late = index.seen(), {*index.new, *self._catalog.on_their_way(index)}
            under_way = self._core.keyed_publishes(index)
        for future in under_way:
            with suppress(MQError):
                late.add(await future.get())
        return seen, late

    async def _neighbours(self, index: QueueIndex, entries: Sequence[Entry]) -> set[str]:
        """The queues to or from which messages of `index` may have been moved last."""
        with suppress(StorageError):  # at worst a second name is found where the index has it, or not
            await self._dead_letters.learn(entries)
        dead = self._dead_letters
        return {name for entry in entries for name in dead.neighbours(index, dead.history(entry))}

    async def redrive(
        self, queue: str, to: str | None = None, most: int = LARGEST_SLICE, ids: Sequence[str] | None = None
    ) -> Redriven:
        """Move ready messages back to the queues in which they died, or all of them to another queue. Those for which
        such a queue has no room, by its limits, stay.

        Args:
            to: the queue to move them to; None for those in which they died.
            ids: move only these; None for any.

        Raises:
            NoSuchQueue: one of the queues does not exist.
            StorageError: some could not be moved.
        """
        index = await self.get(queue)
        if to is not None and (await self.get(to)) is index:
            raise InvalidSetting(f"queue {queue} is both the source and the target. Choose another target queue")
        await self._upkeep.caught_up(index)
        wanted = index.in_order() if ids is None else (index.find(MessageId(id)) for id in ids)
        chosen: list[tuple[Entry, QueueIndex]] = []
        rooms: dict[QueueIndex, _Room] = {}
        moved: set[MessageId] = set()
        try:
            async for entry in turns.in_turns(wanted, turns.LIGHT):
                target = self._target(entry, to) if entry is not None and entry.state is State.READY else None
                if entry is not None and target is not None:
                    if rooms.setdefault(target, _Room(target)).takes_message():
                        chosen.append((entry, target))
                    elif to is not None:
                        break
                if len(chosen) >= most:
                    break
            fitting = turns.in_turns(await self._fitting(chosen, rooms), turns.LIGHT)
            moves = [
                Move(entry, State.READY, arriving(target, entry, self._ids, self._upkeep.clock), target.name)
                async for entry, target in fitting
            ]
            await self._do(index, moves, Kind.REROUTE, "cannot move the message", moved)
        finally:
            for room in rooms.values():
                room.release(self._catalog)
        return Redriven(len(moved), index.ready)

    # Implementation

    async def _fitting(
        self, chosen: list[tuple[Entry, QueueIndex]], rooms: Mapping[QueueIndex, _Room]
    ) -> list[tuple[Entry, QueueIndex]]:
        """Those of the messages whose bodies fit into their queues; the first of a queue that does not ends them."""
        limited = [entry for entry, target in chosen if rooms[target].counts_bytes]
        if not limited:
            return chosen
        for target in dict.fromkeys(target for _, target in chosen if rooms[target].counts_bytes):
            await self._loader.load(target)
        sizes: dict[MessageId, int] = {}
        for entry, stored in zip(limited, await self._storage.read(limited), strict=True):
            if stored is not None:
                sizes[entry.id] = stored.properties.size
                await stored.body.aclose()
        return [(entry, target) for entry, target in chosen if rooms[target].takes_bytes(sizes.get(entry.id, 0))]

    async def _leftovers(self, name: str) -> list[Entry]:
        """Messages in NEW and DELAYED, left by deleted queues of that name.

        Raises:
            StorageFull: some cannot be removed for now.
        """
        if not await self._catalog.has_left(name):
            await self._upkeep.retry_orphans(name)  # the medium may have room by now
        if not await self._catalog.has_left(name):
            raise StorageFull(
                f"queue {name} cannot be created yet, because messages from the deleted queue "
                "with that name are still being removed. Try again later"
            )
        if not self._others_move and name not in self._catalog.strangers:
            return []
        return [entry for state in (State.NEW, State.DELAYED) for entry in await self._storage.scan(state, name)]

    async def _remove(self, leftovers: Sequence[Entry]) -> None:
        """Remove leftovers of a deleted queue, before a queue of its name is made.

        Raises:
            StorageError: some are still there.
        """
        # In NEW and DELAYED nothing else tells the messages of two queues of one name apart.
        failed = await last_error(
            [self._upkeep.orphaned(entry) for entry in leftovers if entry.id not in self._catalog.locks]
        )
        if failed is not None:
            raise failed

    async def _make_sure(self, name: str) -> None:
        """Make a queue durable that is there already."""
        if self._others_move:  # a peer may have died before its record was
            record = (await self._storage.records(QUEUE)).get(name)
            if record is not None:
                with self._committer.noting_failure():
                    await put_record(self._storage, QUEUE, name, {"created": 0, **record})

    def _target(self, entry: Entry, to: str | None) -> QueueIndex | None:
        deaths = self._dead_letters.history(entry)
        name = to or (deaths[0]["queue"] if deaths else None)
        target = self._catalog.queues.get(name) if name is not None else None
        if target is None or target.name == entry.queue or target.settings.unique:
            return None
        return target

    async def _do(self, index: QueueIndex, moves: Sequence[Move], kind: Kind, what: str, done: set[MessageId]) -> None:
        """Make those moves whose messages are still where they were, in one batch; their ids go to `done`."""
        await self._secure_keys([move.entry.id for move in moves])
        failed: MQError | None = None
        at = 0
        while at < len(moves):  # others' operations come in between
            some = moves[at : at + self._committer.portion]
            at += len(some)
            failed = await self._do_some(index, some, kind, what, done) or failed
        if failed is not None:
            raise failed

    def _begin(self, index: QueueIndex, move: Move) -> bool:
        """Begin a move, if its message is still where it was."""
        id = move.entry.id
        if id in self._catalog.locks or index.is_out(id) or index.find(id) != move.entry:
            return False
        self._catalog.begin(move.entry, is_leaving=True)
        return True

    async def _do_some(
        self, index: QueueIndex, moves: Sequence[Move], kind: Kind, what: str, done: set[MessageId]
    ) -> MQError | None:
        """The last error, if there was one."""
        futures: list[Future[Entry]] = []
        async for some in turns.slices(moves, turns.LIGHT):
            begun = [MoveJob(self._catalog, move, kind, what) for move in some if self._begin(index, move)]
            self._jobs.put(begun)
            futures += [job.future for job in begun]
        try:
            return await last_error(futures)
        finally:
            done.update(future.value.id for future in futures if future.value is not None)

    async def _regroup(self, index: QueueIndex) -> None:
        """Begin or end message groups. A long queue hands out nothing meanwhile; all else goes on."""
        before = index.groups
        index.regroup(self._catalog.on_their_way(index))
        with trio.CancelScope(shield=True):  # the setting is durable: a caller that goes away changes nothing
            while index.regroup_some(REGROUPED_AT_ONCE, self._catalog.locks.__contains__) and not index.deleted:
                await trio.lowlevel.checkpoint()
            await _let_go(before)

    async def _check(self, index: QueueIndex, settings: QueueSettings) -> None:
        """Refuse settings that contradict the store or another queue."""
        if settings.unique and self._others_move:
            raise Conflict(
                "queues with unique=true are not supported when other programs share the root folder. Run a single "
                "daemon, without --peers or --no-mover"
            )
        if settings.groups:
            check_groups(self._config)
        if settings.unique and any(
            other.settings.dead_letter_queue == index.name for other in self._catalog.queues.values()
        ):
            raise Conflict(
                f"queue {index.name} is a dead-letter queue and must accept every message, so it cannot have "
                "unique=true"
            )
        if settings.dead_letter_queue is not None and settings.dead_letter_queue != index.settings.dead_letter_queue:
            await self._check_target(index.name, settings.dead_letter_queue)

    async def _check_target(self, queue: str, target: str) -> None:
        path = [queue]
        name: str | None = target
        while name is not None:
            if name in path:
                raise InvalidSetting(
                    f"dead letters would move in a loop: {' -> '.join([*path, name])}. Choose another dead-letter queue"
                )
            path.append(name)
            index = await self.look_up(name)
            name = index.settings.dead_letter_queue if index is not None else None
        found = await self.look_up(target, surely=True)
        if found is None:
            raise Conflict(
                f"the dead-letter queue {target} does not exist. Create it first, with mq queue create {target} "
                f"or PUT /{target}"
            )
        if found.settings.unique:
            raise Conflict(
                f"queue {target} has unique=true, so it would refuse some dead letters. Choose another "
                "dead-letter queue"
            )

    async def _reap_deleted(self, queue: str) -> None:
        """Have the messages unlinked that the deletion of a queue has brought to REMOVED."""
        try:
            with trio.CancelScope(shield=True):
                async for entry in turns.in_turns(await self._storage.scan(State.REMOVED, queue), turns.LIGHT):
                    self._catalog.place(entry)
        except StorageError as error:
            logger.warning(
                "cannot delete the messages of the deleted queue %s: %s. mq will try again after the next restart",
                queue,
                error,
            )


class _Room:
    """The room for messages that are moved to a queue which refuses what is over its limits. It is reserved as it is
    taken, so that publishes count it, too: call :meth:`release` once the messages are there.

    Attributes:
        counts_bytes: whether the queue limits the bytes of its messages.
    """

    def __init__(self, index: QueueIndex) -> None:
        settings = index.settings
        refuses = settings.overflow == REJECT
        self._index = index
        self._most = settings.max_messages if refuses else None
        self._most_bytes = settings.max_bytes if refuses else None
        self.counts_bytes = self._most_bytes is not None
        self._messages = 0
        self._bytes = 0
        self._is_full = False

    def takes_message(self) -> bool:
        """Whether there is room for one more message; then it is reserved."""
        if self._most is not None and self._index.counted >= self._most:
            return False
        self._index.reserved += 1
        self._messages += 1
        return True

    def takes_bytes(self, size: int) -> bool:
        """Whether there is room for the body of a message for which there was; else that is released."""
        index = self._index
        if self._most_bytes is None:
            return True
        there = index.reserved_bytes + (index.bodies.total if index.bodies is not None else 0)
        self._is_full = self._is_full or there + size > self._most_bytes
        if self._is_full:
            index.reserved -= 1
            self._messages -= 1
        else:
            index.reserved_bytes += size
            self._bytes += size
        return not self._is_full

    def release(self, catalog: Catalog) -> None:
        """Release what is reserved."""
        index = self._index
        index.reserved -= self._messages
        index.reserved_bytes -= self._bytes
        if index.deleted:
            catalog.let_go(index)


def check_groups(config: BrokerConfig) -> None:
    """Check that this broker can keep the order of message groups.

    Raises:
        Conflict: others hand out messages of the store, too.
    """
    if config.others_move:
        raise Conflict(
            "message groups are not supported when other programs share the root folder. Run a single daemon, without "
            "--peers or --no-mover"
        )


async def _let_go(*parts: BodyStats | MessageGroups | None) -> None:
    """Forget what nothing asks for any more, some in each step: to free very much at once takes long."""
    for part in parts:
        while part is not None and part.let_go(_FREED_AT_ONCE):
            await trio.lowlevel.checkpoint()


def _held_back(index: QueueIndex) -> int:
    """Messages in NEW that are to be delayed."""
    return sum(entry.meta.deadline_ms is not None for entry in index.new.values())


class Declarations:
    """What a server keeps in the store beyond messages: declared queues, records, a sink for dead letters."""

    def __init__(self, core: Core, queues: Queues, sinks: DeadLetterSinks) -> None:
        self._storage = core.storage
        self._catalog = core.catalog
        self._committer = core.committer
        self._queues = queues
        self._sinks = sinks
        self._peers = core.config.peers

    def knows(self, queue: str) -> bool:
        """Whether this broker knows such a queue. Answers at once."""
        return queue in self._catalog.queues

    def may_have(self, queue: str) -> bool:
        """Whether a queue may exist that :meth:`knows` does not know: not here, where it knows all."""
        return False

    async def find(self, queue: str) -> None:
        """Bring :meth:`knows` up to date on a queue that may live on another node. Here it always is."""

    def ready(self, queue: str) -> int:
        """How many messages of a queue can be handed out now, or in a moment; 0 without the queue. Answers at once."""
        index = self._catalog.queues.get(queue)
        if index is None:
            return 0
        ready = index.ready + len(index.delivering)
        return ready + len(index.new) - _held_back(index) if index.new else ready

    async def look(self, queue: str) -> None:
        """Bring :meth:`ready` up to date on a queue that lives on another node. Here it always is."""

    def queues(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The declared queues, each with the protocol's own value."""
        for name, index in self._catalog.queues.items():
            if index.declared is not None:
                yield name, index.declared

    async def admit(self, queue: QueueName, *, is_replicated: bool) -> None:
        """Check whether a queue may be declared, as :meth:`create` does; this call may take longer.

        Raises:
            Conflict: it may not.
        """
        if is_replicated:
            raise _in_no_cluster(queue)
        await self._queues.settled(queue)

    async def create(
        self,
        queue: QueueName,
        settings: Mapping[str, Any],
        declared: Mapping[str, Any] | None,
        *,
        is_transient: bool,
        is_replicated: bool = False,
    ) -> bool:
        """Make a queue with its settings and the protocol's own value in one step; durable on return.

        Args:
            settings: by their JSON names; the others are at their defaults.
            declared: JSON values that are kept with it.

        Returns:
            False when it is there already; then it stays as it is.

        Raises:
            Conflict: it cannot be highly available: this daemon is in no cluster.
            InvalidSetting: a setting is unknown or out of its range.
        """
        if is_replicated:
            raise _in_no_cluster(queue)
        return await self._queues.create(queue, settings, declared, is_transient=is_transient)

    def replicates(self, queue: str) -> bool:
        """Return whether a new queue whose client does not place it is to be highly available. Here none is."""
        return False

    def on_closed(self, told: Callable[[str], None]) -> None:
        """Call `told` with the name of each queue that goes, for whatever reason."""
        self._catalog.closed = told

    def on_opened(self, told: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Call `told` with each queue that another node declares. Here none does."""

    def on_failover(self, told: Callable[[Iterable[str]], None]) -> None:
        """Call `told` with the queues whose consumers have to begin anew after a fail-over. Here there is none."""

    def set_sink(self, sink: DeadLetterSink) -> None:
        """Set the sink that gets the dead letters of the protocol's queues."""
        self._sinks.set(sink)

    async def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Put a record; durable on return."""
        with self._committer.noting_failure():
            await put_record(self._storage, kind, key, value)

    async def drop(self, kind: str, key: str) -> None:
        """Drop a record; durable on return."""
        with self._committer.noting_failure():
            await drop_record(self._storage, kind, key)

    async def drop_many(self, records: Sequence[tuple[str, str]]) -> None:
        """Drop records, by their kinds and keys, in one batch; durable on return.

        Raises:
            StorageError: the store cannot drop one of them now. The others may be dropped.
        """
        with self._committer.noting_failure():
            for outcome in await groups.commit(self._storage, [Drop(kind, key) for kind, key in records]):
                if outcome.result not in (Result.DONE, Result.GONE):
                    raise error_of(outcome, "cannot delete a stored exchange or binding")

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """The records of a kind, by key."""
        return await self._storage.records(kind)

    def shares(self, record: Record) -> bool:
        """Whether a record would be one of all nodes of a cluster, which :meth:`share` puts. Here none is."""
        return False

    def has_shared(self, record: Record) -> bool:
        """Whether a record is one of all nodes of a cluster, which :meth:`share` drops. Here none is."""
        return False

    async def share(self, puts: Sequence[Record], drops: Sequence[Record]) -> None:
        """Put and drop records that all nodes of a cluster share. Here there are none."""
        raise AssertionError("a daemon that is not part of a cluster has no shared records")

    def on_shared(self, told: TellShared) -> None:
        """Call `told` with each record that the nodes of a cluster share, when it comes and goes. Here none does."""

    @property
    def is_caught_up(self) -> bool:
        """Whether what the nodes of a cluster share is known here as it is. Without a cluster it always is."""
        return True

    async def catch_up(self) -> None:
        """Wait until :attr:`is_caught_up`."""


def _in_no_cluster(queue: str) -> Conflict:
    return Conflict(
        f"queue {queue} cannot be a quorum queue, because this daemon is not part of a cluster. Start mq with "
        "--cluster, or declare a classic queue"
    )
