"""The kinds of channels: one to publish, one for the gets of a queue, one for each consumer.

Messages that came are held under tags. AMQP counts deliveries channel by channel; CHMQ's tags count connection by
connection, and always upwards.
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
from mq.client.amqp.errors import ConsumeEnded, NotConfirmed, refusal
from mq.client.amqp.link import ClientChannel, Link, PendingAnswer, Signal, Why
from mq.client.amqp.protocol import Arrived, ChannelRefused, Confirmed, Returned
from mq.client.amqp.values import Delivery
from mq.client.errors import Interrupted, NotFound

T = TypeVar("T")
C = TypeVar("C")

_TAG: Final = "mq"
"""Each consumer has a channel of its own, so its name there may always be the same."""


class PendingConfirms(Generic[T]):
    """What was published on one channel and not confirmed, by its number there: 1, 2, 3, ..."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def published(self, item: T) -> None:
        """Let `item` wait for the confirm of the message that just went out."""
        self._last += 1
        self._waiting[self._last] = item

    def settle(self, sequence: int, *, multiple: bool) -> Iterator[T]:
        """The items that a confirm is for: none, where the number does not wait."""
        if not multiple:
            numbers = [sequence] if sequence in self._waiting else []
        else:
            numbers = list(itertools.takewhile(lambda number: number <= sequence, self._waiting))
        for number in numbers:
            yield self._waiting.pop(number)

    def drain(self) -> list[T]:
        """All items that wait; they wait no longer."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting.values())


class PendingPublish(PendingAnswer):
    """A message that went out.

    Attributes:
        queue: where to.
        message_id: by which it is known again when the server sends it back.
        returned: why the server had no queue for it; "" while it has not said so.
    """

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__()
        self.queue = queue
        self.message_id = message_id
        self.returned = ""


class PublishChannel(ClientChannel):
    """Messages out, confirms in. The channel is in confirm mode once :meth:`begin` has returned."""

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self._confirms: PendingConfirms[PendingPublish] = PendingConfirms()

    async def begin(self) -> None:
        """Ask for confirms."""
        await self.ask(methods.Confirm.Select)

    async def publish(self, queue: str, message_id: str, properties: bytes, body: bytes) -> None:
        """Send a message, and wait until the server has kept it.

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
        """Note that there is no queue for a message. Its confirm follows."""
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
        """Fail what waits. The server does not name the message that it refused; with one waiting, it is that."""
        waiting = self._confirms.drain()
        for publication in waiting:
            if len(waiting) == 1:
                publication.fail(lambda: refusal(event.code, event.text))
            else:
                publication.fail(lambda: Interrupted(f"one of {len(waiting)} messages was refused: {event.text}"))
        super().refused(event)

    def end(self, why: Why) -> None:
        """Fail all that is not confirmed: it may be kept or lost."""
        super().end(why)
        for publication in self._confirms.drain():
            publication.fail(why)


def _message_id(properties: bytes) -> str:
    try:
        return BasicProperties(properties).text("message_id")
    except Refusal:
        return ""


def _no_queue(publication: PendingPublish) -> Why:
    return lambda: NotFound(312, f"no queue {publication.queue!r}: the message was not kept ({publication.returned})")


def _not_kept(publication: PendingPublish) -> Why:
    return lambda: NotConfirmed(
        f"queue {publication.queue!r} did not take the message, or not for certain: it is full, or its store is, or "
        "was out of reach"
    )


class HeldTag(NamedTuple, Generic[C]):
    """A message that was handed out: its channel, and its number there."""

    channel: C
    number: int


class Tags(Generic[C]):
    """What was handed out and not settled yet."""

    def __init__(self) -> None:
        self._last = 0
        self._held: dict[int, HeldTag[C]] = {}
        self._counts: Counter[C] = Counter()

    def hand_out(self, channel: C, number: int) -> int:
        """The tag of the next message."""
        self._last += 1
        self._held[self._last] = HeldTag(channel, number)
        self._counts[channel] += 1
        return self._last

    def settle(self, tag: int) -> HeldTag[C] | None:
        """Give up a tag. Returns its message; None for an unknown tag."""
        held = self._held.pop(tag, None)
        if held is not None:
            self._counts[held.channel] -= 1
        return held

    def holds(self, channel: C) -> bool:
        """Whether something of a channel is not settled."""
        return self._counts[channel] > 0

    def forget(self, channel: C) -> None:
        """A channel ended, and the server has taken back what was held on it."""
        if self._counts.pop(channel, 0):
            self._held = {tag: held for tag, held in self._held.items() if held.channel is not channel}


