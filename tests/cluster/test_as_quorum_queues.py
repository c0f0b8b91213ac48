"""Cluster queues as RabbitMQ's quorum queues have them: ``x-delivery-count``, and the types of headers."""

from __future__ import annotations

from typing import Any, Final

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from tests.amqp.clients.header_types import OF_QUORUM, recorded, types_of
from tests.amqp.dialling import Client
from tests.cluster.nodes import Host, three_nodes

QUORUM: Final = {"x-queue-type": "quorum"}
COUNT: Final = "x-delivery-count"


@pytest.mark.slow
@pytest.mark.parametrize("host", ["a", "b"])
@pytest.mark.parametrize("scenario", OF_QUORUM)
async def test_headers_have_the_types_of_rabbitmq(autojump_clock: MockClock, scenario: str, host: str) -> None:
    async with three_nodes() as cluster:

        async def connect() -> trio.abc.Stream:
            return cluster.hosts[host].accept()

        assert await types_of(connect, "quorum", scenario, "q") == recorded()["quorum"][scenario]


async def consumer_of(host: Host) -> Client:
    client = await Client(host.accept()).open()
    await client.consume()
    return client


def count_of(properties: Any) -> int | None:
    return (properties.headers or {}).get(COUNT)


@pytest.mark.parametrize("host", ["a", "b"])
async def test_each_return_counts_and_the_first_delivery_has_no_count(autojump_clock: MockClock, host: str) -> None:
    """As RabbitMQ 3.10 does it: a nack, a reject, the end of a channel or of a connection, and basic.recover."""
    async with three_nodes() as cluster:
        at = cluster.hosts[host]
        publisher = await Client(at.accept()).open()
        await publisher.declare("q", QUORUM, durable=True)
        await publisher.publish("q", b"x", delivery_mode=2, headers={"mine": 1})
        client = await consumer_of(at)
        counts = []
        for settle in ("nack", "reject", "recover", "close", "vanish", "ack"):
            method, properties, _ = await client.delivery()
            counts.append((count_of(properties), method.redelivered))
            tag = method.delivery_tag
            if settle == "nack":
                await client.say(commands.Basic.Nack(tag, requeue=True))
            elif settle == "reject":
                await client.say(commands.Basic.Reject(tag, requeue=True))
            elif settle == "recover":
                await client.call(commands.Basic.Recover(requeue=True))
            elif settle == "close":
                await client.close()
                client = await consumer_of(at)
            elif settle == "vanish":
                await client.stream.aclose()
                client = await consumer_of(at)
        assert counts == [(None, False), (1, True), (2, True), (3, True), (4, True), (5, True)]


