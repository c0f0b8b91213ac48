"""Readers and writers without Spark: called in the order in which it calls them, over a real daemon."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from mq.client import Client, Outgoing
from mq.spark.batch import MqReader
from mq.spark.errors import ClaimLost, InvalidRow, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import COLUMNS
from mq.spark.source import MqDataSource
from mq.spark.stream import MqStreamReader
from mq.spark.writing import MqWriter
from tests.e2e.daemon import Daemon
from tests.spark.conftest import url

LIMIT = ReadMaxRows(10)
VALUE = StructType([StructField("value", BinaryType())])


@pytest.fixture
def client(shared_daemon: Daemon) -> Iterator[Client]:
    with Client(url(shared_daemon)) as client:
        yield client


@pytest.fixture
def options(shared_daemon: Daemon, client: Client) -> Options:
    queue = uuid.uuid4().hex
    client.create_queue(queue)
    return Options(url=url(shared_daemon), queue=queue, consumer="c", retry_seconds=0.0)


def fill(client: Client, options: Options, count: int, start: int = 0) -> list[bytes]:
    bodies = [b"%d" % number for number in range(start, start + count)]
    client.publish_many(options.queue, [Outgoing(body) for body in bodies])
    return bodies


def stream(options: Options) -> MqStreamReader:
    return MqStreamReader(options, COLUMNS)


def rows(reader: Any, parts: Any) -> list[bytes]:
    """As executors read: from a pickled reader and pickled parts."""
    reader, parts = pickle.loads(pickle.dumps((reader, list(parts))))
    return [row["value"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_batch_read_covers_everything_once(client: Client, options: Options) -> None:
    bodies = fill(client, options, 50)
    reader = MqReader(Options(**{**vars(options), "num_partitions": 4, "fetch_size": 7}), COLUMNS)
    parts = reader.partitions()
    assert len(parts) == 4
    fill(client, options, 5, 50)  # comes too late
    assert rows(reader, parts) == bodies
    assert rows(reader, parts) == bodies


def test_an_empty_queue_is_an_empty_table(options: Options) -> None:
    reader = MqReader(options, COLUMNS)
    assert rows(reader, reader.partitions()) == []


def test_offsets_from_batch_to_batch(client: Client, options: Options) -> None:
    bodies = fill(client, options, 25)
    reader = stream(options)
    start = reader.initialOffset()
    assert start == reader.initialOffset() == {"consumer": "c", "batch": 0, "rows": 0}
    assert reader.reportLatestOffset() == {"ready": 25, "leased": 0, "delayed": 0}
    found = []
    for number, count in ((1, 10), (2, 10), (3, 5)):
        end = reader.latestOffset(start, LIMIT)
        assert end == {"consumer": "c", "batch": number, "rows": count}
        found += rows(reader, reader.partitions(start, end))
        start = end
    assert reader.latestOffset(start, LIMIT) == start
    reader.commit(start)
    assert found == bodies
    assert client.queue(options.queue).ready == client.queue(options.queue).leased == 0
    assert stream(options).initialOffset()["batch"] == 3
    reader.stop()


def test_a_restarted_query_reads_the_planned_batch_again(client: Client, options: Options) -> None:
    bodies = fill(client, options, 5)
    before = stream(options)
    start = before.initialOffset()
    end = before.latestOffset(start, LIMIT)
    fill(client, options, 5, 5)
    after = stream(options)
    assert rows(after, after.partitions(start, end)) == bodies
    with pytest.raises(SparkSourceError, match="started again"):  # the older one fails, and says why
        rows(before, before.partitions(start, end))
    assert after.latestOffset(end, LIMIT) == {"consumer": "c", "batch": 2, "rows": 5}


def test_what_is_there_now_and_no_more(client: Client, options: Options) -> None:
    fill(client, options, 5)
    reader = stream(options)
    reader.prepareForTriggerAvailableNow()
    fill(client, options, 5, 5)
    start = reader.latestOffset(reader.initialOffset(), LIMIT)
    assert start["rows"] == 5
    assert reader.latestOffset(start, LIMIT) == start


@pytest.mark.parametrize("fails", [True, False])
def test_messages_that_went_to_somebody_else(client: Client, options: Options, fails: bool) -> None:
    bodies = fill(client, options, 5)
    reader = stream(Options(**{**vars(options), "fail_on_claim_lost": fails}))
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    client.purge(options.queue)
    [first] = [message for message in client.browse(options.queue, state="leased") if message.body == bodies[0]]
    client.remove(first)
    reader = stream(Options(**{**vars(options), "fail_on_claim_lost": fails}))
    if fails:
        with pytest.raises(ClaimLost, match=r"1 of 5 messages of batch 1 .* \"failOnClaimLost\""):
            reader.partitions(start, end)
    else:
        assert rows(reader, reader.partitions(start, end)) == bodies[1:]


def test_a_checkpoint_that_is_older_than_the_consumer(client: Client, options: Options) -> None:
    fill(client, options, 5)
    reader = stream(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    reader.commit(end)
    with pytest.raises(SparkSourceError, match=r'option "consumer": batch 1 .* was acknowledged'):
        stream(options).partitions(start, end)
    other = stream(Options(**{**vars(options), "consumer": "d"}))
    with pytest.raises(SparkSourceError, match="the checkpoint is that of c"):
        other.latestOffset(end, LIMIT)


def test_a_queue_that_is_missing_or_deleted_is_named(client: Client, options: Options) -> None:
    reader = stream(options)
    start = reader.initialOffset()
    client.delete_queue(options.queue)
    with pytest.raises(SparkSourceError, match=f'option "queue": .*{options.queue}'):
        reader.latestOffset(start, LIMIT)
    with pytest.raises(SparkSourceError, match='option "queue"'):
        MqReader(options, COLUMNS).partitions()
    with pytest.raises(SparkSourceError, match='option "queue"'):
        MqWriter(options, VALUE).write(iter([pa.RecordBatch.from_pylist([{"value": b"x"}])]))


def test_a_daemon_that_is_down_is_named() -> None:
    options = Options(url="http://127.0.0.1:9", queue="q", consumer="c", retry_seconds=0.0)
    with pytest.raises(SparkSourceError, match='option "url": no daemon answers'):
        MqReader(options, COLUMNS).partitions()


def test_a_task_that_writes_again_stores_each_row_once(client: Client, options: Options) -> None:
    writer = MqWriter(Options(**{**vars(options), "batch_size": 7}), VALUE)
    batch = pa.RecordBatch.from_pylist([{"value": b"%d" % (number % 5)} for number in range(30)])
    for again in (0, 30):
        copy = pickle.loads(pickle.dumps(writer))
        stored = copy.write(iter([batch.slice(0, 20), batch.slice(20)]))
        assert (stored.rows, stored.again) == (30, again)
        copy.commit([stored])
    assert client.queue(options.queue).ready == 30
    MqWriter(options, VALUE).write(iter([batch]))  # another write
    assert client.queue(options.queue).ready == 60


def test_a_write_that_is_named_can_be_run_again(client: Client, options: Options) -> None:
    named = Options(**{**vars(options), "write_id": "nightly/2026-11-21"})
    for _ in range(2):
        MqWriter(named, VALUE).write(iter([pa.RecordBatch.from_pylist([{"value": b"x"}])]))
    assert client.queue(options.queue).ready == 1


def test_a_row_that_the_broker_refuses_is_named(client: Client, options: Options) -> None:
    rows = [{"value": b"x", "contentType": None}, {"value": b"y", "contentType": "a\nb"}]
    schema = MqDataSource({"queue": "q", "includeHeaders": "true"}).schema()
    with pytest.raises(InvalidRow, match="row 1 of partition 0: content_type"):
        MqWriter(options, schema).write(iter([pa.RecordBatch.from_pylist(rows)]))


def test_a_queue_that_stays_full_is_named(client: Client, options: Options) -> None:
    client.configure(options.queue, max_messages=1)
    batch = pa.RecordBatch.from_pylist([{"value": b"x"}, {"value": b"y"}])
    with pytest.raises(SparkSourceError, match="takes no more for now"):
        MqWriter(options, VALUE).write(iter([batch]))
