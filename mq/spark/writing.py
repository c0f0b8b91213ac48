"""Writing: each task publishes its rows, in batches, with keys by which the broker knows a row that comes again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mq.client.calls import Call
from mq.client.codec import JSON_LINES, outcomes
from mq.client.retries import Retry, Tries
from mq.client.values import Outcome
from mq.spark.connection import DaemonConnection
from mq.spark.errors import InvalidRow, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import LineMaker, check_written, find_repeated

_BATCH_BYTES = 4 << 20
_LATER = (429, 503)


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
        check_written(schema)
        self._options = options
        self._write = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task."""
        return _publish(self._options, self._write, iterator, is_named=bool(self._options.write_id))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """See that no row was taken for another one. What a task has published is published.

        Raises:
            InvalidRow: two rows have one key.
        """
        _check_keys(messages)

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
        check_written(schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task of a micro-batch, which is the same one after a restart of the query."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise SparkSourceError("Spark does not tell which query and micro-batch this is: use a supported Spark")
        return _publish(self._options, f"{query}/{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """See that no row was taken for another one. What a task has published is published.

        Raises:
            InvalidRow: two rows have one key.
        """
        _check_keys(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: the broker knows the rows again when the micro-batch is run again."""


def _check_keys(messages: Sequence[WriterCommitMessage | None]) -> None:
    """To the broker a row with the key of another one looks like a task that runs again. Here each task comes once."""
    stored = [each for each in messages if isinstance(each, StoredRows) and each.digests]
    found = find_repeated([each.digests for each in stored])
    if found is not None:
        (first, row), (second, other) = found
        raise InvalidRow(
            f"row {other} of partition {stored[second].partition} has the idempotency key of row {row} of partition "
            f"{stored[first].partition}, so only one of them is in the queue. A key names one row: it is the column "
            '"idempotencyKey", else "id", else, with "writeId", what the row says. Drop what is there twice, or give '
            'each row an "idempotencyKey"'
        )


def _publish(options: Options, write: str, batches: Iterator[pa.RecordBatch], *, is_named: bool = False) -> StoredRows:
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    maker = LineMaker(write, partition, is_named=is_named)
    rows, again = 0, 0
    with DaemonConnection(options) as connection:
        publisher = _Publisher(options, connection, partition)
        for batch in batches:
            for line in maker.lines(batch, rows):
                again += publisher.add(line)
            rows += batch.num_rows
        again += publisher.flush()
    return StoredRows(rows, again, partition, bytes(maker.digests))


class _Publisher:
    """Gathers lines, and sends them together."""

    def __init__(self, options: Options, connection: DaemonConnection, partition: int) -> None:
        self._options = options
        self._connection = connection
        self._partition = partition
        self._lines: list[bytes] = []
        self._size = 0
        self._sent = 0

    def add(self, line: bytes) -> int:
        """Send what was gathered before, if this does not fit; how many of it were there already."""
        again = 0
        if self._lines and (len(self._lines) >= self._options.batch_size or self._size + len(line) > _BATCH_BYTES):
            again = self.flush()
        self._lines.append(line)
        self._size += len(line)
        return again

    def flush(self) -> int:
        """Send what was gathered; how many were there already.

        Raises:
            InvalidRow: the broker refuses a row.
            SparkSourceError: it takes none.
        """
        wanted = list(enumerate(self._lines, self._sent))
        self._sent += len(self._lines)
        self._lines, self._size = [], 0
        again = 0
        tries: Tries | None = None
        while wanted:
            call = self._call([line for _, line in wanted])
            tries = tries or Tries(call, Retry(patience=self._options.retry_seconds, longest=2.0))
            told = self._connection.run(call)
            left = []
            for (number, line), outcome in zip(wanted, told, strict=True):
                if outcome.status in _LATER:
                    left.append((number, line))
                elif outcome.status >= 400:
                    raise InvalidRow(f"row {number} of partition {self._partition}: {outcome.detail}")
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

    def _call(self, lines: list[bytes]) -> Call[list[Outcome]]:
        return Call(
            method="POST",
            target=f"/{self._options.queue}/messages/batch",
            headers=(("content-type", JSON_LINES), ("accept", JSON_LINES)),
            body=b"".join(lines),
            read=lambda answer: outcomes(answer, len(lines)),
        )
