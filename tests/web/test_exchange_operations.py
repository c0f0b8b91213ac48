"""Publishing to exchanges over HTTP: routed, stored and refused as over AMQP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pamqp import commands
from trio.testing import MockClock

from mq.access import Right, User
from mq.amqp.server.exchanges import TopologyPublisher
from mq.doors.exchanges import Exchanges
from mq.web.endpoints import Endpoints
from mq.web.exchange import Request
from mq.web.request_body import IN_MEMORY_BYTES
from tests.amqp.dialling import Client, House, open_house

Exchange, Queue = commands.Exchange, commands.Queue


class Web:
    """An HTTP door beside an AMQP door with a topic exchange, the queues ``a`` and ``b``, and a client."""

    def __init__(self, house: House, client: Client) -> None:
        exchanges = Exchanges()
        exchanges.publisher = TopologyPublisher(house.door.topology, house.door.copies, house.door.dead_letters)
        self.client = client
        self._endpoints = Endpoints(house.broker, 1 << 20, exchanges=exchanges)

    async def publish(
        self, where: str, body: bytes = b"x", user: User | None = None, **headers: str
    ) -> tuple[int, Any]:
        """The status, and the JSON, of a publish to ``NAME/messages?QUERY``."""
        path, _, query = f"/-/exchanges/{where}".partition("?")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request("POST", path.encode(), query.encode(), named, body, len(body), user=user)
        reply = await self._endpoints.handle(request)
        assert isinstance(reply.body, bytes)
        lines = [json.loads(line) for line in reply.body.splitlines()]
        return reply.status, lines if "batch" in path else lines[0]


@pytest.fixture
async def web(autojump_clock: MockClock) -> AsyncIterator[Web]:
    async with open_house() as house:
        client = await house.connect()
        await client.call(Exchange.Declare(exchange="news", exchange_type="topic", durable=True))
        for name in "ab":
            await client.declare(name, durable=True)
            await client.call(Queue.Bind(queue=name, exchange="news", routing_key=f"{name}.#"))
        await client.call(Queue.Bind(queue="b", exchange="news", routing_key="*.both"))
        yield Web(house, client)


async def test_a_message_goes_where_its_key_leads(web: Web) -> None:
    said = await web.publish(
        "news/messages?routing_key=a.both",
        bytes(IN_MEMORY_BYTES + 1),
        content_type="text/plain",
        x_message_attribute_colour="red",
        x_message_priority="3",
        x_message_ttl="60",
    )
    assert said == (201, {"routed": True})
    assert await web.publish("news/messages?routing_key=none") == (200, {"routed": False})
    for name in "ab":
        got = await web.client.get(name)
        assert got is not None
        method, properties, body = got
        assert (method.exchange, method.routing_key, len(body)) == ("news", "a.both", IN_MEMORY_BYTES + 1)
        assert (properties.content_type, properties.headers) == ("text/plain", {"colour": "red"})
        assert (properties.priority, properties.expiration, properties.delivery_mode) == (3, "60000", 2)
        assert await web.client.get(name) is None


async def test_attributes_are_headers_by_which_it_is_routed(web: Web) -> None:
    await web.client.call(Queue.Bind(queue="a", exchange="amq.match", arguments={"colour": "red"}))
    assert await web.publish("amq.match/messages", x_message_attribute_colour="red") == (201, {"routed": True})
    assert await web.publish("amq.match/messages", x_message_attribute_colour="blue") == (200, {"routed": False})


async def test_a_key_stores_it_once_in_each_queue(web: Web) -> None:
    for _ in range(2):
        assert (await web.publish("news/messages?routing_key=a.both", idempotency_key="k"))[0] == 201
    assert (await web.publish("news/messages?routing_key=a", idempotency_key="k"))[0] == 201  # another one
    assert [await web.client.count(name) for name in "ab"] == [2, 1]


async def test_a_batch(web: Web) -> None:
    lines = [{"body": "1"}, {"nonsense": 1}, {"body": "2"}]
    body = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    status, told = await web.publish(
        "news/messages/batch?routing_key=a.x",
        body,
        content_type="application/jsonl",
        traceparent=f"00-{1:032x}-{1:016x}-01",
    )
    assert (status, [line["status"] for line in told]) == (200, [201, 400, 201])
    assert [line.get("routed") for line in told] == [True, None, True]
    got = await web.client.get("a")
    assert got is not None
    assert "traceparent" in got[1].headers
    assert (got[2], await web.client.bodies("a")) == (b"1", [b"2"])


async def test_what_one_queue_refuses_and_another_has_is_unsure(web: Web) -> None:
    await web.client.declare("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    await web.client.call(Queue.Bind(queue="full", exchange="news", routing_key="#.full"))
    status, told = await web.publish("news/messages?routing_key=full")
    assert (status, "outcome" in told) == (429, False)
    status, told = await web.publish("news/messages?routing_key=a.full")
    assert (status, told["outcome"]) == (503, "unknown")
    assert await web.client.count("a") == 1


async def test_what_a_full_queue_refuses_dies_where_it_says_so(web: Web) -> None:
    arguments = {"x-max-length": 0, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": ""}
    await web.client.declare("full", {**arguments, "x-dead-letter-routing-key": "b"})
    await web.client.call(Queue.Bind(queue="full", exchange="news", routing_key="full"))
    assert (await web.publish("news/messages?routing_key=full"))[0] == 429
    assert await web.client.bodies("b") == [b"x"]


async def test_what_is_not_there_or_not_for_clients(web: Web) -> None:
    await web.client.call(Exchange.Declare(exchange="inner", exchange_type="fanout", internal=True))
    assert (await web.publish("inner/messages"))[0] == 403
    for where in (
        "nowhere/messages",
        "news/messages?vhost=nowhere",
        "news/messages?vhost=blue",
        "%ff/messages",
        "/messages",
    ):
        assert (await web.publish(where))[0] == 404, where
    assert (await web.publish(f"news/messages?routing_key={'k' * 256}"))[0] == 400
    assert (await web.publish("news/messages", bytes(1 << 21)))[0] == 413


async def test_it_takes_the_right_to_publish_there(web: Web) -> None:
    user = User("anna", {Right.PUBLISH: ("news", "nowhere", "_@blue@@amq.fanout"), Right.CONSUME: ("*",)})
    assert (await web.publish("news/messages?routing_key=a", user=user))[0] == 201
    assert (await web.publish("amq.fanout/messages?vhost=blue", user=user))[0] == 200
    assert (await web.publish("nowhere/messages", user=user))[0] == 404
    for where in ("amq.fanout/messages", "elsewhere/messages", "elsewhere/messages/batch"):
        assert (await web.publish(where, user=user))[0] == 403


async def test_without_amqp_there_are_none(autojump_clock: MockClock) -> None:
    async with open_house() as house:
        request = Request("POST", b"/-/exchanges/amq.fanout/messages", b"", {}, b"x", 1)
        assert (await Endpoints(house.broker, 1024).handle(request)).status == 404
