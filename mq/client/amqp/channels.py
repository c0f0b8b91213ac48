"""The kinds of channels: one to publish, one for the gets of a queue, one for each consumer.

The client holds received messages under tags. AMQP numbers deliveries per channel; CHMQ's tags number them per
connection, and only rise.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

import anyio.lowlevel
from pamqp import base
from pamqp import commands as methods

from mq.amqp.wire.errors import Refusal
from mq.amqp.wire.properties import BasicProperties
from mq.client.amqp.errors import ConsumerCancelled, NotConfirmed, refusal
from mq.client.amqp.link import ClientChannel, Link, PendingAnswer, Signal, Why
from mq.client.amqp.protocol import Arrived, ChannelRefused, Confirmed, Returned
from mq.client.amqp.values import Delivery
from mq.client.errors import Interrupted, NotFound

T = TypeVar("T")
C = TypeVar("C")

_TAG: Final = "mq"
"""Each consumer has a channel of its own, so its name there may always be the same."""


class PendingConfirms(Generic[T]):
    """Messages published on one channel and not confirmed yet, by their number there: 1, 2, 3, ..."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def published(self, item: T) -> None:
        """Add the item of the message that was just sent: it waits for the confirm."""
        self._last += 1
        self._waiting[self._last] = item

    def settle(self, sequence: int, *, multiple: bool) -> Iterator[T]:
        """Remove the items that a confirm covers, and yield them: none for an unknown number."""
        if not multiple:
            numbers = [sequence] if sequence in self._waiting else []
        else:
            numbers = list(itertools.takewhile(lambda number: number <= sequence, self._waiting))
        for number in numbers:
            yield self._waiting.pop(number)

    def drain(self) -> list[T]:
        """Remove and return all items."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting.values())


class PendingPublish(PendingAnswer):
    """A message that was sent and waits for its confirm.

    Attributes:
        returned: why the server returned it; "" while it has not.
    """

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__()
        self.queue = queue
        self.message_id = message_id
        self.returned = ""


class PublishChannel(ClientChannel):
    """Sends messages and receives their confirms: in confirm mode once :meth:`begin` has returned."""

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self._confirms: PendingConfirms[PendingPublish] = PendingConfirms()

    async def begin(self) -> None:
        """Ask for confirms."""
        await self.ask(methods.Confirm.Select)

    async def publish(self, queue: str, message_id: str, properties: bytes, body: bytes) -> None:
        """Send a message, and wait for the server's confirm that it keeps it.

        Raises:
            NotFound: no such queue.
            NotConfirmed: the server did not keep it.
            Refused: the server closed the channel over it.
            Interrupted: the channel or the connection ended before its confirm came.
        """
        self.check()
        self._link.publish(self.number, queue, properties, body)
        publication = PendingPublish(queue, message_id)
        self._confirms.published(publication)
        await publication.result()

    def returned(self, message: Returned) -> None:
        """Note that the server returned a message: no queue takes it. Its confirm follows."""
        message_id = _message_id(message.properties)
        for publication in self._confirms:
            if publication.message_id == message_id:
                publication.returned = message.text

    def confirmed(self, confirm: Confirmed) -> None:
        """Settle one message, or all up to it."""
        for publication in self._confirms.settle(confirm.sequence, multiple=confirm.multiple):
            if publication.returned:
                publication.fail(_no_queue(publication))
            elif not confirm.is_kept:
                publication.fail(_not_kept(publication))
            else:
                publication.answer(None)

    def refused(self, event: ChannelRefused) -> None:
        """Fail all waiting publishes. The server does not name the refused one: if only one waits, it is that."""
        waiting = self._confirms.drain()
        for publication in waiting:
            if len(waiting) == 1:
                publication.fail(lambda: refusal(event.code, event.text))
            else:
                publication.fail(
                    lambda: Interrupted(
                        f"the server refused at least one of the {len(waiting)} unconfirmed messages: {event.text}"
                    )
                )
        super().refused(event)

    def end(self, why: Why) -> None:
        """Fail all unconfirmed publishes: the server may have kept or lost them."""
        super().end(why)
        for publication in self._confirms.drain():
            publication.fail(why)


def _message_id(properties: bytes) -> str:
    try:
        return BasicProperties(properties).text("message_id")
    except Refusal:
        return ""


def _no_queue(publication: PendingPublish) -> Why:
    return lambda: NotFound(
        312,
        f"the message was not stored, because queue {publication.queue!r} does not exist ({publication.returned})",
    )


def _not_kept(publication: PendingPublish) -> Why:
    return lambda: NotConfirmed(
        f"queue {publication.queue!r} did not confirm the message: the queue or its store is full or unavailable"
    )


class HeldTag(NamedTuple, Generic[C]):
    """A message that the program holds: its channel, and its number there."""

    channel: C
    number: int


class Tags(Generic[C]):
    """The tags of messages that the program holds."""

    def __init__(self) -> None:
        self._last = 0
        self._held: dict[int, HeldTag[C]] = {}
        self._counts: Counter[C] = Counter()

    def hand_out(self, channel: C, number: int) -> int:
        """A new tag, for a message that the program holds from now on."""
        self._last += 1
        self._held[self._last] = HeldTag(channel, number)
        self._counts[channel] += 1
        return self._last

    def settle(self, tag: int) -> HeldTag[C] | None:
        """Remove a tag, and return its message; None for an unknown tag."""
        held = self._held.pop(tag, None)
        if held is not None:
            self._counts[held.channel] -= 1
        return held

    def holds(self, channel: C) -> bool:
        """Whether the program holds a message of this channel."""
        return self._counts[channel] > 0

    def forget(self, channel: C) -> None:
        """Remove all tags of a channel that has ended: the server has requeued their messages."""
        if self._counts.pop(channel, 0):
            self._held = {tag: held for tag, held in self._held.items() if held.channel is not channel}


class ReceiveChannel(ClientChannel):
    """A channel that receives messages of one queue, to be settled.

    Args:
        tags: those of all messages that the program holds.
    """

    def __init__(self, link: Link, number: int, tags: Tags[ReceiveChannel], queue: str) -> None:
        super().__init__(link, number)
        self.queue = queue
        self._tags = tags

    def hand_out(self, message: Arrived) -> Delivery:
        """A delivery for the program, under a new tag."""
        return Delivery(
            tag=self._tags.hand_out(self, message.number),
            queue=self.queue,
            body=message.body,
            redelivered=message.is_redelivered,
            _properties=BasicProperties(message.properties),
        )

    def end(self, why: Why) -> None:
        """End the channel, and its tags: the server has requeued the messages."""
        super().end(why)
        self._tags.forget(self)

    def give_back(self, message: Arrived) -> None:
        """Requeue a message that the program does not take."""
        self.tell(methods.Basic.Nack, delivery_tag=message.number, requeue=True)


class GetChannel(ReceiveChannel):
    """The gets of one queue. Each queue has a channel of its own, so that a refusal requeues no message of another."""

    async def get(self) -> Arrived | None:
        """The queue's next message; None when there is none."""
        answer = await self.ask(methods.Basic.Get, queue=self.queue)
        return answer if isinstance(answer, Arrived) else None

    def unwanted(self, answer: base.Frame | Arrived) -> None:
        """Requeue a message whose get was cancelled."""
        if isinstance(answer, Arrived):
            self.give_back(answer)

    @property
    def is_asking(self) -> bool:
        """Whether a get waits for its answer."""
        return bool(self._questions)


