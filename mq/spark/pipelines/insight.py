"""Insight: figures of each queue from a lifecycle journal, and the conservation audit.

Results are tables in Parquet, and one page for people. They come from the journal; which messages are damaged
``mq doctor`` has to tell.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow.parquet import write_table
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from mq.errors import InvalidSetting
from mq.lifecycle import Kind, State
from mq.spark.pipelines.audit import audit, read_damaged, steps_of
from mq.spark.pipelines.depth import depth_of
from mq.spark.pipelines.journal import ReadJournal, read_journal
from mq.spark.pipelines.report import Report, as_page

PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
POISON_RECEIVES: Final = 3
"""Deliveries after which a message counts as poison, if it is still there or has died."""
_MOST_POISON: Final = 1000
_POINTS: Final = 120
_STEPS_SECONDS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400)
_ACCURACY: Final = 10_000

Progress = Callable[[str, int, int], None]
"""Called with what begins, how many steps are done, and how many there are."""


class Insight(NamedTuple):
    """Results."""

    report: Report
    page: Path


def insight(
    spark: SparkSession,
    folders: Sequence[str],
    out: str,
    progress: Progress | None = None,
    *,
    doctor: str | None = None,
    version: str = "",
) -> Insight:
    """Read the journals of one store, and write tables and a page.

    Args:
        folders: those with the segments, one for each broker.
        out: a folder of the driver's; made when missing, and its tables are replaced.
        doctor: a file with the output of ``mq doctor --json``, whose damaged messages are exceptions, too.

    Raises:
        InvalidSetting: there is no journal, it is of several stores, `out` cannot be written, or `doctor` not read.
    """
    target = Path(out)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(f"cannot write to {out}: {error.strerror}") from error
    damaged = {} if doctor is None else read_damaged(doctor)
    journal = read_journal(spark, folders)
    steps = steps_of(journal).persist()
    try:
        tables = _tables(spark, journal, steps, damaged)
        rows: dict[str, list[dict[str, Any]]] = {}
        for number, (name, table) in enumerate(tables.items()):
            if progress is not None:
                progress(name, number, len(tables))
            found = table if isinstance(table, pa.Table) else table.toArrow()
            write_table(found, target / f"{name}.parquet")
            rows[name] = found.to_pylist()
    finally:
        steps.unpersist()
    versions = {"mq": version, "Spark": spark.version, "Python": platform.python_version()}
    report = Report(rows, _complaints(journal), datetime.now(UTC), versions)
    page = target / "report.html"
    page.write_text(as_page(report), "utf-8")
    if progress is not None:
        progress("done", len(tables), len(tables))
    return Insight(report, page)


def _tables(
    spark: SparkSession, journal: ReadJournal, steps: DataFrame, damaged: Mapping[str, str]
) -> dict[str, DataFrame | pa.Table]:
    seconds = _step_of(steps)
    tables: dict[str, DataFrame | pa.Table] = {
        "queues": queues_of(steps),
        "throughput": throughput_of(steps, seconds),
        "depth": depth_of(journal, steps, seconds),
        "latency": latency_of(steps),
        "poison": poison_of(steps),
        "segments": pa.Table.from_pylist(
            [{**each.found._asdict(), "ordinal": each.ordinal, "is_cut": each.is_cut} for each in journal.segments]
        ),
    }
    if not journal.shared:
        places, exceptions = audit(spark, journal, steps, damaged)
        tables |= {"places": places, "exceptions": exceptions}
    return tables


def queues_of(steps: DataFrame) -> DataFrame:
    """A row for each queue: how many messages came and went, and how many failed."""
    is_lease = _is(Kind.LEASE)
    counted = steps.groupBy("queue").agg(
        _count(_is(Kind.PUBLISH)).alias("published"),
        F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),
        _count(is_lease).alias("leased"),
        _count(is_lease & (F.col("receives") > 1)).alias("redelivered"),
        _count(_is(Kind.REMOVE)).alias("removed"),
        _count(_is(Kind.DEAD_LETTER)).alias("dead_lettered"),
        _count(_is(Kind.EXPIRE)).alias("expired"),
        F.min("time").alias("first"),
        F.max("time").alias("last"),
    )
    # Of a single instant there is no rate: 0 seconds are a null.
    seconds = F.nullif(F.unix_micros("last") - F.unix_micros("first"), F.lit(0)) / 1e6
    return (
        counted.withColumn("published_per_second", F.col("published") / seconds)
        .withColumn("removed_per_second", F.col("removed") / seconds)
        .withColumn("redelivery_rate", _ratio("redelivered", "leased"))
        .withColumn("dead_letter_rate", _ratio("dead_lettered", "published"))
        .orderBy(F.desc("published"), "queue")
    )


def _step_of(steps: DataFrame) -> int:
    """The seconds of a step of time, of which there are at most _POINTS."""
    ends = steps.agg(F.unix_seconds(F.min("time")), F.unix_seconds(F.max("time"))).first()
    span = (ends[1] - ends[0]) if ends is not None and ends[0] is not None else 0
    return next((step for step in _STEPS_SECONDS if span / step <= _POINTS), _STEPS_SECONDS[-1])


def throughput_of(steps: DataFrame, seconds: int) -> DataFrame:
    """How many messages were published, leased and removed, by queue and step of time of so many seconds."""
    begin = F.timestamp_seconds(F.floor(F.unix_seconds("time") / seconds) * seconds)
    return (
        steps.groupBy("queue", begin.alias("begin"))
        .agg(
            F.lit(seconds).alias("seconds"),
            *(_count(_is(kind)).alias(kind.value) for kind in (Kind.PUBLISH, Kind.LEASE, Kind.REMOVE)),
        )
        .orderBy("queue", "begin")
    )


def latency_of(steps: DataFrame) -> DataFrame:
    """How long messages waited in their queue, and how long they lived, in seconds.

    `in queue` is the time from READY to a lease or a removal, or from NEW for a message that a request waited for; `end
    to end` is the time from the publish to the removal. Times across a gap are left out.
    """
    passed = (F.unix_micros("time") - F.unix_micros("previous_time")) / 1e6
    from_queue = F.col("previous_after").isin(State.NEW.value, State.READY.value)
    waited = steps.where(
        (_is(Kind.LEASE) | _is(Kind.REMOVE)) & from_queue & (F.col("previous_era") == F.col("era"))
    ).select("queue", F.lit("in queue").alias("what"), passed.alias("seconds"))
    published = _first("time", Kind.PUBLISH)
    removed = _first("time", Kind.REMOVE)
    lived = (
        steps.groupBy("id")
        .agg(
            _first("queue", Kind.PUBLISH).alias("queue"),
            ((F.unix_micros(removed) - F.unix_micros(published)) / 1e6).alias("seconds"),
            F.countDistinct("era").alias("eras"),
        )
        .where("seconds IS NOT NULL AND eras = 1")
        .select("queue", F.lit("end to end").alias("what"), "seconds")
    )
    at = F.percentile_approx("seconds", list(PERCENTILES), _ACCURACY)
    return (
        waited.unionByName(lived)
        .groupBy("queue", "what")
        .agg(F.count("*").alias("messages"), at.alias("at"), F.max("seconds").alias("longest"))
        .select(
            "queue",
            "what",
            "messages",
            *(
                F.col("at")[number].alias(f"p{each * 100:g}".replace(".", "_"))
                for number, each in enumerate(PERCENTILES)
            ),
            "longest",
        )
        .orderBy("queue", "what")
    )


def poison_of(steps: DataFrame) -> DataFrame:
    """Messages that were delivered again and again, and not removed by a consumer."""
    return (
        steps.groupBy("id")
        .agg(
            F.max("receives").alias("receives"),
            _count(_is(Kind.DEAD_LETTER)).alias("dead_lettered"),
            _count(_is(Kind.REMOVE)).alias("removed"),
            F.max_by("queue_after", F.struct("ordinal", "sequence")).alias("queue"),
            F.max("time").alias("last"),
        )
        .where((F.col("receives") >= POISON_RECEIVES) & ((F.col("dead_lettered") > 0) | (F.col("removed") == 0)))
        .orderBy(F.desc("receives"), "id")
        .limit(_MOST_POISON)
    )


def _complaints(journal: ReadJournal) -> list[str]:
    """What the journal does not know, in words."""
    told = []
    for each in journal.segments:
        found = each.found
        if found.gaps:
            told.append(
                f"{found.missing} transitions are missing from {Path(found.path).name}, because the disk was "
                "full or slow"
            )
        if each.is_cut and each.ordinal == 0:
            told.append(
                "the beginning of the journal is missing, because older segments were deleted or mq ran without "
                "a journal before"
            )
        elif each.is_cut:
            told.append(
                f"transitions before {Path(found.path).name} are missing, because a broker was killed or a "
                "segment was deleted"
            )
    if journal.segments and not journal.segments[-1].found.stops:
        told.append(
            "the journal is still being written, or its end is missing; this report shows the state at its last row"
        )
    if journal.shared:
        told.append(
            "other programs also moved messages of this store and did not write to this journal, so no audit "
            "is possible"
        )
    return told


def summary(found: Insight) -> str:
    """The audit in one JSON object, for programs."""
    rows = found.report.tables
    places: dict[str, int] = {}
    for row in rows.get("places", []):
        places[row["place"]] = places.get(row["place"], 0) + row["messages"]
    exceptions = [{name: row[name] for name in ("what", "id", "queue")} for row in rows.get("exceptions", [])]
    return json.dumps({"places": places, "exceptions": exceptions, "incomplete": found.report.complaints})


def _is(kind: Kind) -> Column:
    return F.col("kind") == kind.value


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))


def _first(name: str, kind: Kind) -> Column:
    return F.min(F.when(_is(kind), F.col(name)))


def _ratio(part: str, whole: str) -> Column:
    return F.when(F.col(whole) > 0, F.col(part) / F.col(whole))  # of nothing it is unknown: null