class ReceiveChannel(ClientChannel):
    """A channel on which the messages of one queue come, to be settled.

    Args:
        link: the connection.
        number: of the channel.
        tags: what the program calls the messages that it holds.
        queue: where they come from.
    """

    def __init__(self, link: Link, number: int, tags: Tags[ReceiveChannel], queue: str) -> None:
        super().__init__(link, number)
        self.queue = queue
        self._tags = tags

    def hand_out(self, message: Arrived) -> Delivery:
        """The delivery that the program holds from now on."""
        return Delivery(
            tag=self._tags.hand_out(self, message.number),
            queue=self.queue,
            body=message.body,
            redelivered=message.is_redelivered,
            _properties=BasicProperties(message.properties),
        )

    def end(self, why: Why) -> None:
        """Forget what was held: the server has taken it back."""
        super().end(why)
        self._tags.forget(self)

    def give_back(self, message: Arrived) -> None:
        """Send back a message that the program does not take."""
        self.tell(methods.Basic.Nack, delivery_tag=message.number, requeue=True)


class GetChannel(ReceiveChannel):
    """The gets of one queue: where it is refused, nothing of another queue goes back."""

    async def get(self) -> Arrived | None:
        """Its next message; None when there is none."""
        answer = await self.ask(methods.Basic.Get, queue=self.queue)
        return answer if isinstance(answer, Arrived) else None

    def unwanted(self, answer: base.Frame | Arrived) -> None:
        """Give back a message whose get was cancelled."""
        if isinstance(answer, Arrived):
            self.give_back(answer)

    @property
    def is_asking(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._questions)


class ConsumeChannel(ReceiveChannel):
    """One consumer.

    Args:
        link, number, tags, queue: as above.
        prefetch: how many messages it has room for.
    """

    def __init__(self, link: Link, number: int, tags: Tags[ReceiveChannel], queue: str, prefetch: int) -> None:
        super().__init__(link, number, tags, queue)
        self._prefetch = prefetch
        self._arrived: deque[Arrived] = deque()
        self._news = Signal()
        self._over: Why | None = None

    async def begin(self, *, exclusive: bool) -> None:
        """Ask for messages.

        Raises:
            NotAllowed: another consumer has the queue exclusively, or would lose it.
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
        await anyio.lowlevel.checkpoint()
        while not self._arrived:
            if self._over is not None:
                raise self._over()
            if self.ended is not None:
                raise self.ended()
            await self._news.wait()
        return self._arrived.popleft()

    async def stop(self) -> None:
        """Ask for no more, and give back what was not taken."""
        await self.ask(methods.Basic.Cancel, consumer_tag=_TAG)
        if self._arrived:
            while self._arrived:
                self.give_back(self._arrived.popleft())
            await self.ask(methods.Basic.Qos, prefetch_count=self._prefetch)  # nothing answers a nack; this comes after
        self.consumer_ended()

    def arrived(self, message: Arrived) -> None:
        """Keep a message for the consumer. A server that sends more than was asked for ends the connection."""
        if message.is_answer:
            super().arrived(message)
        elif len(self._arrived) >= self._prefetch:
            self._link.end(f"the server sent more than the {self._prefetch} messages that were asked for")
        else:
            self._arrived.append(message)
            self._news.notify()

    def consumer_ended(self) -> None:
        """End the iteration after what has come already: that is still held."""
        self._over = lambda: ConsumeEnded(f"the server ended the consumer of {self.queue!r}: consume again if you like")
        self._news.notify()

    def end(self, why: Why) -> None:
        """Forget what has come: the server has taken it back."""
        super().end(why)
        self._arrived.clear()
        self._news.notify()
