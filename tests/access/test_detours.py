"""Who may configure every queue, and use one of their own, tries to read those of others by whatever leads there."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from pamqp import base, body, commands
from trio.testing import MockClock

from mq.access import UserDirectory
from mq.doors.logins import Logins
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from tests.access.files import OTHER_TOKEN, TOKEN, write_users
from tests.amqp.dialling import Client, House, open_house
from tests.web.talking import ask

USERS: Final = """
[users.maker]
tokens = ["TOKEN"]
configure = ["*"]
publish = ["mine*"]
consume = ["mine*"]
[users.owner]
tokens = ["OTHER_TOKEN"]
administer = ["*"]
"""
BODY: Final = b"what nobody else may see"
SEEN: Final = (BODY, base64.b64encode(BODY)[:24], BODY.hex().encode())
OWN: Final = ("mine", "mine.too")
LONG_SECONDS: Final = 100.0
Way = tuple[str, ...] | tuple[base.Frame, ...]

DEAD_LETTERS: Final = '"dead_letter_queue": "mine"'
OVER_HTTP: Final[tuple[tuple[str, ...], ...]] = (
    ("GET /secret",),
    ("GET /secret/messages",),
    ("GET /secret/messages?max=10&visibility=1",),
    ("GET /%73ecret/messages",),
    ("GET //secret/messages",),
    ("GET http://mq/secret/messages",),
    ("GET /mine/../secret/messages",),
    ("GET /secret/messages/ID",),
    ("HEAD /secret/messages/ID",),
    ('PATCH /secret/messages/ID {"visibility": 0}',),
    ("DELETE /secret/messages/ID",),
    ("GET /secret/peek",),
    ("GET /secret/peek?state=leased",),
    ("GET /secret/browse",),
    ("GET /secret/ranges?parts=2",),
    ("POST /secret/take",),
    (f"POST /secret/contains {BODY.decode()}",),
    ('PATCH /secret {"unique": true}', f"POST /secret/contains {BODY.decode()}"),
    (f"POST /secret/messages {BODY.decode()}",),
    ("POST /secret/messages/batch {}",),
    ('POST /secret/messages/delete {"id": "ID"}',),
    ("GET /secret/consumers",),
    ("POST /secret/consumers/c", "PUT /secret/consumers/c/claim?batch=1&epoch=1"),
    ("GET /secret/consumers/c/claim?batch=1&epoch=1",),
    ("POST /secret/consumers/c/claim?batch=1&epoch=1&expected=1",),
    ("DELETE /secret/consumers/c/claim?batch=1&epoch=1",),
    ("DELETE /secret/consumers/c",),
    ('POST /secret/redrive {"to": "mine"}',),
    ('POST /secret/redrive {"to": "mine", "ids": ["ID"]}',),
    ('POST /secret/redrive {"to": null, "to": "mine"}',),
    ("POST /secret/redrive",),
    ('POST /dead/redrive {"to": "mine"}',),
    ("POST /dead/redrive",),
    (f"PATCH /secret {{{DEAD_LETTERS}}}",),
    (f'PATCH /secret {{{DEAD_LETTERS}, "max_messages": 0, "overflow": "drop-head"}}',),
    (f'PATCH /secret {{{DEAD_LETTERS}, "max_bytes": 0, "overflow": "drop-head"}}',),
    (f'PATCH /secret {{{DEAD_LETTERS}, "ttl": 0.001}}',),
    (f'PATCH /secret {{{DEAD_LETTERS}, "max_receives": 1, "visibility": 0.001}}',),
    (f'PATCH /dead {{{DEAD_LETTERS}, "max_messages": 0, "overflow": "drop-head"}}',),
    ("DELETE /secret", "PUT /secret", f'PATCH /secret {{{DEAD_LETTERS}, "ttl": 0.001}}'),
    ("DELETE /dead", "PUT /dead", f'PATCH /dead {{{DEAD_LETTERS}, "ttl": 0.001}}', 'PATCH /secret {"ttl": 0.001}'),
    ("DELETE /secret", "PUT /secret?store=memory", "GET /secret/messages?wait=1"),
    ('PATCH /mine {"dead_letter_queue": "secret"}', 'POST /mine/redrive {"to": "secret"}'),
    ("GET /-/queues", "GET /-/stats", "GET /-/cluster", "GET /-/metrics", "GET /-/journal"),
    ("GET /-/live", "GET /-/ready", "GET /-/openapi.json", "GET /-/"),
)
"""Each a way: requests, one after the other, with their bodies."""


def declare(queue: str, **arguments: Any) -> base.Frame:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return commands.Queue.Declare(queue=queue, durable=True, arguments=given)


def exchange(name: str, alternate: str | None = None, kind: str = "fanout") -> base.Frame:
    arguments = {} if alternate is None else {"alternate-exchange": alternate}
    return commands.Exchange.Declare(exchange=name, exchange_type=kind, durable=True, arguments=arguments)


MINE: Final = (exchange("mine.x"), commands.Queue.Bind(queue="mine", exchange="mine.x"))
"""What leads to a queue of one's own."""
BY_KEY: Final = {"dead_letter_exchange": "", "dead_letter_routing_key": "mine"}
BY_EXCHANGE: Final = {"dead_letter_exchange": "mine.x"}
OVER_AMQP: Final[tuple[tuple[base.Frame, ...], ...]] = (
    (commands.Basic.Get(queue="secret"),),
    (commands.Basic.Get(queue="secret", no_ack=True),),
    (commands.Queue.Declare(queue="secret", passive=True), commands.Basic.Get(queue="")),
    (commands.Queue.Declare(queue="secret", passive=True), commands.Basic.Consume(queue="")),
    (commands.Basic.Consume(queue="secret"),),
    (commands.Basic.Consume(queue="secret", no_ack=True, exclusive=True),),
    (commands.Basic.Qos(prefetch_count=10), commands.Basic.Consume(queue="dead")),
    (commands.Basic.Recover(requeue=True), commands.Basic.Get(queue="secret")),
    (commands.Tx.Select(), commands.Basic.Get(queue="secret")),
    (commands.Queue.Bind(queue="mine", exchange="orders", routing_key="k"),),
    (commands.Queue.Bind(queue="mine", exchange="orders", routing_key="lost"),),
    (commands.Queue.Bind(queue="mine", exchange="amq.direct", routing_key="k"),),
    (commands.Queue.Bind(queue="mine", exchange="", routing_key="secret"),),
    (*MINE, commands.Exchange.Bind(destination="mine.x", source="orders", routing_key="k")),
    (*MINE, commands.Exchange.Bind(destination="mine.x", source="amq.direct", routing_key="k")),
    (*MINE, commands.Exchange.Delete(exchange="orders"), exchange("orders", "mine.x", "direct")),
    (*MINE, commands.Exchange.Delete(exchange="orders"), exchange("orders", kind="fanout"),
     commands.Queue.Bind(queue="mine", exchange="orders")),
    (*MINE, exchange("orders", "mine.x", "direct")),
    (*MINE, declare("secret", **BY_EXCHANGE)),
    (commands.Queue.Delete(queue="secret"), declare("secret", **BY_KEY, max_length=0)),
    (commands.Queue.Delete(queue="secret"), declare("secret", **BY_KEY, message_ttl=0)),
    (commands.Queue.Delete(queue="secret"), declare("secret", **BY_KEY, max_length=0, overflow="reject-publish-dlx")),
    (*MINE, commands.Queue.Delete(queue="secret"), declare("secret", **BY_EXCHANGE, max_length_bytes=0)),
    (*MINE, commands.Queue.Delete(queue="secret"), declare("secret", **BY_EXCHANGE, message_ttl=0)),
    (*MINE, commands.Queue.Delete(queue="dead"), declare("dead", **BY_EXCHANGE, message_ttl=0)),
    (commands.Queue.Delete(queue="secret"), declare("secret", expires=1000)),
    (commands.Queue.Delete(queue="secret"), commands.Queue.Declare(queue="secret", exclusive=True),
     commands.Basic.Consume(queue="secret")),
    (declare("mine.too", dead_letter_exchange="", dead_letter_routing_key="secret"),),
    (commands.Queue.Purge(queue="secret"),),
)  # fmt: skip
"""The same over AMQP: each method on a channel of its own, as a refusal closes one."""


