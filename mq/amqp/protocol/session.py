"""What the channels of a connection share: its user, its vhost, its limits, and the two ways out.

The :class:`Outbox` joins commands that can share a commit: publishes in a row, and settlements in a row.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeGuard

from pamqp import base

from mq.access import Right, User
from mq.amqp.model.declared import Queue
from mq.amqp.model.names import DEFAULT_VHOST, encode
from mq.amqp.model.topology import Topology
from mq.amqp.protocol.commands import (
    ACKNOWLEDGED,
    Command,
    Credit,
    PublishedMessage,
    PublishMessages,
    Settle,
    Settlement,
    UnsettledDelivery,
)
from mq.amqp.wire.errors import Code, Refusal
from mq.amqp.wire.frames import SMALLEST_FRAME_MAX, encode_content, encode_method
from mq.doors.budget import Budget, ClientMemory, Room, Use
from mq.errors import BodyTooLarge, NoMemory, OverLimit

CHANNEL_BYTES: Final = 4096
"""What an open channel takes in memory."""
CONSUMER_BYTES: Final = 12 * 1024
"""What a consumer takes in memory."""
UNSETTLED_BYTES: Final = 512
"""What an unsettled delivery takes in memory; its body and properties are not kept."""
UNSETTLED_STEP: Final = 64
"""For so many unsettled deliveries memory is reserved at once."""
UNSETTLED_UNCOUNTED: Final = 16
"""For so many unsettled deliveries a connection needs no reservation."""
MESSAGE_OVERHEAD: Final = 1024
"""Bytes that a message without a body is counted as, where it waits in memory."""


@dataclass(frozen=True)
class ConnectionLimits:
    """The most that a connection may ask for.

    Attributes:
        handshake_seconds: how long opening a connection may take, and closing one.
        buffered_max: bytes of bodies that may be here unfinished, or uncommitted, over all channels.
        unsettled_max: deliveries that may be unsettled, over all channels.
    """

    frame_max: int = 131_072
    channel_max: int = 2047
    heartbeat_seconds: int = 60
    handshake_seconds: float = 10.0
    body_max: int = 128 * 1024 * 1024
    buffered_max: int = 160 * 1024 * 1024
    unsettled_max: int = 262_144
    consumers_max: int = 4096


MOST_TOGETHER: Final = 1000
"""Messages or deliveries in one command, about."""
MOST_BYTES_TOGETHER: Final = 4 * 1024 * 1024
"""Bytes of bodies in one command, about."""


class Outbox:
    """The commands of a connection, in order. Publishes in a row are joined, and settlements in a row.

    Attributes:
        whole: commands that no further one is joined to.
        messages: the last command, if it is a publish that others may be joined to. Its channel adds messages.
        message_bytes: of their bodies.
        deliveries: the last command, if it is a settlement that others may be joined to.
        outcome: of these.
    """

    def __init__(self) -> None:
        self.whole: deque[Command] = deque()
        self.messages: list[PublishedMessage] = []
        self.message_bytes = 0
        self.deliveries: list[UnsettledDelivery] = []
        self.outcome = ACKNOWLEDGED

    def settle(self, outcome: Settlement, deliveries: Iterable[UnsettledDelivery]) -> None:
        """Settle more deliveries."""
        if self.messages or outcome is not self.outcome:
            self.close()
        self.outcome = outcome
        self.deliveries += deliveries
        if len(self.deliveries) >= MOST_TOGETHER:
            self.close()

    def feed(self, command: Credit) -> None:
        """A consumer has credit again. It goes ahead of the acknowledgements that gave it: what they remove is out of
        its queue already, so the next messages can be sent while the store removes it."""
        if self.messages or self.outcome is not ACKNOWLEDGED:
            self.close()
        at = len(self.whole)
        while at and is_acknowledgement(self.whole[at - 1]):
            at -= 1
        self.whole.insert(at, command)

    def put(self, command: Command) -> None:
        """Add any other command."""
        if self.messages or self.deliveries:
            self.close()
        self.whole.append(command)

    def close(self) -> None:
        """Join nothing more to the last command."""
        if self.messages:
            self.whole.append(PublishMessages(tuple(self.messages)))
        else:  # in parts, of which each is freed once it is settled
            for at in range(0, len(self.deliveries), MOST_TOGETHER):
                self.whole.append(Settle(self.outcome, tuple(self.deliveries[at : at + MOST_TOGETHER])))
        self.messages, self.deliveries, self.message_bytes = [], [], 0


def is_acknowledgement(command: Command) -> TypeGuard[Settle]:
    """Whether it settles deliveries by acknowledging them."""
    return isinstance(command, Settle) and command.outcome is ACKNOWLEDGED


class Confirming(Protocol):
    """What one channel publishes, with confirms that are due."""

    def flush(self) -> None:
        """Send the confirms that are due, and take them out of :attr:`Session.unflushed`."""


@dataclass
class Session:
    """What the channels of a connection share.

    Attributes:
        owner: the connection's identity; exclusive queues have it as their owner.
        certificate: the common name of the client's certificate; None where it gave none.
        user: the authenticated user; None may do everything.
        is_node: whether the client says that it is a node of this cluster.
        closed_to: tells why no client but a node may connect now; empty where all may.
        check_connection: raises OverLimit if a user has too many connections for one more.
        over_limit: why the user may not have this connection; empty where the user may.
        longest_body: returns the longest body in bytes that a queue takes, by its key.
        denied: is told of a right that the user lacks, on which queue or exchange; None for every queue.
        follows_text: whether a prefetch without ``global`` also limits the existing consumers of this client, as AMQP's
            text says. As RabbitMQ has it, it limits later ones alone.
        unflushed: channels with confirms that are due, in order: numbers of messages, and whether these are stored.
        room: the reservation for the bytes in `buffered`.
        unfinished: how many of them are of messages that have begun to come and are not all here.
        queues: those of the vhost that were declared over AMQP, by name.
        unsettled: deliveries that count for ``unsettled_max``.
        channels: how many are open, or closing.
    """

    topology: Topology
    owner: Hashable
    limits: ConnectionLimits
    send: Callable[[bytes], None]
    outbox: Outbox = field(default_factory=Outbox)
    unflushed: dict[Confirming, list[tuple[Sequence[int], bool]]] = field(default_factory=dict)
    vhost: str = DEFAULT_VHOST
    queues: Mapping[str, Queue] = field(default_factory=dict)
    address: str = ""
    certificate: str | None = None
    user: User | None = None
    frame_max: int = SMALLEST_FRAME_MAX
    capabilities: frozenset[str] = frozenset()
    is_node: bool = False
    closed_to: Callable[[], str] = lambda: ""
    check_connection: Callable[[User], None] = lambda user: None
    over_limit: str = ""
    longest_body: Callable[[str], int] = lambda queue: sys.maxsize
    denied: Callable[[str, str, str | None], None] = lambda right, what, name: None
    follows_text: bool = False
    memory: ClientMemory = field(default_factory=lambda: Budget().own())
    room: Room = field(init=False)
    kept: Room = field(init=False)
    held: Room = field(init=False)
    buffered: int = 0
    unfinished: int = 0
    unsettled: int = 0
    consumers: int = 0
    channels: int = 0

    def __post_init__(self) -> None:
        self.use_memory(self.memory)

    def use_memory(self, memory: ClientMemory) -> None:
        """Reserve memory there. Nothing is reserved yet."""
        self.memory = memory
        self.room, self.kept = memory.reserve(Use.PUBLISH), memory.reserve(Use.REQUEST)
        self.held = memory.reserve(Use.UNSETTLED)

    def log_in(self, user: User | None) -> None:
        """Take the authenticated user.

        Raises:
            Refusal: 506; the user has reserved too much memory.
        """
        if user is not None:
            try:
                self.memory.log_in(user.name)
            except NoMemory as error:
                raise Refusal(Code.RESOURCE_ERROR, str(error)) from error
            try:
                self.check_connection(user)
            except OverLimit as error:
                self.over_limit = str(error)  # the client is told once it can be: when it opens the connection
        self.user = user

    def recount(self, more: int = 0) -> None:
        """Reserve memory for the channels and consumers that there are.

        Raises:
            Refusal: 506; others have the memory.
        """
        # The first channel is a part of its connection.
        size = CHANNEL_BYTES * max(0, self.channels - 1) + CONSUMER_BYTES * self.consumers + more
        try:
            self.kept.cover(size)
        except (BodyTooLarge, NoMemory) as error:
            raise Refusal(Code.RESOURCE_ERROR, str(error)) from error
        self.kept.shrink(size)

    def may_hold(self, count: int) -> int:
        """How many deliveries more may be unsettled now, up to `count`."""
        count = min(count, self.limits.unsettled_max - self.unsettled)
        then = self.unsettled + count
        if then * UNSETTLED_BYTES > self.held.size and then > UNSETTLED_UNCOUNTED:
            most = max((self.held.size + self.held.free) // UNSETTLED_BYTES, UNSETTLED_UNCOUNTED)
            count = min(count, most - self.unsettled)
        return max(0, count)

    def hold(self, count: int) -> None:
        """Reserve memory for deliveries that are about to be unsettled: no more than :meth:`may_hold` allows."""
        then = self.unsettled + count
        if then > UNSETTLED_UNCOUNTED and then * UNSETTLED_BYTES > self.held.size:
            step = UNSETTLED_STEP * UNSETTLED_BYTES
            if not self.held.cover_if_free(-(-then * UNSETTLED_BYTES // step) * step):
                self.held.cover_if_free(then * UNSETTLED_BYTES)

    def release(self, count: int) -> None:
        """Note that so many deliveries are settled."""
        self.unsettled -= count
        spare = self.held.size - self.unsettled * UNSETTLED_BYTES
        if spare >= 2 * UNSETTLED_STEP * UNSETTLED_BYTES or (self.held.size and not self.unsettled):
            self.held.shrink(self.unsettled * UNSETTLED_BYTES if self.unsettled > UNSETTLED_UNCOUNTED else 0)

    def send_method(self, channel: int, method: type[base.Frame], **values: Any) -> None:
        """Send a method. Fields that are not given are zero, empty or false."""
        self.send(encode_method(channel, method, **values))

    def send_content(self, channel: int, properties: bytes, body: bytes) -> None:
        """Send the content that belongs to the method just sent."""
        self.send(encode_content(channel, properties, body, self.frame_max))

    def buffer(self, size: int) -> None:
        """Count so many bytes more that wait in memory; fewer, if `size` is below zero.

        Raises:
            Refusal: 506; that is too much.
        """
        self.buffered += size
        if size <= 0:
            self.room.shrink(self.buffered)
            return
        self.check_room()
        try:
            self.room.cover(self.buffered)
        except (BodyTooLarge, NoMemory) as error:
            raise Refusal(Code.RESOURCE_ERROR, str(error)) from error

    def check_room(self, size: int = 0) -> None:
        """Check that so many bytes more may be here for a moment.

        Raises:
            Refusal: 506; that is too much.
        """
        if self.buffered + size > self.limits.buffered_max:
            why = "the total size of this client's incomplete and uncommitted messages exceeds the limit"
            raise Refusal(Code.RESOURCE_ERROR, why)

    def demand(self, right: Right, what: str, name: str | None) -> None:
        """Check that the user has a right.

        Args:
            what: ``queue`` or ``exchange``, for the text.
            name: of it; None for "every queue".

        Raises:
            Refusal: 403.
        """
        if self.user is None or self.user.may(right, None if name is None else encode(self.vhost, name)):
            return
        self.denied(right, what, name)
        shown = "every queue" if name is None else f"{what} '{name}' in vhost '{self.vhost}'"
        raise Refusal(
            Code.ACCESS_REFUSED,
            f"access to {shown} refused for user '{self.user.name}': the user does not have the {right} right",
        )

    def demand_any(self, what: str, name: str) -> None:
        """Check that the user has any right on it.

        Raises:
            Refusal: 403.
        """
        if self.user is None or self.user.may_something(encode(self.vhost, name)):
            return
        self.denied("any", what, name)
        shown = f"{what} '{name}' in vhost '{self.vhost}'"
        raise Refusal(Code.ACCESS_REFUSED, f"access to {shown} refused for user '{self.user.name}'")
