"""The data source ``mq``: Spark's way in, and batch reads, which leave the messages in their queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mq.client.errors import NotFound
from mq.spark import calls
from mq.spark.connection import DaemonConnection
from mq.spark.errors import InvalidOption, SparkSourceError
from mq.spark.options import READ, READ_STREAM, WRITE, Options, read_options
from mq.spark.rows import ALL_COLUMNS, COLUMNS, RowMaker
from mq.spark.stream import MqStreamReader
from mq.spark.versions import READS_STREAMS
from mq.spark.writers import MqStreamWriter, MqWriter

_EARLIEST: Final = -(1 << 63)


class MqDataSource(DataSource):
    """Queues of mq as tables and streams. docs/spark.md has its options and columns."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mq"

    def schema(self) -> StructType:
        """The columns that are read."""
        options = read_options(self.options)
        return ALL_COLUMNS if options.include_headers else COLUMNS

    def reader(self, schema: StructType) -> MqReader:
        """For ``spark.read``."""
        return MqReader(read_options(self.options, READ), schema)

    def streamReader(self, schema: StructType) -> MqStreamReader:
        """For ``spark.readStream``.

        Raises:
            SparkSourceError: this Spark is too old for that.
        """
        if not READS_STREAMS:
            raise SparkSourceError(
                f"readStream: Spark {pyspark.__version__} does not tell a source in Python where a stream stands, so "
                "messages could be lost with a checkpoint: use Spark 4.2 or later. Tables and writes need 4.0"
            )
        return MqStreamReader(read_options(self.options, READ_STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> MqWriter:
        """For ``df.write``.

        Raises:
            InvalidOption: the mode is "overwrite".
            InvalidSchema: the rows cannot be messages.
        """
        if overwrite:
            raise InvalidOption('mode "overwrite": a queue is not replaced. Use "append", after a purge if need be')
        return MqWriter(read_options(self.options, WRITE), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MqStreamWriter:
        """For ``df.writeStream``."""
        return MqStreamWriter(read_options(self.options, WRITE), schema)


@dataclass
class SequenceRange(InputPartition):
    """Messages of a queue whose sequence is greater than `after` and at most `up_to`.

    Attributes:
        queue: the queue.
        after: see above.
        up_to: see above; None for what is there when the part is read.
    """

    queue: str
    after: int
    up_to: int | None


class MqReader(DataSourceReader):
    """Browses queues.

    Spark plans a DataFrame or a view once, and reads its parts again with each action. The last part of a queue has no
    end, so that it shows what came since the plan. Parts are ranges of sequences, and a message keeps its sequence: it
    is in exactly one part, whenever and in whatever order they are read.

    Args:
        options: the queues, and the daemon.
        schema: the wanted columns.

    Raises:
        InvalidSchema: there are no such columns.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        RowMaker(options.asked_for, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Parts of about the same length."""
        options = self._options
        with DaemonConnection(options) as connection:
            queues = connection.queues()
            each = -(-options.num_partitions // max(1, len(queues)))
            parts: list[InputPartition] = []
            for queue in queues:
                with self._passing_over_deleted():
                    parts += self._parts(connection, queue, each)
        return parts or [SequenceRange(options.asked_for, 0, 0)]  # given none, Spark makes up a part of its own

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a part that are still READY; each page is one batch."""
        assert isinstance(partition, SequenceRange)
        queue, up_to, most = partition.queue, partition.up_to, self._options.fetch_size
        rows = RowMaker(queue, self._schema)
        after = max(partition.after, self._first_sequence() - 1)
        with self._passing_over_deleted(), DaemonConnection(self._options.only(queue)) as connection:
            if up_to is None:  # without an end, messages that come meanwhile would keep the read going
                up_to = int(connection.run(calls.ranges(queue, 1))["high"])
            if after >= up_to:
                return
            for page in connection.pages(calls.browse(queue, after, up_to, most)):
                batch = rows.batch(page.messages)
                yield batch if self._takes_all else batch.filter(self._within(page.messages.timestamp))

    @contextmanager
    def _passing_over_deleted(self) -> Iterator[None]:
        """A context in which a queue may be deleted, if a pattern names it: then it has left the table."""
        try:
            yield
        except SparkSourceError as error:
            if not self._options.queue_pattern or not isinstance(error.__cause__, NotFound):
                raise

    def _parts(self, connection: DaemonConnection, queue: str, most: int) -> list[InputPartition]:
        found = connection.run(calls.ranges(queue, most))
        bounds = [int(bound) for bound in found["bounds"]]
        ends: list[int | None] = [*bounds] if self._options.snapshot else [*bounds[:-1], None]
        return [SequenceRange(queue, after, up_to) for after, up_to in zip([0, *bounds], ends or [0], strict=False)]

    @property
    def _takes_all(self) -> bool:
        return self._options.starting_time is None and self._options.ending_time is None

    def _first_sequence(self) -> int:
        """The least sequence in the stretch of time: no message joins its queue before it is published."""
        begin = self._options.starting_time
        return 0 if begin is None else max(0, calls.ticks_of(begin))

    def _within(self, timestamps: pa.Array) -> pa.Array:
        begin, end = self._options.starting_time, self._options.ending_time
        micros = timestamps.cast(pa.int64())
        is_late = pc.greater_equal(micros, begin if begin is not None else _EARLIEST)
        return is_late if end is None else pc.and_(is_late, pc.less(micros, end))
