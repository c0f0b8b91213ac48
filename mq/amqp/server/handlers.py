"""Each command of a connection, carried out against the broker and answered."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import trio

from mq import turns
from mq.access import owner_of
from mq.amqp.model.arguments import (
    DELIVERY_LIMIT,
    QUEUE_TYPE,
    QUORUM,
    REQUEUE,
    SINGLE_ACTIVE_CONSUMER,
    can_be_quorum,
)
from mq.amqp.model.declared import Binding, Exchange, Queue
from mq.amqp.model.names import DEFAULT_VHOST, encode
from mq.amqp.model.vhost import TopologyChange
from mq.amqp.protocol import commands
from mq.amqp.protocol.commands import (
    Answered,
    ChannelKey,
    Credit,
    Done,
    QueueDeclared,
    Result,
    Settle,
    Settlement,
    UnsettledDelivery,
)
from mq.amqp.protocol.connection import Connection
from mq.amqp.server.consumer_pump import ClientLink, ConsumerPump, arrival, delivery_bytes, read
from mq.amqp.server.publish_pump import PublishPump
from mq.amqp.server.state import AmqpState
from mq.amqp.wire.errors import Code, Refusal
from mq.broker import UnackedMessage
from mq.doors.audit import note
from mq.doors.budget import UNCOUNTED_BYTES, Use
from mq.errors import (
    BrokerClosed,
    CallerError,
    CorruptMessage,
    MQError,
    NoMemory,
    NoSuchQueue,
    NotServed,
    QueueHeld,
    StorageFull,
)
from mq.lifecycle import made_for
from mq.message import QueueName

logger = logging.getLogger("mq.amqp")

_SETTLED_TOGETHER: Final = 512
"""Deliveries of one command that are settled before the next ones are."""
GOODBYE_SECONDS: Final = 0.5
"""How long the answer to a close waits for messages without confirms to be stored. Some clients wait 2 seconds for the
answers to the closes of a channel and its connection together, and lose what they have not sent."""


class Handlers:
    """Carries out what one connection asks for."""

    def __init__(self, state: AmqpState, link: ClientLink, publish_pump: PublishPump) -> None:
        self._state = state
        self._broker = state.broker
        self._link = link
        self._connection = link.connection
        self._publish_pump = publish_pump
        self._memory = link.connection.session.memory
        self._consumers: dict[tuple[ChannelKey, str], ConsumerPump] = {}
        self._is_disconnected = False

    @property
    def _vhost(self) -> str:
        return self._connection.session.vhost

    @property
    def _owner(self) -> Any:
        return self._connection.session.owner

    async def carry_out(self, command: Answered | Settle) -> None:
        """Carry out a command, and answer it if its kind is answered.

        Raises:
            MQError: a command that is not answered failed.
        """
        if isinstance(command, Settle):
            await settle(self._state, command.outcome, command.deliveries)
        else:
            await self._answer(command)

    def feed(self, command: Credit) -> None:
        """Have a consumer go on."""
        consumer = self._consumers.get((command.channel, command.tag))
        if consumer is not None:
            self._connection.frames_left -= consumer.feed() * (turns.MESSAGE // turns.FRAME)

    def get(self, command: commands.Get) -> Awaitable[None] | None:
        """Answer a get in this step. Where that takes longer, or it is refused, return what does it."""
        queue = command.queue
        if not self._link.has_room_to_send or not self._publish_pump.is_idle or _has_single_consumer(queue):
            return self._answer(command)
        try:
            held = self._broker.hold_now(queue.key)
        except MQError:
            return self._answer(command)  # which is refused for the same reason
        result: commands.Got | None = None
        if held:
            found = arrival(held[0], queue, is_asked_for=True) if self._is_small(held[0]) else None
            if found is None:
                return self._answer(command, held)
            if command.no_ack:
                self._link.remove(held)
            result = commands.Got(found, self._broker.declarations.ready(queue.key))
        elif held is None:
            return self._answer(command)
        if queue.arguments:
            self._state.unused.note_use(queue)
        self._connection.answer(command, result)
        return None

    async def give_back(self) -> None:
        """Carry out what is left to do after the connection's end. Does nothing the second time.

        Raises:
            MQError: the store cannot do that now.
        """
        self._connection.end()
        while (command := self._connection.next_command()) is not None:
            if isinstance(command, commands.PublishMessages):
                self._publish_pump.put(command.messages)
            elif isinstance(command, commands.Release | Settle):
                await self.carry_out(command)

    async def disconnect(self) -> None:
        """Delete the client's exclusive queues, after what it has published there. Does nothing the second time.

        Raises:
            Refusal: the store cannot do that now.
        """
        if not self._is_disconnected:
            await self._state.topology_store.change(lambda: self._state.topology.disconnect(self._vhost, self._owner))
            self._is_disconnected = True

    async def _answer(self, command: commands.Answered, *given: object) -> None:
        try:
            result = await _HANDLERS[type(command)](self, command, *given)
        except MQError as error:
            result = refusal_of(error)
        self._connection.answer(command, result)
        if isinstance(command, commands.Consume) and isinstance(result, Done):
            self._link.start_consumer(self._consumers[command.channel, command.tag])

    async def _in_order(self, do: Callable[[], Awaitable[Result]]) -> Result:
        """Do it after everything published before, and to its end, even if the connection ends meanwhile."""
        if not self._publish_pump.is_idle:
            await self._publish_pump.wait_for_all()
        with self._broker.progress.shielded():
            return await do()

    async def _authenticate(self, command: commands.Authenticate) -> Result:
        return await self._state.authenticate(self._connection.session.address, command)

    # Declaring

    async def _change(self, plan: Callable[[], TopologyChange]) -> TopologyChange:
        """Change the topology, and write down what changed. Bindings that go with a queue or an exchange are not."""
        with made_for(owner_of(self._connection.session.user)):
            change = await self._state.topology_store.change(plan, self._memory)
        for exchange in change.exchanges:
            self._note("exchange-created", **_about(exchange))
        for queue in change.queues:
            self._note("queue-created", queue=queue.key)
        for binding in change.bindings:
            self._note("binding-created", **_about(binding))
        for queue in change.lost_queues:
            self._note("queue-deleted", queue=queue.key)
        for exchange in change.lost_exchanges:
            self._note("exchange-deleted", **_about(exchange))
        for binding in () if change.lost_queues or change.lost_exchanges else change.lost_bindings:
            self._note("binding-deleted", **_about(binding))
        return change

    async def _declare_exchange(self, command: commands.DeclareExchange) -> Result:
        await self._change(lambda: self._state.topology.declare_exchange(command.exchange))
        return Done()

    async def _delete_exchange(self, command: commands.DeleteExchange) -> Result:
        name, if_unused = command.name, command.if_unused
        await self._change(lambda: self._state.topology.delete_exchange(self._vhost, name, if_unused=if_unused))
        return Done()

    async def _bind(self, command: commands.Bind) -> Result:
        await self._change(lambda: self._state.topology.bind(command.binding, self._owner))
        return Done()

    async def _unbind(self, command: commands.Unbind) -> Result:
        await self._change(lambda: self._state.topology.unbind(command.binding, self._owner))
        return Done()

    async def _declare_queue(self, command: commands.DeclareQueue) -> Result:
        wanted = self._with_default_type(command.queue)
        if wanted.name:  # and before any other declaration has to wait for this one
            is_replicated = wanted.arguments.get(QUEUE_TYPE) == QUORUM
            await self._broker.declarations.admit(wanted.key, is_replicated=is_replicated)

        async def do() -> Result:
            change = await self._change(lambda: self._state.topology.declare_queue(wanted))
            [queue] = change.queues or [self._state.topology.queue(self._vhost, wanted.name, self._owner)]
            self._state.unused.note_use(queue)
            return await self._status(queue)

        return await self._in_order(do)

    def _with_default_type(self, queue: Queue) -> Queue:
        """Return a quorum queue if the client names no type, and new queues of this node are the cluster's."""
        is_placed = QUEUE_TYPE in queue.arguments or not can_be_quorum(queue)
        if is_placed or not self._broker.declarations.replicates(queue.key):
            return queue
        return replace(queue, arguments={**queue.arguments, QUEUE_TYPE: QUORUM})

    async def _find_queue(self, command: commands.FindQueue) -> Result:
        await self._broker.declarations.find(command.queue)
        return Done()

    async def _inspect_queue(self, command: commands.InspectQueue) -> Result:
        async def do() -> Result:
            return await self._status(command.queue)

        return await self._in_order(do)

    async def _delete_queue(self, command: commands.DeleteQueue) -> Result:
        messages = 0

        def plan() -> TopologyChange:
            nonlocal messages
            topology, name = self._state.topology, command.name
            change = topology.delete_queue(self._vhost, name, self._owner, if_unused=command.if_unused)
            messages = sum(self._broker.declarations.ready(queue.key) for queue in change.lost_queues)
            if command.if_empty and messages:
                raise Refusal(Code.PRECONDITION_FAILED, f"queue '{name}' in vhost '{self._vhost}' is not empty")
            return change

        async def do() -> Result:
            await self._broker.declarations.look(encode(self._vhost, command.name))
            await self._change(plan)
            return commands.Counted(messages)

        return await self._in_order(do)

    async def _purge_queue(self, command: commands.PurgeQueue) -> Result:
        async def do() -> Result:
            count = await self._broker.purge(command.queue.key)
            self._note("queue-purged", queue=command.queue.key)
            return commands.Counted(count)

        return await self._in_order(do)

    def _note(self, event: str, **about: str | None) -> None:
        session = self._connection.session
        user = None if session.user is None else session.user.name
        note(event, protocol="amqp", address=session.address, user=user, **about)

    async def _status(self, queue: Queue) -> QueueDeclared:
        await self._broker.declarations.look(queue.key)
        ready = self._broker.declarations.ready(queue.key)
        return QueueDeclared(queue.name, ready, self._state.topology.consumers.count(queue.key))

    # Consuming

    async def _consume(self, command: commands.Consume) -> Result:
        consumers = self._state.topology.consumers
        if command.replies:
            await self._state.topology_store.change(lambda: TopologyChange(queues=(command.queue,)))
        queue = self._find_again(command.queue)
        self._check_single(queue, exclusive=command.exclusive)
        command = replace(command, queue=queue)
        consumer = ConsumerPump(self._broker, consumers, self._link, command)
        consumers.add(queue, consumer, exclusive=command.exclusive, priority=command.priority)
        try:
            if command.exclusive:
                consumer.exclusion = await self._broker.exclude(queue.key)
                if consumer not in consumers.of(queue.key):
                    raise NoSuchQueue(f"queue '{queue.name}' in vhost '{queue.vhost}' was deleted during the request")
        except BaseException:
            consumers.remove(queue.key, consumer)
            consumer.end()
            raise
        self._consumers[command.channel, command.tag] = consumer
        return Done()

    def _check_single(self, queue: Queue, *, exclusive: bool) -> None:
        """Check that one active consumer is to be had.

        Raises:
            Refusal: 403, an exclusive one is asked for; 540, others hand out the queue's messages, too.
        """
        if not queue.arguments.get(SINGLE_ACTIVE_CONSUMER):
            return
        if exclusive:
            raise Refusal(
                Code.ACCESS_REFUSED, f"queue '{queue.name}' in vhost '{queue.vhost}' already has an active consumer"
            )
        if self._broker.description.shared:
            raise Refusal(
                Code.NOT_IMPLEMENTED, f"{SINGLE_ACTIVE_CONSUMER} is not supported with peers. Start mq with --peers=0"
            )

    def _find_again(self, queue: Queue) -> Queue:
        """The queue as it is now: it may have gone and come again while earlier commands were carried out."""
        return self._state.topology.queue(self._vhost, queue.name, self._owner)

    async def _cancel(self, command: commands.Cancel) -> Result:
        await self._end_consumers(command.channel, [command.tag])
        return Done()

    async def _end_consumers(self, channel: ChannelKey, tags: Iterable[str]) -> None:
        """End consumers, and wait until the messages that they did not send are back in their queues."""
        consumers = [self._consumers.pop((channel, tag)) for tag in tags if (channel, tag) in self._consumers]
        async for consumer in turns.in_turns(consumers, turns.LIGHT):
            consumer.end()
        try:
            with self._broker.progress.shielded():
                for consumer in consumers:
                    await consumer.stopped()
        finally:  # a store that does not answer keeps no queue from the consumers to come
            with self._broker.progress.shielded():
                async for consumer in turns.in_turns(consumers, turns.LIGHT):
                    await self._state.consumer_ended(consumer)

    def consumers(self) -> list[ConsumerPump]:
        """The consumers of the connection."""
        return list(self._consumers.values())

    def forget(self, consumer: ConsumerPump) -> None:
        """Drop a consumer that has ended by itself."""
        if self._consumers.get((consumer.channel, consumer.tag)) is consumer:
            del self._consumers[consumer.channel, consumer.tag]

    async def _get(self, command: commands.Get, held: Sequence[UnackedMessage] = ()) -> Result:
        queue = command.queue
        if _has_single_consumer(queue):
            what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            raise Refusal(
                Code.RESOURCE_LOCKED, f"{what} has a single active consumer. Use basic.consume instead of basic.get"
            )

        if not held:
            await self._link.room_to_send()
            if not self._publish_pump.is_idle:
                await self._publish_pump.wait_for_all()
        self._state.unused.note_use(queue)
        try:
            with self._broker.progress.shielded():
                return await self._get_slowly(command, list(held))
        except QueueHeld as error:
            text = f"queue '{queue.name}' in vhost '{queue.vhost}' is in exclusive use"
            raise Refusal(Code.ACCESS_REFUSED, text) from error

    def _is_small(self, held: UnackedMessage) -> bool:
        return delivery_bytes(held.message, self._memory.budget) <= UNCOUNTED_BYTES

    async def _get_slowly(self, command: commands.Get, held: list[UnackedMessage]) -> Result:
        """Read a message, and reserve memory for it. Damaged ones are passed over.

        Args:
            held: the first message; empty if it is to be fetched.
        """
        queue, unsent = command.queue, list[UnackedMessage]()
        room = self._memory.reserve(Use.DELIVERY)
        try:
            while held := held or await self._broker.hold(queue.key):
                try:
                    room.cover(delivery_bytes(held[0].message, self._memory.budget))
                    found = await read(held[0], queue, is_asked_for=True)
                    if command.no_ack:
                        await self._broker.acknowledge(held)
                    await self._broker.declarations.look(queue.key)
                    return commands.Got(found, self._broker.declarations.ready(queue.key))
                except CorruptMessage as error:
                    logger.error("cannot deliver message %s from queue %s: %s", held[0].message.id, queue.name, error)
                    unsent += held  # passed over while the next one is looked at
                    held = []
                except BaseException:
                    unsent += held
                    raise
            return None
        finally:
            room.give_back()  # before it is written, which reserves memory for what is left unsent
            if unsent:
                with self._broker.progress.shielded():
                    for each in unsent:
                        await each.message.body.aclose()
                    await self._broker.put_back(unsent, redelivered=False)

    async def _commit(self, command: commands.Commit) -> Result:
        refused = 0
        for unstored in await self._publish_pump.store_now(command.messages):
            give_back(self._connection, unstored.unrouted())
            refused += len(unstored.refused())
        if refused:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                f"the transaction was only partially committed: queues refused {refused} messages",
            )
        while command.settled:
            settled = command.settled.pop(0)
            await settle(self._state, settled.outcome, settled.deliveries, durable=True)
        return Done()

    async def _release(self, command: commands.Release) -> Result:
        async def put_back(queue: QueueName, held: Sequence[UnackedMessage]) -> None:
            arguments = _arguments(self._state, queue)  # a quorum queue counts what an end of a channel returns
            most = _most_returns(arguments) if arguments.get(QUEUE_TYPE) == QUORUM else None
            await self._broker.put_back(held, most=most)

        try:
            await _in_parts(self._state, command.deliveries, lambda some: _for_each_queue(some, put_back))
        finally:  # a queue that cannot take its messages now keeps no other one from the consumers to come
            with self._broker.progress.shielded():
                await self._end_consumers(command.channel, [tag for tag, _ in command.consumers])
        return Done()

    async def _leave(self, command: commands.Leave) -> Result:
        if self._connection.owes_confirms(command.channel):
            await self._publish_pump.wait_for_all()
        else:  # what is published is stored without the client, which may not wait for long
            with trio.move_on_after(GOODBYE_SECONDS):
                await self._publish_pump.wait_for_all()
        if command.channel is None:
            await self.disconnect()
        return Done()


