"""The publishes of one channel: contents put together, routed, returned where no queue takes them, and confirmed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from pamqp import base
from pamqp import commands as methods

from mq.access import Right
from mq.amqp.model.arguments import OVERFLOW
from mq.amqp.model.declared import Queue
from mq.amqp.model.names import REPLY_TO
from mq.amqp.protocol.commands import ACKNOWLEDGED, ChannelKey, PublishedMessage, Settlement
from mq.amqp.protocol.session import MESSAGE_OVERHEAD, MOST_BYTES_TOGETHER, MOST_TOGETHER, Session
from mq.amqp.wire.errors import Code, Refusal
from mq.amqp.wire.frames import (
    ACKED,
    END,
    AckFrames,
    BodyFrame,
    HeaderFrame,
    MethodFrame,
    PublishFrames,
    Together,
    ack_beginning,
)
from mq.amqp.wire.properties import NONE, BasicProperties

ALWAYS_KEPT: Final = 64 * 1024
"""Bytes of a body up to which it is kept until its queues have refused it."""
EXPECTS_METHOD: Final = "expected a method frame but received a content frame"


ChannelFrame = MethodFrame | HeaderFrame | BodyFrame | Together
"""What may come on a channel."""


class ChannelState(Enum):
    """The states of a channel."""

    OPEN = "open"
    CLOSING = "closing"
    """We have closed it; until the client's close-ok, everything else is ignored."""
    LEAVING = "leaving"
    """The client has closed it, or its connection. The close-ok follows once what it published is stored; confirms are
    still sent until then."""
    CLOSED = "closed"


_OPEN: Final = ChannelState.OPEN  # as in the connection


class Mode(Enum):
    """How a channel's publishes are answered. A channel chooses once."""

    PLAIN = "plain"
    CONFIRM = "confirm"
    TRANSACTION = "transaction"


_CONFIRM: Final = Mode.CONFIRM
_TRANSACTION: Final = Mode.TRANSACTION


class Content:
    """A message that has begun to arrive: its method, then its header, then its body in any number of frames."""

    def __init__(self, method: methods.Basic.Publish) -> None:
        self.method = method
        self.properties = NONE
        self.parts: list[bytes] = []
        self.is_dropped = False  # no queue will take it
        self.missing = -1  # bytes of the body; below zero before the header
        self.buffered = 0

    def take_header(self, frame: HeaderFrame, body_max: int) -> None:
        """The content header.

        Raises:
            Refusal: 406, the body is too long; 502, 505: it is malformed, or a second one.
        """
        if self.missing >= 0:
            raise Refusal(Code.UNEXPECTED_FRAME, "expected a content body but received a content header")
        _check_size(frame.body_size, body_max)
        self.properties = BasicProperties(frame.properties)
        self.missing = frame.body_size

    def take_body(self, frame: BodyFrame) -> None:
        """A part of the body.

        Raises:
            Refusal: 505, it comes before the header; 501, it is more than was announced.
        """
        if self.missing < 0:
            raise Refusal(Code.UNEXPECTED_FRAME, "expected a content header but received a content body")
        if len(frame.payload) > self.missing:
            raise Refusal(
                Code.FRAME_ERROR,
                f"the body is {len(frame.payload) - self.missing} bytes longer than its content header declares",
            )
        self.missing -= len(frame.payload)
        if frame.payload and not self.is_dropped:
            self.parts.append(frame.payload)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise Refusal(Code.PRECONDITION_FAILED, f"the message size of {size} bytes exceeds the maximum of {most} bytes")


