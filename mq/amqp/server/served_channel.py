"""One channel as it is served: its consumers, its gets, its transactions, and its end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace

from mq import turns
from mq.amqp.model.arguments import QUEUE_TYPE, QUORUM, SINGLE_ACTIVE_CONSUMER
from mq.amqp.model.declared import Queue
from mq.amqp.model.vhost import TopologyChange
from mq.amqp.protocol import commands
from mq.amqp.protocol.commands import Done, Result
from mq.amqp.server.client_connection import MOST_BYTES_UNSENT, ClientConnection
from mq.amqp.server.delivery import arrival, delivery_bytes, read
from mq.amqp.server.publishes import PublishQueue, return_messages
from mq.amqp.server.refusals import refusal_of
from mq.amqp.server.served_consumer import ServedConsumer
from mq.amqp.server.settling import Removals, release, settle
from mq.amqp.wire.errors import Code, Refusal
from mq.broker import UnackedMessage
from mq.doors.budget import UNCOUNTED_BYTES, Use
from mq.errors import CorruptMessage, MQError, NoSuchQueue, NotServed, QueueHeld
from mq.quantities import show_count

logger = logging.getLogger("mq.amqp")


class ServedChannel:
    """Carries out the commands of one channel that publish, consume or settle.

    Attributes:
        consumers: by tag.
    """

    __slots__ = ("_broker", "_client", "_publishes", "_removals", "_state", "consumers")

    def __init__(self, client: ClientConnection, publishes: PublishQueue, removals: Removals) -> None:
        self.consumers: dict[str, ServedConsumer] = {}
        self._client = client
        self._state = client.state
        self._broker = client.state.broker
        self._publishes = publishes
        self._removals = removals

    # Consumers

    async def consume(self, command: commands.Consume) -> Result:
        """Add a consumer. :meth:`start` has it deliver."""
        consumers = self._state.topology.consumers
        if command.replies:
            await self._state.topology_store.change(lambda: TopologyChange(queues=(command.queue,)))
        # The queue may have gone and come again while earlier commands were carried out.
        queue = self._state.topology.queue(self._client.vhost, command.queue.name, self._client.owner)
        self._check_single(queue, exclusive=command.exclusive)
        consumer = ServedConsumer(self._client, replace(command, queue=queue))
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
        self.consumers[command.tag] = consumer
        return Done()

    def start(self, tag: str) -> None:
        """Start the task of a consumer: the client has its tag."""
        if self._client.nursery is not None:
            consumer = self.consumers[tag]
            consumer.start()
            self._client.nursery.start_soon(self._run, consumer)

    async def _run(self, consumer: ServedConsumer) -> None:
        try:
            await consumer.run()
        except (NoSuchQueue, QueueHeld):
            pass  # the queue was deleted: the client is told of that
        except NotServed:
            self._state.failed_over([consumer.queue.key])
        except MQError as error:
            self._client.fail(refusal_of(error))
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]

    def _check_single(self, queue: Queue, *, exclusive: bool) -> None:
        """Check that one active consumer is to be had.

        Raises:
            Refusal: 403, an exclusive one is asked for; 540, peers deliver the queue's messages, too.
        """
        if not queue.arguments.get(SINGLE_ACTIVE_CONSUMER):
            return
        if exclusive:
            raise Refusal(
                Code.ACCESS_REFUSED, f"queue '{queue.name}' in vhost '{queue.vhost}' already has an active consumer"
            )
        if self._broker.description.shared:
            raise Refusal(
                Code.NOT_IMPLEMENTED,
                f"{SINGLE_ACTIVE_CONSUMER} is not supported when several daemons share a root folder. Run a single "
                "daemon, without --peers",
            )

    async def cancel(self, command: commands.Cancel) -> Result:
        """End a consumer."""
        await self._end_consumers([command.tag])
        return Done()

    async def _end_consumers(self, tags: Iterable[str]) -> None:
        """End consumers, and wait until the messages that they did not send are back in their queues."""
        consumers = [self.consumers.pop(tag) for tag in tags if tag in self.consumers]
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

    # Gets

    def get_now(self, command: commands.Get) -> Awaitable[Result] | None:
        """Answer a get in this step. Where that takes longer, or it is refused, return what does it."""
        queue = command.queue
        if self._client.socket.unsent >= MOST_BYTES_UNSENT or not self._publishes.is_empty():
            return self.get(command)
        if queue.arguments and _has_single_consumer(queue):
            return self.get(command)
        try:
            held = self._broker.hold_now(queue.key)
        except MQError:
            return self.get(command)  # which is refused for the same reason
        result: commands.Got | None = None
        if held:
            is_small = delivery_bytes(held[0].message, self._client.memory.budget) <= UNCOUNTED_BYTES
            found = arrival(held[0], queue, no_ack=command.no_ack, is_asked_for=True) if is_small else None
            if found is None:
                return self.get(command, held)
            if command.no_ack:
                self._removals.begin(held)
            result = commands.Got(found, self._broker.declarations.ready(queue.key))
        elif held is None:
            return self.get(command)
        if queue.arguments:
            self._state.unused.note_use(queue)
        self._client.connection.answer(command, result)
        return None

    async def get(self, command: commands.Get, held: Sequence[UnackedMessage] = ()) -> Result:
        """Return the first message, after everything published before.

        Args:
            held: the first message; empty if it is to be fetched.
        """
        queue = command.queue
        if _has_single_consumer(queue):
            what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            raise Refusal(
                Code.RESOURCE_LOCKED,
                f"{what} is declared with a single active consumer, so basic.get is not allowed. Use basic.consume "
                "instead",
            )
        if not held:
            await self._client.socket.wait_for_room()
            await self._client.wait_until_stored()
        self._state.unused.note_use(queue)
        try:
            with self._broker.progress.shielded():
                return await self._get_slowly(command, list(held))
        except QueueHeld as error:
            text = f"queue '{queue.name}' in vhost '{queue.vhost}' is in exclusive use"
            raise Refusal(Code.ACCESS_REFUSED, text) from error

    async def _get_slowly(self, command: commands.Get, held: list[UnackedMessage]) -> Result:
        """Read a message, and reserve memory for it. Damaged ones are passed over."""
        queue, unsent = command.queue, list[UnackedMessage]()
        memory = self._client.memory
        room = memory.reserve(Use.DELIVERY)
        try:
            while held := held or await self._broker.hold(queue.key):
                try:
                    room.cover(delivery_bytes(held[0].message, memory.budget))
                    found = await read(held[0], queue, no_ack=command.no_ack, is_asked_for=True)
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

    # Transactions, and the end

    async def commit(self, command: commands.Commit) -> Result:
        """Store the messages of a transaction, then settle its deliveries."""
        refused = 0
        for batch in await self._publishes.store_now(command.messages):
            return_messages(self._client.connection, batch.unrouted())
            refused += len(batch.refused())
        if refused:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                f"the transaction was only partially committed: queues refused {show_count(refused, 'message')}",
            )
        while command.settled:
            settled = command.settled.pop(0)
            await settle(self._state, settled.outcome, settled.deliveries, durable=True)
        return Done()

    async def release(self, command: commands.Release) -> Result:
        """Put back the deliveries of the ended channel, and end its consumers."""
        try:
            await release(self._state, command.deliveries)
        finally:  # a queue that cannot take its messages now keeps no other one from the consumers to come
            with self._broker.progress.shielded():
                await self._end_consumers([tag for tag, _ in command.consumers])
        return Done()


def _has_single_consumer(queue: Queue) -> bool:
    """Whether consumers at all nodes of a cluster take turns, one at a time."""
    return queue.arguments.get(QUEUE_TYPE) == QUORUM and bool(queue.arguments.get(SINGLE_ACTIVE_CONSUMER))
