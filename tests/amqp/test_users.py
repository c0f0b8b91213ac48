"""Who is let in, and what they may do, through the whole door."""

from __future__ import annotations

import base64
import ssl
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme
from pamqp import commands
from trio.testing import MockClock

from mq.access import UserDirectory
from mq.access.certificates import Certificates, TLSFiles
from mq.access.hashes import PasswordHash, token_hash
from mq.amqp.server.listener import serve as serve_amqp
from mq.amqp.wire.frames import PROTOCOL_HEADER
from mq.doors.logins import Logins
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from tests.access.files import CHEAP, OTHER_TOKEN, PASSWORD, TOKEN, write_users
from tests.amqp.dialling import Client, House, open_house
from tests.amqp.talking import CAPABILITIES
from tests.web.talking import ask

GUESTS = "mq_" + "7" * 43
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


async def answer_to(house: House, name: str, secret: str, address: str = "") -> str:
    client = house.dial(address)
    await client.stream.send_all(PROTOCOL_HEADER)
    await client.hear()
    start = commands.Connection.StartOk({"capabilities": CAPABILITIES}, "PLAIN", f"\0{name}\0{secret}")
    await client.say(start, channel=0)
    found = await client.hear()
    return "let in" if found.name == "Connection.Tune" else f"{found.reply_code}"


