"""Commands of a connection to the server, and their results: plain frozen values.

Commands come out of :meth:`Connection.next_command` one by one. The server answers those that say so, with their
result or with a :class:`~mq.amqp.wire.errors.Refusal`, before it takes the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from mq.access import User
from mq.amqp.model.declared import Binding, Exchange, Queue
from mq.amqp.wire.errors import Refusal
from mq.amqp.wire.properties import BasicProperties
from mq.message import QueueName


class ChannelKey(NamedTuple):
    """Names a channel. Its number may be used again; `epoch` counts the channels of a connection."""

    number: int
    epoch: int


class Settlement(Enum):
    """What becomes of a delivery."""

    ACKNOWLEDGED = "acknowledged"
    """It is removed."""
    REQUEUED = "requeued"
    """It goes back to its place, or to the back where its queue says so."""
    REJECTED = "rejected"
    """It goes to the dead-letter exchange of its queue, or is removed."""


ACKNOWLEDGED: Final = Settlement.ACKNOWLEDGED  # quicker than an attribute of the enumeration


class PublishedMessage(NamedTuple):
    """A message that a client publishes.

    Attributes:
        number: the number of its confirm; None on a channel without confirms.
        queues: where it goes; at least one. It may be unsure, or stand for queues that are not known yet.
        expiration_ms: milliseconds until it expires; None for what the queue says.
        mandatory: whether it is returned to its publisher where no queue takes it.
        hidden_keys: the routing keys of its header ``BCC``, which was taken out.
    """

    channel: ChannelKey
    number: int | None
    exchange: str
    routing_key: str
    queues: tuple[Queue, ...]
    properties: BasicProperties
    body: bytes
    expiration_ms: int | None
    mandatory: bool = False
    hidden_keys: tuple[str, ...] = ()


class Arrival(NamedTuple):
    """A message that comes out of a queue.

    Attributes:
        token: what the server knows it by, which comes back when the delivery is settled; None if it never is.
        properties: as in :attr:`BasicProperties.raw`.
    """

    token: Any
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes
    redelivered: bool = False


class UnsettledDelivery(NamedTuple):
    """A message that a client has got and not yet settled.

    Attributes:
        token: of its :class:`Arrival`.
        consumer: counts it while it is unsettled; None after a get.
    """

    tag: int
    token: Any
    queue: QueueName
    consumer: Any


# Answered with Authenticated, or None for "no such user, or the wrong secret"


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Check a name and a secret, at login and when a client renews its secret. With a certificate there is no secret:
    TLS has checked the name."""

    name: str
    secret: str
    by_certificate: bool = False


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Result: the user who logged in; None may do everything."""

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
    """Begin to consume: from the answer on, ask for the consumer's credit and deliver. For `replies` the queue is made
    first, and goes with its consumer."""

    channel: ChannelKey
    tag: str
    queue: Queue
    no_ack: bool
    exclusive: bool
    priority: int = 0
    replies: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a consumer. Its unsettled deliveries stay with the channel."""

    channel: ChannelKey
    tag: str
    queue: QueueName


@dataclass(frozen=True, slots=True)
class Commit:
    """Store and settle all of it, in this order. Take out what is settled: it is freed part by part."""

    channel: ChannelKey
    messages: tuple[PublishedMessage, ...]
    settled: list[Settle]


@dataclass(frozen=True, slots=True)
class Release:
    """Clean up after a channel: end its consumers, put its unsettled deliveries back, marked as redelivered."""

    channel: ChannelKey
    consumers: tuple[tuple[str, QueueName], ...]
    deliveries: tuple[UnsettledDelivery, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """The client closes a channel, or without one the connection. Answer once everything that it published is stored or
    refused, and once the exclusive queues of a closed connection are gone: the answer becomes the close-ok."""

    channel: ChannelKey | None


@dataclass(frozen=True, slots=True)
class Done:
    """Result: the command was carried out."""


# Answered with results of their own


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Make a queue, or see that it is there as declared; one without a name gets one. Answered with QueueDeclared."""

    channel: ChannelKey
    queue: Queue


@dataclass(frozen=True, slots=True)
class FindQueue:
    """Find out whether an unsure queue exists. Answered with Done: afterwards the topology knows."""

    channel: ChannelKey
    queue: QueueName


@dataclass(frozen=True, slots=True)
class InspectQueue:
    """Ask for the counts of a queue. Answered with QueueDeclared."""

    channel: ChannelKey
    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueDeclared:
    """Result: a queue, how many messages in it are ready, and how many consume from it."""

    name: str
    messages: int
    consumers: int


@dataclass(frozen=True, slots=True)
class PurgeQueue:
    """Remove all messages of a queue that are not delivered. Answered with Counted."""

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
    """Result: how many messages were removed."""

    messages: int


class Get(NamedTuple):
    """The first message that is ready. Answered with Got, or None where there is none."""

    channel: ChannelKey
    queue: Queue
    no_ack: bool


class Got(NamedTuple):
    """Result: a message, and how many are left in its queue."""

    arrival: Arrival
    left: int


# Not answered at once, so that reading goes on


class PublishMessages(NamedTuple):
    """Store these, in this order, with one barrier if possible; then tell :meth:`Connection.published`."""

    messages: tuple[PublishedMessage, ...]


class Settle(NamedTuple):
    """Acknowledge, put back or reject these."""

    outcome: Settlement
    deliveries: tuple[UnsettledDelivery, ...]


class Credit(NamedTuple):
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
    | FindQueue
    | InspectQueue
    | PurgeQueue
    | DeleteQueue
    | Get
)
"""The commands that are answered on a channel."""

Answered = Authenticate | Leave | ChannelCommand
"""The commands that the server answers with :meth:`Connection.answer`."""

Command = Answered | PublishMessages | Settle | Credit
Result = Authenticated | Done | QueueDeclared | Counted | Got | Refusal | None
