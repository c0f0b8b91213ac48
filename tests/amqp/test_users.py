"""Who is let in, and what they may do, through the whole door."""

from __future__ import annotations

from pathlib import Path

import pytest
from pamqp import commands
from trio.testing import MockClock

from mq.access import Access
from mq.amqp.frames import PROTOCOL_HEADER
from tests.access.files import OTHER_TOKEN, PASSWORD, TOKEN, write_users
from tests.amqp.dialling import House, open_house
from tests.amqp.talking import CAPABILITIES

USERS = """
[users.alice]
password = "PASSWORD"
tokens = ["TOKEN"]
publish = ["q", "amq.direct"]
consume = ["q"]
configure = ["q"]
[users.bob]
tokens = ["OTHER_TOKEN"]
publish = ["*"]
"""


async def answer_to(house: House, name: str, secret: str) -> str:
    client = house.dial()
    await client.stream.send_all(PROTOCOL_HEADER)
    await client.hear()
    start = commands.Connection.StartOk({"capabilities": CAPABILITIES}, "PLAIN", f"\0{name}\0{secret}")
    await client.say(start, channel=0)
    found = await client.hear()
    return "let in" if found.name == "Connection.Tune" else f"{found.reply_code}"


async def test_names_with_their_secrets_are_let_in(tmp_path: Path) -> None:
    access = Access(write_users(tmp_path / "users", USERS))
    async with open_house(access=access) as house:  # real time: passwords are checked in a thread
        assert await answer_to(house, "alice", TOKEN) == "let in"
        assert await answer_to(house, "alice", PASSWORD) == "let in"
        assert await answer_to(house, "bob", OTHER_TOKEN) == "let in"
        for name, secret in (("alice", "wrong"), ("bob", TOKEN), ("guest", "guest"), ("", "")):
            assert await answer_to(house, name, secret) == "403"


async def test_rights_are_those_of_the_queues(autojump_clock: MockClock, tmp_path: Path) -> None:
    access = Access(write_users(tmp_path / "users", USERS))
    async with open_house(access=access) as house:
        alice = await house.connect(name="alice", secret=TOKEN)
        await alice.declare("q")
        bob = await house.connect(name="bob", secret=OTHER_TOKEN)
        await bob.publish("q", b"x")
        for number, method in enumerate(
            (
                commands.Basic.Get(queue="q"),
                commands.Basic.Consume(queue="q"),
                commands.Queue.Declare(queue="q2"),
                commands.Queue.Purge(queue="q"),
                commands.Queue.Delete(queue="q"),
                commands.Exchange.Declare(exchange="e"),
            ),
            2,
        ):
            await bob.open_channel(number)
            refused = await bob.call(method, number)
            assert (refused.name, refused.reply_code) == ("Channel.Close", 403)
        assert await alice.bodies("q") == [b"x"]


async def test_what_was_changed_counts_from_the_next_command_on(autojump_clock: MockClock, tmp_path: Path) -> None:
    access = Access(write_users(tmp_path / "users", USERS))
    async with open_house(access=access) as house:
        alice = await house.connect(name="alice", secret=TOKEN)
        bob = await house.connect(name="bob", secret=OTHER_TOKEN)
        await alice.declare("q")
        await alice.publish("q", b"x")
        write_users(tmp_path / "users", USERS.partition("[users.bob]")[0].replace('consume = ["q"]', "consume = []"))
        access.reload()
        refused = await alice.call(commands.Basic.Get(queue="q"))
        assert (refused.name, refused.reply_code) == ("Channel.Close", 403)
        gone = await bob.call(commands.Basic.Get(queue="q"))
        assert (gone.name, gone.reply_code) == ("Connection.Close", 320)
        assert "bob" in gone.reply_text


@pytest.mark.parametrize(("secret", "answer"), [(TOKEN, "Connection.UpdateSecretOk"), ("wrong", "Connection.Close")])
async def test_a_secret_is_renewed(tmp_path: Path, secret: str, answer: str) -> None:
    access = Access(write_users(tmp_path / "users", USERS))
    async with open_house(access=access) as house:
        alice = await house.connect(name="alice", secret=TOKEN)
        await alice.say(commands.Connection.UpdateSecret(secret, "it is time"), channel=0)
        assert (await alice.hear()).name == answer


async def test_an_unknown_vhost_is_refused(autojump_clock: MockClock, house: House) -> None:
    client = house.dial()
    with pytest.raises(AssertionError, match=r"Connection\.Close"):
        await client.open("nowhere")
    blue = await house.connect(vhost="blue")
    assert await blue.declare("q", durable=True) == "q"
    assert [status.name for status in await house.broker.queues()] == ["_@blue@@q"]
