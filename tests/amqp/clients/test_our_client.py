"""mq's own client against mq and against RabbitMQ: what one does, the other does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pika
import pytest
import trio

from mq.client import Conflict, Interrupted, NotAllowed, NotFound, Unreachable
from mq.client.amqp import (
    AmqpClient,
    Consumer,
    ConsumerCancelled,
    Delivery,
    NotConfirmed,
    UnknownDeliveryTag,
    WrongRole,
    connect,
)
from tests.amqp.clients.servers import RabbitServer, Server

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 30.0


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AmqpClient]:
    with trio.fail_after(PATIENCE_SECONDS):
        async with connect(server.url) as connected:
            yield connected


async def publish(client: AmqpClient, queue: str, count: int, begin: int = 0) -> None:
    for number in range(begin, begin + count):
        await client.publish(queue, b"%d" % number)


async def get(client: AmqpClient, queue: str) -> Delivery:
    """The next message, which has to come: what went back may take a moment."""
    while (message := await client.get(queue)) is None:
        await trio.sleep(0.01)
    return message


async def take(consumer: Consumer, count: int) -> list[Delivery]:
    return [await anext(consumer) for _ in range(count)]


def bodies(messages: list[Delivery]) -> list[int]:
    return [int(message.body) for message in messages]


async def drain(client: AmqpClient, queue: str) -> list[int]:
    found = []
    while (message := await client.get(queue)) is not None:
        found.append(int(message.body))
        await client.ack(message.tag)
    return found


async def test_a_queue_is_declared_as_often_as_one_likes(client: AmqpClient, queue: str) -> None:
    assert await client.declare_queue(queue) == (queue, 0, 0)
    await publish(client, queue, 3)
    assert await client.declare_queue(queue) == (queue, 3, 0)


async def test_a_queue_cannot_be_declared_as_another_one(client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue, durable=False)
    with pytest.raises(Conflict, match="durable"):
        await client.declare_queue(queue, durable=True)
    assert (await client.declare_queue(queue, durable=False)).name == queue


async def test_the_server_chooses_a_name(client: AmqpClient) -> None:
    names = {(await client.declare_queue()).name for _ in range(2)}
    assert len(names) == 2
    assert "" not in names


async def test_messages_come_in_their_order(client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    await publish(client, queue, 5)
    assert await drain(client, queue) == [0, 1, 2, 3, 4]
    assert await client.get(queue) is None


async def test_tags_rise_over_all_queues_and_consumers_of_a_connection(client: AmqpClient, queue: str) -> None:
    queues = [f"{queue}-{number}" for number in range(3)]
    for name in queues:
        await client.declare_queue(name)
        await publish(client, name, 4)
    tags = [(await get(client, name)).tag for name in queues for _ in range(2)]
    async with client.consume(queues[0]) as some, client.consume(queues[1]) as others:
        tags += [(await anext(consumer)).tag for _ in range(2) for consumer in (some, others)]
    assert tags == list(range(1, 11))


@pytest.mark.parametrize("size", [0, 1, 4088, 131_064, 131_065, 3_000_000])
async def test_bodies_of_all_sizes(client: AmqpClient, queue: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    await client.declare_queue(queue)
    await client.publish(queue, body)
    assert (await get(client, queue)).body == body


async def test_what_stands_beside_the_body(client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    headers = {"one": 1, "text": "ä", "deep": {"list": [1, "x", True]}}
    id = await client.publish(queue, b"{}", content_type="application/json", headers=headers, persistent=False)
    await client.publish(queue, "ä")
    first, second = await get(client, queue), await get(client, queue)
    assert (first.content_type, first.message_id, first.headers, first.is_persistent) == (
        "application/json",
        id,
        headers,
        False,
    )
    assert (second.body.decode(), second.is_persistent, second.redelivered) == ("ä", True, False)
    assert second.content_type == "text/plain; charset=utf-8"


async def test_many_tasks_publish_at_once(client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    async with trio.open_nursery() as nursery:
        for task in range(20):
            nursery.start_soon(publish, client, queue, 20, 20 * task)
    found = await drain(client, queue)
    assert sorted(found) == list(range(400))
    assert [number for number in found if number < 20] == list(range(20))


async def test_a_message_for_no_queue_is_refused_and_no_other(client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    refused = []

    async def publish_to_nobody() -> None:
        with pytest.raises(NotFound, match="was not stored"):
            await client.publish(f"{queue}-none", b"x")
        refused.append(1)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(publish_to_nobody)
            nursery.start_soon(publish, client, queue, 1, number)
    assert len(refused) == 10
    assert sorted(await drain(client, queue)) == list(range(10))


async def test_a_full_queue_confirms_nothing(client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    await publish(client, queue, 2)
    with pytest.raises(NotConfirmed):
        await client.publish(queue, b"9")
    assert await drain(client, queue) == [0, 1]


async def test_what_is_not_acknowledged_comes_back(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    await publish(client, queue, 3)
    async with connect(server.url) as other:
        assert bodies([await get(other, queue) for _ in range(3)]) == [0, 1, 2]
        assert await client.get(queue) is None
    again = [await get(client, queue) for _ in range(3)]
    assert bodies(again) == [0, 1, 2]
    assert all(message.redelivered for message in again)


async def test_a_nack_gives_the_message_back(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    await publish(client, queue, 3)
    await client.nack((await get(client, queue)).tag)
    order = [0, 1, 2] if server.name == "rabbitmq" else [1, 2, 0]
    assert bodies([await get(client, queue) for _ in range(3)]) == order


@pytest.mark.parametrize("tag", [1, 7, 2**63 - 1])
async def test_a_tag_that_never_was_ends_the_connection(server: Server, queue: str, tag: int) -> None:
    async with connect(server.url) as client:
        with pytest.raises(
            UnknownDeliveryTag, match=f"delivery tag {tag}, so the connection was closed: PRECONDITION_FAILED.*{tag}"
        ):
            await client.ack(tag)
        with pytest.raises(Unreachable):
            await client.declare_queue(queue)


async def test_a_tag_is_good_for_once(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    await publish(client, queue, 2)
    async with connect(server.url) as other:
        first, _ = await get(other, queue), await get(other, queue)
        await other.ack(first.tag)
        with pytest.raises(UnknownDeliveryTag):
            await other.nack(first.tag)
    message = await get(client, queue)
    assert (message.body, message.redelivered) == (b"1", True)


async def test_what_is_no_tag_is_refused_here(client: AmqpClient, queue: str) -> None:
    for wrong in (0, -1, 2**63):
        with pytest.raises(ValueError, match="not a valid delivery tag"):
            await client.ack(wrong)
    await client.declare_queue(queue)


async def test_consuming_waits_for_what_is_published(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    found: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, client, queue, 50)
        async for message in client.consume(queue, prefetch=3):
            found.append(int(message.body))
            await client.ack(message.tag)
            if len(found) == 50:
                break
    assert found == list(range(50))


async def test_messages_go_round_among_consumers(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    async with connect(server.url) as other, client.consume(queue) as ours, other.consume(queue) as theirs:
        await publish(client, queue, 10)
        found = bodies(await take(ours, 5)), bodies(await take(theirs, 5))
    assert sorted(found) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


async def test_no_more_is_held_than_was_asked_for(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    await publish(client, queue, 5)
    async with client.consume(queue, prefetch=2) as consumer:
        first, _ = await take(consumer, 2)
        with trio.move_on_after(0.3) as waited:
            await anext(consumer)
        assert waited.cancelled_caught
        await client.ack(first.tag)
        assert (await anext(consumer)).body == b"2"


async def test_a_consumer_that_ends_gives_back_what_nobody_took(server: Server, client: AmqpClient, queue: str) -> None:
    """In place: by default it goes to the back, behind those that the server had not sent yet."""
    await client.declare_queue(queue, arguments={"x-requeue": "front"})
    await publish(client, queue, 20)
    async with client.consume(queue) as consumer:
        async for message in consumer:
            await client.ack(message.tag)
            break
    async with connect(server.url) as other:
        assert bodies([await get(other, queue) for _ in range(19)]) == list(range(1, 20))


async def test_what_was_handed_out_may_be_acknowledged_after_its_consumer(
    server: Server, client: AmqpClient, queue: str
) -> None:
    await client.declare_queue(queue)
    await publish(client, queue, 5)
    async with client.consume(queue) as consumer:
        held = await take(consumer, 2)
    async with connect(server.url) as other:
        assert sorted(bodies([await get(other, queue) for _ in range(3)])) == [2, 3, 4]
        for message in held:
            await client.ack(message.tag)
        await client.declare_queue(queue)
    assert sorted(bodies([await get(client, queue) for _ in range(3)])) == [2, 3, 4]
    assert await client.get(queue) is None


async def test_exclusive_is_for_one(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    await publish(client, queue, 2)
    async with connect(server.url) as holder, holder.consume(queue, exclusive=True) as consumer:
        await anext(consumer)
        for exclusive in (False, True):
            with pytest.raises(NotAllowed):
                await anext(client.consume(queue, exclusive=exclusive))
        if server.name == "mq":  # RabbitMQ lets others get
            with pytest.raises(NotAllowed):
                await client.get(queue)
        await publish(client, queue, 1)
    async with client.consume(queue) as consumer:
        assert len(await take(consumer, 3)) == 3


async def test_exclusive_comes_first_or_not_at_all(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    async with connect(server.url) as other, other.consume(queue):
        with pytest.raises(NotAllowed, match="exclusive"):
            await anext(client.consume(queue, exclusive=True))


async def test_a_refusal_costs_no_other_message(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    await publish(client, queue, 3)
    async with connect(server.url) as other, client.consume(queue, prefetch=2) as consumer:
        held = [*(await take(consumer, 2)), await get(client, queue)]
        with pytest.raises(NotFound):
            await client.get(f"{queue}-none")
        with pytest.raises(NotFound):
            await anext(client.consume(f"{queue}-none"))
        with pytest.raises(NotAllowed):
            await anext(client.consume(queue, exclusive=True))
        for message in held:
            await client.ack(message.tag)
        await client.declare_queue(queue)
        assert await other.get(queue) is None


async def test_who_is_cancelled_takes_nothing_along(server: Server, client: AmqpClient, queue: str) -> None:
    """Whatever the verb was just waiting for."""
    await client.declare_queue(queue)
    await publish(client, queue, 3)

    async def get_and_give_back() -> None:
        message = await client.get(queue)
        if message is not None:
            with trio.CancelScope(shield=True):
                await client.nack(message.tag)

    async def consume_a_little() -> None:
        async with client.consume(queue) as consumer:
            message = await anext(consumer)
            with trio.CancelScope(shield=True):
                await client.nack(message.tag)
            await trio.sleep_forever()

    async def declare() -> None:
        await client.declare_queue(queue)

    for verb in (get_and_give_back, consume_a_little, declare):
        for half_milliseconds in range(10):
            with trio.move_on_after(half_milliseconds / 2000):
                await verb()
    async with connect(server.url) as other:
        found: set[int] = set()
        while found != {0, 1, 2}:
            found.add(int((await get(other, queue)).body))


async def test_a_consumer_hears_that_its_queue_was_deleted(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    await publish(client, queue, 1)
    async with client.consume(queue) as consumer:
        await anext(consumer)
        await trio.to_thread.run_sync(delete_queue, server, queue)
        with pytest.raises(ConsumerCancelled, match=queue):
            await anext(consumer)
    assert (await client.declare_queue(queue)).messages == 0


def delete_queue(server: Server, queue: str) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port))
    connection.channel().queue_delete(queue)
    connection.close()


async def test_many_queues_from_one_connection(client: AmqpClient, queue: str) -> None:
    """More than there are channels kept for gets."""
    queues = [f"{queue}-{number}" for number in range(80)]
    for number, name in enumerate(queues):
        await client.declare_queue(name, durable=False)
        await client.publish(name, b"%d" % number, persistent=False)
    for number, name in enumerate(queues):
        message = await get(client, name)
        assert int(message.body) == number
        await client.ack(message.tag)
    assert [await client.get(name) for name in queues] == [None] * len(queues)


async def test_roles(server: Server, client: AmqpClient, queue: str) -> None:
    await client.declare_queue(queue)
    async with connect(server.url, role="producer") as producer, connect(server.url, role="consumer") as consumer:
        await publish(producer, queue, 1)
        await consumer.ack((await get(consumer, queue)).tag)
        for refused in (producer.get(queue), producer.ack(1), producer.nack(1), consumer.publish(queue, b"x")):
            with pytest.raises(WrongRole):
                await refused
        with pytest.raises(WrongRole):
            producer.consume(queue)
    with pytest.raises(ValueError, match="admin"):
        async with connect(server.url, role="admin"):
            pass


async def test_an_unknown_vhost(server: Server) -> None:
    with pytest.raises(NotAllowed, match="vhost"):
        async with connect(f"{server.url}/none"):
            pass


async def test_heartbeats_keep_an_idle_connection(server: Server, queue: str) -> None:
    """Real time: the server's clock cannot be wound."""
    async with connect(server.url, heartbeat=1) as client:
        await trio.sleep(3.5)
        assert (await client.declare_queue(queue)).name == queue


