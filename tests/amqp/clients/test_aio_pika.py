"""aio-pika, on asyncio: its plain connection, and the robust one that comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import aio_pika.exceptions
import pytest
from aio_pika.patterns import RPC

from tests.amqp.clients.servers import Server

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 40
LASTING = aio_pika.DeliveryMode.PERSISTENT


def run(main: Callable[[], Awaitable[Any]]) -> None:
    """On an event loop of its own: the tests' is Trio's."""
    asyncio.run(asyncio.wait_for(main(), PATIENCE_SECONDS))


def url(server: Server) -> str:
    return server.url.replace("//", "//guest:guest@") + "/"


def test_publish_and_iterate(server: Server, queue: str) -> None:
    async def main() -> None:
        async with await aio_pika.connect(url(server)) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            declared = await channel.declare_queue(queue, durable=True)
            for number in range(30):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number, delivery_mode=LASTING), queue)
            got = []
            async with declared.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        got.append(int(message.body))
                    if len(got) == 30:
                        break
            assert got == list(range(30))
            assert (await channel.declare_queue(queue, passive=True)).declaration_result.message_count == 0

    run(main)


def test_what_fails_in_process_comes_back(server: Server, queue: str) -> None:
    async def main() -> None:
        async with await aio_pika.connect(url(server)) as connection:
            channel = await connection.channel()
            declared = await channel.declare_queue(queue)
            await channel.default_exchange.publish(aio_pika.Message(b"x", headers={"a": [1, {"b": None}]}), queue)
            first = await declared.get()
            with pytest.raises(LookupError):
                async with first.process(requeue=True):
                    raise LookupError
            again = await declared.get(timeout=5)
            assert (first.redelivered, again.redelivered, again.headers) == (False, True, {"a": [1, {"b": None}]})
            await again.ack()

    run(main)


def test_what_goes_nowhere_is_told(server: Server, queue: str) -> None:
    async def main() -> None:
        async with await aio_pika.connect(url(server)) as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b"x"), queue)
            declared = await channel.declare_queue(queue)
            with pytest.raises(aio_pika.exceptions.QueueEmpty):
                await declared.get(timeout=5)
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.declare_queue(f"{queue}-none", passive=True)

    run(main)


def test_a_transaction(server: Server, queue: str) -> None:
    async def main() -> None:
        async with await aio_pika.connect(url(server)) as connection:
            channel = await connection.channel(publisher_confirms=False)
            declared = await channel.declare_queue(queue)
            transaction = channel.transaction()
            async with transaction:
                await channel.default_exchange.publish(aio_pika.Message(b"kept"), queue)
            transaction = channel.transaction()
            await transaction.select()
            await channel.default_exchange.publish(aio_pika.Message(b"dropped"), queue)
            await transaction.rollback()
            message = await declared.get(no_ack=True, timeout=5)
            assert message.body == b"kept"
            assert await declared.get(fail=False, timeout=5) is None

    run(main)


def test_calls_over_queues(server: Server, queue: str) -> None:
    """Exclusive reply queues, correlation ids, expirations, a dead-letter exchange of headers: all of it in RPC."""

    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async def main() -> None:
        async with await aio_pika.connect(url(server)) as connection:
            rpc = await RPC.create(await connection.channel())
            await rpc.register(queue, multiply, auto_delete=True)
            assert await asyncio.gather(*(rpc.call(queue, {"x": n, "y": n}) for n in range(20))) == [
                n * n for n in range(20)
            ]
            await rpc.close()

    run(main)


def test_a_robust_connection_outlives_the_server(mortal_server: Server, queue: str) -> None:
    """Killed in the middle: what was confirmed comes, once at least."""

    async def main() -> None:
        got: set[int] = set()
        confirmed: set[int] = set()
        has_come = asyncio.Event()

        async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            await message.ack()
            got.add(int(message.body))
            has_come.set()

        async def publish(exchange: aio_pika.abc.AbstractExchange, numbers: range) -> None:
            for number in numbers:
                while number not in confirmed:
                    try:
                        await exchange.publish(
                            aio_pika.Message(b"%d" % number, delivery_mode=LASTING), queue, timeout=5
                        )
                        confirmed.add(number)
                    except (TimeoutError, aio_pika.exceptions.AMQPError, OSError, RuntimeError):
                        await asyncio.sleep(0.1)  # until it has connected again

        async with await aio_pika.connect_robust(url(mortal_server), reconnect_interval=0.2) as connection:
            channel = await connection.channel()
            declared = await channel.declare_queue(queue, durable=True)
            await declared.consume(handle)
            await publish(channel.default_exchange, range(20))
            await has_come.wait()
            await asyncio.to_thread(mortal_server.kill)
            await asyncio.to_thread(mortal_server.start)
            await publish(channel.default_exchange, range(20, 40))
            while got != set(range(40)):
                has_come.clear()
                await has_come.wait()

    run(main)