async def test_names_with_their_secrets_are_let_in(tmp_path: Path) -> None:
    access = UserDirectory(write_users(tmp_path / "users", USERS))
    async with open_house(logins=Logins(access)) as house:  # real time: passwords are checked in a thread
        assert await answer_to(house, "alice", TOKEN) == "let in"
        assert await answer_to(house, "alice", PASSWORD) == "let in"
        assert await answer_to(house, "bob", OTHER_TOKEN) == "let in"
        for name, secret in (("alice", "wrong"), ("bob", TOKEN), ("guest", "guest"), ("", "")):
            assert await answer_to(house, name, secret) == "403"


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("127.0.0.1", "let in"),
        ("::1", "let in"),
        ("::ffff:127.0.0.1", "let in"),
        ("uid:1000", "let in"),
        ("192.0.2.1", "403"),
        ("::ffff:192.0.2.1", "403"),
        ("", "403"),
    ],
)
@pytest.mark.parametrize("has_guest", [True, False])
async def test_guest_is_let_in_from_this_machine_alone(
    tmp_path: Path, address: str, answer: str, has_guest: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Real time: passwords are checked in a thread."""
    caplog.set_level("INFO", "mq.audit")
    password = f'password = "{PasswordHash.of("guest", CHEAP)}"\n'
    users = f'{USERS}[users.guest]\n{password if has_guest else ""}tokens = ["{token_hash(GUESTS)}"]\npublish = ["*"]\n'
    logins = Logins(UserDirectory(write_users(tmp_path / "users", users)))
    async with open_house(logins=logins) as house:
        assert await answer_to(house, "guest", "guest", address) == (answer if has_guest else "403")
        assert await answer_to(house, "guest", GUESTS, address) == "let in"
        assert await answer_to(house, "alice", TOKEN, address) == "let in"
        reply = await ask(
            Authorizer(Endpoints(house.broker, 1024), logins),
            "POST",
            "/q",
            headers={"authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"},
            address=address,
        )
    is_foreign = answer == "403"
    assert ("the user guest can only log in from the machine that mq runs on" in caplog.text) == is_foreign
    assert (b"may only log in from the machine" in (reply.body if isinstance(reply.body, bytes) else b"")) == is_foreign


async def test_who_was_wrong_over_one_door_waits_at_the_other(tmp_path: Path) -> None:
    """Real time: passwords are checked in a thread."""
    logins = Logins(UserDirectory(write_users(tmp_path / "users", USERS)))
    async with open_house(logins=logins) as house:
        gate = Authorizer(Endpoints(house.broker, 1024), logins)

        async def ask_web(secret: str, address: str) -> int:
            given = base64.b64encode(f"alice:{secret}".encode()).decode()
            return (await ask(gate, "GET", "/q", headers={"authorization": f"Basic {given}"}, address=address)).status

        assert await ask_web("wrong", "192.0.2.1") == 401
        assert await answer_to(house, "alice", "another", "192.0.2.1") == "320"
        assert await answer_to(house, "alice", "another", "192.0.2.2") == "403"
        assert await ask_web("a third", "192.0.2.2") == 503
        assert await ask_web(PASSWORD, "192.0.2.3") == 404
        assert await answer_to(house, "alice", PASSWORD, "192.0.2.1") == "let in"  # it was right a moment ago


async def test_an_expired_token_is_refused_with_a_word(autojump_clock: MockClock, tmp_path: Path) -> None:
    users = USERS.replace('"TOKEN"', '"TOKEN until 2013-09-21T00:00:00Z"')
    async with open_house(logins=Logins(UserDirectory(write_users(tmp_path / "users", users)))) as house:
        assert await answer_to(house, "alice", TOKEN) == "403"
        assert await answer_to(house, "bob", OTHER_TOKEN) == "let in"


async def test_rights_are_those_of_the_queues(autojump_clock: MockClock, tmp_path: Path) -> None:
    access = UserDirectory(write_users(tmp_path / "users", USERS))
    async with open_house(logins=Logins(access)) as house:
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
    access = UserDirectory(write_users(tmp_path / "users", USERS))
    async with open_house(logins=Logins(access)) as house:
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
    access = UserDirectory(write_users(tmp_path / "users", USERS))
    async with open_house(logins=Logins(access)) as house:
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


@pytest.mark.parametrize(
    ("given", "answer"), [("shop", "let in"), ("stranger", "403"), ("alice", "403"), (None, "the end")]
)
@pytest.mark.parametrize("has_users", [True, False])
async def test_tls_says_who_it_is(
    nursery: trio.Nursery, tmp_path: Path, given: str | None, answer: str, has_users: bool
) -> None:
    """Real time: sockets. Whom a client says it is does not count; the name of a user is no certificate's."""
    ca = trustme.CA()
    server, theirs = ca.issue_cert("127.0.0.1"), ca.issue_cert("x@y", common_name=given)
    files = TLSFiles(*(str(tmp_path / name) for name in ("cert.pem", "key.pem", "ca.pem")))
    server.private_key_pem.write_to_path(files.key)
    server.cert_chain_pems[0].write_to_path(files.certificate)
    ca.cert_pem.write_to_path(str(files.client_ca))
    users = USERS + '[users.carl]\ncertificate = "shop"\npublish = ["*"]\n'
    logins = Logins(UserDirectory(write_users(tmp_path / "users", users))) if has_users else None
    context = ssl.create_default_context(cafile=files.client_ca)
    theirs.configure_cert(context)
    async with open_house(logins=logins) as house:
        serve = partial(serve_amqp, house.door, "127.0.0.1", 0, stop=trio.sleep_forever, version="0")
        urls = await nursery.start(partial(serve, certificates=Certificates(files, ())))
        port = int(urls[0].rpartition(":")[2])
        async with await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context) as stream:
            client = Client(stream)
            await stream.send_all(PROTOCOL_HEADER)
            start = await client.hear()
            assert ("EXTERNAL" in start.mechanisms.split()) == (given is not None)
            assert {"PLAIN", "AMQPLAIN"} <= set(start.mechanisms.split())
            await client.say(commands.Connection.StartOk({"capabilities": CAPABILITIES}, "EXTERNAL", "bob"), channel=0)
            found = await client.hear()
            name = "the end" if found is None else found.name
            expected = "let in" if given and not has_users else answer
            assert {"Connection.Tune": "let in", "the end": "the end"}.get(name, "403") == expected
        nursery.cancel_scope.cancel()
