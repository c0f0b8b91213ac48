"""Writing: each task publishes its rows, in batches, with keys by which the broker knows a row that comes again."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mq.client import requests
from mq.client.calls import Call
from mq.client.codec import JSON_LINES, body_of, outcomes
from mq.client.errors import TooLarge
from mq.client.retries import Retry, Tries
from mq.client.values import Outcome, Outgoing
from mq.spark.connection import DaemonConnection
from mq.spark.errors import InvalidRow, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import LineMaker, check_written, find_repeated
from mq.spark.versions import DataSourceStreamArrowWriter, as_batches

logger = logging.getLogger("mq.spark")

_BATCH_BYTES: Final = 4 << 20
_MOST_WAITING: Final = 32 << 20
"""Bytes of rows for many queues that wait together, about; then all go, however few each queue has."""
_LATER: Final = (429, 503)

_Line: TypeAlias = tuple[int, bytes]
"""The number of a row in its partition, and what is sent of it."""


@dataclass
class StoredRows(WriterCommitMessage):
    """What a task has done.

    Attributes:
        rows: messages that it published.
        again: of these, how many were there already.
        partition: the task's.
        digests: of the keys of its rows, as far as no other row of the write may have them.
    """

    rows: int
    again: int
    partition: int
    digests: bytes


class MqWriter(DataSourceArrowWriter):
    """Writes a table into a queue.

    Args:
        options: which queue, and where.
        schema: the rows' columns.

    Raises:
        InvalidSchema: they cannot be messages.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_written(schema, options.queue)
        self._options = options
        self._write = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task."""
        return _publish(self._options, self._write, iterator, is_named=bool(self._options.write_id))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """See that no row was taken for another one. What a task has published is published.

        Raises:
            InvalidRow: two rows have one key.
            SparkSourceError: there were no rows, and there is no such queue either.
        """
        _finish(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: the broker knows the rows again when they are written again with the same ``writeId``."""


class MqStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches into a queue.

    Args:
        options: which queue, and where.
        schema: the rows' columns.

    Raises:
        InvalidSchema: they cannot be messages.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_written(schema, options.queue)
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task of a micro-batch, which is the same one after a restart of the query."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise SparkSourceError("Spark does not tell which query and micro-batch this is: use a supported Spark")
        return _publish(self._options, f"{query}/{batch}", as_batches(iterator, self._schema))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """See that no row was taken for another one. What a task has published is published.

        Raises:
            InvalidRow: two rows have one key.
            SparkSourceError: there were no rows, and there is no such queue either.
        """
        _finish(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: the broker knows the rows again when the micro-batch is run again."""


def _finish(options: Options, messages: Sequence[WriterCommitMessage | None]) -> None:
    """What is left to do when all tasks are done."""
    stored = [each for each in messages if isinstance(each, StoredRows)]
    _check_keys(stored)
    rows, again = sum(each.rows for each in stored), sum(each.again for each in stored)
    if again:
        logger.warning("of %d rows %d were in queue %s already, by their keys", rows, again, options.asked_for)
    if not rows and options.queue:  # no task has asked for it
        with DaemonConnection(options) as connection:
            connection.queue()


def _check_keys(stored: Sequence[StoredRows]) -> None:
    """To the broker a row with the key of another one looks like a task that runs again. Here each task comes once."""
    keyed = [each for each in stored if each.digests]
    found = find_repeated([each.digests for each in keyed])
    if found is not None:
        (first, row), (second, other) = found
        raise InvalidRow(
            f"row {other} of partition {keyed[second].partition} has the idempotency key of row {row} of partition "
            f"{keyed[first].partition}, so only one of them is in the queue. A key names one row: it is the column "
            '"idempotencyKey", else "id", else, with "writeId", what the row says. Drop what is there twice, or give '
            'each row an "idempotencyKey"'
        )


def _publish(options: Options, write: str, batches: Iterator[pa.RecordBatch], *, is_named: bool = False) -> StoredRows:
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    maker = LineMaker(write, partition, options.queue, is_named=is_named)
    rows, again = 0, 0
    with DaemonConnection(options) as connection:
        publishers: dict[str, _Publisher] = {}
        for batch in batches:
            for number, (queue, line) in enumerate(maker.lines(batch, rows), rows):
                if queue not in publishers:
                    publishers[queue] = _Publisher(options.only(queue), connection, partition)
                again += publishers[queue].add(number, line)
            rows += batch.num_rows
            if sum(publisher.size for publisher in publishers.values()) > _MOST_WAITING:
                again += sum(publisher.flush() for publisher in publishers.values())
        again += sum(publisher.flush() for publisher in publishers.values())
    return StoredRows(rows, again, partition, bytes(maker.digests))


class _Publisher:
    """Gathers lines for one queue, and sends them together.

    Attributes:
        size: bytes of what is gathered.
    """

    def __init__(self, options: Options, connection: DaemonConnection, partition: int) -> None:
        self._options = options
        self._connection = connection
        self._partition = partition
        self._lines: list[_Line] = []
        self.size = 0

    def add(self, number: int, line: bytes) -> int:
        """Send what was gathered before, if this row does not fit; how many of it were there already."""
        again = 0
        if self._lines and (len(self._lines) >= self._options.batch_size or self.size + len(line) > _BATCH_BYTES):
            again = self.flush()
        self._lines.append((number, line))
        self.size += len(line)
        return again

    def flush(self) -> int:
        """Send what was gathered; how many were there already.

        Raises:
            InvalidRow: the broker refuses a row.
            SparkSourceError: it takes none.
        """
        wanted, self._lines, self.size = self._lines, [], 0
        again = 0
        tries: Tries | None = None
        while wanted:
            tries = tries or Tries(self._call(wanted), Retry(patience=self._options.retry_seconds, longest=2.0))
            left = []
            for line, outcome in self._sent(wanted):
                if outcome.status in _LATER:
                    left.append(line)
                elif outcome.status >= 400:
                    raise self._refused(line[0], outcome.detail)
                again += outcome.status == 200
            if left:
                pause = tries.after_refusals()
                if pause is None:
                    raise SparkSourceError(
                        f'option "queue": {self._options.queue} takes no more for now ({len(left)} rows are left), '
                        'and the option "retrySeconds" is over'
                    )
                time.sleep(pause)
            wanted = left
        return again

    def _sent(self, lines: list[_Line]) -> Iterator[tuple[_Line, Outcome]]:
        """What became of each. Where they are too long together they go in halves; one that is, as written in a line,
        goes as it is.

        Raises:
            InvalidRow: its body is too long for the daemon.
        """
        try:
            told = self._connection.run(self._call(lines))
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
            stored = self._connection.run(requests.publish(self._options.queue, Outgoing(**members)))
        except SparkSourceError as error:
            if not isinstance(error.__cause__, TooLarge):
                raise
            raise self._refused(number, error.__cause__.detail) from error
        return Outcome(status=201 if stored.is_new else 200, id=stored.id)

    def _refused(self, number: int, why: str) -> InvalidRow:
        return InvalidRow(f"row {number} of partition {self._partition}: {why} (queue {self._options.queue})")

    def _call(self, lines: list[_Line]) -> Call[list[Outcome]]:
        return Call(
            method="POST",
            target=f"/{self._options.queue}/messages/batch",
            headers=(("content-type", JSON_LINES), ("accept", JSON_LINES)),
            body=b"".join(line for _, line in lines),
            read=lambda answer: outcomes(answer, len(lines)),
        )
