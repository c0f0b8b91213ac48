"""kombu: what Celery says to a broker, without Celery."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from kombu.pidbox import Mailbox

from tests.amqp.clients.servers import Server

pytestmark = pytest.mark.slow

WAIT_SECONDS = 60


@pytest.fixture
def connection(server: Server) -> Iterator[kombu.Connection]:
    with kombu.Connection(f"{server.url}//", transport_options={"confirm_publish": True}) as opened:
        yield opened


def drain(connection: kombu.Connection, until: Any) -> None:
    for _ in itertools.takewhile(lambda _: not until(), range(200)):
        with contextlib.suppress(socket.timeout):
            connection.drain_events(timeout=0.1)
    assert until()


def test_a_producer_and_a_consumer(connection: kombu.Connection, queue: str) -> None:
    exchange = kombu.Exchange(f"x-{queue}", "topic", durable=True)
    ours = kombu.Queue(queue, exchange, routing_key="news.#", durable=True, queue_arguments={"x-max-priority": 3})
    got: list[Any] = []

    def handle(body: Any, message: kombu.Message) -> None:
        got.append(body)
        message.ack()

    with connection.Consumer([ours], callbacks=[handle], accept=["json"]):
        producer = connection.Producer(serializer="json", compression="zlib")
        for number in range(5):
            producer.publish({"n": number}, exchange=exchange, routing_key="news.x", declare=[ours], retry=True)
        producer.publish({"n": -1}, exchange=exchange, routing_key="weather", retry=True)
        drain(connection, lambda: len(got) == 5)
    assert got == [{"n": number} for number in range(5)]


def test_rejected_and_requeued(connection: kombu.Connection, queue: str) -> None:
    channel = connection.channel()
    ours = kombu.Queue(queue, channel=channel)
    ours.declare()
    connection.Producer().publish("x", routing_key=queue)
    first = ours.get()
    first.requeue()
    again = ours.get()
    assert (first.delivery_info["redelivered"], again.delivery_info["redelivered"]) == (False, True)
    again.reject()
    assert ours.get() is None


def test_a_simple_queue(connection: kombu.Connection, queue: str) -> None:
    with contextlib.closing(connection.SimpleQueue(queue)) as simple:
        for number in range(3):
            simple.put({"n": number})
        assert len(simple) == simple.qsize() == 3
        for number in range(3):
            message = simple.get(timeout=WAIT_SECONDS)
            assert message.payload == {"n": number}
            message.ack()
        with pytest.raises(simple.Empty):
            simple.get(timeout=0.1)


def test_a_mailbox_to_all_and_their_replies(connection: kombu.Connection, server: Server, queue: str) -> None:
    """Celery's remote control: a fanout exchange, and reply queues that expire."""
    mailbox = Mailbox(queue, type="fanout")
    with kombu.Connection(f"{server.url}//") as theirs:
        nodes = [mailbox(theirs).Node(f"node{n}", handlers={"ping": lambda _state: "pong"}) for n in range(2)]
        consumers = [node.listen(channel=theirs.channel()) for node in nodes]
        replies: list[Any] = []

        def ask() -> None:
            channel = connection.channel()
            replies.extend(
                mailbox(connection)._broadcast("ping", reply=True, limit=2, timeout=WAIT_SECONDS, channel=channel)
            )

        asking = threading.Thread(target=ask)
        asking.start()
        drain(theirs, lambda: not asking.is_alive())
        asking.join()
        for consumer in consumers:
            consumer.cancel()
    assert sorted(replies, key=str) == [{"node0": "pong"}, {"node1": "pong"}]


def test_heartbeats(server: Server, queue: str) -> None:
    with kombu.Connection(f"{server.url}//", heartbeat=2) as connection:
        connection.connect()
        for _ in range(6):  # more than two intervals
            with contextlib.suppress(socket.timeout):
                connection.drain_events(timeout=0.5)
            connection.heartbeat_check(rate=2)
        kombu.Queue(queue, channel=connection.channel()).declare()