WAYS_OF_A_READER: Final[tuple[Way, ...]] = (
    ('POST /secret/redrive {"to": "mine"}',),
    (f'PATCH /secret {{{DEAD_LETTERS}, "max_messages": 0, "overflow": "drop-head"}}',),
    (commands.Queue.Delete(queue="secret"), declare("secret", **BY_KEY, message_ttl=0)),
    (commands.Queue.Bind(queue="mine", exchange="orders", routing_key="k"),),
    (*MINE, commands.Exchange.Delete(exchange="orders"), exchange("orders", "mine.x", "direct")),
)


@pytest.fixture
def access(tmp_path: Path) -> UserDirectory:
    return UserDirectory(write_users(tmp_path / "users", USERS))


class Detour:
    """The broker with its doors, what the owner does there, and all that the other one got to see."""

    def __init__(self, house: House, gate: Authorizer, client: Client) -> None:
        self.gate = gate
        self.heard: list[bytes] = []
        self._house = house
        self._client = client
        self._channel = 1
        self._ids: list[str] = []

    async def prepare(self) -> None:
        """Messages are in a queue, and are on the way to it."""
        owner = await self._house.connect(name="owner", secret=OTHER_TOKEN)
        for queue in ("secret", "dead", *OWN):
            await owner.declare(queue, durable=True)
        await owner.call(exchange("orders", kind="direct"))
        await owner.call(commands.Queue.Bind(queue="secret", exchange="orders", routing_key="k"))
        reply = await self._as_owner("POST", "/secret/messages", BODY)
        self._ids.append(dict(reply.headers)["x-message-id"])
        await self._as_owner("POST", "/dead/messages", BODY)
        self._owner = owner

    async def use(self) -> None:
        """The owner goes on, and time passes."""
        await trio.sleep(1)
        await self._as_owner("POST", "/secret/messages", BODY)
        await self._owner.publish("secret", BODY)
        for where in ("orders", "amq.direct"):
            await self._owner.publish("k", BODY, exchange=where)
        await self._as_owner("GET", "/secret/messages?visibility=1", b"")
        await trio.sleep(LONG_SECONDS)

    async def ask(self, asked: str) -> int:
        """A request of the other one's."""
        method, path, *given = asked.replace("ID", self._ids[0]).split(" ", 2)
        sent = (given[0].encode(),) if given else ()
        headers = {"authorization": f"Bearer {TOKEN}"}
        reply = await ask(self.gate, method, path, *sent, headers=headers, content_length=sum(map(len, sent)))
        self.heard += [reply.body] if isinstance(reply.body, bytes) else [part async for part in _parts(reply.body)]
        self.heard.append(repr(reply.headers).encode())
        return reply.status

    async def call(self, method: base.Frame) -> str:
        """A method of the other one's."""
        self._channel += 1
        await self._client.open_channel(self._channel)
        answer = await self._client.call(method, self._channel)
        return str(answer.name)

    async def listen(self) -> None:
        """Whatever came over AMQP, and all that is in the queues of one's own."""
        for queue in OWN:
            for _ in range(10):
                await self.call(commands.Basic.Get(queue=queue, no_ack=True))
            await self.ask(f"GET /{queue}/messages?max=10")
        while not await self._client.is_silent():
            found: Any = (await self._client.hear_of())[1]
            assert found is not None, "the connection has ended"
            self.heard.append(found.value if isinstance(found, body.ContentBody) else repr(found).encode())

    async def _as_owner(self, method: str, path: str, data: bytes) -> Any:
        return await ask(self.gate, method, path, data, headers={"authorization": f"Bearer {OTHER_TOKEN}"})

    def has_seen_it(self) -> bool:
        """Whether a body was among it."""
        everything = b"\n".join(self.heard)
        return any(seen in everything for seen in SEEN)


