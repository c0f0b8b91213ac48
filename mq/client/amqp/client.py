"""The client's verbs, which are CHMQ's; and its consumer, to iterate over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import anyio
from pamqp import base
from pamqp import commands as methods

from mq.amqp.wire.properties import PERSISTENT
from mq.client.amqp.channels import ConsumeChannel, GetChannel, PublishChannel, ReceiveChannel, Tags
from mq.client.amqp.errors import UnknownDeliveryTag, WrongRole
from mq.client.amqp.link import CLOSE_SECONDS, ClientChannel, Link
from mq.client.amqp.values import Declared, Delivery, Role
from mq.client.calls import given
from mq.client.codec import TRACE_NAMES
from mq.client.errors import ClientError, Refused
from mq.client.spans import Spans
from mq.message import MessageIds

PREFETCH: Final = 100
DEFAULT_ARGUMENTS: Final[Mapping[str, Any]] = {"x-requeue": "back"}
"""The seed's way: a message that was not acknowledged well goes to the back of its queue."""
_PURPOSES: Final[Mapping[Role, str]] = {Role.PRODUCER: "publish", Role.CONSUMER: "get, consume or acknowledge messages"}
_MOST_GETTING: Final = 64
_HIGHEST_TAG: Final = 2**63 - 1


def _in_trace(headers: Mapping[str, Any] | None, trace: tuple[tuple[str, str], ...]) -> dict[str, Any] | None:
    """Headers of a message, in a trace where they name none themselves."""
    if trace and not any(name in TRACE_NAMES for name in headers or ()):
        return {**(headers or {}), **dict(trace)}
    return None if headers is None else dict(headers)


