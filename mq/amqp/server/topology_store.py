"""The topology made durable: each change is planned, stored, then applied. One change at a time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import trio

from mq import turns
from mq.amqp.model import arguments, declared
from mq.amqp.model.declared import DurableRecord, Queue
from mq.amqp.model.names import decode
from mq.amqp.model.topology import Topology
from mq.amqp.model.vhost import NOTHING, TopologyChange
from mq.amqp.server.declared_memory import DeclaredMemory
from mq.amqp.server.message_codec import AT_ONCE_SECONDS
from mq.amqp.wire.errors import Code, Refusal
from mq.broker.api import BrokerAPI
from mq.broker.settings import DROP_HEAD
from mq.doors.budget import Budget, ClientMemory
from mq.errors import BrokerClosed, NoSuchQueue, OverLimit, StorageError, StorageFull, StorageUnusable
from mq.message import QueueName

logger = logging.getLogger("mq.amqp")


class TopologyStore:
    """Keeps the topology in memory and the records in the store the same."""

    def __init__(
        self, broker: BrokerAPI, topology: Topology, lost: Callable[[Queue], Awaitable[None]], budget: Budget
    ) -> None:
        self._broker = broker
        self._topology = topology
        self._memory = DeclaredMemory(budget, topology)
        self._lost = lost
        self._lock = trio.Lock()
        self._is_loaded = trio.Event()
        self._by_key: dict[QueueName, Queue] = {}
        self._heard: deque[tuple[QueueName, Queue | None]] = deque()
        self._has_heard = trio.Event()

    async def load(self) -> None:
        """Load the topology from the store.

        Raises:
            StorageUnusable: it cannot be read, or mq has not written it.
        """
        store = self._broker.declarations
        try:
            records: dict[str, list[Mapping[str, Any]]] = {
                kind: list((await store.records(kind)).values()) for kind in (declared.EXCHANGE, declared.BINDING)
            }
            here = {(each["vhost"], each["name"]) for each in records[declared.EXCHANGE]}
            for each in (await store.records(declared.SHARED)).values():
                kind, value = each["kind"], each["value"]
                if kind == declared.BINDING or (value["vhost"], value["name"]) not in here:
                    records[kind].append(value)
            records[declared.QUEUE] = [value for _, value in store.queues()]
            elsewhere = (await store.records(declared.ELSEWHERE)).keys()
            lost = self._topology.load(records)
            for binding in self._topology.stranded:
                logger.error(
                    "the binding from exchange %r to exchange %r has no effect because one of the exchanges does "
                    "not exist. Declare the missing exchange again and restart mq, or delete the binding "
                    "(stored in record %s)",
                    binding.source,
                    binding.to.name,
                    binding.record().key,
                )
            for record in lost:
                if (
                    declared.Binding.stored(record.value).queue not in elsewhere
                ):  # the root of a node, on its own for once
                    await store.drop(record.kind, record.key)
        except (StorageError, ValueError, KeyError, TypeError) as error:
            raise StorageUnusable(
                f"cannot restore the queues, exchanges and bindings declared over AMQP: {error!r}"
            ) from error
        self._by_key = {queue.key: queue for queue in self._topology.queues()}
        self._memory.take(self._topology.everything())
        self._is_loaded.set()
        await self._catch_up()  # with what has gone since the records were written

    def queue_of(self, name: QueueName) -> Queue | None:
        """The queue declared over AMQP that has that name in mq."""
        return self._by_key.get(name)

    def queues(self) -> list[Queue]:
        """All that were declared over AMQP."""
        return list(self._by_key.values())

    async def change(self, plan: Callable[[], TopologyChange], client: ClientMemory | None = None) -> TopologyChange:
        """Plan a change, store it, and apply it. What the nodes of a cluster share is in effect at all of them then.

        Args:
            client: memory is reserved for the additions of this one; None where they are not a client's choice.

        Raises:
            Refusal: the plan is refused, or the store cannot keep it now.
            NotServed: nodes of a cluster share it, and it is not in effect at all of them. It may be later.
        """
        with self._broker.progress.shielded():
            async with self._lock:
                await self._follow()
                change = plan()
                if client is not None:
                    self._memory.reserve(change, client)
                puts = [record async for record in turns.in_turns(change.puts(), turns.LIGHT)]
                drops = [record async for record in turns.in_turns(change.drops(), turns.LIGHT)]
                shared_puts, shared_drops = self._shared_in(change, puts, drops)
                if not shared_puts and not shared_drops:
                    try:
                        await self._keep(change, puts, drops)
                    except BaseException:
                        self._memory.cancel(change)
                        raise
                    await self._apply(change)
                else:
                    self._memory.cancel(change)  # it counts as what another node has declared
            if shared_puts or shared_drops:  # without the lock: this node is told of it, as the others are
                await self._broker.declarations.share(shared_puts, shared_drops)
        return change

    def _shared_in(
        self, change: TopologyChange, puts: Sequence[DurableRecord], drops: Sequence[DurableRecord]
    ) -> tuple[list[DurableRecord], list[DurableRecord]]:
        """What of a change the nodes of a cluster share. With a queue of theirs its bindings go by themselves."""
        store = self._broker.declarations
        lost = [exchange.record() for exchange in change.lost_exchanges]
        if change.queues or change.lost_queues or (lost and not any(map(store.has_shared, lost))):
            return [], []
        return list(filter(store.shares, puts)), list(filter(store.has_shared, drops))

    async def shared(self, record: tuple[str, str, Mapping[str, Any]], is_gone: bool) -> None:
        """Take up an exchange or a binding that all nodes of the cluster have now, or have no more."""
        await self._is_loaded.wait()
        known = DurableRecord(*record)
        async with self._lock:
            await self._follow()
            try:
                change = self._topology.unshared(known) if is_gone else self._topology.shared(known)
            except (ValueError, KeyError, TypeError) as error:
                logger.error("cannot apply an exchange or binding that was declared on another node: %r", error)
                return
            await self._apply(change)
            await self._forget(change)  # what was bound to it on this node alone

    def opened(self, name: str, record: Mapping[str, Any]) -> None:
        """Add a queue that another node of the cluster has declared and stored. It can be used at once, unless a queue
        of that name has still to go."""
        try:
            queue = Queue.stored(record)
        except (ValueError, KeyError, TypeError) as error:
            logger.error("cluster queue %s is not available over AMQP: %r", name, error)
            return
        if any(queue.key == closed for closed, _ in self._heard):
            self._heard.append((queue.key, queue))
        else:
            self._open(queue)

    def _open(self, queue: Queue) -> None:
        if self._topology.has_vhost(queue.vhost) and queue.key not in self._by_key:
            self._topology.apply(TopologyChange(queues=(queue,)))
            self._by_key[queue.key] = queue

    def closed(self, name: str) -> None:
        """Note that the broker has lost a queue. :meth:`run` follows."""
        self._heard.append((QueueName(name), None))
        self._has_heard.set()

    async def run(self) -> None:
        """Follow the broker for ever: remove the bindings of queues that other protocols delete."""
        while True:
            await self._has_heard.wait()
            self._has_heard = trio.Event()
            await self._catch_up()

    async def _catch_up(self) -> None:
        try:
            await self.change(lambda: NOTHING)
        except Refusal as refusal:
            logger.warning(
                "cannot remove the bindings of a deleted queue: %s. mq will try again at the next start", refusal
            )

    async def _follow(self) -> None:
        """Apply the broker's news of queues. Called before a change is planned, so that no plan sees a deleted
        queue."""
        while self._heard:
            name, opened = self._heard[0]  # it stays until the queue has gone, so that a new one of its name waits
            if opened is not None:
                self._heard.popleft()
                self._open(opened)
                continue
            queue = self._by_key.get(name)
            place = (queue.vhost, queue.name) if queue is not None else decode(name)
            if place is not None and self._topology.has_vhost(place[0]):
                change = self._topology.gone(*place)
                await self._apply(change)
                self._heard.popleft()
                await self._forget(change)
            else:
                self._heard.popleft()

    async def _apply(self, change: TopologyChange) -> None:
        self._memory.take(change)
        await self._memory.give_back(change)
        async for _ in turns.in_turns(self._topology.applying(change), turns.LIGHT):
            pass
        for queue in change.queues:
            self._by_key[queue.key] = queue
        for queue in change.lost_queues:
            self._by_key.pop(queue.key, None)
            await self._lost(queue)

    async def _keep(
        self, change: TopologyChange, puts: Sequence[DurableRecord], drops: Sequence[DurableRecord]
    ) -> None:
        with _as_refused():
            # A queue and its declaration are one record of the broker's, so neither is there without the other.
            store = self._broker.declarations
            for queue in change.queues:
                value = queue.record().value if queue.is_lasting else None
                await store.create(
                    queue.key,
                    settings_of(queue),
                    value,
                    is_transient=not queue.is_lasting,
                    is_replicated=queue.arguments.get(arguments.QUEUE_TYPE) == arguments.QUORUM,
                )
            for record in puts:
                if record.kind != declared.QUEUE:
                    await store.put(*record)
            for queue in change.lost_queues:
                with suppress(NoSuchQueue):
                    await self._broker.delete_queue(queue.key)
        await self._drop(drops)

    async def _forget(self, change: TopologyChange) -> None:
        await self._drop([record async for record in turns.in_turns(change.drops(), turns.LIGHT)])

    async def _drop(self, records: Sequence[DurableRecord]) -> None:
        with _as_refused():
            keys = [(record.kind, record.key) for record in records if record.kind != declared.QUEUE]
            if len(keys) > 1:  # a queue may have thousands of bindings
                await self._broker.declarations.drop_many(keys)
            elif keys:
                await self._broker.declarations.drop(*keys[0])


@contextmanager
def _as_refused() -> Iterator[None]:
    """Turn an error of the store into a refusal."""
    try:
        yield
    except OverLimit as error:
        raise Refusal(Code.PRECONDITION_FAILED, str(error)) from error
    except StorageFull as error:
        raise Refusal(Code.RESOURCE_ERROR, str(error)) from error
    except (StorageError, BrokerClosed) as error:
        raise Refusal(Code.INTERNAL_ERROR, str(error)) from error


def settings_of(queue: Queue) -> dict[str, Any]:
    """The broker's settings that follow from the arguments of a queue."""
    given = queue.arguments
    settings: dict[str, Any] = {}
    if arguments.MESSAGE_TTL in given:
        settings["ttl"] = given[arguments.MESSAGE_TTL] / 1000 or AT_ONCE_SECONDS
    if arguments.MAX_LENGTH in given:
        settings["max_messages"] = given[arguments.MAX_LENGTH]
    if arguments.MAX_LENGTH_BYTES in given:
        settings["max_bytes"] = given[arguments.MAX_LENGTH_BYTES]
    if given.get(arguments.MAX_PRIORITY):
        settings["max_priority"] = given[arguments.MAX_PRIORITY]
    if given.get(arguments.GROUPS):
        settings["groups"] = True
    if settings.keys() & {"max_messages", "max_bytes"} and given.get(arguments.OVERFLOW, DROP_HEAD) == DROP_HEAD:
        settings["overflow"] = DROP_HEAD
    return settings
