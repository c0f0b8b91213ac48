"""A queue that an operator has paused, as clients of AMQP see it."""

from __future__ import annotations

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from tests.amqp.dialling import Client, House


async def test_a_publish_is_nacked_and_the_next_one_is_stored(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare()
    await client.call(commands.Confirm.Select())
    await house.broker.change_settings("q", {"publish_paused": True})
    await client.publish("q", b"x")
    assert (await client.hear()).name == "Basic.Nack"
    await house.broker.change_settings("q", {"publish_paused": False})
    await client.publish("q", b"x")
    assert (await client.hear()).name == "Basic.Ack"


async def test_without_confirms_the_channel_is_closed_with_the_reason(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare()
    await house.broker.change_settings("q", {"publish_paused": True})
    await client.publish("q", b"x")
    told = await client.hear()
    assert (told.name, told.reply_code) == ("Channel.Close", 406)
    assert "paused" in told.reply_text
    assert "mq resume q" in told.reply_text


async def test_a_consumer_gets_nothing_until_it_is_resumed(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare()
    await house.broker.change_settings("q", {"paused": True})
    await client.consume()
    await client.publish("q", b"x")
    assert await client.is_silent(30)
    await house.broker.change_settings("q", {"paused": False})
    with trio.fail_after(1):
        assert (await client.delivery())[2] == b"x"


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_dead_letter_reaches_a_paused_queue_through_its_exchange(
    autojump_clock: MockClock, house: House, client: Client, is_paused: bool
) -> None:
    await client.declare("dead")
    await client.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    await house.broker.change_settings("dead", {"publish_paused": is_paused})
    await client.publish("q", b"x", expiration="1000")
    await trio.sleep(10)
    assert (await house.broker.status("dead")).ready == 1
