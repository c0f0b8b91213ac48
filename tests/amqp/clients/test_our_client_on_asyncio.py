"""mq's own client on asyncio, over real sockets: against mq and RabbitMQ, through TLS, and where nobody answers.

What it does in every case is tested on both event loops without a server (`tests/client/amqp`)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import anyio
import pytest

from mq.client import NotFound, Unreachable
from mq.client.amqp import connect
from tests.amqp.clients.servers import Server
from tests.amqp.clients.test_tls import BODY, Guarded, guarded

pytestmark = pytest.mark.slow
__all__ = ["guarded"]

PATIENCE_SECONDS = 30.0


def run(main: Coroutine[Any, Any, None]) -> None:
    """What is left open is a warning, and so an error."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await main

    asyncio.run(bounded())


def test_messages_are_published_got_consumed_and_settled(server: Server, queue: str) -> None:
    async def main() -> None:
        async with connect(server.url) as client:
            assert await client.declare_queue(queue) == (queue, 0, 0)
            async with asyncio.TaskGroup() as tasks:
                for number in range(100):
                    tasks.create_task(client.publish(queue, b"%d" % number))
            first = await client.get(queue)
            assert first is not None
            await client.nack(first.tag)
            found = set()
            async with client.consume(queue) as messages:
                async for message in messages:
                    await client.ack(message.tag)
                    found.add(int(message.body))
                    if len(found) == 100:
                        break
            assert await client.get(queue) is None
            with pytest.raises(NotFound):
                await client.publish(f"{queue}.not-there", b"")

    run(main())


def test_what_a_cancelled_consumer_was_sent_goes_back(server: Server, queue: str) -> None:
    async def main() -> None:
        async with connect(server.url) as client:
            await client.declare_queue(queue)
            await client.publish(queue, b"once")
            came = asyncio.Event()

            async def work() -> None:
                async with connect(server.url, role="consumer") as own, own.consume(queue) as messages:
                    await anext(messages)
                    came.set()
                    await asyncio.Future()

            task = asyncio.create_task(work())
            await came.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with client.consume(queue) as messages:
                message = await anext(messages)
                assert (message.body, message.redelivered) == (b"once", True)
                await client.ack(message.tag)

    run(main())


@pytest.mark.proof
def test_messages_go_through_tls(guarded: Guarded, queue: str) -> None:
    async def main() -> None:
        async with connect(guarded.url, ca=guarded.ca, user=guarded.credentials[0]) as client:
            await client.declare_queue(queue)
            await client.publish(queue, BODY)
            message = await client.get(queue)
            assert message is not None
            assert message.body == BODY
            await client.ack(message.tag)
        with pytest.raises(Unreachable, match="certificate"):
            async with connect(guarded.url, user=guarded.credentials[0]):
                pass

    run(main())


def test_nobody_listens(free_port: int) -> None:
    async def main() -> None:
        with pytest.raises(Unreachable, match="cannot connect to amqp://localhost"):
            async with connect(f"amqp://localhost:{free_port}"):
                pass

    run(main())


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_who_listens_says_nothing(loop: str) -> None:
    async def main() -> None:
        with pytest.raises(Unreachable, match="in time"):
            async with connect(f"amqp://127.0.0.1:{listener.getsockname()[1]}", timeout=0.1):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        anyio.run(main, backend=loop)
