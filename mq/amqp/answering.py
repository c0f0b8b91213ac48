"""Carrying out what a connection asks for, and answering it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mq.amqp import commands
from mq.amqp.changes import Change
from mq.amqp.commands import ChannelKey, Command, Declared, Done, Result
from mq.amqp.connection import Connection
from mq.amqp.declared import Queue
from mq.amqp.dispatching import Consumer, read
from mq.amqp.door import Door
from mq.amqp.errors import Code, Refused
from mq.amqp.finishing import finishing
from mq.amqp.names import encode
from mq.amqp.settling import settle
from mq.amqp.storing import Storing
from mq.errors import BrokerClosed, CallerError, MQError, NoSuchQueue, QueueHeld, StorageFull


class Answering:
    """Carries out what one connection asks for.

    Args:
        door: what all connections share.
        connection: this one.
        storing: takes what is published.
        room: returns once the client has read most of what was sent.
        sent: called after something was sent.
        start: starts a consumer.
    """

    def __init__(
        self,
        door: Door,
        connection: Connection,
        storing: Storing,
        room: Callable[[], Awaitable[None]],
        sent: Callable[[], None],
        start: Callable[[Consumer], None],
    ) -> None:
        self._door = door
        self._broker = door.broker
        self._connection = connection
        self._storing = storing
        self._room = room
        self._sent = sent
        self._start = start
        self._consumers: dict[tuple[ChannelKey, str], Consumer] = {}

    @property
    def _vhost(self) -> str:
        return self._connection.session.vhost

    @property
    def _owner(self) -> Any:
        return self._connection.session.owner

    async def carry_out(self, command: Command) -> None:
        """Carry it out, and answer what wants an answer.

        Raises:
            MQError: what is not answered could not be done.
        """
        if isinstance(command, commands.Publish):
            self._storing.put(command.messages)
        elif isinstance(command, commands.Settle):
            with finishing():
                await settle(self._door, command.outcome, command.deliveries)
        elif isinstance(command, commands.Credit):
            consumer = self._consumers.get((command.channel, command.tag))
            if consumer is not None:
                consumer.feed()
        else:
            await self._answer(command)

    async def release(self) -> None:
        """The connection has ended: what is left to do, and what goes with it.

        Raises:
            MQError: the store cannot do that now.
        """
        self._connection.end()
        while (command := self._connection.next_command()) is not None:
            if isinstance(command, commands.Release | commands.Settle):
                await self.carry_out(command)
        await self._door.declarations.change(lambda: self._door.topology.disconnect(self._vhost, self._owner))

    async def _answer(self, command: commands.Authenticate | commands.ChannelCommand) -> None:
        try:
            result = await _HANDLERS[type(command)](self, command)
        except MQError as error:
            result = refusal_of(error)
        self._connection.answer(command, result)
        if isinstance(command, commands.Consume) and isinstance(result, Done):
            self._start(self._consumers[command.channel, command.tag])

    async def _in_order(self, do: Callable[[], Awaitable[Result]]) -> Result:
        """After all that was published before; and whole, whatever happens to the connection."""
        await self._storing.wait_for_all()
        with finishing():
            return await do()

    async def _authenticate(self, command: commands.Authenticate) -> Result:
        return await self._door.authenticate(command.name, command.secret)

    # Declaring

    async def _change(self, plan: Callable[[], Change]) -> Result:
        await self._door.declarations.change(plan)
        return Done()

    async def _declare_exchange(self, command: commands.DeclareExchange) -> Result:
        return await self._change(lambda: self._door.topology.declare_exchange(command.exchange))

    async def _delete_exchange(self, command: commands.DeleteExchange) -> Result:
        name, if_unused = command.name, command.if_unused
        return await self._change(lambda: self._door.topology.delete_exchange(self._vhost, name, if_unused=if_unused))

    async def _bind(self, command: commands.Bind) -> Result:
        return await self._change(lambda: self._door.topology.bind(command.binding, self._owner))

    async def _unbind(self, command: commands.Unbind) -> Result:
        return await self._change(lambda: self._door.topology.unbind(command.binding, self._owner))

    async def _declare_queue(self, command: commands.DeclareQueue) -> Result:
        async def do() -> Result:
            change = await self._door.declarations.change(lambda: self._door.topology.declare_queue(command.queue))
            [queue] = change.queues or [self._door.topology.queue(self._vhost, command.queue.name, self._owner)]
            self._door.unused.touch(queue)
            return await self._status(queue)

        return await self._in_order(do)

    async def _inspect_queue(self, command: commands.InspectQueue) -> Result:
        async def do() -> Result:
            return await self._status(command.queue)

        return await self._in_order(do)

    async def _delete_queue(self, command: commands.DeleteQueue) -> Result:
        messages = 0

        def plan() -> Change:
            nonlocal messages
            topology, name = self._door.topology, command.name
            change = topology.delete_queue(self._vhost, name, self._owner, if_unused=command.if_unused)
            messages = sum(self._broker.declarations.ready(queue.key) for queue in change.lost_queues)
            if command.if_empty and messages:
                raise Refused(Code.PRECONDITION_FAILED, f"queue '{name}' in vhost '{self._vhost}' not empty")
            return change

        async def do() -> Result:
            await self._broker.declarations.look(encode(self._vhost, command.name))
            await self._door.declarations.change(plan)
            return commands.Counted(messages)

        return await self._in_order(do)

    async def _purge_queue(self, command: commands.PurgeQueue) -> Result:
        async def do() -> Result:
            return commands.Counted(await self._broker.purge(command.queue.key))

        return await self._in_order(do)

    async def _status(self, queue: Queue) -> Declared:
        await self._broker.declarations.look(queue.key)
        ready = self._broker.declarations.ready(queue.key)
        return Declared(queue.name, ready, self._door.topology.consumers.count(queue.key))

    # Consuming

    async def _consume(self, command: commands.Consume) -> Result:
        consumer = Consumer(self._broker, self._connection, command, self._room, self._sent)
        queue, consumers = command.queue, self._door.topology.consumers
        consumers.add(queue, consumer, exclusive=command.exclusive)
        try:
            if command.exclusive:
                consumer.exclusion = await self._broker.exclude(queue.key)
        except BaseException:
            consumers.remove(queue.key, consumer)
            raise
        self._consumers[command.channel, command.tag] = consumer
        return Done()

    async def _cancel(self, command: commands.Cancel) -> Result:
        await self._end_consumer(command.channel, command.tag)
        return Done()

    async def _end_consumer(self, channel: ChannelKey, tag: str) -> None:
        consumer = self._consumers.pop((channel, tag), None)
        if consumer is not None:
            consumer.end()
            with finishing():
                await self._door.left(consumer)

    def forget(self, consumer: Consumer) -> None:
        """It has ended by itself."""
        if self._consumers.get((consumer.channel, consumer.tag)) is consumer:
            del self._consumers[consumer.channel, consumer.tag]

    async def _get(self, command: commands.Get) -> Result:
        queue = command.queue

        async def do() -> Result:
            self._door.unused.touch(queue)
            try:
                held = await self._broker.hold(queue.key)
            except QueueHeld as error:
                text = f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use"
                raise Refused(Code.ACCESS_REFUSED, text) from error
            if not held:
                return None
            try:
                arrival = await read(held[0], queue)
            except MQError:
                await held[0].message.body.aclose()
                await self._broker.put_back(held, redelivered=False)
                raise
            if command.no_ack:
                await self._broker.acknowledge(held)
            await self._broker.declarations.look(queue.key)
            return commands.Got(arrival, self._broker.declarations.ready(queue.key))

        await self._room()
        return await self._in_order(do)

    async def _commit(self, command: commands.Commit) -> Result:
        await self._storing.wait_for_all()
        refused = await self._storing.store(command.messages)
        if refused:
            raise Refused(Code.PRECONDITION_FAILED, f"partial tx completion: queues refused {len(refused)} messages")
        with finishing():
            for settled in command.settled:
                await settle(self._door, settled.outcome, settled.deliveries, durable=True)
        return Done()

    async def _release(self, command: commands.Release) -> Result:
        with finishing():
            held = [delivery.token for delivery in command.deliveries]
            if held:
                await self._broker.put_back(held)
            for tag, _ in command.consumers:
                await self._end_consumer(command.channel, tag)
        return Done()


_HANDLERS: Final[Mapping[type[Any], Callable[[Answering, Any], Awaitable[Result]]]] = {
    commands.Authenticate: Answering._authenticate,
    commands.DeclareExchange: Answering._declare_exchange,
    commands.DeleteExchange: Answering._delete_exchange,
    commands.Bind: Answering._bind,
    commands.Unbind: Answering._unbind,
    commands.DeclareQueue: Answering._declare_queue,
    commands.InspectQueue: Answering._inspect_queue,
    commands.DeleteQueue: Answering._delete_queue,
    commands.PurgeQueue: Answering._purge_queue,
    commands.Consume: Answering._consume,
    commands.Cancel: Answering._cancel,
    commands.Get: Answering._get,
    commands.Commit: Answering._commit,
    commands.Release: Answering._release,
}
"""What is answered, and how it is carried out."""


def refusal_of(error: MQError) -> Refused:
    """What of mq could not be, as AMQP says it."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, NoSuchQueue):
        return Refused(Code.NOT_FOUND, str(error))
    if isinstance(error, QueueHeld):
        return Refused(Code.ACCESS_REFUSED, str(error))
    if isinstance(error, BrokerClosed):
        return Refused(Code.CONNECTION_FORCED, str(error))
    if isinstance(error, StorageFull):
        return Refused(Code.RESOURCE_ERROR, str(error))
    return Refused(Code.PRECONDITION_FAILED if isinstance(error, CallerError) else Code.INTERNAL_ERROR, str(error))
