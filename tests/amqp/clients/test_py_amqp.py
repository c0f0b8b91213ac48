"""py-amqp, the client below kombu and Celery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import amqp
import amqp.exceptions
import pytest

from tests.amqp.clients.servers import Server

pytestmark = pytest.mark.slow

WAIT_SECONDS = 60


@pytest.fixture
def connection(server: Server) -> Iterator[amqp.Connection]:
    with amqp.Connection(f"127.0.0.1:{server.port}", confirm_publish=True, heartbeat=10) as opened:
        yield opened


def test_publish_get_ack(connection: amqp.Connection, queue: str) -> None:
    channel = connection.channel()
    assert channel.queue_declare(queue, durable=True, auto_delete=False) == (queue, 0, 0)
    sent = amqp.Message("ä", content_type="text/plain", application_headers={"n": 1, "f": 1.5}, delivery_mode=2)
    channel.basic_publish(sent, routing_key=queue)
    got = channel.basic_get(queue)
    assert (got.body, got.content_type, got.headers, got.properties["delivery_mode"]) == (
        "ä",
        "text/plain",
        {"n": 1, "f": 1.5},
        2,
    )
    channel.basic_ack(got.delivery_tag)
    assert channel.basic_get(queue) is None
    assert channel.queue_delete(queue) == 0


def test_consuming(connection: amqp.Connection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=False)
    got: list[Any] = []
    channel.basic_qos(0, 2, a_global=False)
    channel.basic_consume(queue, callback=got.append)
    for number in range(5):
        channel.basic_publish(amqp.Message(str(number)), routing_key=queue)
    for expected in (2, 4, 5):
        while len(got) < expected:
            connection.drain_events(timeout=WAIT_SECONDS)
        assert [int(message.body) for message in got] == list(range(expected))
        channel.basic_ack(got[-1].delivery_tag, multiple=True)


def test_what_goes_nowhere_comes_back(connection: amqp.Connection, queue: str) -> None:
    channel = connection.channel()
    returned: list[Any] = []
    channel.events["basic_return"].add(lambda *what: returned.append(what))
    channel.basic_publish(amqp.Message("x"), routing_key=queue, mandatory=True)
    ((error, exchange, key, message),) = returned
    assert (error.reply_code, error.reply_text) == (312, "NO_ROUTE")
    assert (exchange, key, message.body) == ("", queue, "x")


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (amqp.exceptions.NotFound, lambda channel, queue: channel.queue_declare(queue, passive=True)),
        (amqp.exceptions.AccessRefused, lambda channel, queue: channel.queue_declare(f"amq.{queue}")),
        (
            amqp.exceptions.PreconditionFailed,
            lambda channel, queue: (
                channel.exchange_declare(queue, "topic"),
                channel.exchange_declare(queue, "fanout"),
            ),
        ),
    ],
)
def test_refusals(connection: amqp.Connection, queue: str, error: type[Exception], wrong: Any) -> None:
    channel = connection.channel()
    with pytest.raises(error):
        wrong(channel, queue)
    assert connection.channel().queue_declare(f"{queue}-other").message_count == 0


def test_a_wrong_password_is_refused(server: Server) -> None:
    if server.name == "mq":
        pytest.skip("mq without users lets everybody in")
    with pytest.raises(amqp.exceptions.AccessRefused):
        amqp.Connection(f"127.0.0.1:{server.port}", password="wrong").connect()


def test_an_unknown_type_of_exchange_ends_the_connection(server: Server, queue: str) -> None:
    connection = amqp.Connection(f"127.0.0.1:{server.port}")
    connection.connect()
    with pytest.raises(amqp.exceptions.AMQPError) as caught:
        connection.channel().exchange_declare(queue, "x-nothing")
    assert caught.value.code == 503
    assert not connection.connected


def test_a_transaction(connection: amqp.Connection, server: Server, queue: str) -> None:
    with amqp.Connection(f"127.0.0.1:{server.port}") as plain:
        channel = plain.channel()
        channel.queue_declare(queue, auto_delete=False)
        channel.tx_select()
        channel.basic_publish(amqp.Message("no"), routing_key=queue)
        channel.tx_rollback()
        channel.basic_publish(amqp.Message("yes"), routing_key=queue)
        channel.tx_commit()
    assert connection.channel().basic_get(queue, no_ack=True).body == "yes"
