"""Queues that are declared again, with pika: which arguments are the same as none."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Final

import boto3
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.amqp.clients.servers import MqServer, Server

pytestmark = pytest.mark.slow

CLASSIC: Final = {"x-queue-type": "classic"}


@pytest.fixture
def channel(server: Server) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port)) as connection:
        yield connection.channel()


@pytest.mark.parametrize("more", [{}, {"x-max-length": 5}, {"x-max-priority": 3}])
@pytest.mark.parametrize(("first", "second"), [({}, CLASSIC), (CLASSIC, {}), (CLASSIC, CLASSIC)])
def test_a_classic_queue_is_the_same_as_one_without_a_type(
    channel: BlockingChannel, queue: str, first: dict[str, Any], second: dict[str, Any], more: dict[str, Any]
) -> None:
    channel.queue_declare(queue, durable=True, arguments=first | more)
    assert channel.queue_declare(queue, durable=True, arguments=second | more).method.queue == queue


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "pair",
    [
        ({}, {"x-queue-mode": "default"}),
        ({}, {"x-queue-version": 1}),
        ({}, {"x-max-priority": 0}),
        ({}, {"x-single-active-consumer": False}),
        ({}, {"x-overflow": "drop-head"}),
        ({"x-max-length": 5}, {"x-max-length": 5, "x-overflow": "drop-head"}),
    ],
    ids=str,
)
def test_other_defaults_are_not_the_same_as_no_argument(
    channel: BlockingChannel, queue: str, pair: tuple[dict[str, Any], ...], order: int
) -> None:
    first, second = pair[::order]
    channel.queue_declare(queue, durable=True, arguments=first)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(queue, durable=True, arguments=second)
    assert caught.value.reply_code == 406


def _over_http(server: MqServer, queue: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{server.daemon.port}/{queue}", method="PUT")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


def _over_sqs(server: MqServer, queue: str) -> None:
    sqs: Any = boto3.client(
        "sqs",
        region_name="elsewhere",
        endpoint_url=f"http://127.0.0.1:{server.daemon.port}",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    sqs.create_queue(QueueName=queue)


def _on_the_command_line(server: MqServer, queue: str) -> None:
    url = f"http://127.0.0.1:{server.daemon.port}"
    subprocess.run([sys.executable, "-m", "mq", "queue", "create", queue, "--url", url], check=True, timeout=60)


@pytest.mark.parametrize("create", [_over_http, _over_sqs, _on_the_command_line])
def test_a_queue_of_another_protocol_is_a_classic_one(
    mq_server: MqServer, queue: str, create: Callable[[MqServer, str], None]
) -> None:
    create(mq_server, queue)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", mq_server.port)) as connection:
        channel = connection.channel()
        for arguments in (None, CLASSIC):
            assert channel.queue_declare(queue, durable=True, arguments=arguments).method.queue == queue
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        assert caught.value.reply_code == 406
