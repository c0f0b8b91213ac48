"""One connection on a stream: its task reads, carries out and answers; others keep time, consume, and write what the
socket does not take at once."""

from __future__ import annotations

import logging
import math
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import trio
from pamqp import commands as methods

from mq.access.certificates import common_name
from mq.amqp.model.names import DEFAULT_VHOST
from mq.amqp.protocol.commands import Credit, Get, PublishedMessage, PublishMessages
from mq.amqp.protocol.connection import BEFORE_LOGIN, NO_LIMIT, Connection, ConnectionState
from mq.amqp.protocol.session import is_acknowledgement
from mq.amqp.server.consumer_pump import ConsumerPump
from mq.amqp.server.handlers import Handlers, give_back, refusal_of
from mq.amqp.server.publish_pump import PublishPump, Unstored
from mq.amqp.server.state import AmqpState
from mq.amqp.wire.errors import Code, Refusal
from mq.broker import UnackedMessage
from mq.broker.fairness import SOURCE
from mq.doors.budget import ENOUGH_BYTES_PER_SECOND, UNCOUNTED_BYTES, PacedChunks, Use
from mq.doors.connections import FewLines, Peer
from mq.doors.listeners import TLSStream, plain_socket
from mq.doors.open_connections import ChannelStatus, ConnectionStatus, ConsumerStatus, Traffic, traffic_of
from mq.doors.readers import COMMAND, Reader
from mq.errors import MQError, NoSuchQueue, NotServed, QueueHeld
from mq.turns import FRAME

logger = logging.getLogger("mq.amqp")

_CLOSED: Final = FewLines(logger, logging.INFO, "closed the connection of AMQP client %s: %s")
_DROPPED: Final = FewLines(logger, logging.INFO, "disconnected AMQP client %s: %s")

READ_BYTES: Final = 128 * 1024
"""What is read at once, at the most."""
READ_BYTES_BEFORE_LOGIN: Final = 8 * 1024
"""The same, before the login: that takes two frames."""
COMMAND_FRAMES: Final = COMMAND // FRAME
"""A command counts as so many frames, apart from messages and settled deliveries."""
MOST_BYTES_UNSENT: Final = 1024 * 1024
"""Of one connection. A client that leaves more unread is sent nothing, and nothing is read from it."""
MOST_BYTES_UNCOUNTED: Final = 16 * 1024
"""Of one connection that are unsent, and for which no memory is reserved."""
PIECE_BYTES: Final = 64 * 1024
"""What is sent at once, at the most."""
STALLED_SECONDS: Final = 120
"""A client that takes no piece for so long is dropped, whatever its heartbeat."""
MOST_ACKNOWLEDGING: Final = 2000
"""Messages of one connection that are being removed while it reads on. All of them come again after kill -9."""
LEAST_ACKNOWLEDGING: Final = 128
"""The same, where the store takes :data:`LONGEST_REMOVAL_SECONDS` for so few."""
LONGEST_REMOVAL_SECONDS: Final = 0.1
"""How long a removal may take until fewer are begun before more is read."""
LONGEST_PAUSE_SECONDS: Final = 0.02
"""Of a client that publishes faster than the store takes it half of the time is read, in pauses of up to so long."""
LINGER_SECONDS: Final = 5
"""How long a connection that has ended keeps its socket, for the store to finish and its client to read the answers.
What it published is stored even if that takes longer."""


LONGEST_QUOTA_PAUSE_SECONDS: Final = 1.0
"""After so long a connection whose user has published too fast looks again how fast the user may."""


