"""``python -m tests.crash.acks``: how many acknowledged messages come again after kill -9, of mq and of RabbitMQ.

A consumer acknowledges each message as it comes, until its server is killed. Persistent messages in a durable queue.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click
import trio
from pamqp import commands

from mq.amqp.server.settling import MOST_ACKNOWLEDGING
from tests.amqp import rabbit
from tests.amqp.clients.servers import MqServer, RabbitServer, Server
from tests.amqp.dialling import Client

SERVERS: Final = {"mq": MqServer, "rabbitmq": RabbitServer}


class Round(NamedTuple):
    """One kill.

    Attributes:
        acknowledged: how many messages the consumer had acknowledged.
        again: how many of these came again.
        unmarked: how many of these were not marked as redelivered.
        seconds: how long before the kill the first of these was acknowledged; 0 if none came again.
        lost: messages that were neither acknowledged nor came again.
    """

    acknowledged: int
    again: int
    unmarked: int
    seconds: float
    lost: int


def bound(prefetch: int) -> int:
    """The most acknowledged messages of one connection that come again from mq (docs/amqp.md)."""
    return 2 * prefetch + MOST_ACKNOWLEDGING


async def kill_a_round(server: Server, prefetch: int, messages: int) -> Round:
    """Kill a server once its consumer has acknowledged half of the messages, and start it again.

    Args:
        server: it runs, and has none of the messages.
    """
    await _publish(server, messages)
    async with _connection(server) as consumer:
        acknowledged = await _acknowledge(consumer, prefetch, messages // 2)
        killed = trio.current_time()
        server.kill()
    server.start()
    left = await _drain(server)
    doubled = [body for body in acknowledged if body in left]
    return Round(
        len(acknowledged),
        len(doubled),
        sum(not left[body] for body in doubled),
        max((killed - acknowledged[body] for body in doubled), default=0.0),
        messages - len(acknowledged.keys() | left.keys()),
    )


async def _publish(server: Server, messages: int) -> None:
    async with _connection(server) as publisher:
        await publisher.declare("acks", durable=True)
        await publisher.call(commands.Confirm.Select())
        await publisher.publish("acks", *[b"%d" % number for number in range(messages)], delivery_mode=2)
        confirmed = 0
        while confirmed < messages:
            confirmed = max(confirmed, getattr(await publisher.hear(), "delivery_tag", 0))


async def _acknowledge(consumer: Client, prefetch: int, messages: int) -> dict[bytes, float]:
    """Consume and acknowledge messages; when each one was acknowledged, by its body."""
    await consumer.call(commands.Basic.Qos(prefetch_count=prefetch))
    await consumer.consume("acks")
    acknowledged: dict[bytes, float] = {}
    while len(acknowledged) < messages:
        method, _, body = await consumer.delivery()
        await consumer.say(commands.Basic.Ack(method.delivery_tag))
        acknowledged[body] = trio.current_time()
    return acknowledged


async def _drain(server: Server) -> dict[bytes, bool]:
    """Get all messages that are left; whether each is marked as redelivered, by its body."""
    left: dict[bytes, bool] = {}
    async with _connection(server) as client:
        while (got := await client.get("acks", no_ack=True)) is not None:
            left[got[2]] = got[0].redelivered
    return left


@asynccontextmanager
async def _connection(server: Server) -> AsyncIterator[Client]:
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        yield await Client(stream).open()


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Kills of each server, with each prefetch.")
@click.option("--messages", default=4000, show_default=True, help="Messages in the queue; half are acknowledged.")
@click.option("--prefetch", default="10,100,1000", show_default=True, help="Prefetches of the consumer.")
@click.option("--folder", type=click.Path(exists=True), help="For the servers' data: on the disk to measure.")
def main(rounds: int, messages: int, prefetch: str, folder: str | None) -> None:
    """Kill mq, and RabbitMQ if it is installed, and count which acknowledged messages come again."""
    kinds = [kind for kind in SERVERS if kind == "mq" or rabbit.is_installed()]
    for each in map(int, prefetch.split(",")):
        for kind in kinds * rounds:
            temporary = tempfile.TemporaryDirectory(prefix="mq-", dir=folder, ignore_cleanup_errors=True)
            with temporary as place, SERVERS[kind](Path(place)) as server:
                found = trio.run(kill_a_round, server, each, messages)
            most = f" (at most {bound(each)})" if kind == "mq" else ""
            click.echo(
                f"{kind:9} prefetch {each}: {found.again}{most} of {found.acknowledged} came again, "
                f"{found.unmarked} unmarked, since {found.seconds:.2f} s before the kill; lost {found.lost}"
            )


if __name__ == "__main__":
    main()