class AmqpClient:
    """One connection, made by :func:`connect`. Tasks may share it.

    Every verb raises a :class:`~mq.client.errors.ClientError` when it fails: Unreachable if the connection had ended
    before the call, Interrupted if it ends during the call. A cancelled task leaves nothing behind.
    """

    def __init__(self, link: Link, role: Role, url: str = "") -> None:
        self._link = link
        self._role = role
        self._spans = Spans(url)
        self._tags: Tags[ReceiveChannel] = Tags()
        self._ids = MessageIds()
        self._control: ClientChannel | None = None
        self._control_lock = anyio.Lock()
        self._publishing: PublishChannel | None = None
        self._publishing_lock = anyio.Lock()
        self._getting: dict[str, GetChannel] = {}
        self._getting_lock = anyio.Lock()
        self._retired: set[ReceiveChannel] = set()

    @property
    def blocked(self) -> str | None:
        """Why the server accepts no messages now, so that publishing waits; None while it accepts them."""
        return self._link.protocol.blocked

    async def declare_queue(
        self, name: str = "", *, durable: bool = True, arguments: Mapping[str, Any] | None = None
    ) -> Declared:
        """Make a queue; does nothing where there is an equal one.

        Args:
            name: its name; "" lets the server choose one.
            durable: whether it survives a restart of the server, with its persistent messages.
            arguments: more about it, such as ``{"x-max-length": 1000}``. ``x-requeue`` is ``back`` unless it is given
                here; None takes an argument out.

        Raises:
            Conflict: a different queue has that name.
            Exclusive: another connection owns it.
            NotAllowed: the user lacks the right, or the name is reserved.
        """
        wanted = {**DEFAULT_ARGUMENTS, **(arguments or {})}
        given_arguments = {key: value for key, value in wanted.items() if value is not None}
        done = await self._ask(methods.Queue.Declare, queue=name, durable=durable, arguments=given_arguments)
        return Declared(done.queue, done.message_count, done.consumer_count)

    async def publish(
        self,
        queue: str,
        body: bytes | str,
        *,
        persistent: bool = True,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> str:
        """Publish a message, and wait for the server's confirm. While the server is blocked, that takes long.

        Args:
            queue: its queue.
            body: bytes, or text, which is sent as UTF-8.
            persistent: whether it survives a restart of the server, on a durable queue. If so it is durable when this
                returns.
            content_type: what the body is; text says so by itself.
            content_encoding: how the body is compressed, such as ``gzip``; the client compresses nothing itself.
            headers: kept beside the body.

        Returns:
            The message's new id.

        Raises:
            NotFound: no such queue. The server keeps nothing.
            NotConfirmed: the server does not confirm it.
            Interrupted: the connection ended before the confirm came: publish it again.
            WrongRole: this is a consumer.
        """
        self._may(Role.PRODUCER)
        found = given(body)
        message_id = str(self._ids.new())
        with self._spans.sending(queue) as sending:
            sending.stored(message_id)
            properties = methods.Basic.Properties(
                content_type=content_type or found.content_type,
                content_encoding=content_encoding,
                headers=_in_trace(headers, sending.headers),
                delivery_mode=PERSISTENT if persistent else 1,
                message_id=message_id,
            )
            marshalled = properties.marshal()
            channel = await self._publisher()
            await channel.publish(queue, message_id, marshalled, found.data)
        return message_id

    async def get(self, queue: str) -> Delivery | None:
        """The next message of a queue; None when it has none. This connection holds it until it acknowledges it.

        Raises:
            NotFound: no such queue.
            NotAllowed: another connection consumes it exclusively.
            WrongRole: this is a producer.
        """
        self._may(Role.CONSUMER)
        await self._link.room()
        channel = await self._getter(queue)
        message = await channel.get()
        return None if message is None else channel.hand_out(message)

    def consume(self, queue: str, *, exclusive: bool = False, prefetch: int = PREFETCH) -> Consumer:
        """A consumer: iterate over it. As a context it ends with its block, else with the connection.

        Args:
            queue: its name.
            exclusive: whether the server refuses other consumers of the queue meanwhile.
            prefetch: how many messages the server sends ahead of their acknowledgement, 1 to 65,535. 1 is fair to
                others; more is faster.

        Raises:
            ValueError: the prefetch is out of its range.
            WrongRole: this is a producer.
        """
        self._may(Role.CONSUMER)
        if not 1 <= prefetch <= 65_535:
            raise ValueError(f"prefetch must be between 1 and 65,535, not {prefetch}")
        return Consumer(partial(self._begin, queue, exclusive, prefetch), self._stop)

    async def ack(self, tag: int) -> None:
        """Remove a processed message from its queue. The server does not answer: if the connection ends before the
        acknowledgement arrives, the message is delivered again.

        Raises:
            UnknownDeliveryTag: no message of this connection has that tag, or no longer. The connection is closed.
            WrongRole: this is a producer.
        """
        await self._settle(tag, methods.Basic.Ack)

    async def nack(self, tag: int) -> None:
        """Requeue a message that was not processed: to the back of a queue that :meth:`declare_queue` made.

        Raises:
            UnknownDeliveryTag: no message of this connection has that tag, or no longer. The connection is closed.
            WrongRole: this is a producer.
        """
        await self._settle(tag, methods.Basic.Nack, requeue=True)

    async def _settle(self, tag: int, method_type: type[base.Frame], **values: Any) -> None:
        self._may(Role.CONSUMER)
        await self._link.room()
        held = self._tags.settle(tag)
        if held is None:
            await self._unknown(tag)
        else:
            held.channel.tell(method_type, delivery_tag=held.number, **values)
            self._close_if_done(held.channel)

    async def _unknown(self, tag: int) -> None:
        """Let the server judge a tag, on a channel that holds nothing; then close the connection, as the seed says."""
        if not 0 < tag <= _HIGHEST_TAG:
            raise ValueError(f"{tag} is not a valid delivery tag: delivery tags start at 1")
        try:
            async with self._control_lock:
                channel = await self._controller()
                channel.tell(methods.Basic.Ack, delivery_tag=tag)
                await channel.ask(methods.Basic.Qos)
            text = "the server did not object"
        except Refused as error:
            text = error.detail
        await self._link.aclose()
        raise UnknownDeliveryTag(
            406, f"no unacknowledged message has delivery tag {tag}, so the connection was closed: {text}"
        )

    def _may(self, role: Role) -> None:
        own = self._role
        if own not in (role, Role.BOTH):
            raise WrongRole(
                f"this connection has the role {own.value!r} and cannot be used to {_PURPOSES[role]}. Open a "
                f"connection with role={role.value!r} or role='both'"
            )

    async def _ask(self, method_type: type[base.Frame], **values: Any) -> Any:
        """One question at a time: a refusal closes the channel, and must not end another task's question."""
        async with self._control_lock:
            channel = await self._controller()
            await self._link.room()
            try:
                return await channel.ask(method_type, **values)
            except anyio.get_cancelled_exc_class():
                self._link.close_channel(channel)
                raise

    async def _controller(self) -> ClientChannel:
        self._link.check()
        if self._control is None or self._control.ended is not None:
            self._control = await self._link.open_channel(ClientChannel)
        return self._control

    async def _publisher(self) -> PublishChannel:
        """The channel to publish on, once the server accepts messages there."""
        channel: PublishChannel | None = None
        while channel is None or channel.ended is not None:
            channel = await self._open_publisher()
            await self._link.room(publishing=channel.number)
        return channel

    async def _open_publisher(self) -> PublishChannel:
        async with self._publishing_lock:
            self._link.check()
            if self._publishing is None or self._publishing.ended is not None:
                channel = await self._link.open_channel(PublishChannel)
                try:
                    await channel.begin()
                except anyio.get_cancelled_exc_class():
                    self._link.close_channel(channel)
                    raise
                self._publishing = channel
            return self._publishing

    async def _getter(self, queue: str) -> GetChannel:
        async with self._getting_lock:
            channel = self._getting.pop(queue, None)
            if channel is None or channel.ended is not None:
                self._close_idle_getter()
                channel = await self._link.open_channel(partial(GetChannel, tags=self._tags, queue=queue))
            self._getting[queue] = channel
            return channel

    def _close_idle_getter(self) -> None:
        """Close the getter that was idle longest. So a program may get from any number of queues."""
        if len(self._getting) < _MOST_GETTING:
            return
        for queue, channel in list(self._getting.items()):
            if not channel.is_asking and not self._tags.holds(channel):
                del self._getting[queue]
                self._link.close_channel(channel)
                return

    async def _begin(self, queue: str, exclusive: bool, prefetch: int) -> ConsumeChannel:
        await self._link.room()
        channel = await self._link.open_channel(
            partial(ConsumeChannel, tags=self._tags, queue=queue, prefetch=prefetch)
        )
        try:
            await channel.begin(exclusive=exclusive)
        except anyio.get_cancelled_exc_class():
            self._link.close_channel(channel)
            raise
        return channel

    async def _stop(self, channel: ConsumeChannel) -> None:
        """Cancel a consumer. The program can still acknowledge the messages that it holds."""
        try:
            # Closing the channel alone would requeue, too, but later: others would see the messages out of order.
            await channel.stop()
        except ClientError:
            pass  # its channel has ended, and the server has requeued all of it
        finally:
            self._retired.add(channel)
            self._close_if_done(channel)

    def _close_if_done(self, channel: ReceiveChannel) -> None:
        """Close the channel of an ended consumer once the program holds none of its messages."""
        if channel in self._retired and not self._tags.holds(channel):
            self._retired.discard(channel)
            self._link.close_channel(channel)


class Consumer:
    """Receives messages; :meth:`mq.client.amqp.AmqpClient.consume` makes it. It starts with its context, or when a task
    asks for the first message. Tasks may share it.

    Raises, where it begins and while it is iterated over:
        NotFound: no such queue.
        NotAllowed: another consumer has it; with `exclusive` any, else an exclusive one.
        ConsumerCancelled: the server ended it, because the queue was deleted or fails over.
    """

    def __init__(
        self, begin: Callable[[], Awaitable[ConsumeChannel]], stop: Callable[[ConsumeChannel], Awaitable[None]]
    ) -> None:
        self._begin = begin
        self._stop = stop
        self._channel: ConsumeChannel | None = None
        self._lock = anyio.Lock()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        try:
            channel = await self._begun()
            return channel.hand_out(await channel.next())
        except ClientError:
            if self._is_closed:
                raise StopAsyncIteration from None
            raise

    async def aclose(self) -> None:
        """End it. The server requeues what it sent ahead; the program can still acknowledge what it holds."""
        self._is_closed = True
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            async with self._lock:
                channel, self._channel = self._channel, None
                if channel is not None:
                    await self._stop(channel)

    async def _begun(self) -> ConsumeChannel:
        async with self._lock:
            if self._is_closed:
                raise StopAsyncIteration
            if self._channel is None:
                self._channel = await self._begin()
            return self._channel
