"""Copies of routed messages, each on its way into one queue of the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import trio

from mq import turns
from mq.amqp.model.declared import Queue
from mq.amqp.model.topology import Topology
from mq.amqp.protocol.commands import PublishedMessage
from mq.amqp.server.message_codec import Publishable, draft_of
from mq.amqp.wire.errors import Refusal
from mq.broker import Draft, Published
from mq.broker.api import BrokerAPI
from mq.errors import MQError, NoSuchQueue
from mq.message import QueueName


class Copy(NamedTuple):
    """A message and one of the queues that it goes to.

    Attributes:
        replaces: whether it is the only copy of a dead letter that was in memory, and is removed there next.
        asked: the draft of its publisher over another protocol, with a delay, for example; None for a message of AMQP.
        number: tells its message from others, where the caller needs that.
    """

    publication: Publishable
    queue: Queue
    is_dead_letter: bool = False
    replaces: bool = False
    asked: Draft | None = None
    number: int = 0


class Copies:
    """Brings copies into their queues.

    Args:
        queue_of: the queue of AMQP behind a name of the broker's.
    """

    def __init__(self, broker: BrokerAPI, topology: Topology, queue_of: Callable[[QueueName], Queue | None]) -> None:
        self._broker = broker
        self._topology = topology
        self._consumers = topology.consumers
        self._queue_of = queue_of

    async def catch_up(self, vhost: str, exchange: str) -> None:
        """Wait until it is known here where an exchange leads.

        Raises:
            NotServed: that could not be found out in time.
        """
        if self._topology.has_vhost(vhost) and self._topology.is_unrouted(vhost, exchange):
            await self._broker.declarations.catch_up()

    async def routed(self, messages: Sequence[PublishedMessage]) -> dict[int, tuple[Queue, ...]]:
        """The queues of messages that could not be routed when they came, by the messages' `id`.

        Raises:
            NotServed: it could not be found out in time which they are.
        """
        await self._broker.declarations.catch_up()
        return {id(message): self._route(message) for message in messages if message.queues[0].is_unrouted}

    def _route(self, message: PublishedMessage) -> tuple[Queue, ...]:
        shown, vhost = message.properties.copied_to()[0], message.queues[0].vhost
        keys = shown + message.hidden_keys
        try:
            found = self._topology.route(vhost, message.exchange, message.routing_key, message.properties.headers, keys)
        except Refusal:  # the exchange went while it was waited for
            return ()
        return tuple(found)

    async def store(
        self, copies: Sequence[Copy], has_place: Callable[[], object] | None = None
    ) -> list[tuple[Copy, MQError | None]]:
        """Store copies under one barrier, those of each queue in their order.

        Args:
            copies: in order.
            has_place: called when all that is stored from then on comes behind them; perhaps never.

        Returns:
            Each copy, and its error or None. Those of one queue keep their order.
        """
        by_queue: dict[QueueName, list[Copy]] = {}
        for copy in copies:
            by_queue.setdefault(copy.queue.key, []).append(copy)
        found: list[tuple[Copy, MQError | None]] = []

        async def store_in(queue: QueueName, its: list[Copy], has_place: Callable[[], object] | None = None) -> None:
            found.extend(zip(its, await self._store_in(queue, its, has_place), strict=True))

        if len(by_queue) == 1:
            await store_in(*by_queue.popitem(), has_place)
            return found
        async with trio.open_nursery() as nursery:
            async for queue, its in turns.in_turns(by_queue.items()):
                nursery.start_soon(store_in, queue, its)
        return found

    async def _store_in(
        self, queue: QueueName, copies: Sequence[Copy], has_place: Callable[[], object] | None
    ) -> Sequence[MQError | None]:
        try:
            if any(copy.queue.is_unsure for copy in copies):
                copies = await self._sure(queue, copies)
            drafts = [
                draft_of(
                    copy.publication,
                    copy.queue,
                    self._consumers.count,
                    asked=copy.asked,
                    is_dead_letter=copy.is_dead_letter,
                    replaces=copy.replaces,
                )
                for copy in copies
            ]
            outcomes = await self._broker.publish_many(queue, drafts, has_place)
        except MQError as error:
            return [error] * len(copies)
        return [None if isinstance(outcome, Published) else outcome for outcome in outcomes]

    async def _sure(self, queue: QueueName, copies: Sequence[Copy]) -> Sequence[Copy]:
        """The same copies, with their queue as it was declared.

        Raises:
            NoSuchQueue: it does not exist.
            NotServed: whether it exists cannot be found out now.
        """
        declarations = self._broker.declarations
        await declarations.find(queue)
        if not declarations.knows(queue):
            raise NoSuchQueue(f"queue {queue} does not exist")
        found = self._queue_of(queue) or replace(copies[0].queue, is_unsure=False)
        return [copy._replace(queue=found) for copy in copies]
