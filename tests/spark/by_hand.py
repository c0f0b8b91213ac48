"""Readers and writers by hand: called in the order in which Spark calls them, and pickled where it pickles them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from mq.client import Client, Outgoing
from mq.spark.options import Options
from mq.spark.rows import COLUMNS
from mq.spark.stream import MqStreamReader
from mq.spark.writers import MqWriter

LIMIT = ReadMaxRows(10)
VALUE = StructType([StructField("value", BinaryType())])


KEYED = StructType([StructField("value", BinaryType()), StructField("idempotencyKey", StringType())])
FROM_QUEUE = StructType([StructField("value", BinaryType()), StructField("id", StringType())])


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


def unsettled(client: Client, options: Options) -> int:
    """How many messages are not removed."""
    found = client.queue(options.queue)
    return found.ready + found.leased


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
def task(partition: int, **properties: str) -> Iterator[None]:
    """Run as that partition's task, of a job with such properties."""
    context = TaskContext._getOrCreate()
    context._partitionId = partition
    context._localProperties = properties
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)
