"""One connection, served: bytes in and out, its clock, its consumers, and its end."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import trio
from trio_util import AsyncValue

from mq.amqp.answering import Answering, refusal_of
from mq.amqp.commands import Message
from mq.amqp.connection import Connection
from mq.amqp.dispatching import Consumer
from mq.amqp.door import Door
from mq.amqp.errors import Code, Refused
from mq.amqp.finishing import finishing
from mq.amqp.storing import Storing
from mq.doors.handshake import TLSStream
from mq.errors import MQError, NoSuchQueue, NotServed, QueueHeld

logger = logging.getLogger("mq.amqp")

READ_BYTES: Final = 128 * 1024
"""What is read at once, at the most."""
MOST_BYTES_UNSENT: Final = 1024 * 1024
"""Of one connection; a client that reads less is sent nothing more, and is not heard."""
PIECE_BYTES: Final = 64 * 1024
"""What is sent at once, at the most."""
STALLED_SECONDS: Final = 120
"""A client that takes no piece for so long is dropped, whatever its heartbeat."""
LINGER_SECONDS: Final = 5
"""How long the end of a connection may take, to store what was published and to send what was said."""


class Serving:
    """Serves one connection.

    Args:
        door: what all connections share.
        stream: its bytes; any handshake is done.
        peer: who that is, for the log.
        version: of mq.
    """

    def __init__(self, door: Door, stream: trio.SocketStream | TLSStream, peer: str, version: str) -> None:
        self._door = door
        self._stream = stream
        self._peer = peer
        self._connection = Connection(door.topology, self, trio.current_time, door.limits, version)
        self._storing = Storing(door.copies, door.alarm, door.dead_letters, self._stored)
        self._answering = Answering(
            door, self._connection, self._storing, self._room_to_send, self._flush, self._start_consumer
        )
        self._working = trio.Lock()
        self._outgoing: deque[bytes] = deque()
        self._unsent: AsyncValue[int] = AsyncValue(0)
        self._is_held_up = False  # by us: the client's silence says nothing
        self._reading = trio.CancelScope()
        self._sleep = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Serve it to its end. Closes the stream."""
        self._door.connections.add(self)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._write)
                nursery.start_soon(self._keep_time)
                nursery.start_soon(self._store)
                with self._reading:
                    await self._read()
                with trio.move_on_after(LINGER_SECONDS):
                    await self._storing.wait_for_all()
                await self._release()
                with trio.move_on_after(LINGER_SECONDS):
                    self._flush()
                    await self._unsent.wait_value(0)
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            await self._release()
            self._door.connections.discard(self)
            with trio.move_on_after(LINGER_SECONDS, shield=True):
                await self._stream.aclose()
            if self._connection.why:
                logger.info("connection of AMQP client %s was closed: %s", self._peer, self._connection.why)

    def stop(self) -> None:
        """The daemon ends."""
        self._fail(Refused(Code.CONNECTION_FORCED, "broker forced connection closure: mq stops"))

    def alarm_changed(self) -> None:
        """Publishers have to wait, or may go on."""
        if not self._door.alarm.why:
            self._connection.unblock()
        self._flush()

    # Reading

    async def _read(self) -> None:
        while not self._connection.is_over:
            await self._room_to_send()
            await self._room_to_store()
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            async with self._working:
                self._renew_rights()
                self._connection.receive(bytes(data))
                await self._work()

    def _renew_rights(self) -> None:
        """The users may have changed since the client last said something. One who is no more is sent away."""
        session = self._connection.session
        try:
            session.user = self._door.again(session.user)
        except Refused as refusal:
            self._connection.close(refusal.code, str(refusal))

    async def _work(self) -> None:
        """Do what there is to do."""
        try:
            while (command := self._connection.next_command()) is not None:
                await self._answering.carry_out(command)
        except MQError as error:
            self._fail(refusal_of(error))
        if not self._connection.is_over:  # then what it held goes back before it hears of that
            self._flush()

    async def _room_to_store(self) -> None:
        if not self._storing.has_room:
            self._is_held_up = True
            await self._storing.wait_for_room()
            self._is_held_up = False

    def _fail(self, refusal: Refused) -> None:
        """Something that was not answered could not be done: the client has to know."""
        code = refusal.code if refusal.closes_connection else Code.INTERNAL_ERROR
        self._connection.close(code, str(refusal))
        if self._nursery is not None:
            self._nursery.start_soon(self._work_again)

    async def _work_again(self) -> None:
        """What a close from this side has left to do."""
        async with self._working:
            await self._work()
        if self._connection.is_over:
            self._reading.cancel()

    # Writing

    def _flush(self) -> None:
        """Let go of what is to be sent."""
        if self._door.alarm.why:
            self._connection.block(self._door.alarm.why)
        data = self._connection.outgoing()
        if data:
            self._outgoing.append(data)
            self._unsent.value += len(data)
        self._sleep.deadline = min(self._sleep.deadline, self._connection.wake_at())

    async def _write(self) -> None:
        while True:
            await self._unsent.wait_value(lambda size: size > 0)
            if not await self._send():
                self._outgoing.clear()
                self._unsent.value = 0
                self._reading.cancel()

    async def _send(self) -> bool:
        """Send what there is. False when the client takes nothing more."""
        data = memoryview(b"".join(self._outgoing))
        self._outgoing.clear()
        try:
            for at in range(0, len(data), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                with trio.move_on_after(STALLED_SECONDS) as patience:
                    await self._stream.send_all(piece)
                if patience.cancelled_caught:
                    logger.info("AMQP client %s was dropped: it reads nothing", self._peer)
                    return False
                self._unsent.value -= len(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    async def _room_to_send(self) -> None:
        await self._unsent.wait_value(lambda size: size < MOST_BYTES_UNSENT)

    # Time

    async def _keep_time(self) -> None:
        while not self._connection.is_over:
            with trio.CancelScope(deadline=self._connection.wake_at()) as self._sleep:
                await trio.sleep_forever()
            if self._is_held_up:
                self._connection.receive(b"")
            self._connection.tick()
            self._flush()
        self._reading.cancel()

    # Publishing

    async def _store(self) -> None:
        try:
            await self._storing.run()
        except MQError as error:
            self._fail(refusal_of(error))

    def _stored(self, messages: list[Message], is_stored: bool) -> None:
        self._connection.published(messages, is_stored=is_stored)
        self._flush()

    # Consuming

    def _start_consumer(self, consumer: Consumer) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._consume, consumer)

    async def _consume(self, consumer: Consumer) -> None:
        try:
            await consumer.run()
        except (NoSuchQueue, QueueHeld):
            pass  # the queue was deleted: the client is told of that
        except NotServed:
            self._door.failed_over([consumer.queue.key])
        except MQError as error:
            self._fail(refusal_of(error))
        self._answering.forget(consumer)

    # The end

    async def _release(self) -> None:
        """Give back what the client held. Does nothing the second time."""
        try:
            with finishing():
                await self._answering.release()
        except MQError as error:
            logger.warning("AMQP client %s left something behind: %s", self._peer, error)
