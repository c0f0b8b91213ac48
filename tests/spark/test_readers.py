"""Readers and writers without Spark: called in the order in which it calls them, over a real daemon."""

from __future__ import annotations

import pickle
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from mq.client import Client, Outgoing
from mq.spark.errors import ClaimLost, InvalidRow, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import ALL_COLUMNS, COLUMNS
from mq.spark.source import MqDataSource, MqReader
from mq.spark.stream import QueueClaims, _Keeper
from mq.spark.writers import MqWriter
from tests.e2e.daemon import Daemon
from tests.spark.by_hand import (
    FROM_QUEUE,
    KEYED,
    LIMIT,
    VALUE,
    fill,
    rows,
    stream,
    unsettled,
    with_options,
    write,
)
from tests.spark.conftest import url


@pytest.fixture
def client(shared_daemon: Daemon) -> Iterator[Client]:
    with Client(url(shared_daemon)) as client:
        yield client


def test_a_batch_read_covers_everything_once(client: Client, options: Options) -> None:
    bodies = fill(client, options, 50)
    reader = MqReader(Options(**{**vars(options), "num_partitions": 4, "fetch_size": 7}), COLUMNS)
    parts = reader.partitions()
    assert len(parts) == 4
    assert rows(reader, parts) == bodies
    bodies += fill(client, options, 5, 50)
    assert rows(reader, parts) == bodies  # as Spark reads a view again: its parts are those of the first time
    assert rows(reader, parts[:2]) + rows(reader, parts[2:]) == bodies


def test_a_batch_read_of_how_it_was(client: Client, options: Options) -> None:
    bodies = fill(client, options, 9)
    reader = MqReader(with_options(options, num_partitions=2, snapshot=True), COLUMNS)
    parts = reader.partitions()
    fill(client, options, 5, 9)  # comes too late
    assert rows(reader, parts) == bodies


def test_a_batch_read_of_a_stretch_of_time(client: Client, options: Options) -> None:
    for number in range(3):
        fill(client, options, 1, number)
    reader = MqReader(with_options(options, num_partitions=1), COLUMNS)
    [batch] = reader.read(reader.partitions()[0])
    first, second, third = (each.value for each in batch["timestamp"])
    assert first < second < third

    def read(begin: int | None, end: int | None) -> list[bytes]:
        reader = MqReader(with_options(options, starting_time=begin, ending_time=end, num_partitions=1), COLUMNS)
        return rows(reader, reader.partitions())

    assert read(second, None) == [b"1", b"2"]
    assert read(None, third) == [b"0", b"1"]
    assert read(second, third) == [b"1"]
    assert read(third + 1, None) == []


def test_a_batch_read_of_several_queues(client: Client, options: Options) -> None:
    other = with_options(options, queue=f"{options.queue}-2")
    client.create_queue(other.queue)
    bodies = fill(client, options, 3) + fill(client, other, 3, 3)
    for several in (
        with_options(options, queue=f"{options.queue},{other.queue}"),
        with_options(options, queue="", queue_pattern=f"{options.queue}.*"),
    ):
        reader = MqReader(several, COLUMNS)
        assert rows(reader, reader.partitions()) == bodies
        names = {part.queue for part in reader.partitions()}
        assert names == {options.queue, other.queue}


def test_a_pattern_is_that_of_a_whole_name(client: Client, options: Options) -> None:
    fill(client, options, 1)
    for pattern, found in ((options.queue, [b"0"]), (options.queue[:-1], []), (options.queue[1:], [])):
        reader = MqReader(with_options(options, queue="", queue_pattern=pattern), COLUMNS)
        assert rows(reader, reader.partitions()) == found


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
            "queue": options.queue,
            "batch": 0,
            "rows": 0,
            "incarnation": ANY,
            "partitions": 2,
            "checkpoint": ANY,
        }
    )
    assert reader.reportLatestOffset() == {"ready": 25, "leased": 0, "delayed": 0, "oldestSeconds": ANY}
    assert 0 <= reader.reportLatestOffset()["oldestSeconds"] < 60
    found = []
    for number, count in ((1, 10), (2, 10), (3, 5)):
        end = reader.latestOffset(start, LIMIT)
        assert end == {**start, "batch": number, "rows": count}
        first, *others = reader.partitions(start, end)
        found += rows(reader, [first])
        assert reader._positions()[options.queue]["read"] == first.stop  # the tasks have reported it
        found += rows(reader, others)
        assert reader._positions()[options.queue]["read"] == count
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
    with pytest.raises(
        SparkSourceError, match="another program has started consumer"
    ):  # the older one fails, and says why
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
        with pytest.raises(SparkSourceError, match=rf'read only {read} of its 10 rows.* "takeOver"'):
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
    with pytest.raises(
        SparkSourceError, match=r'the consumer c .* is in use by a query with a different checkpoint.* "takeOver"'
    ):
        other.latestOffset(other.initialOffset(), LIMIT)
    with pytest.raises(SparkSourceError, match="is in use by a query with a different checkpoint"):
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
    with pytest.raises(SparkSourceError, match="is in use by a query with a different checkpoint"):
        stream(options).latestOffset(end, LIMIT)
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


