"""Writers: each task publishes its rows in batches, with keys by which the broker recognizes a row that comes again.
The daemon holds back the rows of a staged write until all tasks are done."""

from __future__ import annotations

import itertools
import json
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mq.client import requests
from mq.client.calls import Call, nothing
from mq.client.codec import JSON_LINES, body_of, outcomes
from mq.client.errors import Conflict, QueueFull, TooLarge
from mq.client.retries import Retry, Tries
from mq.client.values import Outcome, Outgoing
from mq.spark import calls
from mq.spark.connection import DaemonConnection
from mq.spark.errors import InvalidRow, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import LineMaker, check_written, find_repeated
from mq.spark.versions import DataSourceStreamArrowWriter, as_batches

logger = logging.getLogger("mq.spark")

_BATCH_BYTES: Final = 4 << 20
_MOST_WAITING: Final = 32 << 20
"""Bytes of gathered rows, of all queues together, after which all are sent, however few each queue has."""
_LATER: Final = (429, 503)
_ANY_CALL: Final = Call(method="POST", target="", read=nothing)
"""Lines that the broker refuses for now are sent again by the rules of a repeatable POST."""

_Line: TypeAlias = tuple[int, bytes]
"""The number of a row in its partition, and what is sent of it."""


@dataclass
class StoredRows(WriterCommitMessage):
    """What a task has done.

    Attributes:
        again: of these, how many were there already.
        digests: of the keys of its rows, as far as no other row of the write may have them.
        held: what it holds back; None where its rows are in their queues.
    """

    rows: int
    again: int
    partition: int
    digests: bytes
    held: HeldRows | None = None


class HeldRows(NamedTuple):
    """What a task of a staged write holds back."""

    job: str
    part: str
    queues: tuple[str, ...]


class MqWriter(DataSourceArrowWriter):
    """Writes a table into a queue.

    Raises:
        InvalidSchema: the rows cannot be messages.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_written(schema, options.queue)
        self._options = options
        self._job = uuid.uuid4().hex
        self._write = options.write_id or self._job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task; the daemon holds those of a staged write back."""
        is_named = bool(self._options.write_id)
        return _publish(self._options, self._write, self._job, iterator, is_named=is_named)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check that no two rows share a key, and commit a staged write. A direct write is in its queue already.

        Raises:
            InvalidRow: two rows have one key.
            SparkSourceError: the write had no rows, and its queue does not exist; or it is not committed.
        """
        _finish(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what a staged write holds back. Rows of a direct write stay: the broker recognizes them when they are
        written again with the same ``writeId``."""
        if not self._options.is_staged and not self._options.write_id:
            logger.warning(
                "the write to queue %s failed after some of the rows may have been stored. Running the write again "
                'could store these rows twice. To make a write safe to repeat, set the option "writeId" to a name for '
                'the write, or set "commitMode" to staged, which stores all rows or none',
                self._options.asked_for,
            )
        _abort(self._options, messages, self._job)


class MqStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches into a queue.

    Raises:
        InvalidSchema: the rows cannot be messages.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_written(schema, options.queue)
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task. A micro-batch keeps its keys over a restart of the query."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise SparkSourceError(
                "this version of Spark does not provide mq with the IDs of the query and the micro-batch. Use a "
                "supported Spark version"
            )
        run = context.getLocalProperty("spark.jobGroup.id") if context is not None else None
        job = f"{query}.{batch}.{run or ''}"  # a query that is started again is another run
        return _publish(self._options, f"{query}/{batch}", job, as_batches(iterator, self._schema))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """As :meth:`MqWriter.commit`."""
        _finish(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Drop what is held back. Published rows stay: the broker recognizes them when the micro-batch is run again."""
        _abort(self._options, messages)


def _finish(options: Options, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Check the keys of all tasks, and commit what they hold back."""
    stored = [each for each in messages if isinstance(each, StoredRows)]
    try:
        _check_keys(stored)
    except InvalidRow:
        _abort(options, stored)
        raise
    rows, again = sum(each.rows for each in stored), sum(each.again for each in stored)
    with DaemonConnection(options) as connection:
        if not rows and options.queue:  # no task has asked for the queue, so its absence shows only here
            connection.queue()
        again += _commit(connection, [each.held for each in stored if each.held is not None and each.rows], rows)
    if again:
        logger.warning(
            "rows in this write: %d; rows already in queue %s (same idempotency key): %d",
            rows,
            options.asked_for,
            again,
        )


def _commit(connection: DaemonConnection, held: Sequence[HeldRows], rows: int) -> int:
    """Commit what is held back. Returns how many of its rows the queues had already."""
    if not held:
        return 0
    job, queue = held[0].job, held[0].queues[0]
    try:
        done = connection.run(calls.commit_write(queue, job, [each.part for each in held], rows))
    except SparkSourceError as error:
        if isinstance(error.__cause__, Conflict | QueueFull):
            raise SparkSourceError(
                f'nothing was written, because the staged write (option "commitMode") failed: {error.__cause__}'
            ) from error
        raise
    with suppress(SparkSourceError):  # the job is committed; the daemon forgets its record by itself
        connection.run(calls.end_write(queue, job))
    return int(done.get("duplicates") or 0)


def _abort(options: Options, messages: Sequence[WriterCommitMessage | None], job: str = "") -> None:
    """Drop what is held back, if a task has said where. Otherwise the daemon drops it by itself, after a while."""
    if not options.is_staged:
        return
    held = [each.held for each in messages if isinstance(each, StoredRows) and each.held is not None]
    queues = {queue for each in held for queue in each.queues}
    queue, job = next(iter(queues), options.queue), held[0].job if held else job
    if not queue or not job:
        return
    try:
        with DaemonConnection(options) as connection:
            connection.run(calls.end_write(queue, job))
    except SparkSourceError as error:
        logger.warning("cannot discard the staged rows now (%s). The daemon will discard them later", error)


def _check_keys(stored: Sequence[StoredRows]) -> None:
    """Fail if two tasks had a row with one key: to the broker the second looked like the first, sent again."""
    keyed = [each for each in stored if each.digests]
    found = find_repeated([each.digests for each in keyed])
    if found is not None:
        (first, row), (second, other) = found
        raise InvalidRow(
            f"row {other} of partition {keyed[second].partition} has the same idempotency key as row {row} of "
            f"partition {keyed[first].partition}, so only one of them was stored. Keys must be unique. They "
            'come from the column "idempotencyKey", or else the column "id", or else the row content if '
            '"writeId" is set. Drop duplicate rows, or add a column "idempotencyKey"'
        )


def _publish(
    options: Options, write: str, job: str, batches: Iterator[pa.RecordBatch], *, is_named: bool = False
) -> StoredRows:
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    maker = LineMaker(write, partition, options.queue, is_named=is_named)
    target = _Held(job, f"{partition}.{uuid.uuid4().hex[:16]}") if options.is_staged else _Direct()
    rows, again = 0, 0
    with DaemonConnection(options) as connection:
        publishers: dict[str, _Publisher] = {}
        for batch in batches:
            for number, (queue, line) in enumerate(maker.lines(batch, rows), rows):
                if queue not in publishers:
                    publishers[queue] = _Publisher(options.only(queue), connection, partition, target)
                again += publishers[queue].add(number, line)
            rows += batch.num_rows
            if sum(publisher.size for publisher in publishers.values()) > _MOST_WAITING:
                again += sum(publisher.flush() for publisher in publishers.values())
        again += sum(publisher.flush() for publisher in publishers.values())
    held = HeldRows(target.job, target.part, tuple(publishers)) if isinstance(target, _Held) else None
    return StoredRows(rows, again, partition, bytes(maker.digests), held)


class _Direct:
    """Requests of a direct write: rows go into their queues at once."""

    def lines(self, queue: str, lines: Sequence[_Line]) -> Call[list[Outcome]]:
        """Publish lines."""
        return Call(
            method="POST",
            target=f"/{queue}/messages/batch",
            headers=(("content-type", JSON_LINES), ("accept", JSON_LINES)),
            body=b"".join(line for _, line in lines),
            read=lambda answer: outcomes(answer, len(lines)),
        )

    def one(self, connection: DaemonConnection, queue: str, message: Outgoing) -> Outcome:
        """Publish a message that is too long as a line."""
        stored = connection.run(requests.publish(queue, message))
        return Outcome(status=201 if stored.is_new else 200, id=stored.id)


class _Held:
    """Requests of a staged write. Each has a number, by which the daemon recognizes it when it is sent again."""

    def __init__(self, job: str, part: str) -> None:
        self.job = job
        self.part = part
        self._numbers = itertools.count()

    def lines(self, queue: str, lines: Sequence[_Line]) -> Call[list[Outcome]]:
        """Hold lines back."""
        body = b"".join(line for _, line in lines)
        return calls.hold_back(queue, self.job, self.part, next(self._numbers), body, len(lines))

    def one(self, connection: DaemonConnection, queue: str, message: Outgoing) -> Outcome:
        """Hold back a message that is too long as a line."""
        [outcome] = connection.run(calls.hold_one_back(queue, self.job, self.part, next(self._numbers), message))
        return outcome


class _Publisher:
    """Gathers lines for one queue, and sends them together."""

    def __init__(self, options: Options, connection: DaemonConnection, partition: int, target: _Direct | _Held) -> None:
        self._options = options
        self._connection = connection
        self._partition = partition
        self._target = target
        self._lines: list[_Line] = []
        self.size = 0

    def add(self, number: int, line: bytes) -> int:
        """Gather a row. If it does not fit, the others are sent first; returns how many of these were there already."""
        again = 0
        if self._lines and (len(self._lines) >= self._options.batch_size or self.size + len(line) > _BATCH_BYTES):
            again = self.flush()
        self._lines.append((number, line))
        self.size += len(line)
        return again

    def flush(self) -> int:
        """Send what was gathered. Returns how many rows were there already.

        Raises:
            InvalidRow: the broker refuses a row.
            SparkSourceError: the broker takes no rows for longer than ``retrySeconds``.
        """
        wanted, self._lines, self.size = self._lines, [], 0
        again = 0
        tries: Tries | None = None
        while wanted:
            is_first = tries is None
            tries = tries or Tries(_ANY_CALL, Retry(patience=self._options.retry_seconds, longest=2.0))
            left, why = [], ""
            for line, outcome in self._sent(wanted):
                if outcome.status in _LATER:
                    left.append(line)
                    why = outcome.detail.removesuffix(". Try again later")
                elif outcome.status >= 400:
                    raise self._refused(line[0], outcome.detail)
                again += outcome.status == 200
            if left:
                pause = tries.after_refusals()
                if pause is None:
                    raise SparkSourceError(
                        f'queue {self._options.queue} stayed full for longer than the option "retrySeconds" allows; '
                        f"rows that have not been written: {len(left)}"
                    )
                if is_first:  # else a job would stand still for minutes without a word why
                    patience = self._options.retry_seconds
                    logger.warning(
                        "rows waiting to be written: %d (%s). Retrying for up to %g s (retrySeconds)",
                        len(left),
                        why,
                        patience,
                    )
                time.sleep(pause)
            wanted = left
        return again

    def _sent(self, lines: list[_Line]) -> Iterator[tuple[_Line, Outcome]]:
        """Send lines, and yield the outcome of each. Lines that are too long together are sent in halves; a single one
        that is too long as JSON is sent as a plain body.

        Raises:
            InvalidRow: a body is too long for the daemon.
        """
        try:
            told = self._connection.run(self._target.lines(self._options.queue, lines))
        except SparkSourceError as error:
            if not isinstance(error.__cause__, TooLarge):
                raise
            if len(lines) == 1:
                yield lines[0], self._alone(*lines[0])
                return
            yield from self._sent(lines[: len(lines) // 2])
            yield from self._sent(lines[len(lines) // 2 :])
        else:
            yield from zip(lines, told, strict=True)

    def _alone(self, number: int, line: bytes) -> Outcome:
        members = json.loads(line)
        members["body"] = body_of(members)
        members.pop("base64", None)
        try:
            return self._target.one(self._connection, self._options.queue, Outgoing(**members))
        except SparkSourceError as error:
            if not isinstance(error.__cause__, TooLarge):
                raise
            raise self._refused(number, error.__cause__.detail) from error

    def _refused(self, number: int, why: str) -> InvalidRow:
        return InvalidRow(f"row {number} of partition {self._partition}: {why} (queue {self._options.queue})")
