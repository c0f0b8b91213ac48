"""Readers and writers without Spark: called in the order in which it calls them, over a real daemon."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import ANY

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from mq.client import Client, Outgoing
from mq.spark.errors import ClaimLost, InvalidRow, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import COLUMNS
from mq.spark.source import MqDataSource, MqReader
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


def with_options(options: Options, **changed: Any) -> Options:
    return Options(**{**vars(options), **changed})


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
    assert (
        start
        == reader.initialOffset()
        == {
            "consumer": "c",
            "batch": 0,
            "rows": 0,
            "partitions": 2,
            "checkpoint": ANY,
        }
    )
    assert reader.reportLatestOffset() == {"ready": 25, "leased": 0, "delayed": 0}
    found = []
    for number, count in ((1, 10), (2, 10), (3, 5)):
        end = reader.latestOffset(start, LIMIT)
        assert end == {**start, "batch": number, "rows": count}
        found += rows(reader, reader.partitions(start, end))
        reader.commit(start)
        start = end
    assert reader.latestOffset(start, LIMIT) == start
    assert found == bodies
    assert client.queue(options.queue).ready == client.queue(options.queue).leased == 0
    assert stream(options).initialOffset()["batch"] == 3
    reader.stop()


def test_a_restarted_query_reads_the_planned_batch_again(client: Client, options: Options) -> None:
    bodies = fill(client, options, 5)
    before = stream(options)
    start = before.initialOffset()
    end = before.latestOffset(start, LIMIT)
    assert rows(before, before.partitions(start, end)) == bodies
    fill(client, options, 5, 5)
    after = stream(options)
    start = after.initialOffset()  # Spark does not keep the first one, and asks again
    assert rows(after, after.partitions(start, end)) == bodies
    with pytest.raises(SparkSourceError, match="started again"):  # the older one fails, and says why
        rows(before, before.partitions(start, end))
    assert after.latestOffset(end, LIMIT) == {**end, "batch": 2}


def test_a_batch_that_is_run_again_has_the_same_partitions(client: Client, options: Options) -> None:
    """Of a row whose task runs again a writer knows the partition."""
    fill(client, options, 8)
    reader = stream(with_options(options, num_partitions=4))
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    before = [(part.start, part.stop) for part in reader.partitions(start, end)]
    after = [(part.start, part.stop) for part in stream(options).partitions(start, end)]
    assert before == after == [(0, 2), (2, 4), (4, 6), (6, 8)]


def unsettled(client: Client, options: Options) -> int:
    """How many messages are not removed."""
    found = client.queue(options.queue)
    return found.ready + found.leased


def test_what_was_not_read_is_not_acknowledged(client: Client, options: Options) -> None:
    """Spark commits a batch that its sink has skipped: the tasks are planned, and none runs."""
    fill(client, options, 10)
    reader = stream(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    for read in (0, 5):
        reader = stream(options)
        first, second = reader.partitions(start, end)
        rows(reader, [first][: read // 5])
        reader.commit(end)
        with pytest.raises(SparkSourceError, match=rf'only {read} of its 10 rows .* "takeOver"'):
            reader.latestOffset(end, LIMIT)
        with pytest.raises(SparkSourceError, match=f"only {read} of"):  # nor by another life of the query
            stream(options).latestOffset(end, LIMIT)
        assert unsettled(client, options) == 10
    reader = stream(options)
    [_, second] = reader.partitions(start, end)
    rows(reader, [second])
    reader = stream(options)
    assert reader.latestOffset(end, LIMIT) == end  # what was read in either life counts
    assert unsettled(client, options) == 0


def test_a_task_that_stops_halfway_has_not_read_its_slice(client: Client, options: Options) -> None:
    fill(client, options, 10)
    reader = stream(with_options(options, fetch_size=2))
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    for part in reader.partitions(start, end):
        next(reader.read(part))
    with pytest.raises(SparkSourceError, match="only 0 of its 10 rows"):
        reader.latestOffset(end, LIMIT)


def test_a_batch_that_was_skipped_comes_again_where_that_is_wanted(client: Client, options: Options) -> None:
    bodies = fill(client, options, 20)
    reader = stream(with_options(options, take_over=True))
    start = reader.initialOffset()
    for again in range(3):
        end = reader.latestOffset(start, LIMIT)
        assert (end["batch"], end["rows"], end.get("again", 0)) == (1, 10, again)
        parts = reader.partitions(start, end)
        reader.commit(start)
        start = end
    assert rows(reader, parts) == bodies[:10]
    end = reader.latestOffset(start, LIMIT)
    assert (end["batch"], end.get("again")) == (2, None)
    assert unsettled(client, options) == 10


def test_a_consumer_goes_with_its_checkpoint(client: Client, options: Options) -> None:
    bodies = fill(client, options, 20)
    first = stream(options)
    start = first.initialOffset()
    first.latestOffset(start, LIMIT)  # nothing was read under it, so it is of no matter if it is lost
    reader = stream(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    assert rows(reader, reader.partitions(start, end)) == bodies[:10]
    other = stream(options)
    with pytest.raises(SparkSourceError, match=r'"consumer": c goes with another checkpoint .* "takeOver"'):
        other.latestOffset(other.initialOffset(), LIMIT)
    with pytest.raises(SparkSourceError, match="goes with another checkpoint"):
        other.partitions(start, {**end, "checkpoint": "another"})
    start, end = end, reader.latestOffset(end, LIMIT)  # who was refused has shut nobody out
    assert rows(reader, reader.partitions(start, end)) == bodies[10:]
    taking = stream(with_options(options, take_over=True))
    begin = taking.initialOffset()
    last = taking.latestOffset(begin, LIMIT)
    assert (begin["batch"], last["batch"], last["rows"]) == (1, 2, 10)
    with pytest.raises(SparkSourceError, match="only 0 of its 10 rows"):  # what the other one has read does not count
        stream(with_options(options, take_over=False)).latestOffset(last, LIMIT)
    again = stream(options)
    assert rows(again, again.partitions(begin, last)) == bodies[10:]
    assert again.latestOffset(last, LIMIT) == last
    with pytest.raises(SparkSourceError, match="goes with another checkpoint"):
        stream(options).latestOffset(end, LIMIT)
    assert unsettled(client, options) == 0


def test_offsets_of_before_checkpoints_had_names(client: Client, options: Options) -> None:
    bodies = fill(client, options, 5)
    reader = stream(options)
    start = {"consumer": "c", "batch": 0, "rows": 0}
    end = reader.latestOffset(start, LIMIT)
    assert end == {"consumer": "c", "batch": 1, "rows": 5, "partitions": 2}
    assert rows(reader, reader.partitions(start, end)) == bodies
    assert stream(options).latestOffset(end, LIMIT) == end
    assert unsettled(client, options) == 0


def test_what_is_there_now_and_no_more(client: Client, options: Options) -> None:
    fill(client, options, 5)
    reader = stream(options)
    reader.prepareForTriggerAvailableNow()
    fill(client, options, 5, 5)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    assert len(rows(reader, reader.partitions(start, end))) == end["rows"] == 5
    assert reader.latestOffset(end, LIMIT) == end


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
    bodies = fill(client, options, 15)
    reader = stream(with_options(options, max_messages_per_trigger=5))
    offsets = [reader.initialOffset()]
    for _ in range(2):
        offsets.append(reader.latestOffset(offsets[-1], ReadMaxRows(5)))
        rows(reader, reader.partitions(offsets[-2], offsets[-1]))
    offsets.append(reader.latestOffset(offsets[-1], ReadMaxRows(5)))
    old = 'at batch 1 of consumer c, which has acknowledged batch 2: it is an old copy.* "takeOver"'
    with pytest.raises(SparkSourceError, match=old):
        stream(options).partitions(offsets[0], offsets[1])
    with pytest.raises(SparkSourceError, match="which has acknowledged batch 2"):  # as if nothing were planned
        stream(options).partitions(stream(options).initialOffset(), offsets[1])
    with pytest.raises(SparkSourceError, match=old):
        stream(options).latestOffset(offsets[1], LIMIT)
    going_on = stream(with_options(options, take_over=True))
    assert going_on.partitions(offsets[0], offsets[1]) == []
    end = going_on.latestOffset(offsets[1], LIMIT)
    assert end == offsets[3]
    assert rows(going_on, going_on.partitions(offsets[1], end)) == bodies[10:]
    assert going_on.latestOffset(end, LIMIT) == end
    other = stream(with_options(options, consumer="d"))
    with pytest.raises(SparkSourceError, match="the checkpoint is that of c"):
        other.latestOffset(end, LIMIT)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_checkpoint_that_is_newer_than_the_consumer(client: Client, options: Options, batch: int) -> None:
    """The daemon's root is an old copy, or the consumer was forgotten."""
    bodies = fill(client, options, 5)
    end = {"consumer": "c", "batch": batch, "rows": 5, "checkpoint": "x"}
    with pytest.raises(SparkSourceError, match=f'at batch {batch} of consumer c, whose last batch is 0.* "takeOver"'):
        stream(options).latestOffset(end, LIMIT)
    assert unsettled(client, options) == 5
    going_on = stream(with_options(options, take_over=True))
    after = going_on.latestOffset(end, LIMIT)
    assert after["batch"] == 1
    assert after != end
    assert rows(going_on, going_on.partitions(end, after)) == bodies
    assert going_on.latestOffset(after, LIMIT) == after
    assert unsettled(client, options) == 0


