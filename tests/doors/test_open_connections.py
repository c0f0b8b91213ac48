"""The registry of connections, and what the kernel says of one."""

from __future__ import annotations

import socket

import trio
import trio.testing

from mq.doors.open_connections import ConnectionStatus, ConsumerStatus, OpenConnections, traffic_of


class Anybody:
    protocol = "amqp"

    def status(self) -> ConnectionStatus:
        raise AssertionError

    def consumers(self) -> list[ConsumerStatus]:
        raise AssertionError

    def close(self, why: str) -> None:
        raise AssertionError


def test_a_connection_is_there_for_as_long_as_it_lives() -> None:
    connections, first, second = OpenConnections(), Anybody(), Anybody()
    with connections.entry(first):
        with connections.entry(second):
            [(one, found), (other, _)] = connections.all()
            assert found is first
            assert connections.find(other) is second
            assert connections.by_door() == {"amqp": 2}
        assert connections.find(other) is None
        assert connections.all() == [(one, first)]
    assert connections.all() == []


def test_no_process_has_the_ids_of_another() -> None:
    ids = []
    for connections in (OpenConnections(), OpenConnections()):
        with connections.entry(Anybody()):
            ids += [id for id, _ in connections.all()]
    assert len(set(ids)) == 2


async def test_the_kernel_counts_bytes_and_seconds(nursery: trio.Nursery) -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, await trio.testing.open_stream_to_socket_listener(listener) as client:
        async with await listener.accept() as server:
            await client.send_all(bytes(1000))
            received = 0
            while received < 1000:
                received += len(await server.receive_some())
            traffic = traffic_of(server.socket)
            assert traffic is not None
            assert (traffic.received_bytes, traffic.sent_bytes) == (1000, 0)
            assert 0 <= traffic.idle_seconds < 5
        assert traffic_of(server.socket) is None


def test_a_unix_socket_counts_nothing() -> None:
    one, other = socket.socketpair()
    with one, other, trio.socket.from_stdlib_socket(one) as ours:
        assert traffic_of(ours) is None