def test_messages_of_a_batch_that_went_to_somebody_else(client: Client, options: Options) -> None:
    bodies = fill(client, options, 5)
    reader = stream(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    [first] = [message for message in client.browse(options.queue, state="leased") if message.body == bodies[0]]
    client.remove(first)
    for _ in range(2):
        with pytest.raises(
            ClaimLost, match=r"1 of the 5 messages of batch 1 .*: 1 removed .* \"failOnClaimLost\""
        ) as caught:
            stream(options).partitions(start, end)
        assert "has not expired" in str(caught.value)
        assert "leaseSeconds" not in str(caught.value)
    reader = stream(with_options(options, fail_on_claim_lost=False))
    assert rows(reader, reader.partitions(start, end)) == bodies[1:]


def test_a_checkpoint_that_is_older_than_the_consumer(client: Client, options: Options) -> None:
    bodies = fill(client, options, 15)
    reader = stream(with_options(options, max_messages_per_trigger=5))
    offsets = [reader.initialOffset()]
    for _ in range(2):
        offsets.append(reader.latestOffset(offsets[-1], ReadMaxRows(5)))
        rows(reader, reader.partitions(offsets[-2], offsets[-1]))
    offsets.append(reader.latestOffset(offsets[-1], ReadMaxRows(5)))
    old = 'the consumer has already acknowledged batch 2: the checkpoint is an old copy.* "takeOver"'
    with pytest.raises(SparkSourceError, match=old):
        stream(options).partitions(offsets[0], offsets[1])
    with pytest.raises(
        SparkSourceError, match="but the consumer has already acknowledged batch 2"
    ):  # as if nothing were planned
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
    with pytest.raises(SparkSourceError, match="the checkpoint was created with the consumer c"):
        other.latestOffset(end, LIMIT)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_checkpoint_that_is_newer_than_the_consumer(client: Client, options: Options, batch: int) -> None:
    """The daemon's root is an old copy, or the consumer was forgotten."""
    bodies = fill(client, options, 5)
    end = {**stream(options).initialOffset(), "batch": batch, "rows": 5}
    with pytest.raises(
        SparkSourceError,
        match=f'at batch {batch} of consumer c, but the daemon has only recorded batches up to 0.* "takeOver"',
    ):
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
    with pytest.raises(SparkSourceError, match="has 5 messages, but the request expected 6"):
        rows(reader, [second])
    with pytest.raises(SparkSourceError, match="only 2 of its 5 rows"):
        reader.latestOffset(end, LIMIT)


def test_a_stream_of_several_queues(client: Client, options: Options) -> None:
    """Each has its share of a batch, and what one leaves goes to the others."""
    queues = [options.queue, f"{options.queue}-2", f"{options.queue}-3"]
    sent = []
    for count, queue in zip((30, 12, 0), queues, strict=True):
        client.create_queue(queue)
        sent += fill(client, with_options(options, queue=queue), count, len(sent))
    reader = stream(with_options(options, queue=",".join(queues)))
    start = reader.initialOffset()
    assert reader.reportLatestOffset()["ready"] == 42
    found: list[bytes] = []
    sizes = []
    while (end := reader.latestOffset(start, LIMIT)) != start:
        read = rows(reader, reader.partitions(start, end))
        sizes.append(len(read))
        found += read
        start = end
    assert sorted(found) == sorted(sent)
    assert max(sizes) == 10
    assert sum(client.queue(queue).ready + client.queue(queue).leased for queue in queues) == 0
    again = stream(with_options(options, queue=",".join(queues)))  # a restart: nothing is there, nothing is lost
    assert again.latestOffset(start, LIMIT) == start


def test_a_stream_of_a_pattern_follows_queues_that_come_and_go(client: Client, options: Options) -> None:
    pattern = with_options(options, queue="", queue_pattern=f"{options.queue}.*")
    later = with_options(options, queue=f"{options.queue}-2")
    fill(client, options, 2)
    reader = stream(pattern)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    assert rows(reader, reader.partitions(start, end)) == [b"0", b"1"]
    client.create_queue(later.queue)
    fill(client, later, 1, 2)
    start, end = end, reader.latestOffset(end, LIMIT)
    assert rows(reader, reader.partitions(start, end)) == [b"2"]
    client.delete_queue(options.queue)
    reader = stream(pattern)
    start, end = end, reader.latestOffset(end, LIMIT)
    assert list(end["queues"]) == [later.queue]
    assert unsettled(client, later) == 0


def of_pattern(options: Options, **more: Any) -> Options:
    return with_options(options, queue="", queue_pattern=f"{options.queue}.*", **more)


def made_again(client: Client, options: Options, count: int, start: int = 0) -> list[bytes]:
    client.delete_queue(options.queue)
    client.create_queue(options.queue)
    return fill(client, options, count, start)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("method", ["claim", "settle"])
def test_a_queue_of_a_pattern_that_goes_while_it_is_used_has_left(
    client: Client, options: Options, monkeypatch: pytest.MonkeyPatch, method: str, again: bool
) -> None:
    """Asking for the queues and using one are two requests: it may go in between, or be made again."""
    other = with_options(options, queue=f"{options.queue}-2")
    client.create_queue(other.queue)
    fill(client, options, 1)
    fill(client, other, 1)
    reader = stream(of_pattern(options))
    start = reader.initialOffset()
    if method == "settle":
        start, end = reader.latestOffset(start, LIMIT), start
        rows(reader, reader.partitions(end, start))
        fill(client, options, 1)
    whole = getattr(QueueClaims, method)

    def going(claims: QueueClaims, *given: Any) -> Any:
        if claims._options.queue == other.queue:
            made_again(client, other, 1) if again else client.delete_queue(other.queue)
        return whole(claims, *given)

    with monkeypatch.context() as patch:
        patch.setattr(QueueClaims, method, going)
        end = reader.latestOffset(start, LIMIT)
    assert list(end["queues"]) == [options.queue]
    assert rows(reader, reader.partitions(start, end)) == [b"0"]
    end = reader.latestOffset(end, LIMIT)
    assert list(end["queues"]) == [options.queue, *[other.queue] * again]  # the one that was made then is another one
    assert unsettled(client, options) == 0
    reader.stop()


@pytest.mark.parametrize("is_pattern", [False, True])
@pytest.mark.parametrize("again", [None, 2, 3])
def test_a_planned_batch_of_a_deleted_queue_is_lost_and_the_queue_is_named(
    client: Client, options: Options, again: int | None, is_pattern: bool
) -> None:
    fill(client, options, 3)
    given = of_pattern(options) if is_pattern else options
    reader = stream(given)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    if again is None:
        client.delete_queue(options.queue)
    else:
        bodies = made_again(client, options, again, 10)
    lost = f'3 messages of batch 1 cannot be read, because queue {options.queue} was .* "failOnClaimLost"'
    for query in (reader, stream(given), stream(given)):
        with pytest.raises(ClaimLost, match=lost):
            query.partitions(start, end)
    tolerant = stream(with_options(given, fail_on_claim_lost=False))
    assert rows(tolerant, tolerant.partitions(start, end)) == []
    if again is None and not is_pattern:
        with pytest.raises(SparkSourceError, match=f'option "queue": .*{options.queue}'):
            tolerant.latestOffset(end, LIMIT)
        return
    after = tolerant.latestOffset(end, LIMIT)
    if again is not None:
        assert rows(tolerant, tolerant.partitions(end, after)) == bodies  # none of them is taken for one of before
        after = tolerant.latestOffset(after, LIMIT)
        assert unsettled(client, options) == 0
    assert (after != end) == (again is not None or is_pattern)


def test_a_queue_that_is_made_again_after_its_batch_was_written_goes_on(client: Client, options: Options) -> None:
    """The same number of batches and of messages: only the incarnation tells the two queues apart."""
    fill(client, options, 3)
    reader = stream(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    rows(reader, reader.partitions(start, end))
    bodies = made_again(client, options, 3, 10)
    for query in (reader, stream(options)):
        after = query.latestOffset(end, LIMIT)
        assert (after["batch"], after["rows"]) == (1, 3)
        assert after != end
        assert rows(query, query.partitions(end, after)) == bodies
    assert query.latestOffset(after, LIMIT) == after
    assert unsettled(client, options) == 0


@pytest.mark.parametrize("again", [False, True])
def test_a_queue_that_goes_while_its_batch_is_read(client: Client, options: Options, again: bool) -> None:
    fill(client, options, 6)
    strict = stream(of_pattern(options, num_partitions=1, fetch_size=2))
    start = strict.initialOffset()
    end = strict.latestOffset(start, LIMIT)
    tolerant = stream(of_pattern(options, num_partitions=1, fetch_size=2, fail_on_claim_lost=False))
    [part] = tolerant.partitions(start, end)
    pages, failing = tolerant.read(part), strict.read(part)
    next(pages)
    next(failing)
    made_again(client, options, 6) if again else client.delete_queue(options.queue)
    with pytest.raises(ClaimLost, match=f"cannot be read, because queue {options.queue} was deleted"):
        list(failing)
    list(pages)  # its rows that were under way; it ends without an error
    assert rows(tolerant, [part]) == []
    after = tolerant.latestOffset(end, LIMIT)
    assert list(after["queues"]) == ([options.queue] if again else [])


def test_a_run_with_available_now_passes_over_a_queue_that_was_made_again(client: Client, options: Options) -> None:
    fill(client, options, 3)
    reader = stream(of_pattern(options))
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    made_again(client, options, 3)
    assert reader.latestOffset(start, LIMIT)["queues"] == {}
    assert unsettled(client, options) == 3


def test_a_batch_read_of_a_pattern_passes_over_a_queue_that_was_deleted(client: Client, options: Options) -> None:
    other = with_options(options, queue=f"{options.queue}-2")
    client.create_queue(other.queue)
    fill(client, options, 1)
    fill(client, other, 1, 1)
    reader = MqReader(of_pattern(options), COLUMNS)
    parts = reader.partitions()
    client.delete_queue(other.queue)
    assert rows(reader, parts) == [b"0"]
    named = MqReader(with_options(options, queue=f"{options.queue},{other.queue}"), COLUMNS)
    with pytest.raises(SparkSourceError, match=f'option "queue": .*{other.queue}'):
        rows(named, parts)


def test_a_stream_of_one_queue_may_be_given_others(client: Client, options: Options) -> None:
    other = with_options(options, queue=f"{options.queue}-2")
    client.create_queue(other.queue)
    fill(client, options, 1)
    reader = stream(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    rows(reader, reader.partitions(start, end))
    fill(client, other, 1, 1)
    reader = stream(other)  # the first one is left: what was read of it is settled
    start, end = end, reader.latestOffset(end, LIMIT)
    assert unsettled(client, options) == 0
    assert rows(reader, reader.partitions(start, end)) == [b"1"]
    fill(client, options, 1, 2)
    reader = stream(with_options(options, queue=f"{other.queue},{options.queue}"))
    start, end = end, reader.latestOffset(end, LIMIT)
    assert unsettled(client, other) == 0
    assert rows(reader, reader.partitions(start, end)) == [b"2"]


@pytest.mark.in_turn(3)
def test_a_batch_of_more_than_ten_thousand_messages_is_acknowledged_in_parts(
    client: Client, options: Options, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted driver, which asks for fewer, has the very same rows. No request waits until all are removed."""
    bodies = [b"%d" % number for number in range(10_500)]
    client.publish_many(options.queue, map(Outgoing, bodies))
    large = with_options(options, max_messages_per_trigger=20_000, num_partitions=3)
    first = stream(large)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(20_000))
    assert end["rows"] == len(bodies)
    again = stream(options)
    assert rows(again, again.partitions(start, end)) == bodies
    fill(client, options, 1)
    monkeypatch.setattr(QueueClaims, "_within", 0.0)
    last = again.latestOffset(end, ReadMaxRows(20_000))
    told = [each.getMessage() for each in caplog.records if "the daemon has not yet removed " in each.getMessage()]
    assert len(told) >= 2
    assert last["rows"] == 1
    assert client.queue(options.queue).leased == 1
    assert client.queue(options.queue).ready == 0


def test_many_queues_are_read_by_no_more_tasks_than_numpartitions(client: Client, options: Options) -> None:
    """A stream has the same rows in the same tasks when a batch is run again, and a queue may go meanwhile."""
    names = [f"{options.queue}.{number:02}" for number in range(17)]
    for number, name in enumerate(names):
        client.create_queue(name)
        client.publish_many(name, [Outgoing(b"%d/%d" % (number, row)) for row in range(number % 4)])
    wanted = [b"%d/%d" % (number, row) for number in range(17) for row in range(number % 4)]
    several = with_options(options, queue="", queue_pattern=f"{re.escape(options.queue)}[.].*", num_partitions=3)
    table = MqReader(several, COLUMNS)
    parts = table.partitions()
    assert len(parts) == 3
    assert rows(table, parts) == wanted
    reader = stream(several)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    tasks = [rows(reader, [part]) for part in reader.partitions(start, end)]
    assert 1 < len(tasks) <= 3
    assert max(map(len, tasks)) < 2 * len(wanted) / 3
    assert sorted(row for task in tasks for row in task) == sorted(wanted)
    again = stream(with_options(several, num_partitions=5))
    assert [rows(again, [part]) for part in again.partitions(start, end)] == tasks
    parts = again.partitions(start, end)
    client.delete_queue(names[-2])
    gone = {b"15/%d" % row for row in range(3)}
    assert set(rows(table, table.partitions())) == set()  # all are claimed
    lenient = stream(with_options(several, fail_on_claim_lost=False))
    assert set(rows(lenient, parts)) == set(wanted) - gone
    with pytest.raises(ClaimLost, match=names[-2]):
        rows(again, parts)
    reader.stop()
    again.stop()


def test_many_full_queues_take_turns(client: Client, options: Options) -> None:
    """A message of each would cost more requests than it has rows."""
    names = [f"{options.queue}.{number:02}" for number in range(64)]
    for name in names:
        client.create_queue(name)
        client.publish_many(name, map(Outgoing, "12"))
    reader = stream(with_options(options, queue="", queue_pattern=f"{re.escape(options.queue)}[.].*"))
    start = reader.initialOffset()
    places = []
    for _ in range(2):
        end = reader.latestOffset(start, ReadMaxRows(64))
        places.append({queue for queue, place in end["queues"].items() if place != start["queues"].get(queue)})
        rows(reader, reader.partitions(start, end))
        start = end
    assert [len(each) for each in places] == [32, 32]
    assert places[0] | places[1] == set(names)
    reader.stop()


def test_a_batch_has_as_many_bytes_as_was_said(client: Client, options: Options) -> None:
    client.publish_many(options.queue, [Outgoing(b"x" * 100) for _ in range(5)])
    reader = stream(with_options(options, max_bytes_per_trigger=250))
    start = reader.initialOffset()
    assert reader.latestOffset(start, LIMIT)["rows"] == 2


def short_lease(client: Client, options: Options, count: int = 3) -> tuple[Any, Any]:
    """Offsets of a planned batch whose lease has ended, so that its messages are ready again."""
    fill(client, options, count)
    reader = stream(with_options(options, lease_seconds=1.0))
    reader._keeper = _Keeper(options)
    reader._keeper.stop()
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    wait_for(lambda: client.queue(options.queue).ready == count)
    return start, end


def wait_for(holds: Callable[[], bool]) -> None:
    """Leases end by the daemon's clock, which is real."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_where_lost_messages_are_is_told_apart(client: Client, options: Options) -> None:
    start, end = short_lease(client, options, 4)
    client.remove(next(iter(client.browse(options.queue))))
    leased = client.fetch(options.queue)
    delayed = client.fetch(options.queue)
    assert leased is not None
    assert delayed is not None
    client.requeue(delayed, delay=3600)
    with pytest.raises(ClaimLost) as caught:
        stream(options).partitions(start, end)
    told = str(caught.value)
    assert told.startswith("3 of the 4 messages of batch 1 cannot be read: ")
    for part in (
        "1 removed by another client",
        "1 leased by another consumer",
        "1 delayed",
        options.queue,
        "consumer c",
    ):
        assert part in told
    assert 'set "leaseSeconds"' in told
    client.requeue(leased)
    with pytest.raises(ClaimLost, match=r"2 of the 4 messages .*: 1 removed .*, 1 delayed"):
        stream(options).partitions(start, end)
    reader = stream(with_options(options, fail_on_claim_lost=False))
    assert len(rows(reader, reader.partitions(start, end))) == 2


def test_a_batch_has_its_messages_again_after_a_redrive(client: Client, options: Options) -> None:
    dead = f"{options.queue}-dead"
    client.create_queue(dead)
    start, end = short_lease(client, options)
    client.configure(options.queue, max_receives=2, dead_letter_queue=dead)
    for _ in range(2):
        received = client.fetch(options.queue)
        assert received is not None
        client.requeue(received)
    wait_for(lambda: client.queue(dead).ready == 2)
    told = (
        rf"2 of the 3 .* 2 in the dead-letter queue {dead} .*max_receives=2\. Raise max_receives, .*mq redrive {dead}"
    )
    for _ in range(2):
        with pytest.raises(ClaimLost, match=told):
            stream(options).partitions(start, end)
    client.configure(options.queue, max_receives=20)
    assert client.redrive(dead).moved == 2
    reader = stream(options)
    assert rows(reader, reader.partitions(start, end)) == [b"0", b"1", b"2"]
    assert reader.latestOffset(end, LIMIT) == end
    assert unsettled(client, options) == 0


def test_claim_lost_says_where_dead_letters_are_and_why(client: Client, options: Options) -> None:
    """After the queue's settings have changed, and after a redrive to another queue; its advice works in each case."""
    dead, other = f"{options.queue}-dead", f"{options.queue}-other"
    for name in (dead, other):
        client.create_queue(name)
    start, end = short_lease(client, options, 3)
    client.configure(options.queue, dead_letter_queue=dead, max_messages=3, overflow="drop-head")
    client.publish(options.queue, b"new")
    wait_for(lambda: client.queue(dead).ready == 1)

    def told() -> str:
        with pytest.raises(ClaimLost) as caught:
            stream(options).partitions(start, end)
        return str(caught.value)

    text = told()
    assert f"1 in the dead-letter queue {dead} (dropped from the full queue) " in text
    assert f" Move the messages back (mq redrive {dead}) and restart" in text
    assert "max_receives" not in text
    client.configure(options.queue, dead_letter_queue=None)
    assert f"1 in queue {dead} (dropped from the full queue) " in told()
    client.redrive(dead, to=other)
    assert f"1 in queue {other} (dropped from the full queue) " in (text := told())
    assert "removed" not in text
    assert f"(mq redrive {other})" in text
    client.configure(options.queue, max_messages=None)
    assert client.redrive(other).moved == 1
    reader = stream(options)
    assert rows(reader, reader.partitions(start, end)) == [b"0", b"1", b"2"]


def test_advice_about_max_receives_is_only_given_where_the_queue_has_one(client: Client, options: Options) -> None:
    dead = f"{options.queue}-dead"
    client.create_queue(dead)
    start, end = short_lease(client, options, 2)
    client.configure(options.queue, max_receives=1, dead_letter_queue=dead)
    assert client.fetch(options.queue) is None
    wait_for(lambda: client.queue(dead).ready == 2)
    with pytest.raises(
        ClaimLost, match=r"2 in the dead-letter queue .* \(received too often\).*Raise max_receives, then"
    ):
        stream(options).partitions(start, end)
    client.configure(options.queue, max_receives=None)
    with pytest.raises(ClaimLost, match=r"\(received too often\)") as caught:
        stream(options).partitions(start, end)
    assert "max_receives" not in str(caught.value)
    client.delete_queue(dead)
    with pytest.raises(ClaimLost, match=": 2 deleted together with their dead-letter queue "):
        stream(options).partitions(start, end)


@pytest.mark.parametrize("left", [0, 2, 3])
def test_a_planned_batch_of_a_consumer_that_was_forgotten_is_refused(
    client: Client, options: Options, left: int
) -> None:
    """A new claim has other messages than those that Spark has planned, also where it has as many of them."""
    fill(client, options, 3)
    reader = stream(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    reader.stop()
    asked = urllib.request.Request(f"{options.url}/{options.queue}/consumers/c", method="DELETE")
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 200
    client.purge(options.queue)
    bodies = fill(client, options, left, 10)
    for tolerant in (False, False, True):
        query = stream(with_options(options, fail_on_claim_lost=not tolerant))
        with pytest.raises(SparkSourceError, match=r'batches up to 0\. Either the consumer was deleted.* "takeOver"'):
            query.partitions(start, end)
        assert unsettled(client, options) == left
    going_on = stream(with_options(options, take_over=True))
    assert going_on.partitions(start, end) == []
    after = going_on.latestOffset(end, LIMIT)
    assert rows(going_on, going_on.partitions(end, after)) == bodies


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
    with pytest.raises(SparkSourceError, match=f'option "queue": .*{options.queue}'):
        write(MqWriter(options, VALUE))  # without a row no task has asked for the queue


def test_a_daemon_that_is_down_is_named() -> None:
    options = Options(url="http://127.0.0.1:9", queue="q", consumer="c", retry_seconds=0.0)
    with pytest.raises(SparkSourceError, match='option "url": cannot connect to'):
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
    with pytest.raises(InvalidRow, match="row 0 of partition 1 has the same idempotency key as row 1 of partition 0"):
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
        InvalidRow, match=r"row 2 of partition 0 has the same idempotency key as row 0 of partition 0.* only"
    ):
        write(writer, [row("a"), row("b"), row("a")], [row("c")])
    with pytest.raises(InvalidRow, match="row 1 of partition 2 has the same idempotency key as row 0 of partition 0"):
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


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"headers": [{"key": "a b", "value": b"1"}]}, 'row 1 of partition 0: invalid attribute name: "a b"'),
        ({"group": "g"}, "row 1 of partition 0: .*group"),  # the queue has none
        ({"value": b"x" * 3_000_000}, "row 1 of partition 0: the body of 3000000 bytes exceeds the maximum of"),
    ],
)
def test_whatever_the_broker_refuses_is_named(
    shared_daemon: Daemon, client: Client, options: Options, row: Any, why: str
) -> None:
    rows = [{"value": b"x", "headers": [], "group": None}, {"value": b"y", "headers": [], "group": None, **row}]
    with pytest.raises(InvalidRow, match=why):
        MqWriter(options, ALL_COLUMNS).write(iter([pa.RecordBatch.from_pylist(rows)]))


