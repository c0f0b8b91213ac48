"""The data source ``mq``: Spark's way in, and batch reads, which leave the messages in their queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mq.client.errors import NotFound
from mq.spark import calls
from mq.spark.connection import DaemonConnection
from mq.spark.errors import InvalidOption, SparkSourceError
from mq.spark.filters import Selection, push
from mq.spark.options import READ, READ_STREAM, WRITE, Options, read_options
from mq.spark.rows import ALL_COLUMNS, COLUMNS, RowMaker
from mq.spark.stream import MqStreamReader
from mq.spark.versions import READS_STREAMS, pushes_filters
from mq.spark.writers import MqStreamWriter, MqWriter


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
        return (FilteringReader if pushes_filters() else MqReader)(read_options(self.options, READ), schema)

    def streamReader(self, schema: StructType) -> MqStreamReader:
        """For ``spark.readStream``.

        Raises:
            SparkSourceError: this Spark is too old for that.
        """
        if not READS_STREAMS:
            raise SparkSourceError(
                f"readStream requires Spark 4.2 or later, because Spark {pyspark.__version__} does not report the "
                "position of a stream to Python sources, so messages could be lost. Batch reads (spark.read) and "
                "all writes work with Spark 4.0 or later"
            )
        return MqStreamReader(read_options(self.options, READ_STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> MqWriter:
        """For ``df.write``.

        Raises:
            InvalidOption: the mode is "overwrite".
            InvalidSchema: the rows cannot be messages.
        """
        if overwrite:
            raise InvalidOption(
                'mode "overwrite" is not supported: use "append", and purge the queue first if necessary'
            )
        return MqWriter(read_options(self.options, WRITE), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MqStreamWriter:
        """For ``df.writeStream``."""
        return MqStreamWriter(read_options(self.options, WRITE), schema)


def named_source(options: Mapping[str, str]) -> type[MqDataSource]:
    """The data source with these options, under a name that says which queues and daemon they are about.

    Raises:
        InvalidOption: an option is unknown, or has no valid value.
    """
    given = dict(options)
    parsed = read_options(given)
    label = f"mq: {parsed.asked_for} at {parsed.url}"

    class NamedDataSource(MqDataSource):
        """A data source for certain queues. Spark sends the class to its workers as it is."""

        def __init__(self, options: dict[str, str]) -> None:
            own = {name.lower() for name in options}
            super().__init__({**{name: text for name, text in given.items() if name.lower() not in own}, **options})

        @classmethod
        def name(cls) -> str:
            """The name of the format."""
            return label

    return NamedDataSource


@dataclass
class SequenceRange(InputPartition):
    """Messages of a queue whose sequence is greater than `after` and at most `up_to`.

    Attributes:
        up_to: see above; None for what is there when the part is read.
    """

    queue: str
    after: int
    up_to: int | None


@dataclass
class SequenceRanges(InputPartition):
    """Parts of several queues, which one task reads one after the other."""

    ranges: tuple[SequenceRange, ...]


class MqReader(DataSourceReader):
    """Browses queues.

    Spark plans a DataFrame or a view once, and reads its parts again with each action. The last part of a queue has no
    end, so that it shows what came since the plan. Parts are ranges of sequences, and a message keeps its sequence: it
    is in exactly one part, whenever and in whatever order they are read.

    Raises:
        InvalidSchema: there are no such columns.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._selection = Selection(starting_time=options.starting_time, ending_time=options.ending_time)
        RowMaker(options.asked_for, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Parts of about the same length."""
        options = self._options
        nothing = SequenceRange(options.asked_for, 0, 0)  # given no part, Spark makes up one of its own
        with DaemonConnection(options) as connection:
            queues = [queue for queue in connection.queues() if self._selection.has_queue(queue)]
            each = 1 if self._selection.ids is not None else -(-options.num_partitions // max(1, len(queues)))
            parts: list[SequenceRange] = []
            for queue in queues if self._may_have_rows else ():
                with self._passing_over_deleted():
                    parts += self._parts(connection, queue, each)
        if len(queues) > options.num_partitions:  # else many small queues would be as many tasks
            size = max(1, -(-len(parts) // options.num_partitions))
            ranges = [SequenceRanges(tuple(parts[start : start + size])) for start in range(0, len(parts), size)]
            return ranges or [nothing]
        return parts or [nothing]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a part, or of several, that are still READY; each page is one batch."""
        assert isinstance(partition, SequenceRange | SequenceRanges)
        for part in partition.ranges if isinstance(partition, SequenceRanges) else (partition,):
            yield from self._read(part)

    def _read(self, partition: SequenceRange) -> Iterator[pa.RecordBatch]:
        queue, up_to, most = partition.queue, partition.up_to, self._options.fetch_size
        rows, selection = RowMaker(queue, self._schema), self._selection
        after = max(partition.after, self._first_after)
        with self._passing_over_deleted(), DaemonConnection(self._options.only(queue)) as connection:
            if up_to is None:  # without an end, messages that come meanwhile would keep the read going
                up_to = int(connection.run(calls.ranges(queue, 1))["high_watermark"])
            if selection.up_to is not None:
                up_to = min(up_to, selection.up_to)
            if after >= up_to:
                return
            bodies = rows.needs_messages or selection.group is not None
            call = calls.browse(queue, after, up_to, most, ids=selection.ids, group=selection.group, bodies=bodies)
            for page in connection.pages(call):
                batch, wanted = rows.batch(page.messages), self._wanted(page.messages)
                yield batch if wanted is None else batch.filter(wanted)

    @contextmanager
    def _passing_over_deleted(self) -> Iterator[None]:
        """A context in which a queue may be deleted, if a pattern names it: then it has left the table."""
        try:
            yield
        except SparkSourceError as error:
            if not self._options.queue_pattern or not isinstance(error.__cause__, NotFound):
                raise

    def _parts(self, connection: DaemonConnection, queue: str, most: int) -> list[SequenceRange]:
        found = connection.run(calls.ranges(queue, most))
        bounds = [int(bound) for bound in found["bounds"]]
        ends: list[int | None] = [*bounds] if self._options.snapshot else [*bounds[:-1], None]
        parts = zip([0, *bounds], ends or [0], strict=False)
        return [SequenceRange(queue, after, up_to) for after, up_to in parts if self._may_be_in(after, up_to)]

    def _may_be_in(self, after: int, up_to: int | None) -> bool:
        """Whether sequences that pass the filters are between these."""
        last = self._selection.up_to
        return (last is None or after < last) and (up_to is None or up_to > self._first_after)

    @property
    def _may_have_rows(self) -> bool:
        begin, end = self._selection.starting_time, self._selection.ending_time
        return self._selection.ids != frozenset() and (begin is None or end is None or begin < end)

    @property
    def _first_after(self) -> int:
        """Sequences that pass are greater: no message joins its queue before it is published."""
        begin = self._selection.starting_time
        return max(self._selection.after, 0 if begin is None else calls.ticks_of(begin) - 1)

    def _wanted(self, messages: calls.Columns) -> pa.Array | None:
        """Which messages pass what the daemon does not look at; None for all."""
        begin, end, group = self._selection.starting_time, self._selection.ending_time, self._selection.group
        micros = messages.timestamp.cast(pa.int64())
        found = [] if begin is None else [pc.greater_equal(micros, begin)]
        found += [] if end is None else [pc.less(micros, end)]
        if group is not None:
            said = (messages.said.get(str(number), {}) for number in range(len(messages)))
            found.append(pa.array([each.get("group") == group for each in said], pa.bool_()))
        return reduce(pc.and_, found) if found else None


class FilteringReader(MqReader):
    """As :class:`MqReader`, for a Spark that pushes filters down.

    Spark refuses every read by a reader with ``pushFilters`` while its setting is off, so this is a class of its own.

    Spark 4.1 to 4.3 keep the reader of the last query with filters for the DataFrame's next query without any, which so
    gets too few rows. A reader cannot know which query it reads for, so docs/spark.md says to load the table anew.
    """

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Take over the filters that save work. Returns those that are left for Spark."""
        self._selection, left = push(filters, self._selection)
        return left
