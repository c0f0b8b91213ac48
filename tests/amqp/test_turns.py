"""A read of thousands of frames is handled in turns, and heartbeats that nothing agreed on end the connection."""

from __future__ import annotations

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from mq import turns
from mq.amqp.protocol.connection import HEARTBEATS_SECONDS, LOOKS_A_FRAME, MOST_HEARTBEATS, Connection
from mq.amqp.wire.frames import HEARTBEAT, PROTOCOL_HEADER
from mq.turns import FRAMES_A_TURN
from tests.amqp.dialling import Client, House
from tests.amqp.talking import content, words


class FramesPerStep(trio.abc.Instrument):
    """Counts the frames that connections handle in each step of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.now = self.all = 0
        step = Connection._step

        def count(connection: Connection) -> bool:
            is_handled = step(connection)
            self.now += is_handled
            self.all += is_handled
            self.most = max(self.most, self.now)
            return is_handled

        monkeypatch.setattr(Connection, "_step", count)
        trio.lowlevel.add_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.now = 0


CHEAP = {
    "body frames": words(commands.Basic.Publish(routing_key="q")) + content(1, b"x" * 2000, most=1),
    "channel.flow": words(commands.Channel.Flow(True)) * 1000,
    "basic.qos": words(commands.Basic.Qos(0, 10, False)) * 1000,
    "basic.get": words(commands.Basic.Get(queue="q")) * 300,
    "unroutable messages": (words(commands.Basic.Publish(routing_key="nowhere")) + content(1, b"")) * 1000,
    "messages": (words(commands.Basic.Publish(routing_key="q")) + content(1, b"x")) * 1000,
}


@pytest.mark.parametrize("frames", CHEAP.values(), ids=CHEAP)
async def test_read_of_cheap_frames_takes_many_turns(
    autojump_clock: MockClock, house: House, monkeypatch: pytest.MonkeyPatch, frames: bytes
) -> None:
    client = await house.connect()
    await client.declare()
    counted = FramesPerStep(monkeypatch)
    await client.stream.send_all(frames)
    assert (await client.call(commands.Channel.Open(), 2)).name == "Channel.OpenOk"
    assert counted.all >= 300
    assert counted.most <= FRAMES_A_TURN


@pytest.mark.slow
async def test_messages_to_many_queues_take_more_of_a_turn(
    autojump_clock: MockClock, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await house.connect()
    for number in range(200):
        await client.declare(f"q{number}")
        await client.call(commands.Queue.Bind(queue=f"q{number}", exchange="amq.fanout"))
    counted = FramesPerStep(monkeypatch)
    await client.publish("", *([b"x"] * 50), exchange="amq.fanout")
    assert await client.count("q0") == 50
    assert counted.most <= FRAMES_A_TURN * LOOKS_A_FRAME // 400 + 1


async def test_other_connections_are_served_between_the_turns_of_a_flood(
    autojump_clock: MockClock, house: House
) -> None:
    flood, other = await house.connect(), await house.connect()
    flow = commands.Channel.Flow(True)
    await flood.stream.send_all(words(flow) * 5000 + words(commands.Channel.Open(), 9))
    answered = 0

    async def hear_flood() -> None:
        nonlocal answered
        while (await flood.hear()).name != "Channel.OpenOk":
            answered += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear_flood)
        await other.declare("other")
        await other.publish("other", b"x")
        assert await other.get("other") is not None
        assert answered < 4000


async def heard(client: Client) -> list[str]:
    names = []
    while (found := await client.hear()) is not None:
        names.append(found.name)
    return names


async def test_heartbeat_before_the_login_ends_the_connection(autojump_clock: MockClock, house: House) -> None:
    client = house.dial()
    begin = trio.current_time()
    await client.stream.send_all(PROTOCOL_HEADER + HEARTBEAT)
    assert await heard(client) == ["Connection.Start"]
    assert trio.current_time() - begin < 1


async def test_heartbeat_before_tuning_is_an_unexpected_frame(autojump_clock: MockClock, house: House) -> None:
    client = house.dial()
    await client.stream.send_all(PROTOCOL_HEADER)
    assert (await client.hear()).name == "Connection.Start"
    await client.say(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), channel=0)
    assert (await client.hear()).name == "Connection.Tune"
    await client.stream.send_all(HEARTBEAT)
    closed = await client.hear()
    assert (closed.name, closed.reply_code) == ("Connection.Close", 505)


async def test_heartbeats_are_limited_in_a_minute(autojump_clock: MockClock, house: House) -> None:
    client = await house.connect()
    for _ in range(3):
        await client.stream.send_all(HEARTBEAT * MOST_HEARTBEATS)
        await client.open_channel(2)
        await client.call(commands.Channel.Close(200, "", 0, 0), 2)
        await trio.sleep(HEARTBEATS_SECONDS)
    await client.stream.send_all(HEARTBEAT * (MOST_HEARTBEATS + 1))
    closed = await client.hear()
    assert (closed.name, closed.reply_code) == ("Connection.Close", 506)


async def test_frames_behind_a_refused_one_take_many_turns(
    autojump_clock: MockClock, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await house.connect()
    counted = FramesPerStep(monkeypatch)
    await client.stream.send_all(HEARTBEAT * (10 * MOST_HEARTBEATS) + words(commands.Connection.CloseOk(), 0))
    assert await heard(client) == ["Connection.Close"]
    assert counted.all == 10 * MOST_HEARTBEATS + 1
    assert counted.most <= FRAMES_A_TURN


async def test_connections_without_exclusive_queues_do_not_wait_for_each_other_to_end(
    autojump_clock: MockClock, house: House
) -> None:
    clients = [await house.connect() for _ in range(200)]
    passes = turns.of_run()
    begin = passes.passes
    for client in clients:
        client.stream.send_stream.close()
    while house.door.connections:
        await trio.lowlevel.checkpoint()
    assert passes.passes - begin < 100