def test_rows_that_are_too_long_together_go_in_parts(client: Client, options: Options) -> None:
    rows = [{"value": b"%d" % number * 400_000} for number in range(7)]
    MqWriter(options, VALUE).write(iter([pa.RecordBatch.from_pylist(rows)]))
    assert sorted(message.body for message in client.browse(options.queue)) == [row["value"] for row in rows]


def test_a_body_that_is_longer_as_a_line_than_it_is(client: Client, options: Options) -> None:
    """JSON writes six characters for a zero byte; what the daemon takes by itself it takes from Spark."""
    client.configure(options.queue, groups=True)
    row = {"value": bytes(400_000), "group": "g", "headers": [{"key": "h", "value": b"1"}], "idempotencyKey": "k"}
    schema = StructType([*ALL_COLUMNS, StructField("idempotencyKey", StringType())])
    for _ in range(2):
        write(MqWriter(options, schema), [row])
    [found] = client.browse(options.queue)
    assert (found.body, found.group, found.attributes) == (row["value"], "g", {"h": "1"})


def test_headers_and_a_group_go_in_and_out(client: Client, options: Options) -> None:
    client.configure(options.queue, groups=True)
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": "ä".encode()}]
    rows = [{"value": b"%d" % number, "group": f"g{number % 2}", "headers": headers} for number in range(4)]
    MqWriter(options, ALL_COLUMNS).write(iter([pa.RecordBatch.from_pylist(rows)]))
    reader = MqReader(options, ALL_COLUMNS)
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [{name: row[name] for name in ("value", "group", "headers")} for row in found] == rows


