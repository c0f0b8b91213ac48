"""One consumer: messages from its queue to its client, as many as it may have and as fast as the client reads."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from mq.amqp.carrying import arrival_of
from mq.amqp.commands import Arrival, ChannelKey, Consume
from mq.amqp.connection import Connection
from mq.amqp.declared import Queue
from mq.amqp.finishing import finishing
from mq.broker import Exclusion, Held
from mq.broker.api import BrokerAPI
from mq.errors import CorruptMessage
from mq.message import BytesBody

logger = logging.getLogger("mq.amqp")

MOST_BYTES_TOGETHER: Final = 256 * 1024
"""Bytes of bodies that go out before it is looked whether the client reads."""


class Consumer:
    """A consumer.

    Args:
        broker: gives the messages.
        connection: sends them.
        command: says what is wanted.
        room: returns once the client has read most of what was sent.
        sent: called after something was sent.

    Attributes:
        channel, tag, queue: as in the command.
        exclusion: of the queue, where this is its only consumer.
    """

    def __init__(
        self,
        broker: BrokerAPI,
        connection: Connection,
        command: Consume,
        room: Callable[[], Awaitable[None]],
        sent: Callable[[], None],
    ) -> None:
        self.channel: ChannelKey = command.channel
        self.tag = command.tag
        self.queue: Queue = command.queue
        self.exclusion: Exclusion | None = None
        self._broker = broker
        self._connection = connection
        self._no_ack = command.no_ack
        self._room = room
        self._sent = sent
        self._scope = trio.CancelScope()
        self._fed = trio.Event()
        self._damaged: list[Held] = []

    def feed(self) -> None:
        """It has credit again."""
        self._fed.set()

    def end(self) -> None:
        """Deliver nothing more."""
        self._scope.cancel()
        if self.exclusion is not None:
            self.exclusion.end()

    def lose_queue(self) -> None:
        """Its queue is no more: deliver nothing more, and tell the client."""
        self.end()
        self._connection.cancelled(self.channel, self.tag)
        self._sent()

    async def run(self) -> None:
        """Deliver, until it is ended.

        Raises:
            MQError: the queue is no more, or the store has failed.
        """
        try:
            with self._scope:
                while True:
                    self._fed = trio.Event()
                    most = self._connection.credit(self.channel, self.tag)
                    if most:
                        name = self.queue.key
                        await self._deliver(
                            await self._broker.hold(name, most, wait=math.inf, exclusion=self.exclusion)
                        )
                    else:
                        await self._fed.wait()
        finally:
            await self._give_back(self._damaged)

    async def _deliver(self, messages: Sequence[Held]) -> None:
        """Send them. What cannot be sent goes back as if nobody had had it."""
        left = deque(messages)
        try:
            while left:
                await self._room()
                ready = await self._read(left)
                taken = self._connection.deliver(self.channel, self.tag, [arrival for _, arrival in ready])
                self._sent()
                sent = [held for held, _ in ready[:taken]]
                left.extendleft([held for held, _ in ready[taken:]][::-1])
                if self._no_ack and sent:
                    with finishing():
                        await self._broker.acknowledge(sent)
                if taken < len(ready):
                    break
        finally:
            await self._give_back(left)

    async def _read(self, left: deque[Held]) -> list[tuple[Held, Arrival]]:
        """The first ones of them, as they are sent together, taken out. Who is cancelled here has taken none."""
        ready: list[tuple[Held, Arrival]] = []
        size = 0
        try:
            while left and size < MOST_BYTES_TOGETHER:
                try:
                    arrival = await read(left[0], self.queue)
                except CorruptMessage as error:
                    logger.error("message %s of %s is not delivered: %s", left[0].message.id, self.queue.name, error)
                    self._damaged.append(left.popleft())  # nobody else gets it until this consumer ends
                    continue
                ready.append((left.popleft(), arrival))
                size += len(arrival.body)
        except trio.Cancelled:
            left.extendleft([held for held, _ in ready][::-1])
            raise
        return ready

    async def _give_back(self, held: Sequence[Held] | deque[Held]) -> None:
        if held:
            with finishing():
                for each in held:
                    await each.message.body.aclose()
                await self._broker.put_back(list(held), redelivered=False)


async def read(held: Held, queue: Queue) -> Arrival:
    """A message that is held, as it is delivered. Then its body is closed.

    Raises:
        CorruptMessage: its bytes are not those that were published.
    """
    message = held.message
    if isinstance(message.body, BytesBody):
        body = message.body.data
    else:
        body = await message.body.read()
        with trio.CancelScope(shield=True):  # who fails before that closes it in the end
            await message.body.aclose()
    attributes = message.properties.attributes
    return arrival_of(held, message.id, queue.name, attributes, body, redelivered=held.redelivered)
