"""connections: who is connected, for eyes and for programs."""

from __future__ import annotations

from mq.client import Client
from mq.doors.open_connections import ChannelStatus, ConnectionStatus, ConsumerStatus
from tests.cli.conftest import Mq
from tests.client.inside import Inside


class Connection:
    """One at a door of the daemon's."""

    door = "amqp"

    def __init__(self) -> None:
        self.closed = ""

    def status(self) -> ConnectionStatus:
        channels = (ChannelStatus(1, 1, 3), ChannelStatus(2, 0, 4))
        return ConnectionStatus("amqp", "open", "192.0.2.1", 5000, "alice", "/", 60.4, 1.2, 2048, 3, channels)

    def consumers(self) -> list[ConsumerStatus]:
        return [ConsumerStatus("q", "a\x1b[2Jb", 1, 10, True, 3, 8, 0.127, 60.4, 5.0)]

    def close(self, why: str) -> None:
        self.closed = why


def test_who_is_connected(client: Client, daemon: Inside, mq: Mq) -> None:
    with daemon.connections.entry(Connection()):
        [(id, _)] = daemon.connections.all()
        [row] = mq("connections").lines
        [found] = mq("connections", "--json").json
    told = [id, "amqp", "alice", "192.0.2.1 5000", "open", "60s", "1s", "2 KiB", "3 B", "2", "7"]
    assert row.split("\t") == told
    assert (found["id"], found["channels"][1]["unacknowledged"]) == (id, 4)


def test_who_consumes_cannot_command_the_terminal(client: Client, daemon: Inside, mq: Mq) -> None:
    with daemon.connections.entry(Connection()):
        [row] = mq("connections", "--consumers").lines
    assert row.split("\t")[1:] == ["q", "amqp", "alice", "'a\\x1b[2Jb'", "10", "3", "8", "0.13", "60s", "5s"]


def test_closing_one(client: Client, daemon: Inside, mq: Mq) -> None:
    connection = Connection()
    with daemon.connections.entry(connection):
        [(id, _)] = daemon.connections.all()
        assert mq("connections", "--close", id).status == 0
        assert "operator" in connection.closed
    done = mq("connections", "--close", id)
    assert (done.status, "no connection" in done.error) == (1, True)
