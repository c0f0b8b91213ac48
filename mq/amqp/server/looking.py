"""What operators see of a connection: its channels, its consumers, its traffic."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from mq.amqp.protocol.connection import Connection
from mq.amqp.server.consumer_pump import ConsumerPump
from mq.doors.connections import Peer
from mq.doors.listening import TLSStream
from mq.doors.open_connections import ChannelStatus, ConnectionStatus, ConsumerStatus, Traffic, traffic_of


def status_of(
    connection: Connection, stream: trio.SocketStream | TLSStream, peer: Peer, began: float
) -> ConnectionStatus:
    """What there is to see of a connection now.

    Args:
        connection: which.
        stream: carries it.
        peer: the client.
        began: when, on Trio's clock.
    """
    session, traffic, age = connection.session, _traffic(stream), trio.current_time() - began
    return ConnectionStatus(
        door="amqp",
        state=connection.state.value,
        address=peer.address,
        port=peer.port,
        user=None if session.user is None else session.user.name,
        vhost=session.vhost,
        open_seconds=age,
        idle_seconds=age if traffic is None else traffic.idle_seconds,
        received_bytes=None if traffic is None else traffic.received_bytes,
        sent_bytes=None if traffic is None else traffic.sent_bytes,
        channels=tuple(
            ChannelStatus(channel.key.number, len(channel.consumers), channel.unsettled)
            for channel in connection.channels()
        ),
    )


def _traffic(stream: trio.SocketStream | TLSStream) -> Traffic | None:
    carrier = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    return traffic_of(carrier.socket) if isinstance(carrier, trio.SocketStream) else None


def consumers_of(connection: Connection, pumps: Iterable[ConsumerPump]) -> list[ConsumerStatus]:
    """What there is to see of a connection's consumers now.

    Args:
        connection: which.
        pumps: its consumers.
    """
    now = trio.current_time()
    found: list[ConsumerStatus] = []
    for pump in pumps:
        channel = connection.channel(pump.channel)
        credit = None if channel is None else channel.consumers.get(pump.tag)
        if credit is not None:
            found.append(
                ConsumerStatus(
                    queue=pump.queue.key,
                    tag=pump.tag,
                    channel=pump.channel.number,
                    prefetch=credit.prefetch,
                    acknowledges=not credit.no_ack,
                    unacknowledged=credit.unsettled,
                    delivered=pump.delivered,
                    delivered_per_second=pump.rate.per_second(now),
                    open_seconds=now - pump.began,
                    idle_seconds=now - pump.last_delivery,
                )
            )
    return found
