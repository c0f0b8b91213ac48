"""Queues with one active consumer, with pika: who is next, and what the active one leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.amqp.clients.servers import Server

pytestmark = pytest.mark.slow

WAIT_SECONDS = 30
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Consumer:
    """One consumer, on a connection of its own."""

    def __init__(self, server: Server, queue: str, prefetch: int = 0) -> None:
        self.connection = BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port))
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.got: list[tuple[bytes, bool]] = []
        self.tags: list[int] = []
        self.tag = self.channel.basic_consume(queue, self._take)

    def _take(self, _: BlockingChannel, method: pika.spec.Basic.Deliver, __: object, body: bytes) -> None:
        self.got.append((body, method.redelivered))
        self.tags.append(method.delivery_tag)


@pytest.fixture
def channel(server: Server) -> Iterator[BlockingChannel]:
    with BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port)) as connection:
        yield connection.channel()


Consume = Callable[..., Consumer]


@pytest.fixture
def consume(server: Server, queue: str) -> Iterator[Consume]:
    opened: list[Consumer] = []

    def begin(prefetch: int = 0) -> Consumer:
        opened.append(Consumer(server, queue, prefetch))
        return opened[-1]

    yield begin
    for consumer in opened:
        if consumer.connection.is_open:
            consumer.connection.close()


def until(is_so: Callable[[], bool], *consumers: Consumer) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, [consumer.got for consumer in consumers]
        for consumer in consumers:
            consumer.connection.process_data_events(0.02)


def test_next_consumer_has_what_the_last_one_left_in_its_order(
    consume: Consume, channel: BlockingChannel, queue: str
) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-single-active-consumer": True})
    first, second, third = consumers = [consume() for _ in range(3)]
    for body in (b"1", b"2"):
        channel.basic_publish("", queue, body, PERSISTENT)
    until(lambda: len(first.got) == 2, *consumers)
    first.connection.close()
    channel.basic_publish("", queue, b"3", PERSISTENT)
    until(lambda: len(second.got) == 3, second, third)
    assert [body for body, _ in second.got] == [b"1", b"2", b"3"]
    assert [redelivered for _, redelivered in second.got[:2]] == [True, True]
    second.channel.close()
    until(lambda: len(third.got) == 3, third)
    assert [body for body, _ in third.got] == [b"1", b"2", b"3"]


def test_message_over_the_prefetch_of_the_active_consumer_waits_for_it(
    consume: Consume, channel: BlockingChannel, queue: str
) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-single-active-consumer": True})
    active, waiting = consumers = [consume(prefetch=1) for _ in range(2)]
    for body in (b"1", b"2"):
        channel.basic_publish("", queue, body, PERSISTENT)
    until(lambda: active.got == [(b"1", False)], *consumers)
    active.channel.basic_ack(active.tags[0])
    until(lambda: len(active.got) == 2, *consumers)
    assert waiting.got == []


def test_exclusive_consumer_is_refused(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-single-active-consumer": True})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_consume(queue, lambda *_: None, exclusive=True)
    assert caught.value.reply_code == 403
