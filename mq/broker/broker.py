"""The broker: the one API that every protocol calls, and the wiring of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import trio

from mq import threads
from mq.broker import dead_letters
from mq.broker.api import ALONE, CLUSTER, MEMORY, Membership, NodeControl, NoNode
from mq.broker.background_check import BackgroundCheck
from mq.broker.batch_consumers import BatchConsumers, ClaimedMessages, ConsumerRecords
from mq.broker.bodies import digest_of
from mq.broker.body_loader import BodyLoader
from mq.broker.catalog import MOST_BYTES, Catalog
from mq.broker.clock import KEY as CLOCK_KEY
from mq.broker.clock import KIND as CLOCK_KIND
from mq.broker.clock import Clock, ClockRecord
from mq.broker.columns import ColumnReader
from mq.broker.commit import Committer, InFlight, SaveWorker, StoreProgress, Together
from mq.broker.config import BrokerConfig
from mq.broker.consuming import Consumption, Remover
from mq.broker.core import Core
from mq.broker.damage import pause_damaged
from mq.broker.dead_letters import DeadLetters, DeadLetterSinks, HistoryCodec
from mq.broker.dispatch import Deliverer, DirectDispatch, FetchWorker, Lessor, ReadyMessages, UnackedDeliverer
from mq.broker.exclusion import Exclusion
from mq.broker.index import QueueIndex
from mq.broker.jobs import Job
from mq.broker.keys import Keys
from mq.broker.leases import Leases
from mq.broker.ledger import Ledger
from mq.broker.peek import READY, Peek, Seen, SequenceBrowser
from mq.broker.publishing import Draft, JobBatch, KeyedJobs, Published, Publisher, Upload
from mq.broker.queues import Declarations, Queues, QueueStatus
from mq.broker.second_names import SecondNames
from mq.broker.settings import VISIBILITY, QueueSettings, check_value
from mq.broker.shared import StoreWatcher
from mq.broker.unacked import Unacked, UnackedMessage
from mq.broker.upkeep import Upkeep
from mq.broker.waiters import FetchRequest, Handing, Precedence, Waiters
from mq.broker.write_jobs import WriteJobs
from mq.errors import (
    Conflict,
    MQError,
    NoSuchMessage,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageUnsure,
    StorageUnusable,
)
from mq.lifecycle import Meter, Observer, Span
from mq.message import Message, MessageId, MessageIds, QueueName, shorten
from mq.storage.interface import Description, Health, Sharing, Storage, health_of


class Broker:
    """Publish, fetch, remove, requeue, and all that goes with them. Made by :func:`~mq.broker.lifetime.open_broker`.

    Everything raises :class:`~mq.errors.BrokerClosed` once the broker ends, and the storage errors of :mod:`mq.errors`
    when the medium refuses; what a method says it did is durable on return. Methods that name a queue raise
    :class:`~mq.errors.NoSuchQueue` where there is none of that name.

    A method without logic of its own is that of the part that carries it out: see the constructor.

    Attributes:
        storage: the open store. To look at only: a change that passes the broker by is unknown to it.
    """

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        core = wiring.core
        self.config, self.storage, self.clock = core.config, core.storage, core.clock
        self._others_move = core.config.others_move
        self._now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time
        self._catalog, self._committer, self._waiters = wiring.catalog, wiring.committer, wiring.waiters
        self._known = wiring.catalog.queues
        self._publish_times = wiring.catalog.histograms_of(Span.PUBLISH)
        self._queues, self._publishing, self._consuming = wiring.queues, wiring.publishing, wiring.consuming
        self._unacked = wiring.unacked
        self._peek, self._upkeep, self._watcher = wiring.peek, wiring.upkeep, wiring.watcher
        self.declarations: Declarations = wiring.declarations  # what a server declares beyond messages
        self._in_flight = core.in_flight
        self.claims = wiring.claims
        self.writes = wiring.writes
        self.browsing = wiring.browse
        self.columns = wiring.columns
        self.node_control: NodeControl = NoNode()
        # Parts carry these out as they are. What begins in the step of its caller counts itself as in flight.
        counted = self._in_flight.counted
        self.delete_queue, self.change_settings = counted(self._queues.delete), counted(self._queues.change_settings)
        self.purge, self.redrive = counted(self._queues.purge), counted(self._queues.redrive)
        self.queues, self.inventory, self.messages = self._queues.all, self._queues.inventory, self._queues.messages
        consuming = self._consuming
        self.remove, self.remove_many = counted(consuming.remove), counted(consuming.remove_many)
        self.requeue, self.reschedule = counted(consuming.requeue), counted(consuming.reschedule)
        self.extend, self.change_leases = counted(consuming.extend), counted(consuming.change_leases)
        self.give_back = consuming.give_back
        self.acknowledge, self.put_back = counted(self._unacked.acknowledge), counted(self._unacked.put_back)
        self.reject = counted(self._unacked.reject)
        self.hold_now, self.hold_when_ready = self._unacked.hold_now, self._unacked.hold_when_ready
        self.acknowledge_now = self._unacked.acknowledge_now
        publishing = self._publishing
        self.publishes_now, self.publish_now = publishing.publishes_now, publishing.publish_now
        self.longest_body, self.stage = publishing.longest_body, publishing.stage
        self.fetch_now, self.remove_now = consuming.fetch_now, consuming.remove_now

    async def finish(self) -> None:
        """Accept no more requests, and wait until the last is done, as long as the store answers. Fetches that wait end
        with no message."""
        self._in_flight.close()
        self._waiters.close()
        with suppress(StorageUnsure), self.progress.patient():
            await self._in_flight.finished()
            self.clock.look()  # an idle broker may not have seen a step
            await self._wiring.record_time()

    # The store

    @property
    def clocks(self) -> Sequence[Clock]:
        """The clocks by which this process serves messages: this broker's alone."""
        return (self.clock,)

    @property
    def description(self) -> Description:
        """What the store is."""
        return self.storage.description

    @property
    def health(self) -> Health | None:
        """What the store knows of damage; None if it finds none by itself."""
        return health_of(self.storage)

    @property
    def ready(self) -> bool:
        """Whether messages can be stored and handed out: False once the medium has failed."""
        return not self._in_flight.is_closed and not self._committer.failure

    @property
    def is_shared(self) -> bool:
        """Whether other processes change the store, too."""
        return self._others_move

    @property
    def progress(self) -> StoreProgress:
        """Noted with each answer of the store."""
        return self._committer.progress

    @property
    def membership(self) -> Membership:
        """Always :data:`~mq.broker.api.ALONE`: this broker is in no cluster."""
        return ALONE

    # Queues

    async def has_queue(self, queue: str) -> bool:
        """Whether the queue exists."""
        if not self._others_move:
            return queue in self._known
        return await self._queues.look_up(queue, surely=True) is not None

    async def create_queue(self, queue: str, place: str | None = None) -> bool:
        """Make a queue. False when it is there already; then it stays as it is.

        Args:
            place: where it lives (:mod:`mq.broker.api`); None for wherever a queue does.

        Raises:
            InvalidName: not a queue's name.
            Conflict: a queue cannot live there, or is there already in another place.
        """
        name = QueueName(queue)
        if place == CLUSTER:
            raise Conflict(
                f"queue {name} cannot be stored in a cluster, because this daemon is not part of a cluster. "
                "Start mq with --cluster"
            )
        with self._in_flight:
            return await self._queues.create(name, is_transient=place == MEMORY, refuses_other=place is not None)

    async def settings(self, queue: str) -> QueueSettings:
        """The queue's settings."""
        await self._queues.look_up(queue, surely=True)
        return (await self._queues.get(queue)).settings

    async def status(self, queue: str) -> QueueStatus:
        """The queue's settings and counts."""
        await self._queues.look_up(queue, surely=True)
        return self._queues.status(await self._queues.get(queue))

    def forget_recent(self) -> None:
        """Let go of the bodies that are kept in memory for requests that come soon: they are read from the store."""
        self._catalog.recent.clear()

    # Publishing

    async def publish(
        self,
        queue: str,
        body: bytes | Upload,
        attributes: Mapping[str, Any] | None = None,
        *,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
    ) -> MessageId:
        """Store a message. On return it is durable, and its queue has it or will have it after any crash.

        Args:
            body: the bytes, or what :meth:`stage` returned; that is used up in any case.
            delay: seconds before it can be fetched.
            ttl: seconds after which it expires.
            key: the publisher's own key: what is published again with it is the same message.

        Raises:
            BodyTooLarge: the body is over the limit.
            QueueFull: the queue's own limits.
            InvalidSetting: `delay` or `ttl` is out of its range.
            Conflict: a key, on a store that others change too.
        """
        [outcome] = await self.publish_many(queue, [Draft(body, attributes or {}, delay, ttl, key)])
        if isinstance(outcome, MQError):
            raise outcome
        return outcome.id

    async def publish_many(
        self, queue: str, drafts: Sequence[Draft], has_place: Callable[[], object] | None = None
    ) -> list[Published | MQError]:
        """Store messages with one barrier; a message or an error for each draft, in their order.

        Args:
            has_place: called when what is published there from then on comes behind them; perhaps never.
        """
        began = self._now()
        try:
            with self._in_flight:
                index = self._known.get(queue) or await self._queues.get(queue)
                outcomes = await self._publishing.publish(index, drafts, has_place)
            for times in self._publish_times:
                times.observe(self._now() - began)
            return outcomes
        finally:
            for draft in drafts:
                if isinstance(draft.body, Upload):
                    await draft.body.discard()

    def settings_now(self, queue: str) -> QueueSettings | None:
        """The settings of a queue that certainly exists. None where it does not, or where that is not known at once."""
        index = None if self._others_move else self._known.get(queue)
        return None if index is None else index.settings

    async def contains(self, queue: str, body: bytes | Upload) -> MessageId | None:
        """The message of a unique queue that has this body.

        Raises:
            Conflict: the queue is not unique.
        """
        index = await self._queues.get(queue)
        if not index.settings.unique:
            raise Conflict(
                f"messages in queue {queue} cannot be looked up by their body, because duplicate detection is off. To "
                f"turn it on, run mq queue set {queue} unique=true"
            )
        digest = digest_of(body) if isinstance(body, bytes) else body.digest
        return await self._publishing.find(index, digest)

    # Consuming

    async def fetch(self, queue: str, *, wait: float = 0, visibility: float | None = None) -> Message | None:
        """Lease the first READY message; None when there is none. No other fetch gets it until the lease ends.

        Close its body when done with it.

        Args:
            visibility: length of the lease in seconds; None for what the queue says.
        """
        messages = await self.fetch_many(queue, 1, wait=wait, visibility=visibility)
        return messages[0] if messages else None

    async def fetch_many(
        self, queue: str, most: int, *, wait: float = 0, visibility: float | None = None
    ) -> list[Message]:
        """As :meth:`fetch`, for up to `most` messages that are there together."""
        if visibility is not None:
            visibility = check_value("visibility", visibility, VISIBILITY)
        index = self._known.get(queue) or await self._queues.get(queue)
        return await self._fetch(FetchRequest(index, most, visibility, waits=wait > 0), wait)

    async def take(self, queue: str, *, wait: float = 0) -> Message | None:
        """Fetch and remove the first READY message in one step: at most once. A caller that loses it cannot get it
        again."""
        index = await self._queues.get(queue)
        with self._in_flight:
            messages = await self._consuming.take(FetchRequest(index, waits=wait > 0, handing=Handing.REMOVE), wait)
        return messages[0] if messages else None

    # Unacknowledged deliveries, for as long as a connection lasts

    async def hold(
        self,
        queue: str,
        most: int = 1,
        *,
        wait: float = 0,
        exclusion: Exclusion | None = None,
        precedence: Precedence | None = None,
    ) -> list[UnackedMessage]:
        """Up to `most` READY messages, held until the caller settles them; no lease runs out meanwhile.

        The caller has to settle each: acknowledge it, put it back or reject it. What is not settled when the broker
        ends is READY at the next start. Calls that wait get messages one each in turn, those of the highest priority
        first.

        Args:
            precedence: the consumer's own, which tells it when it takes no more for now; None for one of priority 0.

        Raises:
            QueueHeld: one consumer alone has the queue's messages.
        """
        held = self.hold_now(queue, most, exclusion=exclusion, precedence=precedence)
        if held or (held is not None and not wait):
            return held
        index = await self._queues.get(queue)
        in_memory = self.config.sharing is not Sharing.PEERS
        seconds = None if in_memory else self.config.visibility_seconds
        request = FetchRequest(
            index,
            most,
            seconds,
            waits=wait > 0,
            handing=Handing.HOLD if in_memory else Handing.LEASE,
            exclusion=exclusion,
            precedence=precedence,
        )
        with self._in_flight:
            return await self._unacked.hold(request, wait)

    async def exclude(self, queue: str, *, in_turn: bool = False) -> Exclusion:
        """Give a queue to one consumer alone, until it ends the exclusion. Calls that wait for its messages fail.

        Args:
            in_turn: whether to wait for those that have it alone, or asked for it before.

        Raises:
            Conflict: the store has peers, whose consumers this broker does not know.
            QueueHeld: another consumer has it alone already.
        """
        index = await self._queues.get(queue)
        return await self._unacked.exclude_in_turn(index) if in_turn else self._unacked.exclude(index)

    # Peek

    async def show(self, queue: str, id: str) -> Seen:
        """A message as it is, without taking it. Close its body when done with it.

        Raises:
            NoSuchMessage: the message is not in the queue.
        """
        seen = await self._peek.show(await self._queues.get(queue), MessageId(id))
        if seen is None:
            raise NoSuchMessage(f"message {shorten(id)} is not in queue {queue}")
        return seen

    async def peek(self, queue: str, *, state: str = READY, after: str | None = None, most: int = 100) -> list[Seen]:
        """Some messages in their order, without taking them; close their bodies.

        Args:
            after: the last id of the page before.
        """
        index = await self._queues.get_caught_up(queue)
        return await self._peek.page(index, state, MessageId(after) if after is not None else None, most)

    # Implementation

    async def _fetch(self, request: FetchRequest, wait: float) -> list[Message]:
        with self._in_flight:
            return await self._consuming.fetch(request, wait)


