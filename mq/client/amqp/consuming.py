"""The channels on which messages come in: one for the gets of a queue, one for each consumer."""

from __future__ import annotations

from collections import deque
from typing import Final

import trio
from pamqp import base
from pamqp import commands as methods

from mq.amqp.properties import Properties
from mq.client.amqp.channels import Channel, Why
from mq.client.amqp.errors import ConsumeEnded
from mq.client.amqp.events import Arrived
from mq.client.amqp.link import Link
from mq.client.amqp.tags import Tags
from mq.client.amqp.values import Delivery

_TAG: Final = "mq"
"""Each consumer has a channel of its own, so its name there may always be the same."""


class Receiving(Channel):
    """A channel on which the messages of one queue come, to be settled.

    Args:
        link: the connection.
        number: of the channel.
        tags: what the program calls the messages that it holds.
        queue: where they come from.
    """

    def __init__(self, link: Link, number: int, tags: Tags[Receiving], queue: str) -> None:
        super().__init__(link, number)
        self.queue = queue
        self._tags = tags

    def hand_out(self, message: Arrived) -> Delivery:
        """From now on the program holds it."""
        return Delivery(
            tag=self._tags.hand_out(self, message.number),
            queue=self.queue,
            body=message.body,
            redelivered=message.is_redelivered,
            _properties=Properties(message.properties),
        )

    def end(self, why: Why) -> None:
        """The server has taken back what was held."""
        super().end(why)
        self._tags.forget(self)

    def give_back(self, message: Arrived) -> None:
        """Nobody here wants it."""
        self.tell(methods.Basic.Nack, delivery_tag=message.number, requeue=True)


class Getting(Receiving):
    """The gets of one queue: where it is refused, nothing of another queue goes back."""

    async def get(self) -> Arrived | None:
        """Its next message; None when there is none."""
        answer = await self.ask(methods.Basic.Get, queue=self.queue)
        return answer if isinstance(answer, Arrived) else None

    def unwanted(self, answer: base.Frame | Arrived) -> None:
        """Who asked for the message has gone."""
        if isinstance(answer, Arrived):
            self.give_back(answer)

    @property
    def is_asking(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._questions)


class Consuming(Receiving):
    """One consumer.

    Args:
        link, number, tags, queue: as above.
        prefetch: how many messages it has room for.
    """

    def __init__(self, link: Link, number: int, tags: Tags[Receiving], queue: str, prefetch: int) -> None:
        super().__init__(link, number, tags, queue)
        self._prefetch = prefetch
        self._arrived: deque[Arrived] = deque()
        self._news = trio.lowlevel.ParkingLot()
        self._over: Why | None = None

    async def begin(self, *, exclusive: bool) -> None:
        """Ask for messages.

        Raises:
            NotAllowed: somebody else consumes the queue exclusively, or would no longer.
            NotFound: no such queue.
        """
        await self.ask(methods.Basic.Qos, prefetch_count=self._prefetch)
        await self.ask(methods.Basic.Consume, queue=self.queue, exclusive=exclusive, consumer_tag=_TAG)

    async def next(self) -> Arrived:
        """The next message.

        Raises:
            ConsumeEnded: there will be none, and nothing is wrong with the connection.
            ClientError: there will be none.
        """
        await trio.lowlevel.checkpoint()
        while not self._arrived:
            if self._over is not None:
                raise self._over()
            if self.ended is not None:
                raise self.ended()
            await self._news.park()
        return self._arrived.popleft()

    async def stop(self) -> None:
        """Ask for no more, and give back what nobody has taken."""
        await self.ask(methods.Basic.Cancel, consumer_tag=_TAG)
        while self._arrived:
            self.give_back(self._arrived.popleft())
        self.consumer_ended()

    def arrived(self, message: Arrived) -> None:
        """A message for the consumer. More than it asked for is a server gone wrong."""
        if message.is_answer:
            super().arrived(message)
        elif len(self._arrived) >= self._prefetch:
            self._link.end(f"the server sent more than the {self._prefetch} messages that were asked for")
        else:
            self._arrived.append(message)
            self._news.unpark()

    def consumer_ended(self) -> None:
        """What has come is still ours."""
        self._over = lambda: ConsumeEnded(f"the server ended the consumer of {self.queue!r}: consume again if you like")
        self._news.unpark_all()

    def end(self, why: Why) -> None:
        """What has come has gone back."""
        super().end(why)
        self._arrived.clear()
        self._news.unpark_all()