class ConsumeChannel(ReceiveChannel):
    """One consumer.

    Args:
        prefetch: how many messages the server may send ahead of their settlement.
    """

    def __init__(self, link: Link, number: int, tags: Tags[ReceiveChannel], queue: str, prefetch: int) -> None:
        super().__init__(link, number, tags, queue)
        self._prefetch = prefetch
        self._arrived: deque[Arrived] = deque()
        self._news = Signal()
        self._over: Why | None = None

    async def begin(self, *, exclusive: bool) -> None:
        """Start the consumer.

        Raises:
            NotAllowed: another consumer has the queue exclusively, or would lose it.
            NotFound: no such queue.
        """
        await self.ask(methods.Basic.Qos, prefetch_count=self._prefetch)
        await self.ask(methods.Basic.Consume, queue=self.queue, exclusive=exclusive, consumer_tag=_TAG)

    async def next(self) -> Arrived:
        """The next message.

        Raises:
            ConsumerCancelled: the server ended the consumer; the connection goes on.
            ClientError: the channel or the connection has ended.
        """
        await anyio.lowlevel.checkpoint()
        while not self._arrived:
            if self._over is not None:
                raise self._over()
            if self.ended is not None:
                raise self.ended()
            await self._news.wait()
        return self._arrived.popleft()

    async def stop(self) -> None:
        """Cancel the consumer, and requeue the messages that the program has not taken."""
        await self.ask(methods.Basic.Cancel, consumer_tag=_TAG)
        if self._arrived:
            while self._arrived:
                self.give_back(self._arrived.popleft())
            # A nack has no answer. Once this is answered, the server has done them all.
            await self.ask(methods.Basic.Qos, prefetch_count=self._prefetch)
        self.consumer_ended()

    def arrived(self, message: Arrived) -> None:
        """Keep a message for the program. End the connection if the server sends more than the prefetch."""
        if message.is_answer:
            super().arrived(message)
        elif len(self._arrived) >= self._prefetch:
            self._link.end(f"the server sent more than the {self._prefetch} messages that the client requested")
        else:
            self._arrived.append(message)
            self._news.notify()

    def consumer_ended(self) -> None:
        """End the iteration after the messages that have arrived: the connection still holds those."""
        self._over = lambda: ConsumerCancelled(
            f"the server cancelled the consumer of {self.queue!r}. Start a new consumer to continue"
        )
        self._news.notify()

    def end(self, why: Why) -> None:
        """End the channel, and drop what has arrived: the server has requeued it."""
        super().end(why)
        self._arrived.clear()
        self._news.notify()