def test_headers_of_any_bytes_are_copied(client: Client, options: Options) -> None:
    """As Kafka has them; what is text on one line other clients read as it is."""
    values = [
        b"",
        b"\x00\x01\xff",
        b"a\nb",
        b" led",
        b"tail\t",
        bytes(range(256)),
        b"=?binary?B?AA==?=",
        b"plain",
        b"\xff\xfe",
    ]
    headers = [{"key": f"h{number}", "value": value} for number, value in enumerate(values)]
    rows = [{"value": b"x", "headers": headers}]
    MqWriter(options, ALL_COLUMNS).write(iter([pa.RecordBatch.from_pylist(rows)]))
    reader = MqReader(options, ALL_COLUMNS)
    [row] = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert row["headers"] == headers
    [message] = client.browse(options.queue)
    assert message.attributes["h7"] == "plain"
    assert message.attributes["h2"] == "=?binary?B?YQpi?="


def test_each_row_goes_into_the_queue_that_it_names(client: Client, options: Options) -> None:
    client.create_queue(f"{options.queue}-2")
    rows = [{"value": b"%d" % number, "queue": options.queue + "-2" * (number % 2)} for number in range(6)]
    writer = MqWriter(with_options(options, queue="", batch_size=2), ALL_COLUMNS)
    write(writer, rows)
    assert [message.body for message in client.browse(options.queue)] == [b"0", b"2", b"4"]
    assert [message.body for message in client.browse(f"{options.queue}-2")] == [b"1", b"3", b"5"]
    with pytest.raises(SparkSourceError, match="nowhere"):
        write(writer, [{"value": b"x", "queue": "nowhere"}])


