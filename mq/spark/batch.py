"""Reading once: what is ready in a queue, as a table. Nothing is taken, however often Spark reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mq.spark import calls
from mq.spark.connection import Connection
from mq.spark.options import Options
from mq.spark.rows import RowMaker


@dataclass
class Part(InputPartition):
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
        with Connection(self._options) as connection:
            found = connection.run(calls.ranges(self._options.queue, self._options.num_partitions))
        bounds = [int(bound) for bound in found["bounds"]] or [0]
        return [Part(after, up_to) for after, up_to in zip([0, *bounds[:-1]], bounds, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a part that are still ready, a page a batch."""
        assert isinstance(partition, Part)
        rows = RowMaker(self._options.queue, self._schema)
        if not partition.up_to:
            return
        queue, most = self._options.queue, self._options.fetch_size
        with Connection(self._options) as connection:
            for page in connection.pages(calls.browse(queue, partition.after, partition.up_to, most)):
                yield rows.batch(page.messages)
