"""The conservation audit: each accepted message is in exactly one place, or is listed by its id.

The audit rests on two things. Each transition of a message has to leave the place that the one before entered. And
each life of a broker has noted what it found in its store when it began. Where the journal has a gap, a missing row
proves nothing: such messages count as unsure. The journal does not know the bytes of a message: damaged ones come from
what ``mq doctor`` has found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from mq.errors import InvalidSetting
from mq.lifecycle import Kind, State
from mq.observers.journal_rows import CENSUS, FOUND, QUEUE, START
from mq.spark.pipelines.journal import ReadJournal

LOST: Final = "lost"
CAME_BACK: Final = "came back"
TWO_PLACES: Final = "in two places"
TWICE: Final = "published twice"
NOWHERE: Final = "out of nowhere"
DAMAGED: Final = "damaged"

MEANINGS: Final = {
    LOST: "the message was in its queue when a broker stopped cleanly, but was missing when the next broker started",
    CAME_BACK: "the message was removed, but appeared again",
    TWO_PLACES: "the message was moved from a place where, according to the journal, it was not",
    TWICE: "two messages were published with the same ID",
    NOWHERE: "the message exists, but the journal has no record of its publish",
    DAMAGED: "the message exists, but mq doctor found that its contents differ from what was published",
}
"""What each exception means, for people."""

GONE: Final = "gone"
UNSURE: Final = "unsure"
DELETED: Final = "deleted with its queue"
REMOVED: Final = "removed"
EXPIRED: Final = "expired"

_NEW, _READY, _DELAYED, _REMOVED = (state.value for state in State)
IN_QUEUE: Final = (_NEW, _READY, _DELAYED)
"""The states of a message that is in a queue."""
_SHOWN: Final = {_NEW: "not delivered yet", _READY: "ready", _DELAYED: "leased or delayed"}


class Audit(NamedTuple):
    """What an audit found.

    Attributes:
        places: how many messages are in each place, by queue: `queue`, `place`, `messages`.
        exceptions: `what` is wrong with the message `id` of `queue`, seen at `time`, in `detail`.
    """

    places: DataFrame
    exceptions: DataFrame


def steps_of(journal: ReadJournal) -> DataFrame:
    """The transitions of messages, each with columns of the row before it about the same message."""
    window = Window.partitionBy("id").orderBy("ordinal", "sequence")
    return (
        journal.rows.where("id <> ''")
        .withColumn("after", F.when(F.col("kind") == FOUND, F.col("target")).otherwise(_or("target", GONE)))
        .withColumn("queue_after", F.coalesce("destination", "queue"))
        .withColumn("is_first", F.lag("kind").over(window).isNull())
        .withColumn("is_last", F.lead("kind").over(window).isNull())
        .withColumns({f"previous_{name}": F.lag(name).over(window) for name in ("kind", "after", "era", "time")})
        .withColumn("previous_queue", F.lag("queue_after").over(window))
    )


def read_damaged(path: str) -> dict[str, str]:
    """The messages that ``mq doctor --json`` has found to be damaged.

    Returns:
        The id of each, and the details, in words.

    Raises:
        InvalidSetting: the file cannot be read, or is not the output of ``mq doctor --json``.
    """
    try:
        found = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
        if not found or "messages" not in found[-1]:
            raise ValueError("the last line does not contain the number of messages")
        return {each["id"]: each["detail"] for each in found if each.get("finding") == DAMAGED and each["id"]}
    except OSError as error:
        raise InvalidSetting(f"cannot read the file given with --doctor, {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidSetting(
            f"--doctor {path} is not the output of mq doctor --json ({error}). Create it with mq doctor ROOT "
            "--json > FILE"
        ) from error


def audit(spark: SparkSession, journal: ReadJournal, steps: DataFrame, damaged: Mapping[str, str]) -> Audit:
    """Audit all steps.

    Args:
        steps: as :func:`steps_of` makes them.
        damaged: messages that are exceptions for their bytes: the details by id.
    """
    notes = journal.rows.where(F.col("kind").isin(START, QUEUE, CENSUS)).persist()
    censuses = _censuses(spark, journal, notes)
    judged = _broken(steps.join(censuses, "ordinal"))
    last = judged.where("is_last").where(~(F.col("is_first") & (F.col("kind") == Kind.REAP.value)))
    last = _deleted(last, steps, notes.join(censuses.select("ordinal", "life"), "ordinal"))
    is_in_queue = F.col("after").isin(*IN_QUEUE)
    is_lost = is_in_queue & ~F.col("is_deleted") & (F.col("next_census_era") == F.col("era"))
    is_unsure = F.col("after").isNull() | (F.col("era") < journal.last_era)
    ended = F.when(F.col("kind") == Kind.REAP.value, F.col("previous_kind")).otherwise(F.col("kind"))
    shown = F.create_map(*[F.lit(part) for pair in _SHOWN.items() for part in pair])
    place = (
        F.when(F.col("after").isin(GONE, _REMOVED), F.when(ended == Kind.EXPIRE.value, EXPIRED).otherwise(REMOVED))
        .when(F.col("is_deleted"), DELETED)
        .when(is_lost, LOST)
        .when(is_unsure, UNSURE)
        .otherwise(shown[F.col("after")])
    )
    located = last.withColumn("place", place)
    places = located.groupBy(F.col("queue_after").alias("queue"), "place").agg(F.count("*").alias("messages"))
    lost = located.where(F.col("place") == LOST).withColumn("wrong", F.lit(LOST))
    exceptions = _listed(judged.where("wrong IS NOT NULL")).unionByName(_listed(lost))
    if damaged:
        exceptions = exceptions.unionByName(_damaged(spark, last, damaged))
    return Audit(places.orderBy("queue", "place"), exceptions.orderBy("what", "id"))


def _damaged(spark: SparkSession, last: DataFrame, damaged: Mapping[str, str]) -> DataFrame:
    """Damaged messages as exceptions, each with where and when the journal saw it last; both null where it did not."""
    seen = last.select("id", F.col("queue_after").alias("queue"), "time")
    table = spark.createDataFrame(sorted(damaged.items()), "id string, detail string")
    found = F.broadcast(table).join(seen, "id", "left")
    return found.select(F.lit(DAMAGED).alias("what"), "id", "queue", "time", "detail")


def _broken(steps: DataFrame) -> DataFrame:
    """The steps, with `wrong`: in what way a row does not follow from the one before; null where it does."""
    kind, before, after = F.col("kind"), F.col("previous_after"), F.col("after")
    is_publish, is_found, is_reap = (kind == word for word in (Kind.PUBLISH.value, FOUND, Kind.REAP.value))
    nothing_missing = F.col("previous_era") == F.col("era")
    left = F.when(is_found, after).otherwise(F.col("source"))
    moved = (left != before) | (F.col("queue") != F.col("previous_queue"))
    is_known = (F.col("census_era") == F.col("era")) | (
        (F.col("own_census_era") == F.col("era")) & (F.col("own_census_sequence") < F.col("sequence"))
    )
    wrong = (
        F.when(F.col("is_first"), F.when(~is_publish & ~is_reap & is_known, NOWHERE))
        .when(is_publish, TWICE)
        .when((before == GONE) | ((before == _REMOVED) & ~is_reap), CAME_BACK)
        .when(nothing_missing & before.isin(*IN_QUEUE) & moved, TWO_PLACES)
    )
    return steps.withColumn("wrong", wrong)


def _censuses(spark: SparkSession, journal: ReadJournal, notes: DataFrame) -> DataFrame:
    """For each segment: the first one of its life, and the eras of the last complete census before it, the one in it,
    and the next one after it. A census is complete when nothing is missing between the life's start and its end."""
    noted = notes.where(F.col("kind") != QUEUE).select("kind", "ordinal", "era", "sequence").collect()
    starts: list[tuple[int, int]] = []
    complete: list[tuple[int, int, int, int]] = []  # ordinal of the start, then of the census, its sequence, the era
    for row in sorted(noted, key=lambda row: (row.ordinal, row.sequence)):
        if row.kind == START:
            starts.append((row.ordinal, row.era))
        elif starts and starts[-1][1] == row.era:
            complete.append((starts[-1][0], row.ordinal, row.sequence, row.era))
    table = []
    lives: dict[str, int] = {}
    for ordinal, broker in ((segment.ordinal, segment.found.broker) for segment in journal.segments):
        before = [era for _, at, _, era in complete if at < ordinal]
        own = [(sequence, era) for _, at, sequence, era in complete if at == ordinal]
        coming = [(start, era) for start, _, _, era in complete if start > ordinal]
        table.append(
            (
                ordinal,
                lives.setdefault(broker, ordinal),
                before[-1] if before else None,
                *(own[0] if own else (None, None)),
                *(coming[0] if coming else (None, None)),
            )
        )
    columns = "ordinal int, life int, census_era int, own_census_sequence long, own_census_era int"
    return F.broadcast(spark.createDataFrame(table, f"{columns}, next_census int, next_census_era int"))


