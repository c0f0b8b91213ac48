"""Copies of routed messages, each on its way into one queue of the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import trio

from mq import turns
from mq.amqp.model.arguments import MESSAGE_TTL
from mq.amqp.model.declared import Queue
from mq.amqp.model.topology import Topology
from mq.amqp.protocol.commands import PublishedMessage
from mq.amqp.server.message_codec import Publishable, attributes_of
from mq.amqp.wire.errors import Refusal
from mq.broker import Draft, Published
from mq.broker.api import BrokerAPI
from mq.broker.commit import StoreProgress
from mq.errors import MQError, NoSuchQueue
from mq.message import QueueName

SHORTEST_SECONDS: Final = 0.001
AT_ONCE_SECONDS: Final = 1.0
"""How long the delivery of a message with a time to live of 0 may take, where its queue has a consumer."""
MOST_SUBMITTED: Final = 128
"""Copies that are submitted in one step of the event loop: one message may go to thousands of queues."""


class Copy(NamedTuple):
    """A message and one of the queues that it goes to.

    Attributes:
        asked: the draft of its publisher over another protocol, with a delay, for example; None for a message of AMQP.
        number: tells its message from others, where the caller needs that.
    """

    publication: Publishable
    queue: Queue
    is_dead_letter: bool = False
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

    @property
    def progress(self) -> StoreProgress:
        """Knows whether connections wait for the store, and calls what completions share."""
        return self._broker.progress

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

    def submit(self, messages: Sequence[PublishedMessage], done: Callable[[list[tuple[Copy, MQError]]], None]) -> bool:
        """As :meth:`store`, in the caller's step: `done` is called with the copies that were refused. False where
        something has to be waited for first, or these are more copies than fit in a step; then nothing has begun."""
        if sum([len(message.queues) for message in messages]) > MOST_SUBMITTED:
            return False
        by_queue: dict[QueueName, list[Copy]] = {}
        for message in messages:
            for queue in message.queues:
                if queue.is_unsure:
                    return False
                by_queue.setdefault(queue.key, []).append(Copy(message, queue))
        if not all(map(self._broker.publishes_now, by_queue)):
            return False
        refused: list[tuple[Copy, MQError]] = []
        left = len(by_queue)

        def stored(copies: Sequence[Copy], outcomes: Sequence[Published | MQError]) -> None:
            nonlocal left
            left -= 1
            for copy, outcome in zip(copies, outcomes, strict=True):
                if isinstance(outcome, MQError):
                    refused.append((copy, outcome))
            if not left:
                done(refused)

        for name, copies in by_queue.items():
            is_consumed = self._consumers.count(name) > 0
            try:
                drafts = [_draft_of(copy, is_consumed=is_consumed) for copy in copies]
                self._broker.publish_now(name, drafts, partial(stored, copies))
            except MQError as error:
                stored(copies, [error] * len(copies))
        return True

    async def _store_in(
        self, queue: QueueName, copies: Sequence[Copy], has_place: Callable[[], object] | None
    ) -> Sequence[MQError | None]:
        is_consumed = self._consumers.count(queue) > 0
        try:
            if any(copy.queue.is_unsure for copy in copies):
                copies = await self._sure(queue, copies)
            drafts = [_draft_of(copy, is_consumed=is_consumed) for copy in copies]
            outcomes = await self._broker.publish_many(queue, drafts, has_place)
        except MQError as error:
            return [error] * len(copies)
        return _errors(outcomes)

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


def _errors(outcomes: Sequence[Published | MQError]) -> list[MQError | None]:
    return [None if isinstance(outcome, Published) else outcome for outcome in outcomes]


def _draft_of(copy: Copy, *, is_consumed: bool) -> Draft:
    """What the broker stores: in memory alone where the message or its queue is not durable."""
    publication, queue, is_dead_letter, asked, _ = copy
    properties = publication.properties
    attributes = attributes_of(properties, publication.exchange, publication.routing_key, publication.hidden_keys)
    draft = Draft(
        publication.body,
        attributes,
        ttl=_seconds(publication.expiration_ms, queue.arguments.get(MESSAGE_TTL), is_consumed=is_consumed),
        transient=not (properties.is_persistent and queue.is_lasting),
        priority=properties.priority,
        is_dead_letter=is_dead_letter,
        group=attributes.get("group"),
        is_group_hint=True,
    )
    if asked is None:
        return draft
    attributes = {**draft.attributes, **asked.attributes}  # of texts another protocol takes more
    return draft._replace(attributes=attributes, delay=asked.delay, key=asked.key, at_ms=asked.at_ms)


def _seconds(own_ms: int | None, queue_ms: int | None, *, is_consumed: bool) -> float | None:
    """The time to live of a message, in seconds. One of 0 milliseconds becomes just enough for a waiting consumer."""
    if own_ms == 0 or queue_ms == 0:
        return AT_ONCE_SECONDS if is_consumed else SHORTEST_SECONDS
    return None if own_ms is None else own_ms / 1000
