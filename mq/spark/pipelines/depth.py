"""Queue depth over time, where the journal knows it.

The census at the start of a broker's run counts the messages of each queue; the transitions after it change that
count. Behind a gap the depth is unknown until the next census.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from mq.lifecycle import Kind
from mq.observers.journal_rows import CENSUS, FOUND, GAP, QUEUE, START
from mq.spark.pipelines.audit import IN_QUEUE, time_of
from mq.spark.pipelines.journal import ReadJournal

SCHEMA: Final = pa.schema(
    [
        pa.field("queue", pa.string()),
        pa.field("begin", pa.timestamp("us", "UTC")),
        pa.field("seconds", pa.int32()),
        pa.field("depth", pa.int64()),
    ]
)
"""A row for each change: the messages of a queue at the end of a step of time; null where that is unknown."""

Place = tuple[int, int]
"""A segment, and an era in it, which is a stretch of the journal without a gap. Places are in the order of time."""


class QueueChange(NamedTuple):
    """What happened to a queue in a step of time.

    Attributes:
        deleted: how often the queue was deleted at that place before.
        change: messages that came, less those that went.
    """

    place: Place
    begin: datetime
    deleted: int
    change: int


class Stretch(NamedTuple):
    """A place in the journal from which on the depths are known, or unknown.

    Attributes:
        counts: messages by queue at its beginning; None where the depths are unknown.
    """

    place: Place
    begin: datetime
    counts: Mapping[str, int] | None


def depth_of(journal: ReadJournal, steps: DataFrame, seconds: int) -> pa.Table:
    """How many messages each queue had, by step of time: SCHEMA.

    Args:
        journal: the journal. Of one that other programs' moves are missing from nothing is known.
        steps: as :func:`~mq.spark.pipelines.audit.steps_of` makes them.
    """
    rows: list[dict[str, Any]] = []
    if not journal.shared:
        changes = _changes(steps, seconds)
        stretches = _stretches(journal, seconds, [change for of_queue in changes.values() for change in of_queue])
        for queue in sorted({*changes, *(name for each in stretches for name in each.counts or ())}):
            found = depths(queue, changes.get(queue, ()), stretches)
            rows += ({"queue": queue, "begin": at, "seconds": seconds, "depth": depth} for at, depth in found)
    return pa.Table.from_pylist(rows, SCHEMA)


def depths(
    queue: str, changes: Iterable[QueueChange], stretches: Iterable[Stretch]
) -> Iterator[tuple[datetime, int | None]]:
    """When the depth of a queue changed, and to what; None for unknown.

    Args:
        stretches: in any order. A place without one goes on from the one before.
    """
    begins = {each.place: each for each in stretches}
    at = {place: list(some) for place, some in groupby(sorted(changes), attrgetter("place"))}
    depth: int | None = None
    for place in sorted({*begins, *at}):
        if place in begins:
            stretch = begins[place]
            depth = None if stretch.counts is None else stretch.counts.get(queue, 0)
            yield stretch.begin, depth
        deleted = 0
        for begin, some in groupby(at.get(place, ()), attrgetter("begin")):
            for change in some:
                if depth is not None:
                    depth = change.change + (depth if change.deleted == deleted else 0)
                deleted = change.deleted
            if depth is not None:
                yield begin, max(0, depth)  # below 0 are messages out of nowhere, which the audit lists


def _stretches(journal: ReadJournal, seconds: int, changes: Iterable[QueueChange]) -> list[Stretch]:
    """The places at which the depths become known, or unknown."""
    notes = journal.rows.where(F.col("kind").isin(START, QUEUE, CENSUS, GAP))
    rows = notes.select("ordinal", "sequence", "kind", "era", "queue", "count", "time").toArrow().to_pylist()
    found: dict[Place, Stretch] = {}
    counts: dict[str, int] = {}
    for row in sorted(rows, key=itemgetter("ordinal", "sequence")):
        place = row["ordinal"], row["era"]
        if row["kind"] in (START, GAP):
            counts = {}
            found[place] = Stretch(place, _floor(row["time"], seconds), None)
        elif row["kind"] == QUEUE:
            counts[row["queue"]] = row["count"]
        elif place in found:  # nothing is missing between the start and the end of the census
            found[place] = found[place]._replace(counts=counts)
    # A segment that is missing leaves no note: the era after it is another one.
    known = {each.place[1] for each in found.values()}
    for change in sorted(changes):
        if change.place[1] not in known:
            found[change.place] = Stretch(change.place, change.begin, None)
            known.add(change.place[1])
    return list(found.values())


def _changes(steps: DataFrame, seconds: int) -> dict[str, list[QueueChange]]:
    """What happened, by queue."""
    is_out, is_in = (F.coalesce(F.col(name).isin(*IN_QUEUE), F.lit(False)) for name in ("source", "target"))
    target = F.coalesce("destination", "queue")
    sides = F.array(
        F.struct(F.col("queue").alias("queue"), (-is_out.cast("int")).alias("change")),
        F.struct(target.alias("queue"), is_in.cast("int").alias("change")),
    )
    moves = steps.where((F.col("kind") != FOUND) & ~(is_out & is_in & (target == F.col("queue"))))
    rows = moves.select("ordinal", "era", "time", F.explode(sides).alias("side"))
    rows = rows.select("side.queue", "ordinal", "era", "time", "side.change").where("change <> 0")
    # The folder of a deleted queue is reaped under an id of its own, whose time is that of the deletion.
    deletions = steps.where("is_first AND is_last").where(F.col("kind") == Kind.REAP.value)
    folders = deletions.groupBy("queue", "ordinal", "era").agg(F.collect_list(time_of("id")).alias("instants"))
    gone = folders.select("queue", "ordinal", "era", F.explode("instants").alias("time"), F.lit(0).alias("change"))
    before = F.size(F.filter("instants", lambda instant: instant <= F.col("time")))
    deleted = F.when(F.col("instants").isNull(), 0).otherwise(before).alias("deleted")
    begin = F.timestamp_seconds(F.floor(F.unix_seconds("time") / seconds) * seconds).alias("begin")
    known = rows.unionByName(gone).join(F.broadcast(folders), ["queue", "ordinal", "era"], "left")
    summed = known.groupBy("queue", "ordinal", "era", begin, deleted).agg(F.sum("change").cast("int").alias("change"))
    found: dict[str, list[QueueChange]] = defaultdict(list)
    for row in summed.toArrow().to_pylist():
        place = row["ordinal"], row["era"]
        found[row["queue"]].append(QueueChange(place, row["begin"], row["deleted"], row["change"]))
    return found


def _floor(instant: datetime, seconds: int) -> datetime:
    return datetime.fromtimestamp(instant.timestamp() // seconds * seconds, UTC)
