"""connections: who is connected, for eyes and for programs."""

from __future__ import annotations

from mq.client import Client, Outgoing
from mq.doors.open_connections import ChannelStatus, ConnectionStatus, ConsumerStatus
from mq.spark import calls
from tests.cli.conftest import Mq
from tests.client.inside import Inside


class Connection:
    """One at a door of the daemon's."""

    protocol = "amqp"

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
        [row] = mq("consumers").lines
    told = row.split("\t")
    assert told[:4] == ["amqp", "'a\\x1b[2Jb'", "q", "alice"]
    assert told[5:] == ["10", "3", "8", "0.13", "60s", "5s"]


def start_claim(client: Client, queue: str, consumer: str) -> None:
    """Claim the two messages of a new queue for a consumer of batches."""
    client.create_queue(queue)
    client.publish_many(queue, [Outgoing("1"), Outgoing("2")])
    epoch = client._run(calls.start(queue, consumer, None, take_over=False, within=9))["epoch"]
    client._run(calls.claim(queue, consumer, 1, epoch, 900))


def test_consumers_of_each_kind_are_listed(client: Client, daemon: Inside, mq: Mq) -> None:
    start_claim(client, "q", "nightly")
    client.create_queue("r")
    with daemon.connections.entry(Connection()):
        rows = [row.split("\t") for row in mq("consumers").lines]
        found = mq("consumers", "--json").json
        of_r = mq("consumers", "r").lines
    assert [row[:3] for row in rows] == [["amqp", "'a\\x1b[2Jb'", "q"], ["spark", "nightly", "q"]]
    assert (rows[1][6], len(rows[1])) == ("2", len(rows[0]))
    assert [each["kind"] for each in found] == ["amqp", "spark"]
    assert (found[1]["consumer"], found[1]["batch"], found[1]["leased"]) == ("nightly", 1, 2)
    assert of_r == []


def test_forgetting_a_consumer_gives_its_messages_back(client: Client, daemon: Inside, mq: Mq) -> None:
    for queue in ("q", "r", "s"):
        start_claim(client, queue, "nightly" if queue != "s" else "other")
    assert mq("consumers", "q", "--forget", "nightly").status == 0
    assert [(each["queue"], each["consumer"]) for each in client.batch_consumers()] == [
        ("r", "nightly"),
        ("s", "other"),
    ]
    assert client.queue("q").ready == 2
    assert mq("consumers", "--forget", "nightly").status == 0
    assert [each["queue"] for each in client.batch_consumers()] == ["s"]
    done = mq("consumers", "--forget", "nightly")
    assert (done.status, "To list consumers, use mq consumers" in done.error) == (1, True)
    assert client.queue("s").leased == 2


def test_closing_one(client: Client, daemon: Inside, mq: Mq) -> None:
    connection = Connection()
    with daemon.connections.entry(connection):
        [(id, _)] = daemon.connections.all()
        assert mq("connections", "--close", id).status == 0
        assert "operator" in connection.closed
    done = mq("connections", "--close", id)
    assert (done.status, "does not exist" in done.error) == (1, True)
