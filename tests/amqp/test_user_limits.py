"""Limits of users over AMQP: a connection too many is closed, a queue too many is refused, and publishes wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from pamqp import commands

from mq.access import UserDirectory
from mq.amqp.wire.frames import PROTOCOL_HEADER
from mq.doors.logins import Logins
from tests.access.files import OTHER_TOKEN, TOKEN, write_users
from tests.amqp.dialling import House, open_house
from tests.amqp.talking import CAPABILITIES

USERS = """
[users.shop]
tokens = ["TOKEN"]
administer = ["*"]
{}
[users.ben]
tokens = ["OTHER_TOKEN"]
administer = ["*"]
"""
SHOP = {"name": "shop", "secret": TOKEN}
BEN = {"name": "ben", "secret": OTHER_TOKEN}


@asynccontextmanager
async def limited(path: Path, limits: str) -> AsyncIterator[tuple[House, UserDirectory]]:
    access = UserDirectory(write_users(path, USERS.format(limits)))
    async with open_house(logins=Logins(access)) as house:
        yield house, access


async def refusal_of_open(house: House) -> tuple[int, str] | None:
    """How the connection of one more client is refused; None if it is not."""
    client = house.dial()
    await client.stream.send_all(PROTOCOL_HEADER)
    await client.hear()
    start = commands.Connection.StartOk({"capabilities": CAPABILITIES}, "PLAIN", f"\0shop\0{TOKEN}")
    await client.say(start, channel=0)
    await client.hear()
    await client.say(commands.Connection.TuneOk(2047, 131072, 0), channel=0)
    answer = await client.call(commands.Connection.Open("/"), 0)
    return None if answer.name == "Connection.OpenOk" else (answer.reply_code, answer.reply_text)


async def test_connection_too_many_is_closed_with_530(tmp_path: Path, autojump_clock: object) -> None:
    async with limited(tmp_path / "users", "max_connections = 2") as (house, access):
        first = await house.connect(**SHOP)
        await house.connect(**BEN)
        await house.connect(**SHOP)
        for _ in range(2):
            found = await refusal_of_open(house)
            assert found is not None
            assert (found[0], "user shop has reached the maximum of 2 connections" in found[1]) == (530, True)
        await first.close()
        await trio.sleep(1)
        assert await refusal_of_open(house) is None
        write_users(tmp_path / "users", USERS.format("max_connections = 3"))
        access.reload()
        assert await refusal_of_open(house) is None


async def test_queue_too_many_is_refused_with_406(tmp_path: Path, autojump_clock: object) -> None:
    async with limited(tmp_path / "users", "max_queues = 2") as (house, access):
        ben, shop = await house.connect(**BEN), await house.connect(**SHOP)
        await ben.declare("of-ben")
        await shop.declare("q", durable=True)
        await shop.declare("", exclusive=True)
        answer = await shop.call(commands.Queue.Declare(queue="r"))
        assert (answer.name, answer.reply_code) == ("Channel.Close", 406)
        assert "user shop already has 2 queues, the maximum for this user (max_queues)" in answer.reply_text
        await shop.say(commands.Channel.CloseOk())
        await shop.open_channel(1)
        await shop.declare("q", durable=True)  # it is there
        await shop.call(commands.Queue.Delete(queue="q"))
        await shop.declare("r")
        write_users(tmp_path / "users", USERS.format("max_queues = 3"))
        access.reload()
        await shop.declare("s")


async def test_queues_that_came_in_one_read_with_the_login_are_limited(tmp_path: Path, autojump_clock: object) -> None:
    async with limited(tmp_path / "users", "max_queues = 1") as (house, _):
        shop = await house.connect(**SHOP)
        await shop.say(*(commands.Queue.Declare(queue=f"q{number}") for number in range(3)))
        assert (await shop.hear()).name == "Queue.DeclareOk"
        assert (await shop.hear()).name == "Channel.Close"


async def test_fast_publisher_waits_and_all_its_messages_arrive(tmp_path: Path, autojump_clock: object) -> None:
    async with limited(tmp_path / "users", "max_publish_rate = 10") as (house, _):
        shop = await house.connect(heartbeat=5, **SHOP)
        await shop.declare("q")
        begin = trio.current_time()
        for _ in range(100):
            await shop.publish("q", *[b"x"] * 10)
        assert await shop.count("q") == 1000
        assert 70 <= trio.current_time() - begin <= 100  # the last ones came together, and are paid for later
        other = await house.connect(**BEN)
        begin = trio.current_time()
        await other.publish("q", *[b"x"] * 100)
        assert await other.count("q") == 1100
        assert trio.current_time() - begin < 1


async def test_rate_is_one_of_all_connections_of_a_user(tmp_path: Path, autojump_clock: object) -> None:
    async with limited(tmp_path / "users", "max_publish_rate = 10") as (house, access):
        first, second = await house.connect(**SHOP), await house.connect(**SHOP)
        await first.declare("q")
        await first.publish("q", *[b"x"] * 60)
        await trio.sleep(0.1)
        begin = trio.current_time()
        await second.publish("q", b"x")
        assert await second.count("q") == 61
        assert 4 <= trio.current_time() - begin <= 6
        await first.publish("q", *[b"x"] * 1000)
        await trio.sleep(0.1)
        write_users(tmp_path / "users", USERS.format(""))
        access.reload()
        begin = trio.current_time()
        assert await first.count("q") == 1061
        assert trio.current_time() - begin <= 2  # a reload lets it go on


async def test_rate_does_not_slow_a_connection_that_only_consumes(tmp_path: Path, autojump_clock: object) -> None:
    async with limited(tmp_path / "users", "max_publish_rate = 10") as (house, _):
        publisher, consumer = await house.connect(**SHOP), await house.connect(**SHOP)
        await publisher.declare("q")
        await publisher.publish("q", *[b"x"] * 100)
        await trio.sleep(0.1)
        begin = trio.current_time()
        for _ in range(100):
            assert await consumer.get("q", no_ack=True) is not None
        late = await house.connect(**SHOP)
        assert await late.count("q") == 0
        assert trio.current_time() - begin < 1
        await late.publish("q", b"x")
        assert await late.count("q") == 1
        assert trio.current_time() - begin > 5, "a new connection is no way around the limit"


async def test_connection_that_waits_for_its_rate_ends_soon_when_it_is_closed(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with limited(tmp_path / "users", "max_publish_rate = 1") as (house, _):
        shop = await house.connect(**SHOP)
        await shop.declare("q")
        await shop.publish("q", *[b"x"] * 100)
        await trio.sleep(0.1)
        begin = trio.current_time()
        [connection] = [connection for _, connection in house.door.seen.all()]
        connection.close("an operator closed the connection")
        assert (await shop.hear()).name == "Connection.Close"
        await shop.say(commands.Connection.CloseOk(), channel=0)
        assert await shop.hear() is None
        assert trio.current_time() - begin <= 2


async def test_what_a_removed_user_held_goes_back_at_once_though_a_publish_waits_for_the_rate(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with limited(tmp_path / "users", "max_publish_rate = 1") as (house, access):
        first, second = await house.connect(**SHOP), await house.connect(**SHOP)
        await first.declare("q")
        await first.publish("q", *[b"x"] * 20)
        await trio.sleep(1)
        assert await second.get("q") is not None
        await second.publish("q", b"y")  # its first one, which waits
        await trio.sleep(0.1)
        write_users(tmp_path / "users", USERS.replace("users.shop", "users.other").format(""))
        access.reload()
        await trio.sleep(2)
        ben = await house.connect(**BEN)
        assert await ben.count("q") == 21  # what it had published is stored, and what it held is ready
