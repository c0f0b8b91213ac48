"""Dead letters that go through an exchange: from the queue in which they died to wherever its arguments say."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio

from mq.amqp.arguments import DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY
from mq.amqp.carrying import Letter, arrival_of
from mq.amqp.copies import Copies, Copy
from mq.amqp.declared import Queue
from mq.amqp.dying import Reason, died, goes_in_circles
from mq.amqp.errors import Refused
from mq.amqp.properties import Properties
from mq.amqp.topology import Topology
from mq.errors import CorruptMessage, NoSuchQueue, QueueFull
from mq.message import Message, QueueName

logger = logging.getLogger("mq.amqp")

REASONS: Final = {"expired": Reason.EXPIRED, "dropped": Reason.MAXLEN, "rejected": Reason.REJECTED}
"""What the broker calls a death -> what AMQP calls it."""


class _Dead(NamedTuple):
    exchange: str
    routing_key: str
    properties: Properties
    body: bytes
    expiration_ms: int | None = None


class DeadLetters:
    """Sends dead letters on.

    Args:
        copies: brings messages into their queues.
        topology: where they go.
        queue_of: the queue of AMQP behind a name of the broker's.
        clock_ns: wall clock, nanoseconds since 1970.
    """

    def __init__(
        self,
        copies: Copies,
        topology: Topology,
        queue_of: Callable[[QueueName], Queue | None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._into = copies
        self._topology = topology
        self._queue_of = queue_of
        self._clock_ns = clock_ns

    def takes(self, queue: str) -> bool:
        """Whether what dies in a queue goes through an exchange."""
        found = self._queue_of(QueueName(queue))
        return found is not None and DEAD_LETTER_EXCHANGE in found.arguments

    async def inherit(self, dead: Sequence[tuple[Message, str]]) -> None:
        """Messages have died in their queues: send them on, before they are removed there. Closes their bodies.

        Raises:
            StorageError: not now. Then they have to stay where they are.
        """
        copies: list[Copy] = []
        for message, reason in dead:
            copies += await self._copies(message, REASONS.get(reason))
        await self._store(copies)

    async def _copies(self, message: Message, reason: Reason | None) -> list[Copy]:
        queue = self._queue_of(QueueName(message.queue))
        try:
            if queue is None or reason is None:
                return []
            attributes = message.properties.attributes
            try:
                body = await message.body.read()
            except CorruptMessage as error:
                logger.error("dead letter %s of %s is lost: %s", message.id, queue.name, error)
                return []
            came = arrival_of(None, message.id, queue.name, attributes, body, redelivered=False)
            letter = _Dead(came.exchange, came.routing_key, Properties(came.properties), body)
            return self._sent_on(queue, letter, reason)
        finally:
            with trio.CancelScope(shield=True):
                await message.body.aclose()

    async def send(self, queue: Queue, letter: Letter, reason: Reason) -> None:
        """Send it where the queue wants it. Where that is nowhere, or in circles, it is dropped.

        Raises:
            StorageError: not now.
        """
        await self._store(self._sent_on(queue, letter, reason))

    def _sent_on(self, queue: Queue, letter: Letter, reason: Reason) -> list[Copy]:
        exchange = queue.arguments.get(DEAD_LETTER_EXCHANGE)
        if exchange is None:
            return []
        key = queue.arguments.get(DEAD_LETTER_ROUTING_KEY, letter.routing_key)
        time = datetime.datetime.fromtimestamp(self._clock_ns() // 1_000_000_000, datetime.UTC)
        properties = died(letter.properties, queue.name, reason, letter.exchange, letter.routing_key, time)
        try:
            targets = self._topology.route(queue.vhost, exchange, key, properties.headers)
        except Refused as refusal:
            logger.warning("dead letters of queue '%s' go nowhere: %s", queue.name, refusal)
            return []
        dead = _Dead(exchange, key, properties, letter.body)
        return [Copy(dead, target) for target in targets if not goes_in_circles(properties, target.name)]

    async def _store(self, copies: Sequence[Copy]) -> None:
        for _, error in await self._into.store(copies) if copies else ():
            if error is not None and not isinstance(error, QueueFull | NoSuchQueue):
                raise error
