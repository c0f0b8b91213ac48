"""The data source ``mq``: what Spark makes of the options of a query, and reading once. Nothing is taken by that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mq.spark import calls
from mq.spark.connection import DaemonConnection
from mq.spark.errors import InvalidOption
from mq.spark.options import READ, READ_STREAM, WRITE, Options, read_options
from mq.spark.rows import ALL_COLUMNS, COLUMNS, RowMaker
from mq.spark.stream import MqStreamReader
from mq.spark.writing import MqStreamWriter, MqWriter


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
        """For ``spark.readStream``."""
        return MqStreamReader(read_options(self.options, READ_STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> MqWriter:
        """For ``df.write``.

        Raises:
            InvalidOption: the rows should replace what is there.
        """
        if overwrite:
            raise InvalidOption('mode "overwrite": a queue is not replaced. Use "append", after a purge if need be')
        return MqWriter(read_options(self.options, WRITE), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MqStreamWriter:
        """For ``df.writeStream``."""
        return MqStreamWriter(read_options(self.options, WRITE), schema)


@dataclass
class SequenceRange(InputPartition):
    """Messages whose sequence is greater than `after` and at most `up_to`."""

    after: int
    up_to: int


class MqReader(DataSourceReader):
    """Browses a queue.

    Args:
        options: which one, and where.
        schema: the columns that are wanted.

    Raises:
        InvalidSchema: there are no such columns.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        RowMaker(options.queue, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Parts of about the same length: what comes into the queue later is in none."""
        with DaemonConnection(self._options) as connection:
            found = connection.run(calls.ranges(self._options.queue, self._options.num_partitions))
        bounds = [int(bound) for bound in found["bounds"]] or [0]
        return [SequenceRange(after, up_to) for after, up_to in zip([0, *bounds[:-1]], bounds, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a part that are still ready, a page a batch."""
        assert isinstance(partition, SequenceRange)
        rows = RowMaker(self._options.queue, self._schema)
        if not partition.up_to:
            return
        queue, most = self._options.queue, self._options.fetch_size
        with DaemonConnection(self._options) as connection:
            for page in connection.pages(calls.browse(queue, partition.after, partition.up_to, most)):
                yield rows.batch(page.messages)
