"""What workers want beyond RabbitMQ, or from its newer queues: with pika, on a server of ours alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from mq.client import Client, Outgoing
from tests.amqp.clients.servers import MqServer, Server

pytestmark = pytest.mark.slow

WAIT_SECONDS = 60


@pytest.fixture
def server(shared: Callable[[str, bool], Server]) -> MqServer:
    found = shared("mq", False)
    assert isinstance(found, MqServer)
    return found


@pytest.fixture
def http(server: MqServer) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{server.daemon.port}") as client:
        yield client


@pytest.fixture
def connect(server: MqServer) -> Iterator[Callable[[], BlockingConnection]]:
    opened: list[BlockingConnection] = []

    def open_one() -> BlockingConnection:
        opened.append(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port)))
        return opened[-1]

    yield open_one
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Callable[[], BlockingConnection]) -> BlockingChannel:
    opened = connect().channel()
    opened.confirm_delivery()
    return opened


def next_of(channel: BlockingChannel, queue: str, seconds: float = WAIT_SECONDS) -> tuple[int, bool] | None:
    """The tag of the next message, and whether it was redelivered; None when none came."""
    for method, _, _ in channel.consume(queue, inactivity_timeout=seconds):
        return None if method is None else (method.delivery_tag, method.redelivered)
    return None


def test_a_nack_waits_as_long_as_the_queue_says(channel: BlockingChannel, http: Client, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    http.configure(queue, retry_delay=0.5, retry_factor=2, retry_jitter=0)
    channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
    found = next_of(channel, queue)
    for wait in (0.5, 1.0):
        assert found is not None
        began = time.monotonic()
        channel.basic_nack(found[0], requeue=True)
        found = next_of(channel, queue)
        assert wait - 0.1 < time.monotonic() - began
        assert found is not None
        assert found[1]


# Replies without a queue of one's own

REPLY_TO = "amq.rabbitmq.reply-to"


def test_replies_come_directly(connect: Callable[[], BlockingConnection], queue: str) -> None:
    asking, answering = connect().channel(), connect().channel()
    answering.queue_declare(queue)
    assert asking.queue_declare(REPLY_TO, passive=True).method.queue == REPLY_TO
    replies: list[bytes] = []
    asking.basic_consume(REPLY_TO, lambda *came: replies.append(came[3]), auto_ack=True)
    for number in range(3):
        asking.basic_publish("", queue, b"%d" % number, pika.BasicProperties(reply_to=REPLY_TO, correlation_id="c"))
        properties, body = next_content(answering, queue)
        assert properties.correlation_id == "c"
        assert properties.reply_to
        assert properties.reply_to != REPLY_TO
        answering.basic_publish("", properties.reply_to, b"to " + body)
        until(lambda: len(replies) == number + 1, asking.connection)  # noqa: B023 - called at once
    assert replies == [b"to 0", b"to 1", b"to 2"]


def next_content(channel: BlockingChannel, queue: str) -> tuple[pika.BasicProperties, bytes]:
    for method, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=WAIT_SECONDS):
        assert method is not None
        return properties, body
    raise AssertionError


def test_replies_end_with_who_asked(connect: Callable[[], BlockingConnection], http: Client, queue: str) -> None:
    asking, answering = connect(), connect().channel()
    answering.queue_declare(queue)
    channel = asking.channel()
    assert next(channel.consume(REPLY_TO, auto_ack=True, inactivity_timeout=0.01)) == (None, None, None)
    channel.basic_publish("", queue, b"?", pika.BasicProperties(reply_to=REPLY_TO))
    properties, _ = next_content(answering, queue)
    asking.close()
    answering.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        answering.basic_publish("", properties.reply_to, b"!", mandatory=True)
    assert properties.reply_to not in [found.name for found in http.queues()]


def test_who_asks_for_replies_has_to_consume_them_first(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="the channel has no direct reply-to consumer"):
        channel.basic_publish("", queue, b"?", pika.BasicProperties(reply_to=REPLY_TO))


def test_replies_cannot_be_acknowledged(channel: BlockingChannel) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="a direct reply-to consumer must set no_ack"):
        next(channel.consume(REPLY_TO, inactivity_timeout=WAIT_SECONDS))


# Limits of deliveries


def test_a_message_dies_after_so_many_nacks(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(f"{queue}.dead", durable=True)
    arguments = {
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": f"{queue}.dead",
    }
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
    for times in range(3):
        found = next_of(channel, queue)
        assert found is not None
        assert found[1] == (times > 0)
        channel.basic_nack(found[0], requeue=True)
    assert next_of(channel, queue, 0.1) is None
    channel.cancel()
    properties, _ = next_content(channel, f"{queue}.dead")
    [death] = properties.headers["x-death"]
    assert (death["queue"], death["reason"]) == (queue, "delivery_limit")


# One active consumer


def test_one_consumer_is_active_and_the_next_takes_over(connect: Callable[[], BlockingConnection], queue: str) -> None:
    first, second = connect(), connect()
    channels = [first.channel(), second.channel()]
    channels[0].queue_declare(queue, arguments={"x-single-active-consumer": True})
    got: list[list[bytes]] = [[], []]
    for number, each in enumerate(channels):
        each.basic_qos(prefetch_count=1)
        each.basic_consume(queue, lambda *came, to=got[number]: to.append(came[3]), auto_ack=True)
    for number in range(10):
        channels[0].basic_publish("", queue, b"%d" % number)
    until(lambda: len(got[0]) == 10, first, second)
    assert got[1] == []
    first.close()
    channels[1].basic_publish("", queue, b"10")
    until(lambda: got[1] == [b"10"], second)


def until(is_so: Callable[[], bool], *connections: BlockingConnection) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        for connection in connections:
            connection.process_data_events(0.02)


def test_one_active_consumer_is_not_an_exclusive_one(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, arguments={"x-single-active-consumer": True})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_consume(queue, lambda *_: None, exclusive=True)
    assert caught.value.reply_code == 403


# Priorities, over both protocols


def test_priorities_are_the_same_over_both(channel: BlockingChannel, http: Client, queue: str) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-max-priority": 9})
    assert http.queue(queue).settings["max_priority"] == 9
    for priority in (1, 9, 4):
        channel.basic_publish("", queue, b"%d" % priority, pika.BasicProperties(delivery_mode=2, priority=priority))
        http.publish(queue, str(priority), priority=priority)
    http.publish_many(queue, [Outgoing("7", priority=7), Outgoing("0")])
    assert [message.body for message in http.fetch_many(queue, 8)] == [b"9", b"9", b"7", b"4", b"4", b"1", b"1", b"0"]
