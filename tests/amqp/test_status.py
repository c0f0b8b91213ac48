"""What operators see of a connection over AMQP, and how it ends for them."""

from __future__ import annotations

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from mq.doors.open_connections import ChannelStatus, ConsumerStatus
from tests.amqp.dialling import Client, House


async def test_its_channels_and_consumers(autojump_clock: MockClock, house: House, client: Client) -> None:
    [(_, connection)] = house.door.seen.all()
    await client.declare()
    await client.open_channel(7)
    await client.call(commands.Basic.Qos(prefetch_count=2), 7)
    await client.consume(channel=7)
    await client.consume(tag="greedy", queue=await client.declare("other"), no_ack=True)
    await trio.sleep(20)
    for _ in range(3):
        await house.broker.publish("q", b"x")
    await house.broker.publish("other", b"x")
    await trio.sleep(10)
    status = connection.status()
    assert (status.protocol, status.state, status.user, status.vhost) == ("amqp", "open", None, "/")
    assert status.channels == (ChannelStatus(1, 1, 0), ChannelStatus(7, 1, 2))
    assert status.open_seconds >= 30
    slow, greedy = connection.consumers()
    times = (slow.delivered_per_second, slow.open_seconds, slow.idle_seconds)
    assert slow == ConsumerStatus("q", "c", 7, 2, True, 2, 2, *times)
    assert slow.delivered_per_second == pytest.approx(2 / slow.open_seconds)
    assert 9 < slow.idle_seconds <= 10
    assert slow.open_seconds >= 30
    assert (greedy.queue, greedy.prefetch, greedy.ack_required) == ("other", 0, False)
    assert (greedy.unacknowledged, greedy.delivered) == (0, 1)


async def test_closing_it_tells_the_client_and_gives_back(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    [(_, connection)] = house.door.seen.all()
    await client.declare()
    await house.broker.publish("q", b"x")
    await client.consume()
    await client.delivery()
    connection.close("an operator closed the connection")
    told = await client.hear()
    assert (told.name, told.reply_code) == ("Connection.Close", 320)
    assert "operator" in told.reply_text
    await client.say(commands.Connection.CloseOk(), channel=0)
    assert await client.hear() is None
    await trio.sleep(1)
    assert house.door.seen.all() == []
    assert (await house.broker.status("q")).ready == 1


async def test_one_that_does_not_answer_goes_all_the_same(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    [(_, connection)] = house.door.seen.all()
    connection.close("an operator closed the connection")
    await trio.sleep(60)
    assert house.door.seen.all() == []