def _deleted(last: DataFrame, steps: DataFrame, notes: DataFrame) -> DataFrame:
    """With `is_deleted`: whether the queue in which a message was last seen went later, and it with it.

    The folder of a deleted queue is reaped under an id of its own, whose time is that of the deletion. A census tells
    of a queue that is no more, or was made later.
    """
    folders = (
        steps.where("is_first AND is_last")
        .where(F.col("kind") == Kind.REAP.value)
        .groupBy(F.col("queue").alias("queue_after"), "era")
        .agg(F.max(time_of("id")).alias("deleted_at"))
    )
    listed = notes.where(F.col("kind") == QUEUE).select(
        F.col("queue").alias("queue_after"), F.col("life").alias("next_census"), F.col("since").alias("made_at")
    )
    found = last.drop("life").join(F.broadcast(folders), ["queue_after", "era"], "left")
    found = found.join(F.broadcast(listed), ["queue_after", "next_census"], "left")
    by_census = F.col("next_census").isNotNull() & (F.col("made_at").isNull() | (F.col("made_at") > F.col("time")))
    is_deleted = F.col("after").isin(*IN_QUEUE) & (by_census | (F.col("deleted_at") >= F.col("time")))
    return found.withColumn("is_deleted", F.coalesce(is_deleted, F.lit(False)))


def _listed(rows: DataFrame) -> DataFrame:
    place = F.concat_ws(" ", _or("previous_after", "nothing"), F.lit("in"), _or("previous_queue", "no queue"))
    detail = F.concat_ws(
        " ", F.lit("was:"), place, F.lit("- then:"), "kind", _or("after", ""), F.lit("in"), "queue_after"
    )
    return rows.select(
        F.col("wrong").alias("what"), "id", F.col("queue_after").alias("queue"), "time", detail.alias("detail")
    )


def _or(name: str, otherwise: str) -> Column:
    return F.coalesce(F.col(name), F.lit(otherwise))


def time_of(id: str) -> Column:
    """When an id was made: a UUID of version 1 counts 100 ns ticks since 1582."""
    digits = F.concat(F.substring(id, 16, 3), F.substring(id, 10, 4), F.substring(id, 1, 8))
    ticks = F.conv(digits, 16, 10).cast("long") - F.lit(0x01B21DD213814000)
    return F.timestamp_micros((ticks / 10).cast("long"))
