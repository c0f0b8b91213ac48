"""What all connections share: the broker, what is declared, the users, the alarm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import trio

from mq.access import Access, User
from mq.amqp.alarm import Alarm
from mq.amqp.changes import NOTHING, Change
from mq.amqp.commands import Authenticated
from mq.amqp.copies import Copies
from mq.amqp.dead_letters import DeadLetters
from mq.amqp.declarations import Declarations
from mq.amqp.declared import Queue
from mq.amqp.dispatching import Consumer
from mq.amqp.errors import Code, Refused
from mq.amqp.session import Limits
from mq.amqp.topology import Topology
from mq.amqp.unused import Unused
from mq.broker.api import BrokerAPI
from mq.message import QueueName

MOST_WAITING: Final = 32
"""How many secrets may wait to be checked."""


class Served(Protocol):
    """A connection that is served."""

    def alarm_changed(self) -> None:
        """Publishers have to wait, or may go on."""


class Door:
    """What all connections share.

    Args:
        broker: behind the door.
        vhosts: their names, beside ``/``.
        access: knows the users; None lets everybody do everything.
        limits: of each connection.
        clock_ns: wall clock, nanoseconds since 1970.

    Attributes:
        broker, limits: as given.
        topology: what is declared, in memory.
        declarations: changes it.
        copies: brings messages into their queues.
        dead_letters: sends on what dies.
        alarm: on while the store has no room.
        unused: the queues that go when nobody uses them.
        connections: those that are served.
    """

    def __init__(
        self,
        broker: BrokerAPI,
        vhosts: Iterable[str] = (),
        access: Access | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.broker = broker
        self.limits = limits
        self.topology = Topology(vhosts, broker.declarations.knows)
        self.declarations = Declarations(broker, self.topology, self._lost)
        self.copies = Copies(broker, self.topology.consumers)
        self.dead_letters = DeadLetters(self.copies, self.topology, self.declarations.queue_of, clock_ns)
        self.alarm = Alarm(self._alarm_changed)
        self.unused = Unused(lambda name: self.topology.consumers.count(name) > 0, self._expire)
        self.connections: set[Served] = set()
        self._access = access
        self._turn = trio.CapacityLimiter(1)  # a check takes 16 MiB and a core

    async def load(self) -> None:
        """Take up what is in the store, and hear of its queues from now on.

        Raises:
            StorageUnusable: it cannot be read, or nobody here has written it.
        """
        await self.declarations.load()
        self.broker.declarations.on_closed(self.declarations.closed)
        self.broker.declarations.on_opened(self.declarations.opened)
        self.broker.declarations.on_failover(self.failed_over)
        self.broker.declarations.inherit(self.dead_letters)
        for queue in self.declarations.queues():
            self.unused.touch(queue)

    async def run(self) -> None:
        """What goes on without any connection: queues that expire, and those that somebody deletes over HTTP."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.unused.run)
            nursery.start_soon(self.declarations.run)

    async def authenticate(self, name: str, secret: str) -> Authenticated | None:
        """Who is it? None for somebody whom nobody here knows.

        Raises:
            Refused: too many ask.
        """
        if self._access is None:
            return Authenticated(None)
        user = self._access.recall(name, secret)
        if user is None:
            if self._turn.statistics().tasks_waiting >= MOST_WAITING:
                raise Refused(Code.CONNECTION_FORCED, "too many secrets wait to be checked: try later")
            user = await trio.to_thread.run_sync(self._access.verify, name, secret, limiter=self._turn)
        return None if user is None else Authenticated(user)

    def again(self, user: User | None) -> User | None:
        """A user whom somebody here knew, with the rights that they have now.

        Raises:
            Refused: 320; nobody here knows them any more.
        """
        if user is None or self._access is None:
            return None
        now = self._access.again(user)
        if now is None:
            raise Refused(Code.CONNECTION_FORCED, f"user '{user.name}' was removed")
        return now

    async def left(self, consumer: Consumer) -> None:
        """A consumer has ended: its queue may have to go with it.

        Raises:
            Refused: the store cannot do that now.
        """
        queue = consumer.queue
        self.topology.consumers.remove(queue.key, consumer)
        self.unused.touch(queue)
        if queue.auto_delete:
            await self.declarations.change(lambda: self.topology.left(queue.vhost, queue.name))

    def failed_over(self, queues: Iterable[str]) -> None:
        """Whoever served these queues does so no more: their consumers are told, and may begin anew."""
        for queue in queues:
            self._end_consumers(QueueName(queue))

    def _lost(self, queue: Queue) -> None:
        self.unused.forget(queue)
        self._end_consumers(queue.key)

    def _end_consumers(self, queue: QueueName) -> None:
        for consumer in self.topology.consumers.of(queue):
            assert isinstance(consumer, Consumer)
            self.topology.consumers.remove(queue, consumer)
            consumer.lose_queue()

    async def _expire(self, queue: Queue) -> None:
        def plan() -> Change:
            is_there = self.declarations.queue_of(queue.key) is queue
            is_used = self.topology.consumers.count(queue.key) > 0
            return NOTHING if is_used or not is_there else self.topology.gone(queue.vhost, queue.name)

        try:
            await self.declarations.change(plan)
        except Refused:
            self.unused.touch(queue)  # the store cannot do that now

    def _alarm_changed(self) -> None:
        for connection in list(self.connections):
            connection.alarm_changed()
