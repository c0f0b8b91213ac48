"""Columns from the store to Arrow: each row has what is one message's, and no message is passed over.

The daemon is in this process, so that bugs planted in its half are found here, too.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from mq.client import Client, Outgoing
from mq.client.calls import Call
from mq.client.codec import JSON_LINES
from mq.spark.connection import DaemonConnection
from mq.spark.errors import ClaimLost, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import ALL_COLUMNS, COLUMNS
from mq.spark.source import MqReader
from mq.spark.stream import MqStreamReader
from tests.spark.by_hand import LIMIT, fill, rows, stream, unsettled, with_options
from tests.spark.conftest import url
from tests.spark.in_process import InProcess

LONG = 300_000
"""Bytes of a body that columns do not take: it is read by itself, between two pieces of columns."""
SIZES = (*(number * 3 % 40 for number in range(20)), LONG, *(1 + number * 7 % 50 for number in range(20)))
KNOWN = StructType([field for field in COLUMNS if field.name != "value"])
_BEFORE_1970 = datetime(1582, 10, 15, tzinfo=UTC)


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    with InProcess(tmp_path_factory.mktemp("columns") / "root", 2_000_000) as running:
        yield running


@pytest.fixture
def client(shared_daemon: InProcess) -> Iterator[Client]:
    with Client(url(shared_daemon)) as client:
        yield client


def publish(client: Client, options: Options) -> list[dict[str, Any]]:
    """Messages of which no two are alike; the rows that they are to be."""
    client.configure(options.queue, groups=True)
    told = []
    for number, size in enumerate(SIZES):
        said: dict[str, Any] = {"content_type": f"a/{number}", "attributes": {"n": f"ä{number}"}} if number % 3 else {}
        group = {"group": f"g{number}"} if number % 4 == 0 else {}
        told.append((Outgoing(b"%d" % (number % 10) * size, **said, **group), said, group))
    outcomes = client.publish_many(options.queue, [message for message, _, _ in told])
    received = client.fetch_many(options.queue, 5)
    for message in received:
        client.requeue(message)
    again = {message.id for message in received}
    wanted = []
    for outcome, (message, said, group) in zip(outcomes, told, strict=True):
        assert outcome.id is not None
        wanted.append(
            {
                "value": message.body,
                "id": outcome.id,
                "queue": options.queue,
                "timestamp": _BEFORE_1970 + timedelta(microseconds=uuid.UUID(outcome.id).time // 10),
                "deliveryCount": int(outcome.id in again),
                "contentType": said.get("content_type", "application/octet-stream"),
                "headers": [{"key": "n", "value": said["attributes"]["n"].encode()}] if said else [],
                "group": group.get("group"),
            }
        )
    sequences = sequence_by_id(options)
    wanted = [{**row, "sequence": sequences[row["id"]]} for row in wanted if row["id"] in sequences]
    return sorted(wanted, key=lambda row: row["sequence"])


def sequence_by_id(options: Options) -> dict[str, int]:
    """Where each message is in its queue, as the daemon tells it line by line."""
    call = Call(
        method="GET",
        target=f"/{options.queue}/browse?max=1000",
        headers=(("accept", JSON_LINES),),
        read=lambda answer: {line["id"]: line["sequence"] for line in answer.lines()},
    )
    with DaemonConnection(options) as connection:
        return connection.run(call)


def read(reader: Any, parts: Any) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_each_row_has_what_is_its_messages(client: Client, options: Options) -> None:
    """In pages of every kind: of columns alone, of single messages alone, of both; and one that ends with the queue."""
    wanted = publish(client, options)
    assert len(wanted) == len(SIZES)
    for size in (1, 4, 7, len(SIZES), 1000):
        for parts in (1, 3):
            reader = MqReader(with_options(options, fetch_size=size, num_partitions=parts), ALL_COLUMNS)
            assert read(reader, reader.partitions()) == wanted


def test_each_row_of_a_claim_has_what_is_its_messages(client: Client, options: Options) -> None:
    wanted = [{**row, "deliveryCount": row["deliveryCount"] + 1} for row in publish(client, options)]
    found = []
    reader = MqStreamReader(with_options(options, fetch_size=3), ALL_COLUMNS)
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, LIMIT)) != start:
        parts = reader.partitions(start, end)
        found.append(read(reader, parts))
        assert read(MqStreamReader(with_options(options, fetch_size=1000), ALL_COLUMNS), parts) == found[-1]
        start = end
    reader.stop()
    together = [row for batch in found for row in batch]
    assert sorted(together, key=lambda row: row["sequence"]) == wanted  # what was given back comes after the others
    assert [len(batch) for batch in found] == [10, 10, 10, 10, 1]


def test_what_is_damaged_is_left_out_and_the_others_keep_what_is_theirs(
    shared_daemon: InProcess, client: Client, options: Options
) -> None:
    """A body with other bytes, and attributes that make no sense, in the middle of a piece of columns."""
    wanted = publish(client, options)
    folder = Path(shared_daemon.root) / "queues" / options.queue
    spoiled = {row["id"]: row for row in (wanted[3], wanted[8], wanted[-2])}
    for id, row in spoiled.items():
        [file] = folder.glob(f"{id}*")
        if row["headers"]:
            os.setxattr(file, "user.mq.attributes", b"{")
        else:
            file.write_bytes(b"?" * (len(row["value"]) or 1))
    assert {bool(row["headers"]) for row in spoiled.values()} == {True, False}
    for size in (5, 1000):
        reader = MqReader(with_options(options, fetch_size=size, num_partitions=1), ALL_COLUMNS)
        assert read(reader, reader.partitions()) == [row for row in wanted if row["id"] not in spoiled]


def test_columns_that_the_queue_knows_are_told_without_reading_messages(
    shared_daemon: InProcess, client: Client, options: Options
) -> None:
    """The files are not even looked at: with other bytes in all of them the rows are the same."""
    wanted = publish(client, options)
    for file in (Path(shared_daemon.root) / "queues" / options.queue).iterdir():
        file.write_bytes(b"?")
    for size in (1, 7, 1000):
        reader = MqReader(with_options(options, fetch_size=size, num_partitions=1), KNOWN)
        assert read(reader, reader.partitions()) == [{name: row[name] for name in KNOWN.names} for row in wanted]


@pytest.mark.slow
def test_a_page_of_more_messages_than_are_read_together(client: Client, options: Options) -> None:
    """A page of 4,000, of which the store reads 2,000 at a time."""
    bodies = [b"%d" % number for number in range(4100)]
    client.publish_many(options.queue, map(Outgoing, bodies))
    reader = MqReader(with_options(options, num_partitions=1), ALL_COLUMNS)
    [part] = reader.partitions()
    batches = list(reader.read(part))
    assert [batch.num_rows for batch in batches] == [4000, 100]
    assert [body for batch in batches for body in batch["value"].to_pylist()] == bodies


def test_a_claim_with_a_damaged_message_fails_until_it_is_given_up(
    shared_daemon: InProcess, client: Client, options: Options
) -> None:
    """It was accepted: it stays, and the text says where to look, until the option says to go on without it."""
    bodies = fill(client, options, 6)
    reader = stream(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    [damaged] = [message.id for message in client.browse(options.queue, state="leased") if message.body == bodies[4]]
    [file] = (Path(shared_daemon.root) / "queues" / options.queue).glob(f"{damaged}*")
    file.write_bytes(b"?")
    first, second = reader.partitions(start, end)
    assert rows(reader, [first]) == bodies[:3]
    with pytest.raises(ClaimLost, match=r"found 1 damaged message in batch 1 .*mq doctor"):
        rows(reader, [second])
    with pytest.raises(SparkSourceError, match="only 3 of its 6 rows"):
        reader.latestOffset(end, LIMIT)
    assert unsettled(client, options) == 6
    reader = stream(with_options(options, fail_on_claim_lost=False))
    assert rows(reader, reader.partitions(start, end)) == [*bodies[:4], bodies[5]]
    assert reader.latestOffset(end, LIMIT) == end
    assert unsettled(client, options) == 0