class ServedConnection:
    """Serves one connection.

    Args:
        stream: its bytes; any handshake is done.

    Attributes:
        send_answers: sends what completions have written. It never raises.
    """

    protocol = "amqp"

    def __init__(self, state: AmqpState, stream: trio.SocketStream | TLSStream, peer: Peer, version: str) -> None:
        self._state = state
        self._stream = stream
        self._peer = peer
        self._now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time
        self._began = self._now()
        self.connection = Connection(state.topology, self, self._now, state.limits, version)
        self.connection.session.address = peer.address
        self.connection.session.closed_to = state.closed_to
        self.connection.session.check_connection = state.quotas.check_connection
        self.connection.session.longest_body = state.broker.longest_body
        self.connection.session.denied = self._note_denied
        self._memory = state.memory.client(str(peer), self._drop)
        self.connection.session.use_memory(self._memory)
        self._input = self._memory.reserve(Use.INPUT)
        self._sending = self._memory.reserve(Use.DELIVERY)
        if isinstance(stream, trio.SSLStream):
            self.connection.session.certificate = common_name(stream.getpeercert())
        self.send_answers = partial(self.complete, self._flush)
        self._source = object()
        self._context = copy_context()
        self._context.run(SOURCE.set, self._source)
        backlog = self._memory.reserve(Use.BACKLOG)
        self._publish_pump = self._context.run(PublishPump, state, self, backlog)
        self._handlers = Handlers(state, self, self._publish_pump)
        self._acknowledging = 0  # messages
        self._acknowledged_some = trio.lowlevel.ParkingLot()  # tasks that wait until there are fewer
        self._is_acknowledgement_awaited = False
        self._most_acknowledging = LEAST_ACKNOWLEDGING
        self._publishes = False  # has published something
        self._is_paused = False
        self._is_working = False  # a task carries out commands
        self._idle = trio.lowlevel.ParkingLot()  # tasks that wait to do so
        self._outgoing: deque[bytes] = deque()
        self._unsent = 0  # bytes of these
        self._has_sent = trio.lowlevel.ParkingLot()  # tasks that wait until these are fewer
        self._is_writing = False  # a task does, which ends once all is sent
        self._plain = plain_socket(stream) if isinstance(stream, trio.SocketStream) else None
        self._reading = trio.CancelScope()
        self._sleep = trio.CancelScope()
        self._sleeps_until = math.inf
        self._was_open = False  # at the last flush
        self._nursery: trio.Nursery | None = None
        self._arrival: PacedChunks | None = None
        self._arrivals = ExitStack()
        self._reader = Reader()

    async def run(self) -> None:
        """Serve it to its end. Closes the stream."""
        SOURCE.set(self._source)
        with self._state.seen.entry(self) as id:
            self._memory.name = f"{id} ({self._peer})"
            try:
                await self._run()
            finally:
                self._memory.close()

    async def _run(self) -> None:
        self._state.connections.add(self)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._keep_time)
                try:
                    with self._reading:
                        await self._read()
                    await self._finish()
                finally:
                    self._nursery = None  # it takes no task any more once its last one has ended
                nursery.cancel_scope.cancel()
        finally:
            self._publish_pump.end()
            self._arrivals.close()
            await self._give_back()
            await self._release(self._handlers.disconnect)
            self._state.connections.discard(self)
            await self._close()
            self._log_end()

    async def _finish(self) -> None:
        """Give back at once what the client held, and store what it published; the socket is kept for
        :data:`LINGER_SECONDS`."""
        self._publish_pump.leave()
        await self._give_back()
        with trio.move_on_after(LINGER_SECONDS):
            await self._store_all()
            self._flush()
            while self._unsent:
                await self._has_sent.park()
        await self._close()
        await self._store_all()

    async def _store_all(self) -> None:
        with suppress(MQError):  # which is logged at the end
            await self._publish_pump.wait_for_all()
        await self._release(self._handlers.disconnect)

    async def _close(self) -> None:
        with trio.move_on_after(LINGER_SECONDS, shield=True):
            await self._stream.aclose()

    def _log_end(self) -> None:
        if self.connection.why:
            _CLOSED.write(self._peer, self.connection.why)
        if self._publish_pump.lost:
            why = self._publish_pump.why or "mq stopped before they were stored"
            lost = (
                "%d messages published by AMQP client %s were not stored, or it is unknown whether they were stored: %s"
            )
            logger.error(lost, self._publish_pump.lost, self._peer, why)

    def _note_denied(self, right: str, what: str, name: str | None) -> None:
        session = self.connection.session
        if session.user is not None:
            vhost = None if session.vhost == DEFAULT_VHOST else session.vhost
            about = {"right": right, "vhost": vhost, what: name}
            self._state.note_denied(session.address, session.user, **about)

    def stop(self) -> None:
        """End it because the daemon stops."""
        self.close("mq stops")

    def close(self, why: str) -> None:
        """End it, and tell its client why. One that has closed the connection itself gets its close-ok."""
        if self.connection.state not in (ConnectionState.LEAVING, ConnectionState.LEFT):
            self._fail(Refusal(Code.CONNECTION_FORCED, f"the broker closed the connection: {why}"))

    @property
    def user(self) -> str | None:
        """The user who has this connection; None before the login, and for one who has too many without it."""
        session = self.connection.session
        return None if session.user is None or session.over_limit else session.user.name

    def status(self) -> ConnectionStatus:
        """The connection as operators see it now."""
        return status_of(self.connection, self._stream, self._peer, self._began)

    def consumers(self) -> Iterator[ConsumerStatus]:
        """Its consumers as operators see them now."""
        return consumers_of(self.connection, self._handlers.consumers())

    # Reading

    async def _read(self) -> None:
        has_more = False
        while not self.connection.is_over:
            if self._may_have_to_wait() and self.connection.state is not ConnectionState.LEFT:
                await self._time_to_read()
            data: bytes | bytearray = b""
            if has_more:
                await trio.lowlevel.checkpoint()  # its turn is over
            else:
                try:
                    data = await self._receive()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
                if not data:
                    return
            await self._reader.begin()
            began = self._now()
            while self._is_working:
                await self._idle.park()
            self._is_working = True
            try:
                if self.connection.session.user is not None:
                    self._renew_rights()
                if data:
                    self.connection.receive(bytes(data))
                has_more = await self._work_in_turn()
                if not has_more and (self._input.size or self.connection.held > UNCOUNTED_BYTES):
                    self._count_input()
            finally:
                self._stop_working()
            if self._publish_pump.is_ahead:
                # A thread that stores messages waits for Python's lock after each system call while this one works.
                await trio.sleep(min(LONGEST_PAUSE_SECONDS, self._now() - began))

    def _may_have_to_wait(self) -> bool:
        """Whether :meth:`_time_to_read` may wait. False nearly always."""
        if self._unsent >= MOST_BYTES_UNSENT or self._publish_pump.size > UNCOUNTED_BYTES:
            return True
        return self._publishes and self.connection.session.user is not None

    async def _time_to_read(self) -> None:
        """Wait while the client reads too little, or publishes too much."""
        if not self.has_room_to_send:
            await self.room_to_send()
        if self._publish_pump.size > UNCOUNTED_BYTES and not self._publish_pump.has_room:
            await self._publish_pump.wait_for_room()
        if self._publishes:  # one that only consumes is read on: its acknowledgements go through
            await self._time_to_publish()

    def _count_input(self) -> None:
        """Reserve memory for the beginning of a frame, which may stay as long as the client likes."""
        held = self.connection.held
        self._input.shrink(held if held > UNCOUNTED_BYTES else 0)
        try:
            self._input.cover(held if held > UNCOUNTED_BYTES else 0)
        except MQError as error:
            self._fail(refusal_of(error))

    async def _receive(self) -> bytes | bytearray:
        """The next bytes of the client; none at its end. Gives up a message that arrives slowly when others want its
        memory."""
        if not self.connection.session.unfinished:
            if self._arrival is not None:
                self._arrivals.close()
                self._arrival = None
            most = READ_BYTES_BEFORE_LOGIN if self.connection.state in BEFORE_LOGIN else READ_BYTES
            return await (self._stream.receive_some(most) if self._plain is None else self._receive_plain(most))
        if self._arrival is None:
            arriving = self.connection.session.room.arriving(_Received(self._stream), self._give_up)
            self._arrival = self._arrivals.enter_context(arriving)
        return await anext(self._arrival, b"")

    async def _receive_plain(self, most: int) -> bytes:
        """As `receive_some` of the stream, in a third of its calls. Always a checkpoint."""
        assert self._plain is not None
        while True:
            file = self._plain.fileno()
            if file < 0:  # dropped; Trio would keep the number -1, and fail all who come with it later
                raise trio.ClosedResourceError
            await trio.lowlevel.wait_readable(file)
            try:
                return self._plain.recv(most)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    def _drop(self) -> None:
        """Drop a client that reads slowly, for others want the memory. It would not read a reason either."""
        _DROPPED.write(self._peer, "the client reads slowly, and other clients needed its memory")
        carrier = self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream
        if isinstance(carrier, trio.SocketStream):
            carrier.socket.close()

    def _give_up(self) -> None:
        self.start(self._end_slowness)  # not at once: this connection itself, at work, may want the memory

    async def _end_slowness(self) -> None:
        slowest = f"{ENOUGH_BYTES_PER_SECOND >> 10} KiB per second"
        why = f"a message arrived more slowly than {slowest}, and other clients needed the memory reserved for it"
        if self.connection.state not in (ConnectionState.LEAVING, ConnectionState.LEFT):
            self._fail(Refusal(Code.RESOURCE_ERROR, why))

    def _renew_rights(self) -> None:
        """Take up changes of the users file since the last read. The connection of a removed user is closed."""
        session = self.connection.session
        if session.user is None:
            return
        try:
            session.user = self._state.refresh_user(session.user)
        except Refusal as refusal:
            self.connection.close(refusal.code, str(refusal))

    async def _work_in_turn(self) -> bool:
        """Carry out commands for one turn. True if the turn ended before the last frame that is here."""
        connection = self.connection
        most = connection.frames_left = self._reader.turn // FRAME
        await self._work()
        left, connection.frames_left = connection.frames_left, NO_LIMIT
        self._reader.spend((most - left) * FRAME)
        return left <= 0

    async def _work(self) -> None:
        """Carry out all commands that are there."""
        try:
            while (command := self.connection.next_command()) is not None:
                if self._acknowledging and not is_acknowledgement(command) and not isinstance(command, Credit):
                    await self._acknowledged(0)  # it may count what they remove; and a command that was taken is done
                if isinstance(command, PublishMessages):
                    await self._publish(command)
                    continue
                self.connection.frames_left -= COMMAND_FRAMES
                if isinstance(command, Credit):
                    self._handlers.feed(command)
                elif is_acknowledgement(command):
                    self.remove([delivery.token for delivery in command.deliveries])
                    if self._acknowledging > self._most_acknowledging and self._nursery is not None:
                        await self._acknowledged(self._most_acknowledging)
                elif not isinstance(command, Get):
                    await self._handlers.carry_out(command)
                elif (rest := self._handlers.get(command)) is not None:
                    await rest
        except MQError as error:
            self._fail(refusal_of(error))
        if not self.connection.is_over:  # at the end what it held goes back before the client is told
            self._flush()

    async def _publish(self, command: PublishMessages) -> None:
        user = self.connection.session.user
        try:
            if not self._publishes:  # a client that connects anew for each message is slowed down as well
                self._publishes = True
                await self._time_to_publish()
        finally:
            self._publish_pump.put(command.messages)
        if user is not None:
            self._state.quotas.count_publishes(user, len(command.messages))

    async def _time_to_publish(self) -> None:
        """Wait while the user of the client has published more than the user may, in all connections."""
        while self.connection.session.user is not None and self.connection.state is ConnectionState.OPEN:
            seconds = self._state.quotas.pause_seconds(self.connection.session.user)
            if seconds <= 0:
                return
            self._is_paused = True
            try:
                with trio.move_on_after(min(seconds, LONGEST_QUOTA_PAUSE_SECONDS)):
                    await trio.sleep_forever()
            finally:
                self._is_paused = False
            self._renew_rights()  # the limit may be another one by now

    def _fail(self, refusal: Refusal) -> None:
        """Close the connection after a command without an answer failed, so that the client knows."""
        code = refusal.code if refusal.closes_connection else Code.INTERNAL_ERROR
        self.connection.close(code, str(refusal))
        self.start(self._work_again)

    def start(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task of this connection, unless it has ended. The caller may be a completion, in another task."""
        if self._nursery is not None:
            self._context.copy().run(self._nursery.start_soon, work, *args)

    async def _work_again(self) -> None:
        """Do what a close from this side has left to do."""
        while self._is_working:
            await self._idle.park()
        self._is_working = True
        try:
            await self._work()
        finally:
            self._stop_working()
        if self.connection.is_over:
            self._reading.cancel()

    def _stop_working(self) -> None:
        self._is_working = False
        if self._idle:
            self._idle.unpark()

    # Writing

    def _flush(self) -> None:
        """Hand what is to be sent to the writing task."""
        if self._publish_pump.why_full:
            self.connection.block(self._publish_pump.why_full)
        elif self._publish_pump.is_ahead:
            self.connection.block("publishing faster than the store can write")
        elif self.connection.is_blocked:
            self.connection.unblock()
        data = self.connection.outgoing()
        if data and self._plain is not None and not self._unsent:
            # Directly, without a task: all of it, nearly always. A writing task sends the rest.
            data = self._send_now(self._plain, data)
        if data:
            self._outgoing.append(data)
            self._unsent += len(data)
            if not self._is_writing:
                self._is_writing = True
                self.start(self._write)
            if self._unsent > MOST_BYTES_UNCOUNTED:
                self._count_unsent()
        was_open, self._was_open = self._was_open, self.connection.state is ConnectionState.OPEN
        if not (was_open and self._was_open):  # else it wakes later and later
            wake_at = self.connection.wake_at()
            if wake_at < self._sleeps_until:
                self._sleeps_until = self._sleep.deadline = wake_at

    def _send_now(self, plain: socket.socket, data: bytes) -> bytes:
        """Send as much as the kernel has room for. Returns the rest, for the writing task."""
        if self.connection.state is ConnectionState.LEFT:
            return data  # behind which the writing task ends the stream
        try:
            return data[plain.send(data) :]
        except OSError:  # no room; the writing task finds out whether there is an end
            return data

    def _count_unsent(self) -> None:
        """Reserve memory for what the client has not read. A client for which there is none is dropped."""
        try:
            self._sending.cover(self._unsent)
        except MQError as error:
            logger.info("disconnected AMQP client %s because it does not read its messages: %s", self._peer, error)
            self._reading.cancel()
        self._sending.begin_sending()

    async def _write(self) -> None:
        """Send what the socket did not take at once, to its end."""
        while self._unsent:
            if not await self._send():
                self._outgoing.clear()
                self._note_sent(self._unsent)
                self._sending.give_back()
                self._reading.cancel()
            elif self.connection.state is ConnectionState.LEFT and not self._unsent:
                await self._say_no_more()
        self._is_writing = False

    async def _say_no_more(self) -> None:
        """Send the end of the stream, for the client may wait for it. Over TLS, which cannot half-close, the client
        closes."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._stream.send_eof()

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
                    _DROPPED.write(self._peer, "the client does not read")
                    return False
                self._note_sent(len(piece))
                if self._sending.size:
                    self._sending.shrink(self._unsent if self._unsent > MOST_BYTES_UNCOUNTED else 0)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    def _note_sent(self, size: int) -> None:
        self._unsent -= size
        self._has_sent.unpark_all()

    @property
    def has_room_to_send(self) -> bool:
        """Whether the client has read most of what was sent."""
        return self._unsent < MOST_BYTES_UNSENT

    async def room_to_send(self, stalled: Callable[[], None] | None = None) -> None:
        """Wait until the client has read most of what was sent; call `stalled` first if it has not."""
        if stalled is not None and self._unsent >= MOST_BYTES_UNSENT:
            stalled()
        while self._unsent >= MOST_BYTES_UNSENT:
            await self._has_sent.park()

    # Time

    async def _keep_time(self) -> None:
        while not self.connection.is_over:
            self._sleeps_until = self.connection.wake_at()
            with trio.CancelScope(deadline=self._sleeps_until) as self._sleep:
                await trio.sleep_forever()
            if self._publish_pump.is_awaited or self._is_acknowledgement_awaited or self._is_paused:
                self.connection.receive(b"")  # it is our doing that nothing is read: not a missed heartbeat
            self.connection.tick()
            self._flush()
        self._reading.cancel()

    # Publishing

    def lose_publishes(self, error: MQError) -> None:
        """End the connection: the store has failed, or the broker ends, and what waited is not stored."""
        self._fail(refusal_of(error))

    def refused(self, unstored: Unstored) -> None:
        """Write the answers to messages of which some are not stored."""
        connection = self.connection
        give_back(connection, unstored.unrouted())
        connection.published(unstored.refused(), is_stored=False)
        connection.published(unstored.stored(), is_stored=True)
        unheard = unstored.unheard()
        if unheard:
            why = unstored.why
            logger.warning("%d messages from AMQP client %s were not stored: %s", len(unheard), self._peer, why)
            self._close_channels(unheard, why)

    def _close_channels(self, messages: list[PublishedMessage], why: str) -> None:
        """Close the channels of messages that are not stored where a nack would not help: the channel has no confirms,
        or the publisher would only send again a message that no queue can take."""
        refusals = {}
        for key, count in Counter(message.channel for message in messages).items():
            what = "1 message was" if count == 1 else f"{count} messages were"
            refusals[key] = Refusal(Code.PRECONDITION_FAILED, f"{what} not stored: {why}")
        for key, refusal in refusals.items():
            channel = self.connection.channel(key)
            if channel is not None:
                channel.lose(refusal, methods.Basic.Publish())
        self.start(self._work_again)

    # Acknowledging

    def remove(self, held: Sequence[UnackedMessage]) -> None:
        """Begin to remove acknowledged messages, while the connection reads on."""
        self._acknowledging += len(held)
        removed = partial(self.complete, self._removed, len(held), self._now())
        try:
            if not self._state.broker.acknowledge_now(held, removed):
                self.start(self._remove, held, removed)
        except MQError as error:
            removed(error)

    async def _remove(self, held: Sequence[UnackedMessage], removed: Callable[[Exception | None], None]) -> None:
        error: MQError | None = None
        try:
            with self._state.broker.progress.shielded():
                await self._state.broker.acknowledge(held)
        except MQError as caught:
            error = caught
        finally:
            removed(error)

    def complete(self, completion: Callable[..., None], *args: Any) -> None:
        """Call a completion. One that raises ends this connection, and not the save worker that calls it."""
        try:
            completion(*args)
        except Exception as error:  # noqa: BLE001 - it is logged, and ends the connection alone
            self.end_after_error(error)

    def end_after_error(self, error: Exception) -> None:
        """Log an internal error, and end the connection."""
        logger.error("disconnecting AMQP client %s after an internal error", self._peer, exc_info=error)
        self._fail(Refusal(Code.INTERNAL_ERROR, "mq could not respond because of an internal error; see the mq log"))

    def _removed(self, count: int, began: float, error: Exception | None) -> None:
        """Note that acknowledged messages are removed, or READY again."""
        self._acknowledging -= count
        if self._acknowledged_some:
            self._acknowledged_some.unpark_all()
        if isinstance(error, MQError):
            if self.connection.is_over:  # its client hears of nothing any more
                self._log_left(error)
            self._fail(refusal_of(error))
        seconds = self._now() - began
        if seconds > LONGEST_REMOVAL_SECONDS:
            self._most_acknowledging = max(LEAST_ACKNOWLEDGING, self._most_acknowledging // 2)
        elif seconds < LONGEST_REMOVAL_SECONDS / 2:
            self._most_acknowledging = min(MOST_ACKNOWLEDGING, self._most_acknowledging * 2)

    async def _acknowledged(self, most: int) -> None:
        """Wait until no more than so many messages are being removed, also if the connection is cancelled meanwhile.

        Raises:
            StorageUnsure: the store does not answer.
        """
        if self._acknowledging > most:
            self._is_acknowledgement_awaited = True
            try:
                with self._state.broker.progress.shielded():
                    while self._acknowledging > most:
                        await self._acknowledged_some.park()
            finally:
                self._is_acknowledgement_awaited = False

    # Consuming

    def start_consumer(self, consumer: ConsumerPump) -> None:
        """Start the task of a consumer."""
        if self._nursery is not None:
            consumer.start()
            self._nursery.start_soon(self._consume, consumer)

    async def _consume(self, consumer: ConsumerPump) -> None:
        try:
            await consumer.run()
        except (NoSuchQueue, QueueHeld):
            pass  # the queue was deleted: the client is told of that
        except NotServed:
            self._state.failed_over([consumer.queue.key])
        except MQError as error:
            self._fail(refusal_of(error))
        self._handlers.forget(consumer)

    # The end

    async def _give_back(self) -> None:
        """Give back what the client held. Each part of it has the patience for the store for itself."""
        with trio.CancelScope(shield=True):
            for part in (self._handlers.give_back, partial(self._acknowledged, 0)):
                try:
                    await part()
                except MQError as error:
                    self._log_left(error)

    async def _release(self, part: Callable[[], Awaitable[None]]) -> None:
        """Delete what was exclusive to the client."""
        try:
            with self._state.broker.progress.shielded():
                await part()
        except MQError as error:
            self._log_left(error)

    def _log_left(self, error: MQError) -> None:
        logger.warning("cannot clean up after AMQP client %s: %s", self._peer, error)


class _Received:
    """The bytes that a client sends, until its end."""

    def __init__(self, stream: trio.SocketStream | TLSStream) -> None:
        self._stream = stream

    def __aiter__(self) -> _Received:
        return self

    async def __anext__(self) -> bytes:
        data = await self._stream.receive_some(READ_BYTES)
        if not data:
            raise StopAsyncIteration
        return bytes(data)


def status_of(
    connection: Connection, stream: trio.SocketStream | TLSStream, peer: Peer, began: float
) -> ConnectionStatus:
    """A connection as operators see it now."""
    session, traffic, age = connection.session, _traffic(stream), trio.current_time() - began
    return ConnectionStatus(
        protocol="amqp",
        state=connection.state.value,
        address=peer.address,
        port=peer.port,
        user=None if session.user is None else session.user.name,
        vhost=session.vhost,
        open_seconds=age,
        idle_seconds=age if traffic is None else traffic.idle_seconds,
        received_bytes=None if traffic is None else traffic.received_bytes,
        sent_bytes=None if traffic is None else traffic.sent_bytes,
        channels=tuple(
            ChannelStatus(channel.key.number, len(channel.consumers), channel.unsettled)
            for channel in connection.channels()
        ),
    )


def _traffic(stream: trio.SocketStream | TLSStream) -> Traffic | None:
    carrier = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    return traffic_of(carrier.socket) if isinstance(carrier, trio.SocketStream) else None


def consumers_of(connection: Connection, pumps: Iterable[ConsumerPump]) -> Iterator[ConsumerStatus]:
    """A connection's consumers as operators see them now."""
    now = trio.current_time()
    for pump in list(pumps):  # some may end meanwhile
        channel = connection.channel(pump.channel)
        credit = None if channel is None else channel.consumers.get(pump.tag)
        if credit is not None:
            yield ConsumerStatus(
                queue=pump.queue.key,
                tag=pump.tag,
                channel=pump.channel.number,
                prefetch=credit.prefetch,
                ack_required=not credit.no_ack,
                unacknowledged=credit.unsettled,
                delivered=pump.delivered,
                delivered_per_second=pump.rate.per_second(now),
                open_seconds=now - pump.began,
                idle_seconds=now - pump.last_delivery,
            )
