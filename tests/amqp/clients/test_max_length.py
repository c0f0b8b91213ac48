"""Queues with ``x-max-length``, with pika: their counts are never seen over it, however fast messages come."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from tests.amqp.clients.servers import Server

pytestmark = pytest.mark.slow

LIMIT: Final = 10
MESSAGES: Final = 400


def connect(server: Server) -> BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port))


@pytest.mark.parametrize("delivery_mode", [1, 2])
@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": LIMIT},
        {"x-max-length-bytes": LIMIT * 100},
        {"x-max-length": LIMIT, "x-overflow": "reject-publish"},
        {"x-max-length": LIMIT, "x-max-priority": 5},
        {"x-max-length": LIMIT, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    ],
    ids=str,
)
def test_a_queue_is_never_seen_over_its_limit(
    server: Server, queue: str, arguments: dict[str, Any], delivery_mode: int
) -> None:
    """While messages without confirms are stored, and behind the last of them."""
    dead = f"{queue}.dead"
    if "x-dead-letter-exchange" in arguments:
        arguments = {**arguments, "x-dead-letter-routing-key": dead}

    def publish() -> int:
        channel = publisher.channel()
        for number in range(MESSAGES):
            properties = pika.BasicProperties(delivery_mode=delivery_mode, priority=number % 6)
            channel.basic_publish("", queue, b"x" * 100, properties)
        return int(channel.queue_declare(queue, passive=True).method.message_count)  # once all are stored

    with connect(server) as publisher, connect(server) as other, ThreadPoolExecutor() as pool:
        looking = other.channel()
        looking.queue_declare(queue, durable=True, arguments=arguments)
        looking.queue_declare(dead, durable=True)
        published = pool.submit(publish)
        seen = [looking.queue_declare(queue, passive=True).method.message_count]
        while not published.done():
            seen.append(looking.queue_declare(queue, passive=True).method.message_count)
        assert max(*seen, published.result()) == LIMIT
        got = [looking.basic_get(queue, auto_ack=True)[0] for _ in range(LIMIT + 1)]
        assert [method is not None for method in got] == [True] * LIMIT + [False]
