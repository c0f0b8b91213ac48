"""The data source ``mq``: what Spark makes of the options of a query."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from mq.spark.batch import MqReader
from mq.spark.errors import InvalidOption
from mq.spark.options import READ, READ_STREAM, WRITE, read_options
from mq.spark.rows import ALL_COLUMNS, COLUMNS
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
