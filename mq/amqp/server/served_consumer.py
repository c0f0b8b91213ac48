"""One consumer: messages from its queue to its client, within its credit and as fast as the client reads."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final

import trio

from mq import turns
from mq.amqp.model.arguments import QUEUE_TYPE, QUORUM, SINGLE_ACTIVE_CONSUMER
from mq.amqp.protocol.commands import Arrival, ChannelKey, Consume
from mq.amqp.protocol.deliveries import Deliveries
from mq.amqp.server.client_connection import MOST_BYTES_UNSENT, ClientConnection
from mq.amqp.server.delivery import arrival, delivery_bytes, read
from mq.amqp.server.state import QueueConsumer
from mq.broker import Exclusion, Precedence, UnackedMessage
from mq.doors.budget import UNCOUNTED_BYTES, Use
from mq.doors.open_connections import RecentRate
from mq.errors import CorruptMessage, MQError

logger = logging.getLogger("mq.amqp")

_AHEAD: Final = 16 * 1024
"""Bytes that are reserved together, so that not each of many short messages asks for its own."""
MOST_BYTES_TOGETHER: Final = 256 * 1024
"""Bytes of bodies that are sent before the consumer checks that the client reads."""


class ServedConsumer(QueueConsumer):
    """Moves messages from a queue to one consumer's client.

    Args:
        command: the client's request: queue, tag, priority, and whether it acknowledges.

    Attributes:
        exclusion: of the queue, where this is its only consumer.
        last_delivery: when it last got something, or began.
        delivered: how many messages it has got.
        rate: how many of late.
    """

    def __init__(self, client: ClientConnection, command: Consume) -> None:
        self.channel: ChannelKey = command.channel
        self.tag = command.tag
        self.queue = command.queue
        self.exclusion: Exclusion | None = None
        self._now = client.now
        self.began = self.last_delivery = self._now()
        self.delivered = 0
        self.rate = RecentRate(self.began)
        self._broker = client.state.broker
        self._consumers = client.state.topology.consumers
        is_quorum = command.queue.arguments.get(QUEUE_TYPE) == QUORUM
        self._is_single = bool(command.queue.arguments.get(SINGLE_ACTIVE_CONSUMER))
        self._waits_its_turn = self._is_single and is_quorum  # behind consumers at all nodes
        self._client = client
        self._socket = client.socket
        self._connection = client.connection
        self._deliveries: Deliveries | None = None  # of its channel, once it delivers
        self._no_ack = command.no_ack
        self._precedence = Precedence(command.priority)
        self._receive = partial(client.complete, self._received)
        self._context = copy_context()
        self._delivering = client.memory.reserve(Use.DELIVERY)
        self._lacking = 0
        self._scope = trio.CancelScope()
        self._fed = trio.lowlevel.ParkingLot()  # its task, while it waits for credit or messages
        self._withdraw: Callable[[], None] | None = None  # ends the wait for messages
        self._held: list[UnackedMessage] = []  # for its task to deliver
        self._error: Exception | None = None  # for its task to raise
        self._damaged: list[UnackedMessage] = []
        self._stopped = trio.Event()
        self._stopped.set()

    @property
    def is_active(self) -> bool:
        """Whether it gets messages now: its queue is for all of its consumers, or for this one."""
        if self._waits_its_turn:
            return self.exclusion is not None
        return not self._is_single or self._consumers.active(self.queue.key) is self

    def feed(self) -> int:
        """Go on: the consumer has credit again. Returns how many messages were written in this step, for the caller
        to send; its task does what takes longer."""
        if not self._fed or self._withdraw is not None:
            return 0  # its task is at it, or messages are awaited
        credit, taken = self._credit(), 0
        if credit and not self._lacking:
            try:
                held = self._broker.hold_now(
                    self.queue.key, min(credit, turns.MESSAGES_A_TURN), exclusion=self.exclusion
                )
                if held and self._write(held):
                    taken = len(held)
                if taken == credit or (not self._held and self._wait(self._credit())):
                    return taken
            except MQError:
                pass  # of which its task hears, too
        self._fed.unpark()
        return taken

    def go_on(self) -> None:
        """Let its task look again: it may be the active one now."""
        self._fed.unpark()

    def _credit(self) -> int:
        if self._deliveries is None or (self._is_single and not self.is_active):
            return 0
        return self._deliveries.credit(self.tag)

    def _wait(self, most: int) -> bool:
        """Wait for up to `most` messages, or for credit, without the task. False where only the task can.

        Raises:
            MQError: as the task would.
        """
        if not most:
            self._precedence.step_aside()
            return True
        self._withdraw = self._broker.hold_when_ready(
            self.queue.key, most, self._receive, exclusion=self.exclusion, precedence=self._precedence
        )
        return self._withdraw is not None

    def _received(self, held: list[UnackedMessage], error: Exception | None) -> None:
        """Write messages in the step in which they became READY, or leave them to the task."""
        self._withdraw, self._error = None, self._error or error
        try:
            if self._deliveries is None or self._deliveries.credit(self.tag) < len(held):
                self._held = held  # it has ended, or others of its channel have had the credit
            elif held and self._write(held):
                self._broker.progress.after[self._client.send_answers] = None
                if self._wait(self._credit()):
                    return
        except MQError:
            pass  # of which its task hears, too
        self._fed.unpark()

    def _write(self, held: list[UnackedMessage]) -> bool:
        """Write messages in this step, as many as a turn has. False where that takes longer: its task delivers them."""
        needed, arrivals = 0, []
        for each in held:
            found = arrival(each, self.queue, no_ack=self._no_ack)
            if found is not None:
                needed += delivery_bytes(each.message, self._delivering.client.budget)
                arrivals.append(found)
        is_now = len(arrivals) == len(held) <= turns.MESSAGES_A_TURN and self._socket.unsent < MOST_BYTES_UNSENT
        is_now = is_now and (needed <= UNCOUNTED_BYTES or self._is_free(needed))
        if not is_now or (self._no_ack and not self._settles(held)):
            self._held = held
            return False
        taken = self._connection.deliver(self.channel, self.tag, arrivals)
        assert taken == len(held), "no more than the credit"
        if needed > UNCOUNTED_BYTES:
            self._delivering.give_back()
        self._count(taken)
        return True

    def _settles(self, held: list[UnackedMessage]) -> bool:
        """Remove messages that need no acknowledgement. False where that takes longer."""
        with suppress(MQError):
            return self._context.copy().run(self._broker.acknowledge_now, held, self._removed)
        return False

    def _removed(self, error: Exception | None) -> None:
        if error is not None:
            self._error = error
            self._fed.unpark()

    def _is_free(self, size: int) -> bool:
        """Whether there is memory for a delivery now."""
        return size <= MOST_BYTES_TOGETHER and self._delivering.cover_if_free(size)

    def _count(self, taken: int) -> None:
        self.delivered += taken
        self.last_delivery = self._now()
        self.rate.add(self.last_delivery, taken)

    def start(self) -> None:
        """Note that the client has its tag, and that :meth:`run` is about to be called."""
        channel = self._connection.channel(self.channel)
        self._deliveries = None if channel is None else channel.deliveries
        self._stopped = trio.Event()

    def end(self) -> None:
        """Deliver nothing more."""
        self._scope.cancel()
        if self.exclusion is not None and not self._waits_its_turn:
            self.exclusion.end()

    def lose_queue(self) -> None:
        """End it because its queue is gone, and tell the client."""
        self.end()
        self._connection.cancelled(self.channel, self.tag)
        self._client.send_answers()

    async def run(self) -> None:
        """Deliver, until it is ended.

        Raises:
            MQError: the queue is no more, or the store has failed.
        """
        try:
            with self._scope:
                if self._waits_its_turn:
                    self.exclusion = await self._broker.exclude(self.queue.key, in_turn=True)
                while True:
                    if self._error is not None:
                        raise self._error
                    if self._held:
                        held, self._held = self._held, []
                        await self._deliver(held)
                    if self._lacking:
                        self._precedence.step_aside()
                        await self._wait_for_memory()
                    most = self._credit() if self._withdraw is None else 0
                    if most:
                        held_now = self._broker.hold_now(
                            self.queue.key, most, exclusion=self.exclusion, precedence=self._precedence
                        )
                        self._held = held_now or []
                    if not self._held and (self._withdraw is not None or self._wait(most)):
                        await self._fed.park()
                    elif not self._held:
                        self._held = await self._broker.hold(
                            self.queue.key,
                            most,
                            wait=math.inf,
                            exclusion=self.exclusion,
                            precedence=self._precedence,
                        )
        finally:
            if self._withdraw is not None:
                self._withdraw()
            self._precedence.step_aside()
            self._delivering.give_back()
            try:
                await self._give_back(self._held + self._damaged)
            finally:
                if self.exclusion is not None and self._waits_its_turn:
                    self.exclusion.end()  # not before what was not sent is back: the next one sees the queue's order
                self._stopped.set()

    async def stopped(self) -> None:
        """Wait until everything that was not sent is back in its place. Then other consumers see the queue's order."""
        await self._stopped.wait()

    async def _deliver(self, messages: Sequence[UnackedMessage]) -> None:
        """Send messages. Those that cannot be sent go back, not marked as redelivered."""
        left = deque(messages)
        try:
            while left:
                await self._socket.wait_for_room(self._precedence.step_aside)
                ready = await self._read(left)
                if not ready and self._lacking:
                    break
                taken = self._connection.deliver(self.channel, self.tag, [found for _, found in ready])
                self._delivering.give_back()  # what is written now reserves memory as far as the client does not read
                self._client.send_answers()
                self._count(taken)
                sent = [held for held, _ in ready[:taken]]
                left.extendleft([held for held, _ in ready[taken:]][::-1])
                if self._no_ack and sent:
                    with self._broker.progress.shielded():
                        await self._broker.acknowledge(sent)
                if taken < len(ready):
                    break
                await turns.spend(messages=taken)
        finally:
            await self._give_back(left)

    async def _read(self, left: deque[UnackedMessage]) -> list[tuple[UnackedMessage, Arrival]]:
        """Take out the first messages, as many as are sent together. A cancellation takes out none."""
        ready: list[tuple[UnackedMessage, Arrival]] = []
        size = needed = 0
        covered, budget = UNCOUNTED_BYTES, self._delivering.client.budget
        try:
            while left and size < MOST_BYTES_TOGETHER:
                needed += delivery_bytes(left[0].message, budget)
                if needed > covered:
                    covered = self._cover(needed)
                    if not covered:
                        break
                try:
                    found = await read(left[0], self.queue, no_ack=self._no_ack)
                except CorruptMessage as error:
                    logger.error(
                        "cannot deliver message %s from queue %s: %s", left[0].message.id, self.queue.name, error
                    )
                    self._damaged.append(left.popleft())  # kept here, or this queue would hand it out again and again
                    continue
                ready.append((left.popleft(), found))
                size += len(found.body)
        except trio.Cancelled:
            left.extendleft([held for held, _ in ready][::-1])
            raise
        return ready

    def _cover(self, size: int) -> int:
        """Reserve so many bytes for what is read, and some for the next messages. Returns how many; 0 without any."""
        if self._delivering.cover_if_free(size + _AHEAD):
            return size + _AHEAD
        try:
            self._delivering.cover(size)
        except MQError:
            self._lacking = size
            return 0
        return size

    async def _wait_for_memory(self) -> None:
        """Wait until there is as much as the next messages take. Meanwhile other consumers may get them."""
        await self._delivering.cover_soon(self._lacking)
        self._delivering.give_back()
        self._lacking = 0

    async def _give_back(self, held: Sequence[UnackedMessage] | deque[UnackedMessage]) -> None:
        if held:
            with self._broker.progress.shielded():
                for each in held:
                    await each.message.body.aclose()
                await self._broker.put_back(list(held), redelivered=False)