_HANDLERS: Final[Mapping[type[Any], Callable[..., Awaitable[Result]]]] = {
    commands.Authenticate: Handlers._authenticate,
    commands.DeclareExchange: Handlers._declare_exchange,
    commands.DeleteExchange: Handlers._delete_exchange,
    commands.Bind: Handlers._bind,
    commands.Unbind: Handlers._unbind,
    commands.DeclareQueue: Handlers._declare_queue,
    commands.FindQueue: Handlers._find_queue,
    commands.InspectQueue: Handlers._inspect_queue,
    commands.DeleteQueue: Handlers._delete_queue,
    commands.PurgeQueue: Handlers._purge_queue,
    commands.Consume: Handlers._consume,
    commands.Cancel: Handlers._cancel,
    commands.Get: Handlers._get,
    commands.Commit: Handlers._commit,
    commands.Release: Handlers._release,
    commands.Leave: Handlers._leave,
}
"""Command -> its handler. Each of these is answered."""


def _has_single_consumer(queue: Queue) -> bool:
    """Whether consumers at all nodes of a cluster take turns, one at a time."""
    arguments = queue.arguments
    return bool(arguments and arguments.get(QUEUE_TYPE) == QUORUM and arguments.get(SINGLE_ACTIVE_CONSUMER))


