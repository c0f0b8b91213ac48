"""The consuming half of a channel: its consumers, their unsettled deliveries, and their credit."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from operator import attrgetter
from typing import Final

from pamqp import commands as methods

from mq.amqp.protocol.commands import Arrival, ChannelKey, Credit, Got, Settle, Settlement, UnsettledDelivery
from mq.amqp.protocol.session import CONSUMER_BYTES, MOST_TOGETHER, Session
from mq.amqp.wire import frames
from mq.amqp.wire.errors import Code, Refusal
from mq.message import QueueName

MOST_AT_ONCE: Final = 256
"""The most credit that a consumer has, its prefetch allowing: the most messages that it is sent at once."""
_FEW: Final = 256
"""Deliveries that are looked at one by one."""
_TAG: Final = attrgetter("tag")


class ConsumerCredit:
    """One consumer's prefetch, and how much of it is used.

    Attributes:
        no_ack: whether its deliveries are settled as they are sent.
        prefetch: how many of its deliveries may be unsettled; 0 for any number.
        is_starved: whether it was told that it has no credit.
        again: the command for the server once it has credit again.
    """

    def __init__(self, channel: ChannelKey, tag: str, queue: QueueName, *, no_ack: bool, prefetch: int) -> None:
        self.tag = tag
        self.again = Credit(channel, tag)
        self.written_tag = frames.short(tag)
        self.queue = queue
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.unsettled = 0
        self.is_starved = False


class Deliveries:
    """The consumers of one channel, and its unsettled deliveries."""

    def __init__(self, key: ChannelKey, session: Session) -> None:
        self.consumers: dict[str, ConsumerCredit] = {}
        self._key = key
        self._session = session
        self._last_tag = 0
        self._unsettled: dict[int, UnsettledDelivery] = {}  # in the order of their tags
        self._uncommitted: list[Settle] = []
        self._prefetch = 0  # of consumers to come
        self._channel_prefetch = 0
        self._count = 0

    @property
    def unsettled(self) -> int:
        """How many there are."""
        return len(self._unsettled)

    # Consumers

    def new_tag(self, wanted: str) -> str:
        """The tag of a consumer to come.

        Raises:
            Refusal: 530; the channel has one of that tag, or the connection has too many of them.
        """
        if self._session.consumers >= self._session.limits.consumers_max:
            raise Refusal(
                Code.NOT_ALLOWED,
                f"the connection has reached the maximum of {self._session.limits.consumers_max} consumers",
            )
        if wanted in self.consumers:
            raise Refusal(Code.NOT_ALLOWED, f"consumer tag '{wanted}' is already in use")
        self._session.recount(CONSUMER_BYTES)
        return wanted or f"amq.ctag-{secrets.token_urlsafe(16)}"

    def add(self, tag: str, queue: QueueName, *, no_ack: bool) -> None:
        """Add a consumer."""
        self.consumers[tag] = ConsumerCredit(self._key, tag, queue, no_ack=no_ack, prefetch=self._prefetch)
        self._session.consumers += 1

    def remove(self, tag: str) -> bool:
        """Remove a consumer. Returns False when there was none of that tag."""
        if self.consumers.pop(tag, None) is None:
            return False
        self._session.consumers -= 1
        self._session.recount()
        return True

    def limit(self, method: methods.Basic.Qos) -> None:
        """Set the prefetch as RabbitMQ does: `global` limits the channel, else each later consumer on its own. For
        clients that follow the text of AMQP, it limits existing consumers, too.

        Raises:
            Refusal: 540; a size in bytes.
        """
        if method.prefetch_size:
            raise Refusal(Code.NOT_IMPLEMENTED, f"prefetch_size must be 0, not {method.prefetch_size}")
        if method.global_:
            self._channel_prefetch = method.prefetch_count
            self.feed()
            return
        self._prefetch = method.prefetch_count
        if self._session.follows_text:
            for consumer in self.consumers.values():
                consumer.prefetch = method.prefetch_count
            self.feed()

    def credit(self, tag: str) -> int:
        """How many messages a consumer may be sent now. After 0, a Credit follows when that changes."""
        consumer = self.consumers.get(tag)
        if consumer is None:
            return 0
        most = self._credit(consumer)
        consumer.is_starved = most == 0
        return most

    def _credit(self, consumer: ConsumerCredit) -> int:
        if consumer.no_ack:
            return MOST_AT_ONCE
        most = MOST_AT_ONCE
        if consumer.prefetch:
            most = min(most, consumer.prefetch - consumer.unsettled)
        if self._channel_prefetch:
            most = min(most, self._channel_prefetch - self._count)
        return self._session.may_hold(most) if most > 0 else 0

    def feed(self) -> None:
        """Put out a Credit for every consumer that had no credit and has some now."""
        for consumer in self.consumers.values():
            if consumer.is_starved and self._credit(consumer):
                consumer.is_starved = False
                self._session.outbox.feed(consumer.again)

    # Deliveries

    def deliver(self, tag: str, arrivals: Sequence[Arrival]) -> int:
        """Send messages to a consumer, as far as its credit goes. Returns how many, from the first on."""
        consumer = self.consumers.get(tag)
        if consumer is None:
            return 0
        credit = self._credit(consumer)
        taken = min(credit, len(arrivals))
        if not consumer.no_ack:
            self._session.hold(taken)
        for arrival in arrivals[:taken]:
            self._session.send(self._delivery(consumer, arrival))
        # One that may have very many has its credit bit by bit.
        consumer.is_starved = taken == credit and (credit < MOST_AT_ONCE or not self._credit(consumer))
        return taken

    def _delivery(self, consumer: ConsumerCredit, arrival: Arrival) -> bytes:
        if consumer.no_ack:
            self._last_tag = tag = self._last_tag + 1
        else:
            consumer.unsettled += 1
            tag = self._hold(arrival, consumer.queue, consumer)
        return frames.delivery(
            self._key.number,
            consumer.written_tag,
            tag,
            frames.route(arrival.exchange, arrival.routing_key),
            arrival.properties,
            arrival.body,
            self._session.frame_max,
            redelivered=arrival.redelivered,
        )

    def got(self, result: Got | None, queue: QueueName, *, no_ack: bool) -> None:
        """Answer a get."""
        if result is None:
            self._session.send(frames.get_empty(self._key.number))
            return
        arrival = result.arrival
        if no_ack:
            self._last_tag = tag = self._last_tag + 1
        else:
            self._session.hold(1)
            tag = self._hold(arrival, queue, None)
        self._session.send(
            frames.delivery(
                self._key.number,
                b"",
                tag,
                frames.route(arrival.exchange, arrival.routing_key) + result.left.to_bytes(4),
                arrival.properties,
                arrival.body,
                self._session.frame_max,
                redelivered=arrival.redelivered,
            )
        )

    def _hold(self, arrival: Arrival, queue: QueueName, consumer: ConsumerCredit | None) -> int:
        self._last_tag = tag = self._last_tag + 1
        self._unsettled[tag] = UnsettledDelivery(tag, arrival.token, queue, consumer)
        self._session.unsettled += 1
        self._count += 1
        return tag

    # Settling

    def settle(self, outcome: Settlement, tags: Iterable[tuple[int, bool]], *, in_transaction: bool) -> None:
        """Settle deliveries by (tag, multiple): that of the tag, and with `multiple` all before it, or all for tag 0.

        Raises:
            Refusal: 406; there is no unsettled delivery of that tag. Those before it are settled.
        """
        deliveries: list[UnsettledDelivery] = []
        try:
            for tag, multiple in tags:
                deliveries += self._take(tag, multiple=multiple)
        finally:
            if in_transaction:
                for at in range(0, max(1, len(deliveries)), MOST_TOGETHER):
                    self._uncommitted.append(Settle(outcome, tuple(deliveries[at : at + MOST_TOGETHER])))
            elif deliveries:
                self._session.outbox.settle(outcome, deliveries)
                self._freed(deliveries)

    def _take(self, tag: int, *, multiple: bool) -> list[UnsettledDelivery]:
        if multiple and not tag:
            return self._take_all()
        if tag not in self._unsettled:
            raise Refusal(Code.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        if not multiple:
            return [self._unsettled.pop(tag)]
        tags = list(islice(takewhile(lambda earlier: earlier <= tag, self._unsettled), _FEW))
        if len(tags) < _FEW:
            return [self._unsettled.pop(one) for one in tags]
        # Without a Python step for each: this holds up all other connections.
        count = bisect_right(list(self._unsettled), tag)
        left = dict(islice(self._unsettled.items(), count, None))
        taken = list(islice(self._unsettled.values(), count))
        self._unsettled = left
        return taken

    def _take_all(self) -> list[UnsettledDelivery]:
        taken = list(self._unsettled.values())
        self._unsettled.clear()
        return taken

    def recover(self) -> None:
        """Put back all unsettled deliveries."""
        deliveries = self._take_all()
        if deliveries:
            self._session.outbox.settle(Settlement.REQUEUED, deliveries)
            self._freed(deliveries)

    def _freed(self, deliveries: Sequence[UnsettledDelivery]) -> None:
        self._count -= len(deliveries)
        self._session.release(len(deliveries))
        for delivery in deliveries:
            if delivery.consumer is not None:
                delivery.consumer.unsettled -= 1
        self.feed()

    def uncommitted(self) -> list[Settle]:
        """Take the settlements for a commit."""
        settled, self._uncommitted = self._uncommitted, []
        for settle in settled:
            self._freed(settle.deliveries)
        return [settle for settle in settled if settle.deliveries]

    def rollback(self) -> None:
        """Undo all settlements since the last commit."""
        if not self._uncommitted:
            return
        for settle in self._uncommitted:
            self._unsettled |= zip(map(_TAG, settle.deliveries), settle.deliveries, strict=True)
        self._unsettled = dict(sorted(self._unsettled.items()))
        self._uncommitted = []

    def end(self) -> tuple[tuple[tuple[str, QueueName], ...], tuple[UnsettledDelivery, ...]]:
        """End it with its channel. Returns the consumers to end and the deliveries to put back."""
        self.rollback()
        consumers = tuple((consumer.tag, consumer.queue) for consumer in self.consumers.values())
        deliveries = tuple(self._unsettled.values())
        self._session.consumers -= len(consumers)
        self._session.recount()
        self.consumers.clear()
        self._unsettled.clear()
        self._freed(deliveries)
        return consumers, deliveries