def test_rows_that_were_there_are_counted(client: Client, options: Options, caplog: pytest.LogCaptureFixture) -> None:
    named = with_options(options, write_id="w")
    rows = [{"value": b"%d" % number} for number in range(3)]
    write(MqWriter(named, VALUE), rows)
    assert not caplog.records
    write(MqWriter(named, VALUE), [*rows, {"value": b"4"}])
    assert f"already in queue {options.queue} (same idempotency key): 3" in caplog.text


@pytest.mark.slow
def test_a_queue_that_stays_full_is_named(client: Client, options: Options, caplog: pytest.LogCaptureFixture) -> None:
    client.configure(options.queue, max_messages=1)
    batch = pa.RecordBatch.from_pylist([{"value": b"x"}, {"value": b"y"}])
    with pytest.raises(SparkSourceError, match="stayed full for longer than"):
        MqWriter(with_options(options, retry_seconds=1.0), VALUE).write(iter([batch]))
    [told] = [each.getMessage() for each in caplog.records if each.name == "mq.spark"]  # once, however often it tried
    assert told.startswith(
        f"rows waiting to be written: 1 (queue {options.queue} is full: the maximum of 1 messages has been reached "
        "(max_messages)"
    )


@pytest.mark.slow
def test_among_peers_there_is_only_the_batch_read(tmp_path: Path) -> None:
    with Daemon(tmp_path / "root", tmp_path / "log", "--peers", "1") as daemon, Client(url(daemon)) as client:
        client.create_queue("q")
        for body in (b"0", b"1"):
            asked = urllib.request.Request(f"{url(daemon)}/q/messages", body, method="POST")
            with urllib.request.urlopen(asked, timeout=60) as answer:
                assert answer.status == 201
        options = Options(url=url(daemon), queue="q", consumer="c", retry_seconds=0.0)
        reader = MqReader(options, COLUMNS)
        assert sorted(rows(reader, reader.partitions())) == [b"0", b"1"]
        row = [{"value": b"x"}]
        with pytest.raises(InvalidRow, match="idempotency keys are not supported when other programs share the root"):
            write(MqWriter(options, VALUE), row)
        with pytest.raises(SparkSourceError, match=r"write jobs .* are not supported .*without --peers"):
            write(MqWriter(with_options(options, is_staged=True), VALUE), row)
        streamed = stream(options)
        with pytest.raises(
            SparkSourceError, match=r'option "consumer": batch consumers.*without --peers or --no-mover'
        ):
            streamed.latestOffset(streamed.initialOffset(), LIMIT)
        streamed.stop()