def _about(declared: Exchange | Binding) -> dict[str, str | None]:
    """An exchange, or a binding's ends and key, for the audit log. The default vhost goes without saying."""
    vhost = None if declared.vhost == DEFAULT_VHOST else declared.vhost
    if isinstance(declared, Exchange):
        return {"vhost": vhost, "exchange": declared.name}
    to = None if declared.to.is_queue else declared.to.name
    ends = {"exchange": declared.source, "queue": declared.queue, "to_exchange": to}
    return {"vhost": vhost, **ends, "routing_key": declared.routing_key}


def give_back(connection: Connection, messages: Iterable[commands.PublishedMessage]) -> None:
    """Return mandatory messages that no queue takes. Call it before they are confirmed."""
    for message in messages:
        channel = connection.channel(message.channel)
        if channel is not None:
            channel.give_back(message)


def refusal_of(error: MQError) -> Refusal:
    """An error of mq as a reply code of AMQP."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, NoSuchQueue):
        return Refusal(Code.NOT_FOUND, str(error))
    if isinstance(error, QueueHeld):
        return Refusal(Code.ACCESS_REFUSED, str(error))
    if isinstance(error, BrokerClosed):
        return Refusal(Code.CONNECTION_FORCED, str(error))
    if isinstance(error, StorageFull | NoMemory):
        return Refusal(Code.RESOURCE_ERROR, str(error))
    # NotServed closes the channel alone: other queues of the connection are served.
    is_of_channel = isinstance(error, CallerError | NotServed)
    return Refusal(Code.PRECONDITION_FAILED if is_of_channel else Code.INTERNAL_ERROR, str(error))


async def settle(
    state: AmqpState, outcome: Settlement, deliveries: Sequence[UnsettledDelivery], *, durable: bool = False
) -> None:
    """Acknowledge, put back or reject deliveries.

    Args:
        durable: whether that must be durable on return; else it is soon.

    Raises:
        StorageError: the store cannot do that now. What it could not do is as it was.
    """
    await _in_parts(state, deliveries, lambda some: _settle(state, outcome, some, durable=durable))


async def _in_parts(
    state: AmqpState,
    deliveries: Sequence[UnsettledDelivery],
    do: Callable[[Sequence[UnsettledDelivery]], Awaitable[None]],
) -> None:
    """Do something with deliveries, part by part. What fails for one part is tried for the next.

    Raises:
        MQError: the last error.
    """
    failed: MQError | None = None
    for some in turns.parts(deliveries, _SETTLED_TOGETHER):
        try:
            with (
                state.broker.progress.shielded()
            ):  # each part for itself: very many take longer than a store may for one
                await do(some)
        except MQError as error:
            failed = error
    if failed is not None:
        raise failed


async def _settle(
    state: AmqpState, outcome: Settlement, deliveries: Sequence[UnsettledDelivery], *, durable: bool
) -> None:
    async def put_back(queue: QueueName, held: Sequence[UnackedMessage]) -> None:
        arguments = _arguments(state, queue)
        to_back, most = arguments.get(REQUEUE) == "back", _most_returns(arguments)
        await state.broker.put_back(held, to_back=to_back, failed=True, most=most)

    async def reject(queue: QueueName, held: Sequence[UnackedMessage]) -> None:
        await state.broker.reject(held)

    if outcome is Settlement.ACKNOWLEDGED:
        await state.broker.acknowledge(_held(deliveries), durable=durable)
    else:
        await _for_each_queue(deliveries, put_back if outcome is Settlement.REQUEUED else reject)


async def _for_each_queue(
    deliveries: Iterable[UnsettledDelivery], do: Callable[[QueueName, Sequence[UnackedMessage]], Awaitable[None]]
) -> None:
    """Do something with the messages of each queue. What fails for one queue is tried for the next.

    Raises:
        MQError: the last error.
    """
    failed: MQError | None = None
    for queue, its in _by_queue(deliveries):
        try:
            await do(queue, _held(its))
        except MQError as error:
            failed = error
    if failed is not None:
        raise failed


def _by_queue(deliveries: Iterable[UnsettledDelivery]) -> Iterable[tuple[QueueName, list[UnsettledDelivery]]]:
    by_queue: dict[QueueName, list[UnsettledDelivery]] = {}
    for delivery in deliveries:
        by_queue.setdefault(delivery.queue, []).append(delivery)
    return by_queue.items()


def _arguments(state: AmqpState, queue: QueueName) -> Mapping[str, Any]:
    declared = state.topology_store.queue_of(queue)
    return {} if declared is None else declared.arguments


def _most_returns(arguments: Mapping[str, Any]) -> int | None:
    """The return with which a message is dead-lettered."""
    limit: int | None = arguments.get(DELIVERY_LIMIT)
    return None if limit is None else limit + 1


def _held(deliveries: Iterable[UnsettledDelivery]) -> list[UnackedMessage]:
    return [delivery.token for delivery in deliveries]
