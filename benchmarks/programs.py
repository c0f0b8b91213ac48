"""Programs over AMQP as people write them: pika, which confirms each message, and aio-pika, a hundred at once."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

import aio_pika
import pika

QUEUE: Final = "programs"
TOGETHER: Final = 100
_BODY: Final = os.urandom(1024)


def pika_each(port: int, count: int) -> float:
    """Seconds in which pika publishes so many persistent messages, each confirmed before the next."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
    begin = time.perf_counter()
    for _ in range(count):
        channel.basic_publish("", QUEUE, _BODY, persistent, mandatory=True)
    seconds = time.perf_counter() - begin
    channel.queue_delete(QUEUE)
    connection.close()
    return seconds


def aio_pika_together(port: int, count: int) -> float:
    """Seconds in which aio-pika publishes so many persistent messages, a hundred tasks at once."""
    return asyncio.run(_aio_pika(port, count))


async def _aio_pika(port: int, count: int) -> float:
    message = aio_pika.Message(_BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    async with await aio_pika.connect(host="127.0.0.1", port=port) as connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(QUEUE, durable=True)
        publish = channel.default_exchange.publish
        begin = time.perf_counter()
        for _ in range(count // TOGETHER):
            await asyncio.gather(*(publish(message, QUEUE) for _ in range(TOGETHER)))
        seconds = time.perf_counter() - begin
        await queue.delete(if_unused=False, if_empty=False)
    return seconds


WORKS: Final = (
    ("pika, each confirmed,", pika_each, 0.5, 500),
    ("aio-pika, 100 at once,", aio_pika_together, 0.5, 2_000),
)
"""As :data:`benchmarks.amqp.WORKS`."""
