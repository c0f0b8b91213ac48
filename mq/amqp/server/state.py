"""What all connections share: the broker, the topology, the users, the alarm, and queues that expire unused."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence

import trio

from mq import turns
from mq.access import SecretRefused, User
from mq.amqp.model.arguments import EXPIRES, SINGLE_ACTIVE_CONSUMER
from mq.amqp.model.declared import Queue
from mq.amqp.model.topology import Topology
from mq.amqp.model.vhost import NOTHING, TopologyChange
from mq.amqp.protocol.commands import Authenticate, Authenticated
from mq.amqp.protocol.session import ConnectionLimits
from mq.amqp.server.backlog import Backlog, FullStoreAlarm
from mq.amqp.server.copies import Copies
from mq.amqp.server.dead_letters import DeadLetterRouter
from mq.amqp.server.topology_store import TopologyStore
from mq.amqp.wire.errors import Code, Refusal
from mq.broker.api import BrokerAPI
from mq.doors.budget import Budget
from mq.doors.logins import Logins, TryLater
from mq.doors.open_connections import OpenConnections
from mq.doors.quotas import Quotas
from mq.message import QueueName


class QueueConsumer(ABC):
    """A consumer as its queue knows it.

    Attributes:
        queue: its queue.
    """

    queue: Queue

    @abstractmethod
    def go_on(self) -> None:
        """Look again for messages: it may be the queue's active consumer now."""

    @abstractmethod
    def lose_queue(self) -> None:
        """End because the queue is gone, and tell the client."""