async def test_what_lasts(mortal_server: Server, queue: str) -> None:
    """A durable queue, which is the default, and in it what is persistent, which is the default, too."""
    lasting: dict[str, dict[str, Any]] = {"unsaid": {}, "durable": {"durable": True}}
    passing = f"{queue}-passing"
    async with connect(mortal_server.url) as client:
        await client.declare_queue(passing, durable=False)
        for name, flags in lasting.items():
            await client.declare_queue(f"{queue}-{name}", **flags)
            await client.publish(f"{queue}-{name}", b"1", persistent=True)
            await client.publish(f"{queue}-{name}", b"2", persistent=False)
            await client.publish(f"{queue}-{name}", b"3")
        await client.publish(passing, b"1", persistent=True)
    mortal_server.stop()
    mortal_server.start()
    async with connect(mortal_server.url) as client:
        for name in lasting:
            assert await drain(client, f"{queue}-{name}") == [1, 3], name
        with pytest.raises(NotFound):
            await client.get(passing)
        assert (await client.declare_queue(passing, durable=True)).messages == 0


async def test_a_killed_server_ends_every_wait(mortal_server: Server, queue: str) -> None:
    ended: list[str] = []

    async def wait(verb: Any, *arguments: Any) -> None:
        try:
            while True:
                await verb(*arguments)
        except (Interrupted, Unreachable):
            ended.append(verb.__name__)

    with trio.fail_after(PATIENCE_SECONDS):
        async with connect(mortal_server.url) as client:
            await client.declare_queue(queue)
            await client.declare_queue(f"{queue}-empty")
            consumer = client.consume(f"{queue}-empty")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, consumer.__anext__)
                nursery.start_soon(wait, client.publish, queue, b"x")
                nursery.start_soon(wait, client.get, queue)
                await trio.sleep(0.2)
                await trio.to_thread.run_sync(mortal_server.kill)
    assert sorted(ended) == ["__anext__", "get", "publish"]
    with pytest.raises(Unreachable):
        async with connect(mortal_server.url):
            pass


@pytest.mark.proof
async def test_publishing_waits_while_the_server_is_blocked(shared: Any, queue: str) -> None:
    """A RabbitMQ that believes itself out of memory. What it says is what mq would say."""
    server = shared("rabbitmq", False)
    assert isinstance(server, RabbitServer)
    published: list[str] = []

    async def publish_one() -> None:
        published.append(await client.publish(queue, b"x"))

    with trio.fail_after(PATIENCE_SECONDS):
        async with connect(server.url) as client, trio.open_nursery() as nursery:
            await client.declare_queue(queue)
            await publish_one()
            await trio.to_thread.run_sync(server.control, "set_vm_memory_high_watermark", "absolute", "1MB")
            try:
                nursery.start_soon(publish_one)  # RabbitMQ says so to who publishes
                while client.blocked is None:
                    await trio.sleep(0.01)
                nursery.start_soon(publish_one)
                await trio.sleep(0.2)
                assert len(published) == 1
                assert client.blocked == "low on memory"
            finally:
                await trio.to_thread.run_sync(server.control, "set_vm_memory_high_watermark", "absolute", "1GB")
    assert len(published) == 3
    assert client.blocked is None