class Wiring:
    """The parts of one broker: made in the order in which they need each other, loaded, started."""

    def __init__(
        self,
        storage: Storage,
        config: BrokerConfig,
        observers: Sequence[Observer | Meter],
        clock: Clock,
        random: Random,
    ) -> None:
        writer = f"{random.getrandbits(48) | 1 << 40:012x}"
        ids = MessageIds(clock.date_ns, int(writer, 16))
        self._leases = leases = Leases(config.visibility_seconds, clock, random, mover=config.mover)
        self.catalog = Catalog(observers, clock, MOST_BYTES if config.skips_steps else 0)
        self.committer = Committer(storage, self.catalog.histograms_of(Span.COMMIT), clock.note_work)
        jobs: Together[Job] = Together(self.committer)
        in_flight = InFlight(self.committer)
        self.core = core = Core(
            storage, config, self.catalog, self.committer, in_flight, jobs, ids, clock, random, writer
        )
        self.waiters = waiters = Waiters(config.workers, self.committer.progress)
        second_names = SecondNames(core, leases)
        self.watcher = watcher = StoreWatcher(core, waiters, second_names)
        self._keys = None if config.others_move else Keys(core)
        if self._keys is not None:
            core.secure_keys, core.unsecured = self._keys.secure, self._keys.unsecured
        sinks = DeadLetterSinks(storage, is_awaited=config.awaits_sink)
        is_shared = config.sharing is Sharing.PEERS
        ledger = Ledger(storage, self.committer, dead_letters.KIND, writer, HistoryCodec(), is_shared=is_shared)
        self._dead_letters = dead = DeadLetters(core, ledger, sinks, second_names, watcher.load_queues)
        self.upkeep = upkeep = Upkeep(core, dead, waiters)
        self._ready = ReadyMessages(core, upkeep)
        deliverers = [Deliverer(core, waiters, leases, upkeep, dead) for _ in range(config.workers + 1)]
        self._lessors = [Lessor(core, self._ready, deliverer) for deliverer in deliverers]
        direct = DirectDispatch(core, waiters, leases, deliverers[0])
        jobs.begin = partial(JobBatch, direct)
        loader = BodyLoader(core)
        self.queues = Queues(core, watcher, upkeep, dead, loader, second_names)
        self.declarations = Declarations(core, self.queues, sinks)
        keys = self._keys
        self._keyed = None if keys is None else KeyedJobs(core, keys)
        self.publishing = Publisher(core, loader, self._keys, self._keyed, direct)
        self._unacked_deliverer = unacked_deliverer = UnackedDeliverer(core, waiters, self._ready, dead, leases)
        remover = Remover(core, second_names)
        lessor, find_queue = self._lessors[0], self.queues.get
        self.consuming = Consumption(core, dead, unacked_deliverer, remover, lessor, find_queue)
        self.unacked = Unacked(core, waiters, unacked_deliverer, self.consuming, dead, remover, leases)
        self.peek = Peek(core, dead)
        self.writes = WriteJobs(core, self._keys, self.publishing, upkeep, self.queues.get)
        self.browse = SequenceBrowser(core, self.peek, self._get_caught_up)
        claimed = ClaimedMessages(core, upkeep, dead, remover)
        records = ConsumerRecords(core, leases)
        self.claims = BatchConsumers(core, records, claimed, upkeep, self.queues.get)
        self.check = BackgroundCheck(core)
        self.columns = ColumnReader.of(core, self.claims, self.queues.get, self._get_caught_up)

    async def load(self) -> None:
        """Load the queues, messages and records of the store.

        Raises:
            StorageUnusable: it cannot be read.
        """
        try:
            if self._keys is not None:
                await self.committer.end_groups()
            record = None if self.core.config.others_move else await self._recorded_time()
            await self.watcher.load()
            self._begin_clock(record)
            await pause_damaged(self.core)
            self._check_groups()
            await self._dead_letters.load()
            await self.writes.load()
            if self._keys is not None:
                await self._keys.load()
            await self.claims.load(self.catalog.queues)
            self.unacked.loaded()
        except (StorageFull, StorageFailed, StorageUnsure) as error:
            raise StorageUnusable(f"cannot load the queues and messages from storage: {error}") from error

    async def start(self, nursery: trio.Nursery) -> None:
        """Start every task."""
        config = self.core.config
        if self._keyed is not None:
            self._keyed.start(nursery)
        for calls, lessor in zip(self.waiters.channels, self._lessors[1:], strict=True):
            nursery.start_soon(SaveWorker(self.committer).run)
            nursery.start_soon(lessor.deliverer.run)
            worker = FetchWorker(self.core, calls, self._ready, lessor, self._unacked_deliverer, self.watcher.refresh)
            nursery.start_soon(worker.run)
        nursery.start_soon(self._lessors[0].deliverer.run)
        await self.upkeep.start(nursery)
        nursery.start_soon(self.core.clock.run, self.record_time)
        nursery.start_soon(threads.watch)
        if config.others_move:
            nursery.start_soon(self.watcher.run)
        if config.sharing is Sharing.PEERS:
            nursery.start_soon(self.unacked.run)
        nursery.start_soon(self.check.run)
        await self.claims.resume(nursery, self.catalog.queues)
        if self.core.clock.doubt:  # before anything comes: a later start is to know what came since
            await self.record_time()
        await self.upkeep.deliver_backlog()
        await self.claims.finish(self.catalog.queues)
        await self.writes.start(nursery)

    async def _recorded_time(self) -> ClockRecord | None:
        value = (await self.core.storage.records(CLOCK_KIND)).get(CLOCK_KEY)
        return None if value is None else ClockRecord.stored(value)

    def _begin_clock(self, record: ClockRecord | None) -> None:
        self.core.clock.begin(record, self.core.ids.last, is_shared=self.core.config.others_move)

    async def record_time(self, record: ClockRecord | None = None) -> None:
        """Record which steady time belongs to which wall time, if the store can keep it now.

        Nothing is recorded where others move messages: each of them begins with its own wall clock.
        """
        if self.core.config.others_move or self.committer.failure:
            return
        value = (record or self.core.clock.record())._asdict()
        with suppress(StorageError):
            await self.declarations.put(CLOCK_KIND, CLOCK_KEY, value)

    async def _get_caught_up(self, queue: str) -> QueueIndex:
        """A queue's index, with all messages that were published before, and those of committed write jobs."""
        index = await self.queues.get_caught_up(queue)
        await self.writes.settle(index)
        return index

    def _check_groups(self) -> None:
        grouped = [name for name, index in self.catalog.queues.items() if index.settings.groups]
        if grouped and self.core.config.others_move:
            raise StorageUnusable(
                f"queue {grouped[0]} has groups=true, but message groups are not supported when other programs share "
                "the root folder. Run a single daemon, without --peers or --no-mover, or set groups=false on the "
                "queue first"
            )
