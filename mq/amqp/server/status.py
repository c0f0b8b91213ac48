"""A connection and its consumers as operators see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import trio

from mq.amqp.server.client_connection import ClientConnection
from mq.amqp.server.served_consumer import ServedConsumer
from mq.doors.open_connections import ChannelStatus, ConnectionStatus, ConsumerStatus


def status_of(client: ClientConnection, began: float) -> ConnectionStatus:
    """Return a connection as it is now.

    Args:
        began: when it was accepted (Trio's clock).
    """
    session, traffic, age = client.connection.session, client.socket.traffic(), trio.current_time() - began
    return ConnectionStatus(
        protocol="amqp",
        state=client.connection.state.value,
        address=client.peer.address,
        port=client.peer.port,
        user=None if session.user is None else session.user.name,
        vhost=session.vhost,
        open_seconds=age,
        idle_seconds=age if traffic is None else traffic.idle_seconds,
        received_bytes=None if traffic is None else traffic.received_bytes,
        sent_bytes=None if traffic is None else traffic.sent_bytes,
        channels=tuple(
            ChannelStatus(channel.key.number, len(channel.consumers), channel.unsettled)
            for channel in client.connection.channels()
        ),
    )


def consumers_of(client: ClientConnection, consumers: Iterable[ServedConsumer]) -> Iterator[ConsumerStatus]:
    """Yield consumers as they are now."""
    now = trio.current_time()
    for consumer in consumers:
        channel = client.connection.channel(consumer.channel)
        credit = None if channel is None else channel.consumers.get(consumer.tag)
        if credit is not None:
            yield ConsumerStatus(
                queue=consumer.queue.key,
                tag=consumer.tag,
                channel=consumer.channel.number,
                prefetch=credit.prefetch,
                ack_required=not credit.no_ack,
                unacknowledged=credit.unsettled,
                delivered=consumer.delivered,
                delivered_per_second=consumer.rate.per_second(now),
                open_seconds=now - consumer.began,
                idle_seconds=now - consumer.last_delivery,
            )
