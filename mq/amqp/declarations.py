"""Declaring, in the daemon: what the topology plans is made durable, then applied. One change at a time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import trio

from mq.amqp import arguments, declared
from mq.amqp.changes import NOTHING, Change
from mq.amqp.copies import AT_ONCE_SECONDS
from mq.amqp.declared import Queue
from mq.amqp.errors import Code, Refused
from mq.amqp.finishing import finishing
from mq.amqp.names import decode
from mq.amqp.topology import Topology
from mq.broker.api import BrokerAPI
from mq.broker.queue_settings import DROP_HEAD
from mq.errors import BrokerClosed, NoSuchQueue, StorageError, StorageFull, StorageUnusable
from mq.message import QueueName

logger = logging.getLogger("mq.amqp")


class Declarations:
    """What is declared, in memory and in the store.

    Args:
        broker: keeps it.
        topology: plans it.
        lost: told of queues that are no more.
    """

    def __init__(self, broker: BrokerAPI, topology: Topology, lost: Callable[[Queue], None]) -> None:
        self._broker = broker
        self._topology = topology
        self._lost = lost
        self._lock = trio.Lock()
        self._by_key: dict[QueueName, Queue] = {}
        self._closed: deque[QueueName] = deque()
        self._has_closed = trio.Event()

    async def load(self) -> None:
        """Take up what is in the store.

        Raises:
            StorageUnusable: it cannot be read, or nobody here has written it.
        """
        store = self._broker.declarations
        try:
            records: dict[str, Iterable[Mapping[str, Any]]] = {
                kind: list((await store.records(kind)).values()) for kind in (declared.EXCHANGE, declared.BINDING)
            }
            records[declared.QUEUE] = [value for _, value in store.queues()]
            for record in self._topology.load(records):
                await store.drop(record.kind, record.key)
        except (StorageError, ValueError, KeyError, TypeError) as error:
            raise StorageUnusable(f"cannot take up what was declared over AMQP: {error!r}") from error
        self._by_key = {queue.key: queue for queue in self._topology.queues()}

    def queue_of(self, name: QueueName) -> Queue | None:
        """The queue that was declared over AMQP and has that name in mq."""
        return self._by_key.get(name)

    def queues(self) -> list[Queue]:
        """All that were declared over AMQP."""
        return list(self._by_key.values())

    async def change(self, plan: Callable[[], Change]) -> Change:
        """Plan a change and let it be so, durably.

        Raises:
            Refused: the plan is refused, or the store cannot keep it now.
        """
        with finishing():
            async with self._lock:
                await self._follow_closed()
                change = plan()
                await self._keep(change)
                self._apply(change)
        return change

    def opened(self, name: str, record: Mapping[str, Any]) -> None:
        """Somebody has declared a queue on another node of the cluster. It is in the store already."""
        try:
            queue = Queue.stored(record)
        except (ValueError, KeyError, TypeError) as error:
            logger.error("queue %s of the cluster is not to be had over AMQP: %r", name, error)
            return
        if self._topology.has_vhost(queue.vhost) and queue.key not in self._by_key:
            self._apply(Change(queues=(queue,)))

    def closed(self, name: str) -> None:
        """The broker has a queue no more."""
        self._closed.append(QueueName(name))
        self._has_closed.set()

    async def run(self) -> None:
        """Follow the broker for ever: what belonged to a queue that somebody deleted over HTTP goes, too."""
        while True:
            await self._has_closed.wait()
            self._has_closed = trio.Event()
            try:
                await self.change(lambda: NOTHING)
            except Refused as refusal:
                logger.warning("bindings of a queue that is gone are dropped at the next start: %s", refusal)

    async def _follow_closed(self) -> None:
        """Before anything else is planned, so that nobody finds a queue here that is not there."""
        while self._closed:
            name = self._closed.popleft()
            queue = self._by_key.get(name)
            place = (queue.vhost, queue.name) if queue is not None else decode(name)
            if place is not None and self._topology.has_vhost(place[0]):
                change = self._topology.gone(*place)
                self._apply(change)
                await self._forget(change)

    def _apply(self, change: Change) -> None:
        self._topology.apply(change)
        for queue in change.queues:
            self._by_key[queue.key] = queue
        for queue in change.lost_queues:
            self._by_key.pop(queue.key, None)
            self._lost(queue)

    async def _keep(self, change: Change) -> None:
        """A queue and what is declared of it is one record of the broker's, so neither is there without the other."""
        with _as_refused():
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
            for record in change.puts():
                if record.kind != declared.QUEUE:
                    await store.put(*record)
            for queue in change.lost_queues:
                with suppress(NoSuchQueue):
                    await self._broker.delete_queue(queue.key)
        await self._forget(change)

    async def _forget(self, change: Change) -> None:
        with _as_refused():
            for record in change.drops():
                if record.kind != declared.QUEUE:
                    await self._broker.declarations.drop(record.kind, record.key)


@contextmanager
def _as_refused() -> Iterator[None]:
    """What the store cannot do now, as AMQP says it."""
    try:
        yield
    except StorageFull as error:
        raise Refused(Code.RESOURCE_ERROR, str(error)) from error
    except (StorageError, BrokerClosed) as error:
        raise Refused(Code.INTERNAL_ERROR, str(error)) from error


def settings_of(queue: Queue) -> dict[str, Any]:
    """What the arguments of a queue come to among the broker's settings."""
    given = queue.arguments
    settings: dict[str, Any] = {}
    if arguments.MESSAGE_TTL in given:
        settings["ttl"] = given[arguments.MESSAGE_TTL] / 1000 or AT_ONCE_SECONDS
    if arguments.MAX_LENGTH in given:
        settings["max_messages"] = given[arguments.MAX_LENGTH]
    if arguments.MAX_LENGTH_BYTES in given:
        settings["max_bytes"] = given[arguments.MAX_LENGTH_BYTES]
    if settings.keys() & {"max_messages", "max_bytes"} and given.get(arguments.OVERFLOW, DROP_HEAD) == DROP_HEAD:
        settings["overflow"] = DROP_HEAD
    return settings
