"""The broker: one nursery on one screen, and the one API that every door calls."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from random import Random
from typing import Any

import trio
from trio_util import AsyncValue

from mq.broker.catalog import Catalog
from mq.broker.commit import Committer
from mq.broker.config import BrokerConfig
from mq.broker.follow import Follower
from mq.broker.index import QueueIndex
from mq.broker.mailbox import Mailbox, Reply
from mq.broker.upkeep import Upkeep
from mq.broker.workers import Change, FetchRequest, FetchWorker, Job, Leases, Publish, SaveWorker
from mq.errors import (
    BodyTooLarge,
    BrokerClosed,
    MQError,
    NoSuchMessage,
    NoSuchQueue,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageUnusable,
)
from mq.lifecycle import Kind, Observer, State
from mq.message import Message, MessageId, MessageIds, QueueName, shorten
from mq.storage.interface import QUEUE, Description, Entry, Meta, Move, Staged, Storage
from mq.storage.registry import open_storage

logger = logging.getLogger("mq.broker")


@asynccontextmanager
async def open_broker(
    storage: Storage | str,
    config: BrokerConfig = BrokerConfig(),  # noqa: B008 - frozen
    *,
    observers: Sequence[Observer] = (),
    clock_ns: Callable[[], int] = time.time_ns,
    random: Random | None = None,
) -> AsyncIterator[Broker]:
    """A broker over a store, for the length of the block.

    On leaving the block nothing new is accepted, what was asked for is finished, and the tasks end. Disk is the truth:
    what the block's end interrupts is taken up at the next start.

    Args:
        storage: an open store, or the address of one, such as ``posix:/var/lib/mq``.
        config: how it works.
        observers: told of every transition of every message.
        clock_ns: wall clock, nanoseconds since 1970.
        random: chooses among candidates at peers > 0; seeded by the operating system when not given.

    Raises:
        StorageUnusable: the store cannot serve.
    """
    async with AsyncExitStack() as stack:
        if isinstance(storage, str):
            storage = await stack.enter_async_context(
                open_storage(
                    storage,
                    shared=config.peers > 0,
                    watched=not (config.mover and config.reaper),
                    max_lease_seconds=config.delay_seconds,
                )
            )
        broker = Broker(storage, config, observers, clock_ns, random or Random())
        await broker.load()
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            await broker.start(nursery)
            try:
                yield broker
            except Exception as error:  # noqa: BLE001 - the caller's own: it leaves as it came, not wrapped in a group
                failure = error
            await broker.finish()
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


class Broker:
    """Publish, fetch, remove, requeue. Made by :func:`open_broker`.

    Everything raises :class:`~mq.errors.BrokerClosed` once the broker ends, and the storage errors of
    :mod:`mq.errors` when the medium refuses; what a method says it did is durable on return.
    """

    def __init__(
        self,
        storage: Storage,
        config: BrokerConfig,
        observers: Sequence[Observer],
        clock_ns: Callable[[], int],
        random: Random,
    ) -> None:
        self.config = config
        self._storage = storage
        self._clock_ns = clock_ns
        self._ids = MessageIds(clock_ns, random.getrandbits(48) | 1 << 40)
        self._catalog = Catalog(observers, clock_ns)
        self._committer = Committer(storage)
        self._follower = Follower(self._catalog, storage, self._ids, clock_ns, sweep=config.peers > 0 and config.mover)
        self._jobs: Mailbox[Job] = Mailbox()
        self._upkeep = Upkeep(self._catalog, self._committer, self._jobs, config, clock_ns)
        self._fetches: list[Mailbox[FetchRequest]] = [Mailbox() for _ in range(config.workers)]
        self._leases = Leases(config.delay_seconds, clock_ns, random)
        self._random = random
        self._topology = trio.Lock()
        self._running: AsyncValue[int] = AsyncValue(0)
        self._closed = False

    async def load(self) -> None:
        """Take up what is in the store.

        Raises:
            StorageUnusable: it cannot be read.
        """
        try:
            await self._follower.load()
        except (StorageFull, StorageFailed) as error:
            raise StorageUnusable(f"cannot take up what is in the store: {error}") from error

    async def start(self, nursery: trio.Nursery) -> None:
        """Start every task."""
        nursery.start_soon(self._committer.run)
        for requests in self._fetches:
            nursery.start_soon(SaveWorker(self._committer, self._jobs).run)
            nursery.start_soon(self._fetch_worker(requests).run)
        self._upkeep.start(nursery)
        if self.config.followed:
            nursery.start_soon(self._follower.run)
        await self._upkeep.deliver_backlog()

    async def finish(self) -> None:
        """Accept nothing more, and wait until what was asked for is done."""
        self._closed = True
        await self._running.wait_value(0)

    # What doors call

    @property
    def description(self) -> Description:
        """What the store is."""
        return self._storage.description

    @property
    def ready(self) -> bool:
        """Whether messages can be stored and handed out: False once the medium has failed."""
        return not self._closed and not self._committer.failure

    async def has_queue(self, queue: str) -> bool:
        """Whether the queue exists."""
        return await self._look_up(queue, surely=True) is not None

    async def create_queue(self, queue: str) -> bool:
        """Make a queue. False when it is there already.

        Raises:
            InvalidName: not a queue's name.
        """
        name = QueueName(queue)
        self._check_open()
        async with self._topology:
            if await self._look_up(name, surely=True) is not None:
                return False
            created = self._ids.new().time
            with self._noting_failure():
                made = await self._storage.put_record(QUEUE, name, {"created": created})
            if self.config.followed:
                await self._follower.load_queues()  # a peer may have made it meanwhile, earlier than we
            self._catalog.queues.setdefault(name, QueueIndex(name, created))
            return made

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue and all its messages.

        Raises:
            NoSuchQueue: it does not exist.
        """
        self._check_open()
        async with self._topology:
            index = await self._index(queue)
            with self._noting_failure():
                dropped = await self._storage.drop_record(QUEUE, queue)
            self._upkeep.forget(index, remove=dropped)
            if not dropped:
                raise NoSuchQueue(f"queue {shorten(queue)} does not exist")
            await self._reap_deleted(queue)

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        """Bring a large body to the store; then publish what is returned, or discard it. What `chunks` raises passes.

        Raises:
            BodyTooLarge: it is over the limit.
        """
        self._check_open()
        with self._noting_failure():
            async with aclosing(self._limited(chunks)) as limited:
                return await self._storage.stage(limited)

    async def publish(self, queue: str, body: bytes | Staged, attributes: Mapping[str, Any] | None = None) -> MessageId:
        """Store a message. On return it is durable, and its queue has it or will have it after any crash.

        Args:
            queue: the queue's name.
            body: the bytes, or what :meth:`stage` returned.
            attributes: JSON values to keep with it.

        Raises:
            NoSuchQueue: the queue does not exist.
            BodyTooLarge: the body is over the limit.
        """
        try:
            index = await self._index(queue)
            self._check_open()
            if isinstance(body, bytes):
                self._check_size(len(body))
            job = Publish(self._catalog, self._ids, index, body, attributes or {})
            id: MessageId = await self._do(job, job.reply)
            return id
        except MQError:
            if not isinstance(body, bytes):
                with trio.CancelScope(shield=True):
                    await body.discard()
            raise

    async def fetch(self, queue: str) -> Message | None:
        """Lease the first READY message; None when there is none. Nobody else gets it until the lease ends.

        Close its body when done with it.

        Raises:
            NoSuchQueue: the queue does not exist.
        """
        request = FetchRequest(await self._index(queue))
        self._check_open()
        self._running.value += 1
        try:
            self._fetches[zlib.crc32(queue.encode()) % len(self._fetches)].put(request)
            return await request.reply.get()
        except trio.Cancelled:
            await self._take_back(request)
            raise
        finally:
            self._running.value -= 1

    async def remove(self, queue: str, id: str) -> None:
        """Remove a message for good, wherever in its queue it is.

        Raises:
            NoSuchQueue: the queue does not exist.
            NoSuchMessage: the message is not in it.
        """
        await self._change(queue, id, State.REMOVED, Kind.REMOVE, "remove the message")
        if self.config.followed and not self.description.journaled:
            await self._remove_other_names(queue, MessageId(id))

    async def requeue(self, queue: str, id: str) -> None:
        """End a message's lease: it is READY again, in its old place.

        Raises:
            NoSuchQueue: the queue does not exist.
            NoSuchMessage: no lease of that message is running.
        """
        await self._change(queue, id, State.READY, Kind.REQUEUE, "requeue the message")

    # How they are done

    def _fetch_worker(self, requests: Mailbox[FetchRequest]) -> FetchWorker:
        return FetchWorker(
            self._catalog,
            self._committer,
            self._storage,
            requests,
            self._leases,
            peers=self.config.peers,
            random=self._random,
            refresh=self._follower.refresh,
            settle=self._upkeep.settle,
            give_back=self._upkeep.give_back,
        )

    async def _take_back(self, request: FetchRequest) -> None:
        """Whoever asked went in the very step in which the answer came: nobody has the message."""
        message = request.reply.value
        if message is not None and request.held is not None:
            self._upkeep.give_back(request.held)
            with trio.CancelScope(shield=True):
                await message.body.aclose()

    async def _do(self, job: Job, reply: Reply[Any]) -> Any:
        self._running.value += 1
        try:
            self._jobs.put(job)
            return await reply.get()
        finally:
            self._running.value -= 1

    async def _change(self, queue: str, id: str, state: State, kind: Kind, what: str) -> None:
        """Move a message from wherever it is; on a followed store again until nobody moved it in between."""
        index = await self._index(queue)
        while True:
            entry = await self._locate(index, MessageId(id))
            if entry is None:
                raise NoSuchMessage(f"message {shorten(id)} is not in queue {queue}")
            if kind is Kind.REQUEUE and entry.state is not State.DELAYED:
                raise NoSuchMessage(f"message {id} of queue {queue} is not leased")
            self._check_open()
            meta = Meta(receives=entry.meta.receives, order=entry.meta.order)
            self._catalog.begin(entry)
            job = Change(self._catalog, Move(entry, state, meta), kind, what)
            try:
                await self._do(job, job.reply)
                return
            except NoSuchMessage:
                if not self.config.followed:
                    raise

    async def _remove_other_names(self, queue: str, id: MessageId) -> None:
        """Where moves are link and unlink, a peer that was killed in between has left the message under two names."""
        while await self._storage.find(queue, id) is not None:
            with suppress(NoSuchMessage):
                await self._change(queue, id, State.REMOVED, Kind.REMOVE, "remove the message")

    async def _reap_deleted(self, queue: str) -> None:
        """Let the reaper know what the deletion of a queue has brought to REMOVED."""
        try:
            with trio.CancelScope(shield=True):
                for entry in await self._storage.scan(State.REMOVED, queue):
                    self._catalog.place(entry)
        except StorageError as error:
            logger.warning("what was in queue %s is unlinked after the next start: %s", queue, error)

    async def _locate(self, index: QueueIndex, id: MessageId) -> Entry | None:
        await self._catalog.transit.wait(id)
        entry = index.find(id)
        if entry is None and self.config.followed:
            entry = await self._storage.find(index.name, id)
            if id in self._catalog.transit:
                return await self._locate(index, id)
        return entry

    async def _index(self, queue: str) -> QueueIndex:
        index = await self._look_up(queue)
        if index is None:
            raise NoSuchQueue(f"queue {shorten(queue)} does not exist. Create it with PUT /{queue}")
        return index

    async def _look_up(self, queue: str, *, surely: bool = False) -> QueueIndex | None:
        """The queue's index. On a followed store what is known is a hint: `surely` looks at the store itself."""
        if self.config.followed and (surely or queue not in self._catalog.queues):
            await self._follower.load_queues()
        return self._catalog.queues.get(queue)

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerClosed("the broker is closing; connect to another one, or try again when it is back")
        if self._committer.failure:
            raise StorageFailed(
                f"the store has failed ({self._committer.failure}); repair the disk, remount it, and start mq again"
            )

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """What fails outside a batch stops the batches, too: what is on the medium is unknown."""
        try:
            yield
        except StorageFailed as error:
            self._committer.failure = self._committer.failure or str(error)
            raise

    def _check_size(self, size: int) -> None:
        limit = min(self.config.max_body, self._storage.description.max_body or self.config.max_body)
        if size > limit:
            raise BodyTooLarge(f"the body is longer than {limit} bytes, the limit here")

    async def _limited(self, chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
        size = 0
        async for chunk in chunks:
            size += len(chunk)
            self._check_size(size)
            yield chunk
