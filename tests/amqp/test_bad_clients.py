"""Clients that stop reading, say nothing, say half of it, or come where there is no room: virtual time."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock, memory_stream_pair

from mq.amqp.server.client_connection import LINGER_SECONDS, MOST_BYTES_UNSENT, STALLED_SECONDS
from mq.amqp.server.publishes import OWN_RESERVE
from mq.amqp.server.served_connection import READ_BYTES, ServedConnection
from mq.amqp.wire.frames import PROTOCOL_HEADER
from mq.doors.budget import CLIENT_PART
from mq.doors.connections import NOBODY
from mq.doors.listeners import stream_over
from mq.storage.interface import Operation, Outcome, Result, Write
from mq.storage.layered import LayeredStorage
from mq.storage.memory import MemoryStorage
from tests.amqp.dialling import Client, House, open_house
from tests.amqp.talking import words

Basic, Confirm, Connection, Channel = commands.Basic, commands.Confirm, commands.Connection, commands.Channel


class Narrow:
    """A stream whose client reads only what is asked of it: what is sent waits in its window."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.taken = 0
        self.reads = trio.Event()
        self.reads.set()

    async def send_all(self, data: bytes) -> None:
        await self.reads.wait()
        self.taken += len(data)
        await self._stream.send_all(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def narrow(house: House) -> tuple[Client, Narrow, ServedConnection]:
    ours, theirs = memory_stream_pair()
    stream = Narrow(theirs)
    served = ServedConnection(house.door, stream, NOBODY, "0")  # type: ignore[arg-type]
    house.nursery.start_soon(served.run)
    return Client(ours), stream, served


@pytest.mark.parametrize("heartbeat", [0, 10])
async def test_a_client_that_reads_nothing_gets_so_much_and_is_dropped(
    autojump_clock: MockClock, house: House, heartbeat: int
) -> None:
    other = await house.connect()
    await other.declare()
    bodies = [bytes([n]) * 100_000 for n in range(60)]
    await other.publish("q", *bodies)
    assert await other.count() == len(bodies)
    client, stream, served = narrow(house)
    await client.open(heartbeat=heartbeat)
    await client.consume()
    stream.reads = trio.Event()
    begin = trio.current_time()
    while served in house.door.connections:
        assert served.socket.unsent < MOST_BYTES_UNSENT + 400_000
        await trio.sleep(1)
    assert trio.current_time() - begin <= (2 * heartbeat or STALLED_SECONDS) + 2 * LINGER_SECONDS + 2
    found = await other.bodies()
    assert found == bodies


async def test_a_connection_that_was_dropped_while_it_was_at_work_ends_alone(house: House) -> None:
    """Trio keeps the number of a closed socket, -1, and would fail the next one that was dropped, too."""
    for _ in range(2):
        client, theirs = socket.socketpair()
        with client:
            stream = stream_over(theirs)
            served = ServedConnection(house.door, stream, NOBODY, "0")  # type: ignore[arg-type]
            stream.socket.close()
            await served.run()


async def test_a_client_without_heartbeats_is_dropped_and_its_messages_go_back(
    autojump_clock: MockClock, house: House
) -> None:
    other = await house.connect()
    await other.declare()
    await other.publish("q", b"x")
    client = await house.connect(heartbeat=10)
    await client.consume()
    await client.delivery()
    begin = trio.current_time()
    assert await client.hear() is None
    assert 20 <= trio.current_time() - begin < 31
    assert await other.bodies() == [b"x"]


async def test_half_a_frame_is_no_sign_of_life(autojump_clock: MockClock, house: House) -> None:
    client = await house.connect(heartbeat=10)
    await client.stream.send_all(b"\x01\0\x01\0\0")
    begin = trio.current_time()
    assert await client.hear() is None
    assert trio.current_time() - begin < 31


async def test_heartbeats_are_sent(autojump_clock: MockClock, house: House) -> None:
    client = await house.connect(heartbeat=10)
    for _ in range(5):
        await client.stream.send_all(b"\x08\0\0\0\0\0\0\xce")
        with trio.fail_after(6):
            assert await client.stream.receive_some() == b"\x08\0\0\0\0\0\0\xce"


async def test_who_says_nothing_at_first_is_dropped(autojump_clock: MockClock, house: House) -> None:
    for spoken in (b"", PROTOCOL_HEADER[:4], PROTOCOL_HEADER):
        client = house.dial()
        await client.stream.send_all(spoken)
        with trio.fail_after(20):
            while await client.stream.receive_some():
                pass


async def test_another_protocol_gets_the_header_of_this_one(autojump_clock: MockClock, house: House) -> None:
    client = house.dial()
    await client.stream.send_all(b"HELO example\r\n")
    assert await client.stream.receive_some() == PROTOCOL_HEADER
    assert await client.stream.receive_some() == b""


async def test_a_request_of_http_is_answered_in_http(autojump_clock: MockClock, house: House) -> None:
    client = house.dial()
    await client.stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
    answer = await client.stream.receive_some()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"this is an AMQP port" in answer
    assert await client.stream.receive_some() == b""


async def test_a_transgression_costs_its_connection_only(autojump_clock: MockClock, house: House) -> None:
    other = await house.connect()
    for bytes_, code in ((b"\x01\0\x01\0\0\0\x04abcd\x00", 501), (words(Basic.Recover(), 9), 504)):
        client = await house.connect()
        await client.stream.send_all(bytes_)
        answer = await client.hear()
        assert (answer.name, answer.reply_code) == ("Connection.Close", code)
        await client.say(Connection.CloseOk(), channel=0)
        assert await client.hear() is None
    await other.declare()


async def test_a_stop_is_told(autojump_clock: MockClock, house: House, client: Client) -> None:
    await client.declare()
    await client.publish("q", b"x")
    await client.get()
    for connection in list(house.door.connections):
        assert isinstance(connection, ServedConnection)
        connection.close("mq stops")
    closed = await client.hear()
    assert (closed.name, closed.reply_code) == ("Connection.Close", 320)
    await client.say(Connection.CloseOk(), channel=0)
    assert await client.hear() is None
    assert (await house.broker.status("q")).ready == 1


# No room


class Full(MemoryStorage):
    """A store that takes no message for now."""

    is_full = False

    async def commit(self, operations: Any) -> list[Outcome]:
        fitting = [each for each in operations if not (self.is_full and isinstance(each, Write))]
        done = iter(await super().commit(fitting))
        return [self._outcome(each, done) for each in operations]

    def _outcome(self, operation: Operation, done: Any) -> Outcome:
        if self.is_full and isinstance(operation, Write):
            return Outcome(Result.FULL, reason="No space left on device")
        found: Outcome = next(done)
        return found


async def test_a_full_store_blocks_those_who_publish_until_there_is_room(autojump_clock: MockClock) -> None:
    store = Full()
    layered = LayeredStorage(store, 1 << 20)
    await layered.open()
    async with open_house(layered) as house:
        client, bystander = await house.connect(), await house.connect()
        await client.declare(durable=True)
        await client.publish("q", b"before", delivery_mode=2)
        await client.call(Confirm.Select())
        store.is_full = True
        await client.publish("q", b"0", b"1", delivery_mode=2)
        blocked = await client.hear()
        assert blocked.name == "Connection.Blocked"
        assert "No space left" in blocked.reason
        got = await bystander.get()  # who consumes goes on
        assert got is not None
        await bystander.say(Basic.Ack(got[0].delivery_tag))
        late = await house.connect()
        await late.publish("q", b"late", delivery_mode=2)
        assert (await late.hear()).name == "Connection.Blocked"
        await trio.sleep(60)
        store.is_full = False
        heard = {(await client.hear()).name, (await client.hear()).name}
        assert heard == {"Basic.Ack", "Connection.Unblocked"}
        assert (await late.hear()).name == "Connection.Unblocked"
        assert sorted(await bystander.bodies()) == [b"0", b"1", b"late"]  # it was never told


@pytest.mark.slow
async def test_what_waits_for_room_is_bounded(autojump_clock: MockClock) -> None:
    store = Full()
    layered = LayeredStorage(store, 1 << 20)
    await layered.open()
    async with open_house(layered) as house:
        client, _, served = narrow(house)
        await client.open(heartbeat=10)
        await client.declare(durable=True)
        store.is_full = True
        sent = 0
        async with trio.open_nursery() as nursery:

            async def flood() -> None:
                nonlocal sent
                while True:
                    await client.publish("q", b"x" * 100_000, delivery_mode=2)
                    sent += 100_000
                    await trio.sleep(0.01)

            nursery.start_soon(flood)
            await trio.sleep(60)
            assert served in house.door.connections  # it is not its fault that it is not heard
            most = house.door.memory.most // CLIENT_PART - house.door.memory.most // OWN_RESERVE
            assert sent > most
            assert served.publishes.size < most + READ_BYTES * 2
            nursery.cancel_scope.cancel()
