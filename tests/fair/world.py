"""A daemon's parts in this process, with very many messages: what the jobs of these tests work on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio
from pamqp import commands

from mq.broker import Broker, Draft
from tests.amqp.dialling import Client, House, open_house
from tests.amqp.talking import content, words

T = TypeVar("T")

BODY = b"x" * 100
_DELIVERY = b"\x00\x3c\x00\x3c"  # class and method of basic.deliver
_AT_ONCE = 500


class World:
    """A broker with an AMQP server."""

    def __init__(self, house: House, nursery: trio.Nursery, *, is_durable: bool) -> None:
        self.broker: Broker = house.broker
        self.is_durable = is_durable
        self.house = house
        self.nursery = nursery

    async def connect(self) -> Client:
        return await self.house.connect()

    async def serve(self, call: Callable[[], Awaitable[T]]) -> T:
        """What a server's task does, which is measured: the test's own task is not."""
        results: list[T] = []

        async def job() -> None:
            results.append(await call())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(job, name="job")
        return results[0]

    async def fill(self, queue: str, count: int, **more: Any) -> None:
        """Publish messages to a queue, which is made if need be."""
        await self.broker.create_queue(queue)
        draft = Draft(BODY, transient=not self.is_durable, **more)
        for at in range(0, count, _AT_ONCE):
            await self.broker.publish_many(queue, [draft] * min(_AT_ONCE, count - at))

    async def ready(self, queue: str, count: int) -> None:
        """Wait until a queue has so many messages."""
        while self.broker.declarations.ready(queue) != count:
            await trio.sleep(0.01)


@asynccontextmanager
async def open_world(store: str, *, is_durable: bool) -> AsyncIterator[World]:
    """A world over a store. Its clock may be virtual."""
    async with open_house(store) as house, trio.open_nursery() as nursery:
        yield World(house, nursery, is_durable=is_durable)
        nursery.cancel_scope.cancel()


async def publish(client: Client, queue: str, count: int, *, is_durable: bool) -> None:
    """Publish over AMQP, and wait until all are stored."""
    properties = commands.Basic.Properties(delivery_mode=2 if is_durable else 1)
    one = words(commands.Basic.Publish(routing_key=queue)) + content(1, BODY, properties)
    for at in range(0, count, _AT_ONCE):
        await client.stream.send_all(one * min(_AT_ONCE, count - at))
    await client.count(queue)


async def hold(client: Client, queue: str, count: int) -> None:
    """Consume so many messages, and acknowledge none."""
    await client.say(commands.Basic.Consume(queue=queue, consumer_tag="c"))
    seen, end = 0, b""
    while seen < count:
        data = await client.stream.receive_some()
        seen += (end + data).count(_DELIVERY)
        end = data[-len(_DELIVERY) + 1 :]


DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