class PublishingChannel(ABC):
    """A channel as far as it publishes. :class:`~mq.amqp.protocol.channel.Channel` adds all other methods."""

    def __init__(self, key: ChannelKey, session: Session) -> None:
        self.key = key
        self.state = ChannelState.OPEN
        self._session = session
        self._mode = Mode.PLAIN
        self._confirms = PublisherConfirms()
        self._ack_beginning = ack_beginning(key.number)
        self._replies: Queue | None = None  # from which the channel consumes replies
        self._content: Content | None = None  # a message that has begun to arrive: no method may come now
        self._latest = NONE
        self._uncommitted: list[PublishedMessage] = []
        self._uncommitted_bytes = 0

    def handle(self, frame: ChannelFrame) -> None:
        """Handle the next frame of this channel, or several that were read together.

        Raises:
            Refusal: it ends the connection; what ends the channel alone is told to the client.
        """
        if self.state is not _OPEN:
            self._handle_while_closing(frame)
            return
        try:
            if self._content is not None and not isinstance(frame, HeaderFrame | BodyFrame):
                name = _method_of(frame).name
                raise Refusal(Code.UNEXPECTED_FRAME, f"expected a content frame for class 60 but received {name}")
            if isinstance(frame, PublishFrames):
                self._publish_whole(frame)
            elif isinstance(frame, AckFrames):
                self._settle(ACKNOWLEDGED, frame.tags)
            elif isinstance(frame, MethodFrame):
                self._call(frame.method)
            else:
                self._take_content(frame)
        except Refusal as refusal:
            self._fail(refusal, _method_of(frame))

    @abstractmethod
    def _call(self, method: base.Frame) -> None: ...

    @abstractmethod
    def _settle(self, outcome: Settlement, tags: Sequence[tuple[int, bool]]) -> None: ...

    @abstractmethod
    def _handle_while_closing(self, frame: ChannelFrame) -> None: ...

    @abstractmethod
    def _fail(self, refusal: Refusal, method: base.Frame) -> None: ...

    def _choose(self, mode: Mode) -> None:
        """Set the mode: confirms, or transactions, from now on.

        Raises:
            Refusal: 406; the other one was chosen.
        """
        if self._mode not in (Mode.PLAIN, mode):
            raise Refusal(
                Code.PRECONDITION_FAILED, f"cannot switch the channel from {self._mode.value} mode to {mode.value} mode"
            )
        self._mode = mode

    def _publish(self, method: methods.Basic.Publish) -> None:
        """Begin a message.

        Raises:
            Refusal: 540, `immediate`; 403, 404: where it is published to.
        """
        self._check(method)
        self._content = Content(method)

    def _publish_whole(self, frames: PublishFrames) -> None:
        """Publish a whole message.

        Raises:
            Refusal: as for its parts.
        """
        self._check(frames.method)
        session, size = self._session, len(frames.body)
        _check_size(size, session.limits.body_max)
        if frames.properties != self._latest.raw:  # publishers mostly say the same of each message
            self._latest = BasicProperties(frames.properties)
        if session.buffered:
            session.check_room(size)
        self._finish(frames.method, self._latest, frames.body)

    def _take_content(self, frame: HeaderFrame | BodyFrame) -> None:
        """Take the next part of the message.

        Raises:
            Refusal: it is not what it should be; or the whole message is.
        """
        content = self._content
        if content is None:
            raise Refusal(Code.UNEXPECTED_FRAME, EXPECTS_METHOD)
        if isinstance(frame, HeaderFrame):
            content.take_header(frame, self._session.limits.body_max)
            content.is_dropped = frame.body_size > ALWAYS_KEPT and self._fits_nowhere(content, frame.body_size)
            # Room for all of it now, so that no message gets stuck half-way.
            size = 0 if content.is_dropped else frame.body_size
            content.buffered = size + len(frame.properties) + MESSAGE_OVERHEAD
            self._session.unfinished += content.buffered
            self._session.buffer(content.buffered)
        else:
            content.take_body(frame)
        if content.missing == 0:
            self._drop_content()
            if content.is_dropped:
                self._refuse(content.properties)
            else:
                self._finish(content.method, content.properties, b"".join(content.parts))

    def _check(self, method: methods.Basic.Publish) -> None:
        if method.immediate:
            raise Refusal(Code.NOT_IMPLEMENTED, "immediate=true")
        session, name = self._session, method.exchange
        if not name:
            if session.user is not None:
                session.demand(Right.PUBLISH, "queue", method.routing_key)
            return
        session.demand(Right.PUBLISH, "exchange", name)
        if session.topology.exchange(session.vhost, name).internal:
            text = f"cannot publish to internal exchange '{name}' in vhost '{session.vhost}'"
            raise Refusal(Code.ACCESS_REFUSED, text)

    def _fits_nowhere(self, content: Content, size: int) -> bool:
        """Whether every queue that a message comes to would refuse it even if the queue were empty, and drop it."""
        session, method, properties = self._session, content.method, content.properties
        if self._mode is Mode.TRANSACTION or session.topology.is_unrouted(session.vhost, method.exchange):
            return False
        copied_to = [key for keys in properties.copied_to() for key in keys]
        queues = session.topology.route(
            session.vhost, method.exchange, method.routing_key, properties.headers, copied_to
        )
        return bool(queues) and all(
            size > session.longest_body(queue.key) and queue.arguments.get(OVERFLOW) != "reject-publish-dlx"
            for queue in queues
        )

    def _refuse(self, properties: BasicProperties) -> None:
        """Refuse a message whose body was not kept, as its queues would."""
        self._check_user(properties)
        if self._mode is Mode.CONFIRM:
            self._published(self._confirms.next(), is_stored=False)

    def _finish(self, method: methods.Basic.Publish, properties: BasicProperties, body: bytes) -> None:
        """Route a complete message, and put it out or keep it."""
        session = self._session
        expiration: int | None = None
        shown: tuple[str, ...] = ()
        hidden: tuple[str, ...] = ()
        if not properties.is_plain:
            self._check_user(properties)
            properties = self._addressed(properties)
            expiration = properties.expiration_ms
            shown, hidden = self._copied_to(method, properties)
            if hidden:
                properties = properties.changed({"BCC": None})
        queues: Sequence[Queue]
        named = None if method.exchange or shown or hidden else session.queues.get(method.routing_key)
        if named is not None:  # the default exchange leads there: three calls less than by the topology
            queues = (named,)
        elif method.exchange and session.topology.is_unrouted(session.vhost, method.exchange):
            queues = (Queue(session.vhost, "", is_unsure=True),)
        else:
            queues = session.topology.route(
                session.vhost, method.exchange, method.routing_key, properties.headers, shown + hidden
            )
        mode = self._mode
        number = self._confirms.next() if mode is _CONFIRM else None
        message = PublishedMessage(
            self.key,
            number,
            method.exchange,
            method.routing_key,
            tuple(queues),
            properties,
            body,
            expiration,
            bool(method.mandatory),
            hidden,
        )
        if mode is _TRANSACTION:
            self._keep(message, is_wanted=bool(queues) or method.mandatory)
        elif queues:
            outbox = session.outbox
            if outbox.deliveries:
                outbox.close()
            outbox.messages.append(message)
            outbox.message_bytes += len(body)
            if outbox.message_bytes >= MOST_BYTES_TOGETHER or len(outbox.messages) >= MOST_TOGETHER:
                outbox.close()
        else:
            if method.mandatory:
                self.give_back(message)
            if number is not None:
                self._published(number, is_stored=True)

    def _addressed(self, properties: BasicProperties) -> BasicProperties:
        """The properties with a queue of their own instead of the pseudo-queue for replies."""
        if properties.text("reply_to") != REPLY_TO:
            return properties
        if self._replies is None:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                "the channel has no direct reply-to consumer. Consume from amq.rabbitmq.reply-to before publishing",
            )
        return properties.replying_to(self._replies.name)

    def _copied_to(
        self, method: methods.Basic.Publish, properties: BasicProperties
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The keys in ``CC`` and ``BCC``, after a check of the right to publish there."""
        shown, hidden = properties.copied_to()
        if not method.exchange:
            for key in shown + hidden:
                self._session.demand(Right.PUBLISH, "queue", key)
        return shown, hidden

    def _check_user(self, properties: BasicProperties) -> None:
        user = self._session.user
        if user is not None and (claimed := properties.text("user_id")) and claimed != user.name:
            text = f"the property user_id is '{claimed}', but the authenticated user is '{user.name}'"
            raise Refusal(Code.PRECONDITION_FAILED, text)

    def _keep(self, message: PublishedMessage, *, is_wanted: bool) -> None:
        """Keep a message until its commit. A mandatory one without a queue is kept too, to be returned then."""
        if is_wanted:
            self._uncommitted.append(message)
            size = len(message.body) + len(message.properties.raw) + MESSAGE_OVERHEAD
            self._uncommitted_bytes += size
            self._session.buffer(size)

    def give_back(self, message: PublishedMessage) -> None:
        """Return a mandatory message that no queue takes."""
        if self.state is not ChannelState.OPEN:
            return
        number, names = self.key.number, {"exchange": message.exchange, "routing_key": message.routing_key}
        no_route = {"reply_code": Code.NO_ROUTE, "reply_text": Code.NO_ROUTE.name}
        self._session.send_method(number, methods.Basic.Return, **no_route, **names)
        self._session.send_content(number, message.properties.raw, message.body)

    def _uncommitted_messages(self) -> tuple[PublishedMessage, ...]:
        """The messages to store at a commit. Returns those without a queue to the client."""
        messages = self._uncommitted
        self._forget_messages()
        for message in messages:
            if not message.queues:
                self.give_back(message)
        return tuple(message for message in messages if message.queues)

    def _forget_messages(self) -> None:
        """Drop all messages since the last commit."""
        self._session.buffer(-self._uncommitted_bytes)
        self._uncommitted, self._uncommitted_bytes = [], 0

    def _end_publishes(self) -> None:
        self._drop_content()
        self._forget_messages()

    def _drop_content(self) -> None:
        if self._content is not None:
            self._session.unfinished -= self._content.buffered
            self._session.buffer(-self._content.buffered)
            self._content = None

    @property
    def owes_confirms(self) -> bool:
        """Whether its client waits for confirms."""
        return self._confirms.is_awaited

    def _published(self, number: int, *, is_stored: bool) -> None:
        """Note that a message is stored, or refused. :meth:`flush` tells the publisher."""
        self._session.unflushed.setdefault(self, []).append(((number,), is_stored))

    def flush(self) -> None:
        """Send the confirms that are due. Does nothing once the channel is closed."""
        settled = self._session.unflushed.pop(self, ())
        if self.state is not _OPEN and self.state is not ChannelState.LEAVING:
            return
        for numbers, is_stored in settled:
            self._confirms.settle(numbers, is_stored=is_stored)
        only = self._confirms.take_only()
        for tag, multiple, is_stored in self._confirms.take() if not only else ((only, False, True),):
            if is_stored:
                self._session.send(self._ack_beginning + ACKED.pack(tag, multiple) + END)
            else:
                self._session.send_method(self.key.number, methods.Basic.Nack, delivery_tag=tag, multiple=multiple)


def _method_of(frame: ChannelFrame) -> base.Frame:
    if isinstance(frame, AckFrames):
        return methods.Basic.Ack()
    return methods.Basic.Publish() if isinstance(frame, HeaderFrame | BodyFrame) else frame.method


class Confirm(NamedTuple):
    """An ack or a nack for the publisher: `tag`, and all before it if `multiple`."""

    tag: int
    multiple: bool
    is_stored: bool


class PublisherConfirms:
    """Numbers the messages of one channel, and joins the confirms that can be sent together."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, None] = {}  # in the order of their numbers
        self._stored: set[int] = set()
        self._refused: set[int] = set()

    def next(self) -> int:
        """The number of the next message; the first is 1."""
        self._last += 1
        self._open[self._last] = None
        return self._last

    @property
    def is_awaited(self) -> bool:
        """Whether some are open."""
        return bool(self._open)

    def settle(self, numbers: Iterable[int], *, is_stored: bool) -> None:
        """Note that messages are stored, or refused. A number that is not open is ignored."""
        for number in numbers:
            if number in self._open:
                del self._open[number]
                (self._stored if is_stored else self._refused).add(number)

    def take_only(self) -> int:
        """The message that is stored, if one confirm is due, and no other; else 0."""
        return self._stored.pop() if len(self._stored) == 1 and not self._refused else 0

    def take(self) -> list[Confirm]:
        """The confirms that are due: refusals, then all below the lowest open number together, then the rest."""
        # Refusals first: a `multiple` after them cannot take them for stored.
        told = [Confirm(number, False, False) for number in sorted(self._refused)]
        floor = next(iter(self._open), self._last + 1)
        stored = sorted(self._stored)
        whole = sum(number < floor for number in stored)
        if whole:
            told.append(Confirm(stored[whole - 1], whole > 1, True))
        told += [Confirm(number, False, True) for number in stored[whole:]]
        self._stored, self._refused = set(), set()
        return told