async def _parts(chunks: AsyncIterable[bytes]) -> AsyncIterable[bytes]:
    async for part in chunks:
        yield part


async def leads_there(access: UserDirectory, way: Way) -> bool:
    """Whether it shows a body."""
    logins = Logins(access)
    async with open_house(logins=logins) as house:
        client = await house.connect(name="maker", secret=TOKEN)
        detour = Detour(house, Authorizer(Endpoints(house.broker, 1 << 20), logins), client)
        await detour.prepare()
        for step in way:
            await (detour.ask(step) if isinstance(step, str) else detour.call(step))
        await detour.use()
        await detour.listen()
        return detour.has_seen_it()


@pytest.mark.slow
@pytest.mark.parametrize("way", OVER_HTTP, ids=", ".join)
async def test_over_http_nothing_leads_there(
    autojump_clock: MockClock, access: UserDirectory, way: tuple[str, ...]
) -> None:
    assert not await leads_there(access, way)


@pytest.mark.slow
@pytest.mark.parametrize("way", OVER_AMQP, ids=lambda way: ", ".join(method.name for method in way))
async def test_over_amqp_nothing_leads_there(
    autojump_clock: MockClock, access: UserDirectory, way: tuple[base.Frame, ...]
) -> None:
    assert not await leads_there(access, way)


@pytest.mark.parametrize("right", ["consume", "administer"])
async def test_with_the_right_to_read_it_is_seen(autojump_clock: MockClock, tmp_path: Path, right: str) -> None:
    """Or else the tests above would see nothing in any case."""
    users = USERS.replace('consume = ["mine*"]', f'{right} = ["mine*", "secret", "orders"]')
    access = UserDirectory(write_users(tmp_path / "users", users.replace('publish = ["mine*"]', 'publish = ["*"]')))
    for way in WAYS_OF_A_READER:
        assert await leads_there(access, way), way
