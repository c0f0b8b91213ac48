"""One connection: its task reads, carries out and answers; others keep time, consume, and write what the socket does
not take at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from operator import attrgetter
from typing import Any, Final

import trio

from mq.access.certificates import common_name
from mq.amqp.protocol import commands
from mq.amqp.protocol.commands import ACKNOWLEDGED, ChannelKey, Credit, Done, PublishMessages, Result, Settle
from mq.amqp.protocol.connection import BEFORE_LOGIN, NO_LIMIT, ConnectionState
from mq.amqp.server.client_connection import LINGER_SECONDS, MOST_BYTES_UNSENT, ClientConnection
from mq.amqp.server.declarations import DECLARATIONS
from mq.amqp.server.publishes import PublishQueue
from mq.amqp.server.refusals import refusal_of
from mq.amqp.server.served_channel import ServedChannel
from mq.amqp.server.settling import Removals, settle
from mq.amqp.server.state import AmqpState
from mq.amqp.wire.errors import Code, Refusal
from mq.broker.fairness import SOURCE
from mq.doors.budget import ENOUGH_BYTES_PER_SECOND, UNCOUNTED_BYTES, PacedChunks, Use
from mq.doors.connections import FewLines, Peer
from mq.doors.listeners import TLSStream, plain_socket
from mq.doors.open_connections import ChannelStatus, ConnectionStatus, ConsumerStatus
from mq.doors.readers import COMMAND, Reader
from mq.errors import MQError
from mq.quantities import show_count
from mq.turns import FRAME, MESSAGE

logger = logging.getLogger("mq.amqp")

_CLOSED: Final = FewLines(logger, logging.INFO, "closed the connection of AMQP client %s: %s")

_OPEN: Final = ConnectionState.OPEN  # quicker than an attribute of the enumeration
READ_BYTES: Final = 128 * 1024
"""The most bytes in one read."""
READ_BYTES_BEFORE_LOGIN: Final = 8 * 1024
"""The most bytes in one read before the login, which takes two frames."""
_TOKEN: Final = attrgetter("token")
COMMAND_FRAMES: Final = COMMAND // FRAME
"""A command counts as so many frames, apart from messages and settled deliveries."""
LONGEST_PAUSE_SECONDS: Final = 0.02
"""Of a client that publishes faster than the store takes it half of the time is read, in pauses of up to so long."""
LONGEST_QUOTA_PAUSE_SECONDS: Final = 1.0
"""After so long a connection whose user has published too fast looks again how fast the user may."""
GOODBYE_SECONDS: Final = 0.5
"""How long the answer to a close waits for messages without confirms to be stored. Some clients wait 2 seconds for the
answers to the closes of a channel and its connection together, and lose what they have not sent."""


class ServedConnection(ClientConnection):
    """Serves one connection.

    Args:
        stream: its bytes; any handshake is done.
    """

    protocol = "amqp"

    def __init__(self, state: AmqpState, stream: trio.SocketStream | TLSStream, peer: Peer, version: str) -> None:
        super().__init__(state, stream, peer, version)
        if isinstance(stream, trio.SSLStream):
            self.connection.session.certificate = common_name(stream.getpeercert())
        self._stream = stream
        self._plain = plain_socket(stream) if isinstance(stream, trio.SocketStream) else None
        self._began = self.now()
        self._input = self.memory.reserve(Use.INPUT)
        self.publishes = self.context.run(PublishQueue, self)
        self._removals = Removals(self)
        self._channels: dict[ChannelKey, ServedChannel] = {}
        self._is_publisher = False  # has published something
        self._is_paused = False
        self._is_working = False  # a task carries out commands
        self._idle = trio.lowlevel.ParkingLot()  # tasks that wait to do so
        self._arrival: PacedChunks | None = None
        self._arrivals = ExitStack()
        self._reader = Reader()
        self._sleep = trio.CancelScope()
        self._sleeps_until = math.inf
        self._was_open = False  # at the last flush: from then on, only what is written makes another one necessary

    async def run(self) -> None:
        """Serve it to its end. Closes the stream."""
        SOURCE.set(self.source)
        with self.state.seen.entry(self) as id:
            self.memory.name = f"{id} ({self.peer})"
            try:
                await self._run()
            finally:
                self.memory.close()

    async def _run(self) -> None:
        self.state.connections.add(self)
        try:
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                nursery.start_soon(self._keep_time)
                try:
                    with self.reading:
                        await self._read()
                    await self._finish()
                finally:
                    self.nursery = None  # it takes no task any more once its last one has ended
                nursery.cancel_scope.cancel()
        finally:
            self.publishes.end()
            self._arrivals.close()
            await self._give_back()
            await self._disconnect_and_log()
            self.state.connections.discard(self)
            await self.socket.aclose()
            self._log_end()

    def close(self, why: str) -> None:
        """End it, and tell its client why. One that has closed the connection itself gets its close-ok."""
        if self.connection.state not in (ConnectionState.LEAVING, ConnectionState.LEFT):
            self.fail(Refusal(Code.CONNECTION_FORCED, f"the broker closed the connection: {why}"))

    @property
    def user(self) -> str | None:
        """The user who has this connection; None before the login, and for one who has too many without it."""
        session = self.connection.session
        return None if session.user is None or session.over_limit else session.user.name

    def status(self) -> ConnectionStatus:
        """The connection as operators see it now."""
        session, traffic, age = self.connection.session, self.socket.traffic(), self.now() - self._began
        return ConnectionStatus(
            protocol="amqp",
            state=self.connection.state.value,
            address=self.peer.address,
            port=self.peer.port,
            user=None if session.user is None else session.user.name,
            vhost=session.vhost,
            open_seconds=age,
            idle_seconds=age if traffic is None else traffic.idle_seconds,
            received_bytes=None if traffic is None else traffic.received_bytes,
            sent_bytes=None if traffic is None else traffic.sent_bytes,
            channels=tuple(
                ChannelStatus(channel.key.number, len(channel.deliveries.consumers), channel.deliveries.unsettled)
                for channel in self.connection.channels()
            ),
        )

    def consumers(self) -> Iterator[ConsumerStatus]:
        """Its consumers as operators see them now."""
        now = self.now()
        for consumer in [consumer for channel in self._channels.values() for consumer in channel.consumers.values()]:
            channel = self.connection.channel(consumer.channel)
            credit = None if channel is None else channel.deliveries.consumers.get(consumer.tag)
            if credit is not None:
                yield ConsumerStatus(
                    queue=consumer.queue.key,
                    tag=consumer.tag,
                    channel=consumer.channel.number,
                    prefetch=credit.prefetch,
                    ack_required=not credit.no_ack,
                    unacknowledged=credit.unsettled,
                    delivered=consumer.delivered,
                    delivered_per_second=consumer.rate.per_second(now),
                    open_seconds=now - consumer.began,
                    idle_seconds=now - consumer.last_delivery,
                )

    # Reading

    async def _read(self) -> None:
        connection, session, reader = self.connection, self.connection.session, self._reader
        has_more = False
        while not connection.is_over:
            if self._may_have_to_wait() and connection.state is not ConnectionState.LEFT:
                await self._time_to_read()
            data = b""
            if has_more:
                await trio.lowlevel.checkpoint()  # its turn is over
            else:
                try:
                    data = await self._receive()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
                if not data:
                    return
            if not reader.begin_at_once():
                await reader.begin()
            began = self.now()
            while self._is_working:
                await self._idle.park()
            self._is_working = True
            try:
                if session.user is not None:
                    self._renew_rights()
                if data:
                    connection.receive(data)
                most = connection.frames_left = reader.turn // FRAME
                await self._work()
                left, connection.frames_left = connection.frames_left, NO_LIMIT
                reader.spend((most - left) * FRAME)
                has_more = left <= 0  # the turn ended before the last frame that is here
                if not has_more and (self._input.size or connection.held > UNCOUNTED_BYTES):
                    self._count_input()
            finally:
                self._stop_working()
            if self.publishes.is_ahead:
                # A thread that stores messages waits for Python's lock after each system call while this one works.
                await trio.sleep(min(LONGEST_PAUSE_SECONDS, self.now() - began))

    def _may_have_to_wait(self) -> bool:
        """Whether :meth:`_time_to_read` may wait. False nearly always."""
        if self.socket.unsent >= MOST_BYTES_UNSENT or self.publishes.size > UNCOUNTED_BYTES:
            return True
        return self._is_publisher and self.connection.session.user is not None

    async def _time_to_read(self) -> None:
        """Wait while the client reads too little, or publishes too much."""
        await self.socket.wait_for_room()
        if self.publishes.size > UNCOUNTED_BYTES and not self.publishes.has_room:
            await self.publishes.wait_for_room()
        if self._is_publisher:  # one that only consumes is read on: its acknowledgements go through
            await self._time_to_publish()

    def _count_input(self) -> None:
        """Reserve memory for the beginning of a frame, which may stay as long as the client likes."""
        held = self.connection.held
        self._input.shrink(held if held > UNCOUNTED_BYTES else 0)
        try:
            self._input.cover(held if held > UNCOUNTED_BYTES else 0)
        except MQError as error:
            self.fail(refusal_of(error))

    async def _receive(self) -> bytes:
        """The next bytes of the client; none at its end. Always a checkpoint.

        Raises:
            trio.BrokenResourceError: the connection broke.
            trio.ClosedResourceError: it was closed here.
        """
        if self.connection.session.unfinished:
            return await self._receive_slowly()
        if self._arrival is not None:
            self._arrivals.close()
            self._arrival = None
        is_known = self._was_open or self.connection.state not in BEFORE_LOGIN
        most = READ_BYTES if is_known else READ_BYTES_BEFORE_LOGIN
        if self._plain is None:
            return bytes(await self._stream.receive_some(most))
        while True:  # as `receive_some` of the stream, in a third of its calls
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

    async def _receive_slowly(self) -> bytes:
        """Receive a part of a message. Gives up one that arrives slowly when others want its memory."""
        if self._arrival is None:
            arriving = self.connection.session.room.arriving(_Chunks(self._stream), self._give_up)
            self._arrival = self._arrivals.enter_context(arriving)
        return bytes(await anext(self._arrival, b""))

    def _give_up(self) -> None:
        self.start(self._end_slowness)  # not at once: this connection itself, at work, may want the memory

    async def _end_slowness(self) -> None:
        slowest = f"{ENOUGH_BYTES_PER_SECOND >> 10} KiB per second"
        why = f"a message arrived more slowly than {slowest}, and other clients needed the memory reserved for it"
        if self.connection.state not in (ConnectionState.LEAVING, ConnectionState.LEFT):
            self.fail(Refusal(Code.RESOURCE_ERROR, why))

    def _renew_rights(self) -> None:
        """Take up changes of the users file since the last read. The connection of a removed user is closed."""
        session = self.connection.session
        if session.user is None:
            return
        try:
            session.user = self.state.refresh_user(session.user)
        except Refusal as refusal:
            self.connection.close(refusal.code, str(refusal))

    # Carrying out

    async def _work(self) -> None:
        """Carry out all commands that are there."""
        connection = self.connection
        try:
            while (command := connection.next_command()) is not None:
                rest = self._carry_out(command)
                if rest is not None:
                    await rest  # meanwhile the connection may have been closed: then there is more to do
                elif connection.is_drained:
                    break
        except MQError as error:
            self.fail(refusal_of(error))
        if connection.is_over:
            return  # what it held goes back before the client is told
        if connection.sending or connection.session.unflushed or not self._was_open:
            self.flush()

    def _carry_out(self, command: commands.Command) -> Awaitable[object] | None:
        """Carry out a command in this step. If that takes longer, return what does it."""
        removals = self._removals
        if isinstance(command, Credit):
            channel = self._channels.get(command.channel)
            consumer = None if channel is None else channel.consumers.get(command.tag)
            if consumer is not None:
                self.connection.frames_left -= consumer.feed() * (MESSAGE // FRAME)
            return None
        if isinstance(command, Settle) and command.outcome is ACKNOWLEDGED:
            removals.begin(list(map(_TOKEN, command.deliveries)))
            is_much = removals.count > removals.most and self.nursery is not None
            return removals.wait(for_all=False) if is_much else None
        if removals.count:  # any other command may count what is being removed
            return self._carry_out_later(command)
        if isinstance(command, PublishMessages):
            if not self._is_publisher:
                return self._begin_to_publish(command)
            self._publish(command)
            return None
        self.connection.frames_left -= COMMAND_FRAMES
        if isinstance(command, Settle):
            return settle(self.state, command.outcome, command.deliveries)
        rest = _HANDLERS[type(command)](self, command)
        return None if rest is None else self._answer(command, rest)

    async def _carry_out_later(self, command: commands.Command) -> None:
        """Carry out a command once all messages are removed, even if this takes long."""
        await self._removals.wait()
        rest = self._carry_out(command)
        if rest is not None:
            await rest

    async def _answer(self, command: commands.Answered, work: Awaitable[Result]) -> None:
        try:
            result = await work
        except MQError as error:
            result = refusal_of(error)
        self.connection.answer(command, result)
        if isinstance(command, commands.Consume) and isinstance(result, Done):
            self.channel(command.channel).start(command.tag)

    def channel(self, key: ChannelKey) -> ServedChannel:
        """Return a channel; one of that key is made if there is none."""
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = ServedChannel(self, self.publishes, self._removals)
        return channel

    def _publish(self, command: PublishMessages) -> None:
        user = self.connection.session.user
        self.publishes.put(command.messages)
        if user is not None:
            self.state.quotas.count_publishes(user, len(command.messages))

    async def _begin_to_publish(self, command: PublishMessages) -> None:
        """Publish the first messages: a client that connects anew for each message is slowed down as well."""
        self._is_publisher = True
        try:
            await self._time_to_publish()
        finally:
            self._publish(command)

    async def _time_to_publish(self) -> None:
        """Wait while the user of the client has published more than the user may, in all connections."""
        while self.connection.session.user is not None and self.connection.state is ConnectionState.OPEN:
            seconds = self.state.quotas.pause_seconds(self.connection.session.user)
            if seconds <= 0:
                return
            self._is_paused = True
            try:
                with trio.move_on_after(min(seconds, LONGEST_QUOTA_PAUSE_SECONDS)):
                    await trio.sleep_forever()
            finally:
                self._is_paused = False
            self._renew_rights()  # the limit may be another one by now

    async def _authenticate(self, command: commands.Authenticate) -> Result:
        return await self.state.authenticate(self.connection.session.address, command)

    async def _leave(self, command: commands.Leave) -> Result:
        if self.connection.owes_confirms(command.channel):
            await self.publishes.wait_until_empty()
        else:  # what is published is stored without the client, which may not wait for long
            with trio.move_on_after(GOODBYE_SECONDS):
                await self.publishes.wait_until_empty()
        if command.channel is None:
            await self._disconnect()
        return Done()

    async def wait_until_stored(self) -> None:
        """Wait until everything published before is stored, or refused."""
        if not self.publishes.is_empty():
            await self.publishes.wait_until_empty()

    async def work_again(self) -> None:
        """Do what a close from this side has left to do."""
        while self._is_working:
            await self._idle.park()
        self._is_working = True
        try:
            await self._work()
        finally:
            self._stop_working()
        if self.connection.is_over:
            self.reading.cancel()

    def _stop_working(self) -> None:
        self._is_working = False
        if self._idle:
            self._idle.unpark()

    async def _keep_time(self) -> None:
        while not self.connection.is_over:
            self._sleeps_until = self.connection.wake_at()
            with trio.CancelScope(deadline=self._sleeps_until) as self._sleep:
                await trio.sleep_forever()
            if self.publishes.is_awaited or self._removals.is_awaited or self._is_paused:
                self.connection.receive(b"")  # it is our doing that nothing is read: not a missed heartbeat
            self.connection.tick()
            self.flush()
        self.reading.cancel()

    # Writing

    def flush(self) -> None:
        """Send what was written: at once what the kernel takes, and the rest in a task."""
        connection = self.connection
        was_open, is_open = self._was_open, connection.state is _OPEN
        self._was_open = is_open
        if connection.sending or connection.session.unflushed:
            data, is_last = connection.outgoing(), not is_open and connection.state is ConnectionState.LEFT
            if data and self._plain is not None and not self.socket.unsent and not is_last:
                try:  # noqa: SIM105 - a context manager is three calls
                    data = data[self._plain.send(data) :]
                except OSError:
                    pass  # no room; the writing task finds out whether the connection broke
            if data:
                self.socket.put(data, is_last=is_last)
        if not (was_open and is_open):  # else it wakes later and later
            wake_at = connection.wake_at()
            if wake_at < self._sleeps_until:
                self._sleeps_until = self._sleep.deadline = wake_at

    def send_answers(self) -> None:
        """Send what completions have written. It never raises."""
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - it is logged, and ends the connection alone
            self.end_after_error(error)

    # The end

    async def _finish(self) -> None:
        """Give back at once what the client held, and store what it published; the socket is kept for
        :data:`LINGER_SECONDS`."""
        self.publishes.leave()
        await self._give_back()
        with trio.move_on_after(LINGER_SECONDS):
            await self._store_all()
            self.flush()
            await self.socket.wait_until_sent()
        await self.socket.aclose()
        await self._store_all()

    async def _store_all(self) -> None:
        with suppress(MQError):  # which is logged at the end
            await self.publishes.wait_until_empty()
        await self._disconnect_and_log()

    async def _give_back(self) -> None:
        """Give back what the client held. Each part of it has the patience for the store for itself."""
        with trio.CancelScope(shield=True):
            for part in (self._carry_out_rest, self._removals.wait):
                try:
                    await part()
                except MQError as error:
                    self.log_left(error)

    async def _carry_out_rest(self) -> None:
        """Carry out what is left to do after the end. Does nothing the second time.

        Raises:
            MQError: the store cannot do that now.
        """
        self.connection.end()
        while (command := self.connection.next_command()) is not None:
            if isinstance(command, PublishMessages):
                self.publishes.put(command.messages)
            elif isinstance(command, Settle):
                await settle(self.state, command.outcome, command.deliveries)
            elif isinstance(command, commands.Release):
                await self._answer(command, self._release(command))

    async def _release(self, command: commands.Release) -> Result:
        channel = self.channel(command.channel)
        try:
            return await channel.release(command)
        finally:
            if not channel.consumers:  # they end with the last of several such commands
                self._channels.pop(command.channel, None)

    async def _disconnect(self) -> None:
        """Delete the client's exclusive queues, after what it has published there.

        Raises:
            Refusal: the store cannot do that now.
        """
        # Asked first: a change waits for all other changes, and a crowd that connects again and again would wait here.
        if self.state.topology.has_exclusive_queues(self.owner):
            await self.state.topology_store.change(lambda: self.state.topology.disconnect(self.vhost, self.owner))

    async def _disconnect_and_log(self) -> None:
        try:
            with self.state.broker.progress.shielded():
                await self._disconnect()
        except MQError as error:
            self.log_left(error)

    def _log_end(self) -> None:
        if self.connection.why:
            _CLOSED.write(self.peer, self.connection.why)
        if self.publishes.lost:
            failure = self.publishes.failure
            why = "mq stopped before the store had confirmed them" if failure is None else str(failure)
            lost = "mq cannot confirm that it stored %s published by AMQP client %s: %s"
            logger.error(lost, show_count(self.publishes.lost, "message"), self.peer, why)


class _Chunks:
    # Not a generator: this one is dropped in the middle.

    def __init__(self, stream: trio.SocketStream | TLSStream) -> None:
        self._stream = stream

    def __aiter__(self) -> _Chunks:
        return self

    async def __anext__(self) -> bytes:
        data = await self._stream.receive_some(READ_BYTES)
        if not data:
            raise StopAsyncIteration
        return bytes(data)


def _of_channel(
    method: Callable[[ServedChannel, Any], Awaitable[Result] | None],
) -> Callable[..., Awaitable[Result] | None]:
    def carry_out(connection: ServedConnection, command: Any) -> Awaitable[Result] | None:
        return method(connection.channel(command.channel), command)

    return carry_out


_HANDLERS: Final[Mapping[type[Any], Callable[[ServedConnection, Any], Awaitable[Result] | None]]] = {
    commands.Authenticate: ServedConnection._authenticate,
    commands.Leave: ServedConnection._leave,
    commands.Release: ServedConnection._release,
    commands.Consume: _of_channel(ServedChannel.consume),
    commands.Cancel: _of_channel(ServedChannel.cancel),
    commands.Commit: _of_channel(ServedChannel.commit),
    commands.Get: _of_channel(ServedChannel.get_now),
    **DECLARATIONS,
}
"""Command -> what carries it out. Each of these is answered: with the result, or in the same step where there is
none."""
