"""The lifecycle journal as a DataFrame: its segments, the gaps between them, and their rows.

An *era* is a stretch of the journal without a gap. Rows are ordered by `ordinal` (of the segment) and `sequence`; of
one era no row is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mq.errors import InvalidSetting
from mq.observers.journal_rows import GAP, START, STOP
from mq.observers.journal_segments import JournalSegment, segment_paths

_ROWS: Final = (
    "ordinal int, era int, sequence long, time timestamp, kind string, queue string, id string, source string, "
    "target string, size long, receives int, destination string, protocol string, count long, since timestamp"
)
_COLUMNS: Final = (
    *("sequence", "time", "kind", "queue", "id", "source", "target", "size", "receives", "destination", "protocol"),
    *("count", "since"),
)


class Found(NamedTuple):
    """What a segment has.

    Attributes:
        broker: whose life it is of; with host, version (of mq), store, peers, started_ns as in the segment's head.
        next: the number of the row that has to follow its last one.
        begins: it has the first row of its life.
        stops: it has the last row of its life.
        torn: it does not end with a whole batch.
    """

    path: str
    broker: str
    host: str
    version: str
    store: str
    peers: int
    started_ns: int
    segment: int
    first: int
    next: int
    rows: int
    missing: int
    gaps: int
    begins: bool
    stops: bool
    torn: bool


class Placed(NamedTuple):
    """A segment, and its place among the others.

    Attributes:
        era: the era of its first row.
        is_cut: something is missing before it.
    """

    found: Found
    ordinal: int
    era: int
    is_cut: bool


class ReadJournal(NamedTuple):
    """A journal.

    Attributes:
        rows: every row, with the journal's columns, and `ordinal` and `era`.
        shared: whether other programs moved messages of the store, too, which the journal does not have.
    """

    rows: DataFrame
    segments: list[Placed]
    last_era: int
    shared: bool


def read_journal(spark: SparkSession, folders: Sequence[str]) -> ReadJournal:
    """Read the journal in some folders, all of one store.

    Raises:
        InvalidSetting: there is no journal, or it is of several stores.
    """
    paths = [str(path) for folder in folders for path in _paths(folder)]
    if not paths:
        raise InvalidSetting(
            f"no journal files in {', '.join(folders)}. Specify the folder that was given to mq serve --journal"
        )
    slices = min(len(paths), 4 * spark.sparkContext.defaultParallelism)
    looked = spark.sparkContext.parallelize(paths, slices).map(look).collect()
    found = [each for each in looked if each is not None]
    stores = sorted({(each.host, each.store) for each in found})
    if not found:
        raise InvalidSetting(f"the journal files in {', '.join(folders)} contain no complete entries")
    if len(stores) > 1:
        named = ", ".join(f"{store} on {host}" for host, store in stores)
        raise InvalidSetting(
            f"these journals belong to different mq stores: {named}. Specify the journals of a single store"
        )
    segments = place(found)
    placed = [(each.found.path, each.ordinal, each.era) for each in segments]
    spark.dataSource.register(_Source)
    rows = spark.read.format(_Source.name()).option("segments", json.dumps(placed)).load()
    last_era = segments[-1].era + segments[-1].found.gaps
    return ReadJournal(rows, segments, last_era, any(each.peers for each in found))


def place(found: Iterable[Found]) -> list[Placed]:
    """Put segments in order, and find where something is missing between them."""
    placed: list[Placed] = []
    era = 0
    for ordinal, each in enumerate(sorted(found, key=lambda found: (found.started_ns, found.broker, found.segment))):
        before = placed[-1].found if placed else None
        if before is None:
            is_cut = not each.begins
        elif before.broker == each.broker:
            is_cut = before.next != each.first
        else:
            is_cut = not (before.stops and each.begins)
        era += (before.gaps if before else 0) + is_cut
        placed.append(Placed(each, ordinal, era, is_cut))
    return placed


def _paths(folder: str) -> list[Path]:
    try:
        return segment_paths(Path(folder))
    except OSError as error:
        raise InvalidSetting(f"cannot read the journal {folder}: {error.strerror}") from error


def look(path: str) -> Found | None:
    """Look through a segment; None where no batch of it is whole."""
    segment = JournalSegment(Path(path))
    first, following, rows, missing, gaps = -1, 0, 0, 0, 0
    notes: set[str] = set()
    for batch in segment.batches():
        kinds = batch.column("kind").dictionary_decode()
        if first < 0:
            first = batch.column("sequence")[0].as_py()
        following = batch.column("sequence")[batch.num_rows - 1].as_py() + 1
        rows += batch.num_rows
        for number in pc.indices_nonzero(pc.equal(kinds, GAP)).to_pylist():
            gaps += 1
            lost = batch.column("count")[number].as_py()
            missing += lost
            following += lost - 1
        notes.update(pc.unique(kinds).to_pylist())
    if first < 0:
        return None
    head = segment.head
    return Found(
        path,
        head["broker"],
        head["host"],
        head["version"],
        head["store"],
        int(head["peers"]),
        int(head["started_ns"]),
        int(head["segment"]),
        first,
        following,
        rows,
        missing,
        gaps,
        START in notes,
        STOP in notes,
        segment.torn,
    )


class _Source(DataSource):
    """The segments in its option, as a table. It yields Arrow, for which Spark needs no pandas here."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mq_journal_segments"

    def schema(self) -> str:
        """The journal's columns, and the place of each row."""
        return _ROWS

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader with one partition for each segment."""
        return _Reader(json.loads(self.options["segments"]))


class _Partition(InputPartition):
    def __init__(self, path: str, ordinal: int, era: int) -> None:
        super().__init__(path)
        self.path = path
        self.ordinal = ordinal
        self.era = era


class _Reader(DataSourceReader):
    def __init__(self, segments: list[tuple[str, int, int]]) -> None:
        self._segments = segments

    def partitions(self) -> list[InputPartition]:
        return [_Partition(*segment) for segment in self._segments]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Partition)
        era = partition.era
        for batch in JournalSegment(Path(partition.path)).batches():
            gaps = pc.cumulative_sum(pc.equal(batch.column("kind").dictionary_decode(), GAP).cast(pa.int32()))
            eras = pc.add(gaps, pa.scalar(era, pa.int32()))
            era = eras[len(eras) - 1].as_py()
            columns = [_plain(batch.column(name)) for name in _COLUMNS]
            ordinals = pa.array([partition.ordinal] * batch.num_rows, pa.int32())
            yield pa.RecordBatch.from_arrays([ordinals, eras, *columns], ["ordinal", "era", *_COLUMNS])


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
