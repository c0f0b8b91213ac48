"""A cluster by Trio's virtual clock: who is master, and what that is for its queues."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mq.client.amqp.errors import ConsumeEnded
from tests.cluster.nodes import three_nodes

pytestmark = pytest.mark.usefixtures("autojump_clock")


async def test_a_queue_is_the_same_wherever_one_is_connected() -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        assert (await b.http("PUT", "/q?store=cluster")).status == 201
        assert (await c.http("PUT", "/q?store=cluster")).status == 200
        assert (await c.http("POST", "/q/messages", b"one")).status == 201
        reply = await a.http("GET", "/q/messages")
        assert (reply.status, reply.body) == (200, b"one")
        id = dict(reply.headers)["x-message-id"]
        assert (await b.http("DELETE", f"/q/messages/{id}")).status == 202
        assert (await c.http("GET", "/q/messages")).status == 204
        assert (await c.http("DELETE", "/q")).status == 200
        assert (await a.http("GET", "/q")).status == 404


async def test_over_amqp_too() -> None:
    async with three_nodes() as cluster:
        b, c = cluster.hosts["b"], cluster.hosts["c"]
        async with b.amqp() as producer, c.amqp() as consumer:
            await producer.declare_queue("q", arguments={"x-queue-type": "quorum"})
            await producer.publish("q", b"one")
            declared = await consumer.declare_queue("q", arguments={"x-queue-type": "quorum"})
            assert declared.messages == 1
            async with consumer.consume("q") as deliveries:
                delivery = await anext(deliveries)
                assert delivery.body == b"one"
                await consumer.ack(delivery.tag)
            await trio.sleep(1)
            assert await consumer.get("q") is None


async def test_the_oldest_is_promoted_and_has_everything(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        for number in range(10):
            assert (await c.http("POST", "/q/messages", b"%d" % number)).status == 201
        leased = await b.http("GET", "/q/messages?visibility=600")
        assert leased.body == b"0"
        began = trio.current_time()
        await a.kill()
        assert (await c.http("POST", "/q/messages", b"10")).status == 201
        assert trio.current_time() - began < 3
        assert b.node.membership().role == "master"
        bodies = [(await c.http("GET", "/q/messages")).body for _ in range(11)]
        assert bodies == [b"%d" % number for number in range(11)], "what was leased is there again, at once"


async def test_consumers_are_told_and_begin_again() -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        async with b.amqp() as on_mirror, c.amqp() as producer:
            await producer.declare_queue("q", arguments={"x-queue-type": "quorum"})
            await producer.publish("q", b"one")
            consumer = on_mirror.consume("q")
            first = await anext(consumer)
            await a.kill()
            with pytest.raises(ConsumeEnded):
                await anext(consumer)
            again = await anext(on_mirror.consume("q"))
            assert again.body == first.body
            await on_mirror.ack(first.tag)  # of a master that is none any more: it settles nothing
            await on_mirror.ack(again.tag)
            await trio.sleep(1)
            assert (await c.http("GET", "/q")).body
            assert await on_mirror.get("q") is None