class AmqpState:
    """What all connections share.

    Args:
        vhosts: their names, beside ``/``.
        logins: authenticates users; None lets every client do everything.
        memory: the budget that all requests of the daemon share; None makes one for this server.
        seen: has the connections of all protocols; None where they are not looked at.
        quotas: hold users to their limits; None for some of this server alone.

    Attributes:
        alarm: knows whose messages find no room.
        unused: queues that expire when they are not used.
        backlog: bytes that connections have published and the store has not taken up.
        connections: those that are served now.
    """

    def __init__(
        self,
        broker: BrokerAPI,
        vhosts: Iterable[str] = (),
        logins: Logins | None = None,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - frozen
        memory: Budget | None = None,
        seen: OpenConnections | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.broker = broker
        self.limits = limits
        self.memory = memory or Budget()
        self.seen = seen or OpenConnections()
        self.quotas = quotas or Quotas(self.seen)
        store = broker.declarations
        self.topology = Topology(vhosts, store.knows, store.may_have, lambda: store.is_caught_up)
        self.topology_store = TopologyStore(broker, self.topology, self._lost, self.memory)
        self.seen.count_consumers_by(self.topology.consumers.count)
        self.copies = Copies(broker, self.topology, self.topology_store.queue_of)
        self.dead_letters = DeadLetterRouter(
            self.copies, self.topology, self.topology_store.queue_of, broker.clock.date_ns
        )
        self.alarm = FullStoreAlarm()
        self.unused = UnusedQueues(lambda name: self.topology.consumers.count(name) > 0, self._expire)
        self.backlog = Backlog()
        self.connections: set[Hashable] = set()
        self._logins = logins
        self._failed_over: list[Hashable] = []
        self._has_failed_over = trio.Event()

    async def load(self) -> None:
        """Load the topology from the store, and follow the broker's queues from now on.

        Raises:
            StorageUnusable: it cannot be read, or mq has not written it.
        """
        self.broker.declarations.on_closed(self.topology_store.closed)  # before it is read, or some would be missed
        self.broker.declarations.on_opened(self.topology_store.opened)
        self.broker.declarations.on_shared(self.topology_store.shared)
        self.broker.declarations.on_failover(self.failed_over)
        await self.topology_store.load()
        self.broker.declarations.set_sink(self.dead_letters)
        for queue in self.topology_store.queues():
            self.unused.note_use(queue)

    async def run(self) -> None:
        """Run what needs no connection: queues that expire, and queues deleted over HTTP."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.unused.run)
            nursery.start_soon(self.topology_store.run)
            nursery.start_soon(self._follow_failovers)

    async def authenticate(self, address: str, asked: Authenticate) -> Authenticated | None:
        """Authenticate a client at that address. None where the name is unknown or the secret wrong.

        Raises:
            Refusal: too many logins wait, or the last secrets from this address were wrong; or the secret is an
                expired token, or one that counts on this machine alone.
        """
        if self._logins is None:
            return Authenticated(None)
        try:
            if asked.by_certificate:
                user = self._logins.access.by_certificate(asked.name)
            else:
                user = await self._logins.user(address, asked.name, asked.secret)
        except SecretRefused as error:
            self._logins.note_failure("amqp", address, asked.name, error.why)
            raise Refusal(Code.ACCESS_REFUSED, str(error)) from None
        except TryLater as error:
            self._logins.note_failure("amqp", address, asked.name, "has to wait")
            raise Refusal(Code.CONNECTION_FORCED, str(error)) from None
        if user is None:
            self._logins.note_failure("amqp", address, asked.name, "unknown")
            return None
        self._logins.note_success("amqp", address, user)
        return Authenticated(user)

    def note_denied(self, address: str, user: User, **about: str | None) -> None:
        """Write down that a user asked for what the user may not do."""
        if self._logins is not None:
            self._logins.refusals.refused(protocol="amqp", address=address, user=user.name, **about)

    def closed_to(self) -> str:
        """Why no new client may connect now; empty where it may."""
        if not self.broker.node_control.is_draining:
            return ""
        return (
            f"node {self.broker.membership.node} is draining and will be stopped. Connect to another node "
            "of the cluster"
        )

    def refresh_user(self, user: User | None) -> User | None:
        """An authenticated user with the rights that they have now.

        Raises:
            Refusal: 320; the user was removed.
        """
        if user is None or self._logins is None:
            return None
        now = self._logins.access.again(user)
        if now is None:
            raise Refusal(Code.CONNECTION_FORCED, f"user '{user.name}' was removed")
        return now

    async def consumer_ended(self, consumer: QueueConsumer) -> None:
        """Remove a consumer that has ended, and its queue where the queue goes with it.

        Raises:
            Refusal: the store cannot do that now.
        """
        queue = consumer.queue
        if not self.topology.consumers.remove(queue.key, consumer):
            return  # what has that name now is another queue
        if queue.arguments.get(SINGLE_ACTIVE_CONSUMER):
            active = self.topology.consumers.active(queue.key)
            if isinstance(active, QueueConsumer):
                active.go_on()
        self.unused.note_use(queue)
        if queue.auto_delete:
            await self.topology_store.change(lambda: self.topology.left(queue.vhost, queue.name))

    def failed_over(self, queues: Iterable[str]) -> None:
        """Tell the consumers of these queues that another node serves them now. They may begin anew."""
        self._failed_over += [
            consumer for queue in queues for consumer in self.topology.consumers.take(QueueName(queue))
        ]
        self._has_failed_over.set()

    async def _follow_failovers(self) -> None:
        while True:
            await self._has_failed_over.wait()
            self._has_failed_over = trio.Event()
            lost, self._failed_over = self._failed_over, []
            await _end_consumers(lost)

    async def _lost(self, queue: Queue) -> None:
        self.unused.forget(queue)
        await _end_consumers(self.topology.consumers.take(queue.key))

    async def _expire(self, queue: Queue) -> None:
        def plan() -> TopologyChange:
            is_there = self.topology_store.queue_of(queue.key) is queue
            is_used = self.topology.consumers.count(queue.key) > 0 or self.unused.knows(queue)
            return NOTHING if is_used or not is_there else self.topology.gone(queue.vhost, queue.name)

        try:
            await self.topology_store.change(plan)
        except Refusal:
            self.unused.note_use(queue)  # the store cannot do that now


async def _end_consumers(consumers: Sequence[Hashable]) -> None:
    """End consumers whose queue is gone, and tell their clients."""
    async for consumer in turns.in_turns(consumers, turns.FRAME):
        assert isinstance(consumer, QueueConsumer)
        consumer.lose_queue()


class UnusedQueues:
    """Knows when each queue with ``x-expires`` was used last: declared, got from, or left by its last consumer.

    Args:
        is_used: whether a queue has consumers.
    """

    def __init__(self, is_used: Callable[[QueueName], bool], expire: Callable[[Queue], Awaitable[None]]) -> None:
        self._is_used = is_used
        self._expire = expire
        self._due: dict[QueueName, tuple[float, Queue]] = {}
        self._pause = trio.CancelScope()

    def note_use(self, queue: Queue) -> None:
        """A queue is used just now. Does nothing for a queue without ``x-expires``."""
        lasts_ms = queue.arguments.get(EXPIRES)
        if lasts_ms is not None:
            due = trio.current_time() + lasts_ms / 1000
            self._due[queue.key] = (due, queue)
            self._pause.deadline = min(self._pause.deadline, due)

    def forget(self, queue: Queue) -> None:
        """A queue is gone."""
        self._due.pop(queue.key, None)

    def knows(self, queue: Queue) -> bool:
        """Whether a queue is to expire. False once it has expired, unless it was used meanwhile."""
        return queue.key in self._due

    async def run(self) -> None:
        """Report expired queues for ever."""
        while True:
            now = trio.current_time()
            for name in [name for name, (due, _) in self._due.items() if due <= now]:
                await self._look(name, now)
            next_due = min((due for due, _ in self._due.values()), default=math.inf)
            with trio.CancelScope(deadline=next_due) as self._pause:
                await trio.sleep_forever()

    async def _look(self, name: QueueName, now: float) -> None:
        """Report a queue, unless it was used, or went, while the one before was reported."""
        due, queue = self._due.get(name, (math.inf, None))
        if queue is None or due > now:
            return
        if self._is_used(name):
            self.note_use(queue)
        else:
            del self._due[name]
            await self._expire(queue)
