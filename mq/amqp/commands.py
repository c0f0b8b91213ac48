"""What a connection asks of whoever stands behind it, and what it is told in return. Plain frozen values.

Commands come out of :meth:`Connection.next_command` one by one. Those that say so are answered, with their result or
with a :class:`~mq.amqp.errors.Refused`, before the next one is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from mq.access import User
from mq.amqp.declared import Binding, Exchange, Queue
from mq.amqp.errors import Refused
from mq.amqp.properties import Properties
from mq.message import QueueName


class ChannelKey(NamedTuple):
    """A channel. Its number may be used again; then `epoch`, a count over the connection, is another."""

    number: int
    epoch: int


class Outcome(Enum):
    """What becomes of a delivery."""

    ACKNOWLEDGED = "acknowledged"
    """It is removed."""
    REQUEUED = "requeued"
    """It goes back to its place, or to the back where its queue says so."""
    REJECTED = "rejected"
    """It goes to the dead-letter exchange of its queue, or is removed."""


class Message(NamedTuple):
    """A message that somebody publishes.

    Attributes:
        channel: where it came from.
        number: its place among what was published there since confirms were asked for; None where they were not.
        exchange, routing_key: as published.
        queues: where it goes; at least one.
        properties: as they came.
        body: all of it.
        expiration_ms: after so many milliseconds it expires; None for what the queue says.
    """

    channel: ChannelKey
    number: int | None
    exchange: str
    routing_key: str
    queues: tuple[Queue, ...]
    properties: Properties
    body: bytes
    expiration_ms: int | None


class Arrival(NamedTuple):
    """A message that comes out of a queue.

    Attributes:
        token: whatever names it to whoever gave it; it comes back when the delivery is settled.
        exchange, routing_key: where it was published.
        properties: as in :attr:`Properties.raw`.
        body: all of it.
        redelivered: whether it has been delivered before.
    """

    token: Any
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes
    redelivered: bool = False


class Delivery(NamedTuple):
    """A message that a client has and has not settled.

    Attributes:
        tag: what it is called on its channel.
        token: of its :class:`Arrival`.
        queue: where it came from.
        consumer: the tag of who got it; None after a get.
    """

    tag: int
    token: Any
    queue: QueueName
    consumer: str | None


# Answered with Authenticated, or None for "no such user, or the wrong secret"


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Who is it? Also when a client renews its secret."""

    name: str
    secret: str


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Result: who it is; a user of None may do everything."""

    user: User | None


# Answered with Done


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Make an exchange, or see that it is there as declared."""

    channel: ChannelKey
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    """Take an exchange away."""

    channel: ChannelKey
    name: str
    if_unused: bool


@dataclass(frozen=True, slots=True)
class Bind:
    """Make a binding."""

    channel: ChannelKey
    binding: Binding


@dataclass(frozen=True, slots=True)
class Unbind:
    """Take a binding away."""

    channel: ChannelKey
    binding: Binding


@dataclass(frozen=True, slots=True)
class Consume:
    """Begin to consume: from the answer on, ask for the consumer's credit and deliver."""

    channel: ChannelKey
    tag: str
    queue: Queue
    no_ack: bool
    exclusive: bool
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a consumer. What it has and has not settled stays with the channel."""

    channel: ChannelKey
    tag: str
    queue: QueueName


@dataclass(frozen=True, slots=True)
class Commit:
    """Store and settle all of it, in this order, with one barrier if possible."""

    channel: ChannelKey
    messages: tuple[Message, ...]
    settled: tuple[Settle, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """A channel has ended: end its consumers, put what it has not settled back to its place, marked as redelivered."""

    channel: ChannelKey
    consumers: tuple[tuple[str, QueueName], ...]
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Result: it is so."""


# Answered with results of their own


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Make a queue, or see that it is there as declared; one without a name gets one. Answered with Declared."""

    channel: ChannelKey
    queue: Queue


@dataclass(frozen=True, slots=True)
class InspectQueue:
    """How is that queue? Answered with Declared."""

    channel: ChannelKey
    queue: Queue


@dataclass(frozen=True, slots=True)
class Declared:
    """Result: a queue, how many messages in it are ready, and how many consume from it."""

    name: str
    messages: int
    consumers: int


@dataclass(frozen=True, slots=True)
class PurgeQueue:
    """Remove what nobody holds. Answered with Counted."""

    channel: ChannelKey
    queue: Queue


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Take a queue away, which may not be there. Answered with Counted."""

    channel: ChannelKey
    name: str
    if_unused: bool
    if_empty: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """Result: it concerned so many messages."""

    messages: int


@dataclass(frozen=True, slots=True)
class Get:
    """The first message that is ready. Answered with Got, or None where there is none."""

    channel: ChannelKey
    queue: Queue
    no_ack: bool


@dataclass(frozen=True, slots=True)
class Got:
    """Result: a message, and how many are left in its queue."""

    arrival: Arrival
    left: int


# Not answered at once, so that reading goes on


@dataclass(frozen=True, slots=True)
class Publish:
    """Store these, in this order, with one barrier if possible; then tell :meth:`Connection.published`."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """All of these have come to the same end."""

    outcome: Outcome
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class Credit:
    """A consumer that had no credit has some again: ask for it."""

    channel: ChannelKey
    tag: str


ChannelCommand = (
    DeclareExchange
    | DeleteExchange
    | Bind
    | Unbind
    | Consume
    | Cancel
    | Commit
    | Release
    | DeclareQueue
    | InspectQueue
    | PurgeQueue
    | DeleteQueue
    | Get
)
"""What is answered by :meth:`Connection.answer`, and belongs to a channel."""

Command = Authenticate | ChannelCommand | Publish | Settle | Credit
Result = Authenticated | Done | Declared | Counted | Got | Refused | None