async def test_basic_get_always_has_the_count(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        client = await Client(cluster.hosts["b"].accept()).open()
        await client.declare("q", QUORUM, durable=True)
        await client.publish("q", b"x", delivery_mode=2)
        for expected in range(3):
            got = await client.get()
            assert got is not None
            assert count_of(got[1]) == expected
            await client.say(commands.Basic.Nack(got[0].delivery_tag, requeue=True))


async def test_delivery_limit_counts_connections_that_end(autojump_clock: MockClock) -> None:
    """A message that ends each of its consumers is dead-lettered, too."""
    async with three_nodes() as cluster:
        at = cluster.hosts["b"]
        publisher = await Client(at.accept()).open()
        await publisher.declare("dead", QUORUM, durable=True)
        arguments = {"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        await publisher.declare("q", QUORUM | arguments, durable=True)
        await publisher.publish("q", b"x", delivery_mode=2)
        for _ in range(3):
            client = await consumer_of(at)
            await client.delivery()
            await client.stream.aclose()
            await trio.sleep(1)
        got = await publisher.get("dead")
        assert got is not None
        assert got[1].headers["x-death"][0]["reason"] == "delivery_limit"
        assert await publisher.count() == 0


async def test_classic_queue_has_no_count(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        client = await Client(cluster.hosts["b"].accept()).open()
        await client.declare("q", {"x-queue-type": "classic"}, durable=True)
        await client.publish("q", b"x", delivery_mode=2)
        for _ in range(2):
            got = await client.get()
            assert got is not None
            assert count_of(got[1]) is None
            await client.say(commands.Basic.Nack(got[0].delivery_tag, requeue=True))


# One active consumer

SINGLE: Final = QUORUM | {"x-single-active-consumer": True}


async def bodies_of(client: Client, count: int) -> list[bytes]:
    return [(await client.delivery())[2] for _ in range(count)]


async def test_single_active_consumer_is_the_first_of_all_nodes_and_the_next_takes_over(
    autojump_clock: MockClock,
) -> None:
    """In the order in which they came, whatever their priority and their node, as in RabbitMQ."""
    async with three_nodes() as cluster:
        hosts = [cluster.hosts[name] for name in "bac"]
        publisher = await Client(hosts[0].accept()).open()
        await publisher.declare("q", SINGLE, durable=True)
        consumers = []
        for number, host in enumerate(hosts):
            client = await Client(host.accept()).open()
            await client.call(commands.Basic.Qos(prefetch_count=10))
            await client.consume(arguments={"x-priority": number})
            consumers.append(client)
            await trio.sleep(0.1)
        await publisher.publish("q", b"1", b"2", delivery_mode=2)
        assert await bodies_of(consumers[0], 2) == [b"1", b"2"]
        assert await consumers[1].is_silent()
        assert await consumers[2].is_silent()
        await consumers[0].stream.aclose()  # what it held comes again, to the next one
        assert await bodies_of(consumers[1], 2) == [b"1", b"2"]
        assert await consumers[2].is_silent()
        await consumers[1].call(commands.Basic.Cancel("c"))
        await publisher.publish("q", b"3", delivery_mode=2)
        assert await bodies_of(consumers[2], 1) == [b"3"]
        await consumers[1].close()  # which still held two
        assert await bodies_of(consumers[2], 2) == [b"1", b"2"]


async def test_consumer_that_gives_up_before_its_turn_is_passed_over(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        publisher = await Client(cluster.hosts["b"].accept()).open()
        await publisher.declare("q", SINGLE, durable=True)
        first, second, third = [await consumer_of(cluster.hosts[name]) for name in "bcb"]
        await trio.sleep(0.1)
        await second.stream.aclose()
        await trio.sleep(0.1)
        await first.stream.aclose()
        await publisher.publish("q", b"x", delivery_mode=2)
        assert await bodies_of(third, 1) == [b"x"]


async def test_single_active_consumer_allows_no_basic_get_and_no_exclusive_consumer(
    autojump_clock: MockClock,
) -> None:
    async with three_nodes() as cluster:
        client = await Client(cluster.hosts["b"].accept()).open()
        await client.declare("q", SINGLE, durable=True)
        closed = await client.call(commands.Basic.Get(queue="q"))
        assert (closed.name, closed.reply_code) == ("Channel.Close", 405)
        await client.open_channel(2)
        closed = await client.call(commands.Basic.Consume(queue="q", exclusive=True), 2)
        assert (closed.name, closed.reply_code) == ("Channel.Close", 403)


async def test_single_active_consumer_goes_with_its_queue(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        publisher = await Client(cluster.hosts["b"].accept()).open()
        await publisher.declare("q", SINGLE, durable=True)
        clients = [await consumer_of(cluster.hosts[name]) for name in "bc"]
        await trio.sleep(0.1)
        await publisher.call(commands.Queue.Delete(queue="q"))
        assert [(await client.hear()).name for client in clients] == ["Basic.Cancel"] * 2
        await publisher.declare("q", SINGLE, durable=True)
        again = await consumer_of(cluster.hosts["c"])
        await publisher.publish("q", b"x", delivery_mode=2)
        assert await bodies_of(again, 1) == [b"x"]