def test_slices_are_those_of_the_claim_as_it_was_planned(client: Client, options: Options) -> None:
    """A lease runs out between two tasks, and somebody takes a message: no other one is skipped for it."""
    fill(client, options, 6)
    reader = stream(with_options(options, fail_on_claim_lost=False))
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    first, second = reader.partitions(start, end)
    rows(reader, [first])
    client.remove(next(message for message in client.browse(options.queue, state="leased") if message.body == b"0"))
    reader.partitions(start, end)  # as the lease is renewed
    with pytest.raises(SparkSourceError, match="has 5 messages, no longer 6"):
        rows(reader, [second])
    with pytest.raises(SparkSourceError, match="only 2 of its 5 rows"):
        reader.latestOffset(end, LIMIT)


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


KEYED = StructType([StructField("value", BinaryType()), StructField("idempotencyKey", StringType())])
FROM_QUEUE = StructType([StructField("value", BinaryType()), StructField("id", StringType())])


def write(writer: MqWriter, *partitions: list[dict[str, Any]]) -> list[Any]:
    """As Spark writes: a task for each partition, and then the driver."""
    stored = []
    for number, rows in enumerate(partitions):
        copy = pickle.loads(pickle.dumps(writer))
        with task(number):
            stored.append(pickle.loads(pickle.dumps(copy.write(iter([pa.RecordBatch.from_pylist(rows)])))))
    writer.commit(stored)
    return stored


@contextmanager
def task(partition: int) -> Iterator[None]:
    """Run as that partition's task."""
    context = TaskContext._getOrCreate()
    context._partitionId = partition
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


@pytest.mark.parametrize("counts", [(4, 3), (3, 6), (1, 4), (4, 4)])
def test_a_write_that_is_named_can_be_run_again_in_other_partitions(
    client: Client, options: Options, counts: tuple[int, int]
) -> None:
    rows = [{"value": b"%d" % number} for number in range(60)]
    named = with_options(options, write_id="nightly/2026-11-21")
    for count in counts:
        write(MqWriter(named, VALUE), *(rows[number::count] for number in range(count)))
    assert client.queue(options.queue).ready == 60
    write(MqWriter(with_options(options, write_id="another"), VALUE), rows)
    assert client.queue(options.queue).ready == 120


def test_a_write_that_is_named_knows_rows_by_what_they_say(client: Client, options: Options) -> None:
    named = MqWriter(with_options(options, write_id="w"), VALUE)
    write(named, [{"value": b"a"}, {"value": b"b"}, {"value": b"a"}])  # in one partition they can be told apart
    assert client.queue(options.queue).ready == 3
    named = MqWriter(with_options(options, write_id="x"), VALUE)
    with pytest.raises(InvalidRow, match="row 0 of partition 1 has the idempotency key of row 1 of partition 0"):
        write(named, [{"value": b"a"}, {"value": b"b"}], [{"value": b"b"}])
    write(MqWriter(options, VALUE), [{"value": b"a"}, {"value": b"b"}], [{"value": b"b"}])  # without a name: as it is
    assert client.queue(options.queue).ready == 8


@pytest.mark.parametrize(("schema", "column"), [(KEYED, "idempotencyKey"), (FROM_QUEUE, "id")])
def test_a_key_that_two_rows_have_is_an_error_that_names_them(
    client: Client, options: Options, schema: StructType, column: str
) -> None:
    def row(key: str | None) -> dict[str, Any]:
        return {"value": b"x", column: key}

    writer = MqWriter(options, schema)
    with pytest.raises(
        InvalidRow, match=r"row 2 of partition 0 has the idempotency key of row 0 of partition 0.* only"
    ):
        write(writer, [row("a"), row("b"), row("a")], [row("c")])
    with pytest.raises(InvalidRow, match="row 1 of partition 2 has the idempotency key of row 0 of partition 0"):
        write(writer, [row("d")], [row("e"), row("f"), row(None)], [row(None), row("d")])
    writer = MqWriter(options, schema)
    stored = write(writer, [row(f"{n}") for n in range(4)], [row(None)] * 3, [row(f"{n}") for n in range(4, 6)])
    assert [(each.rows, each.again) for each in stored] == [(4, 0), (3, 0), (2, 0)]
    stored = write(MqWriter(options, schema), [row(f"{n}") for n in range(6)])  # another write: they are there
    assert [(each.rows, each.again) for each in stored] == [(6, 6)]


def test_a_task_that_runs_again_repeats_no_key(client: Client, options: Options) -> None:
    writer = MqWriter(options, KEYED)
    batch = pa.RecordBatch.from_pylist([{"value": b"x", "idempotencyKey": f"{number}"} for number in range(5)])
    first = writer.write(iter([batch]))
    again = writer.write(iter([batch]))
    assert (again.rows, again.again) == (5, 5)
    writer.commit([again])  # Spark hands the commit one of them
    with pytest.raises(InvalidRow):
        writer.commit([first, again])


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
