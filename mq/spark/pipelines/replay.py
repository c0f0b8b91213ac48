"""Replay: publish messages of an archive again, chosen by time, id or a condition, each of them once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from mq.errors import InvalidSetting
from mq.message import MessageId, QueueName, shorten
from mq.spark.connection import DaemonConnection
from mq.spark.errors import SparkSourceError
from mq.spark.options import read_options
from mq.spark.pipelines.archive import SOURCE, Progress, read_archive

_SENT: Final = ("value", "idempotencyKey", "contentType", "headers")
_GROUP: Final = "group"


class Choice(NamedTuple):
    """Which messages of an archive.

    Attributes:
        queues: they were in one of these; empty for any.
        since: they were published then or later.
        ids: they have one of these; empty for any.
        where: they meet this condition in Spark's SQL over the columns of the archive.
    """

    queues: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    ids: Sequence[str] = ()
    where: str | None = None


EVERYTHING: Final = Choice()


def replay(
    spark: SparkSession,
    folder: str,
    options: Mapping[str, str],
    choice: Choice = EVERYTHING,
    *,
    to: str | None = None,
    run: str = "replay",
    progress: Progress | None = None,
) -> int:
    """Publish messages of an archive. Returns how many were chosen.

    A message's key is the run's name and the message's id. So a run that was cut off can be repeated under its name:
    what it has published is not published again, for as long as the daemon remembers keys. Messages of one queue keep
    their order.

    Args:
        options: of the data source, such as ``url``; without ``queue``.
        to: the queue for all of them; None for the one that each was in.
        run: the run's name; another one publishes the messages once more.

    Raises:
        InvalidSetting: there is no such archive, or the choice is not valid.
    """
    chosen = chosen_of(read_archive(spark, folder, choice.queues), choice).persist()
    try:
        counts = {row["queue"]: row["count"] for row in chosen.groupBy("queue").count().collect()}
        steps = [(QueueName(to), chosen)] if to is not None and counts else []
        if to is None:
            steps = [(QueueName(queue), chosen.where(F.col("queue") == queue)) for queue in sorted(counts)]
        for number, (queue, messages) in enumerate(steps):
            if progress is not None:
                progress(f"{queue}: {counts.get(queue, sum(counts.values())):,} messages", number, len(steps))
            ordered = messages.repartition(1).sortWithinPartitions("timestamp", "sequence")
            keyed = ordered.withColumn("idempotencyKey", F.concat(F.lit(f"{run}-"), "id"))
            has_groups = _GROUP in keyed.columns and _takes_groups({**options, "queue": str(queue)})
            keyed = keyed.select(*_SENT, *([_GROUP] if has_groups else []))
            keyed.write.format(SOURCE).mode("append").options(**options, queue=str(queue)).save()
    finally:
        chosen.unpersist()
    if progress is not None:
        progress("done", len(steps), len(steps))
    return sum(counts.values())


def _takes_groups(options: Mapping[str, str]) -> bool:
    """Whether the queue has message groups; a queue without them refuses messages with a group."""
    try:
        with DaemonConnection(read_options(options)) as connection:
            return bool(connection.queue().settings.get("groups"))
    except SparkSourceError:
        return False  # the write that follows fails with what is wrong


def chosen_of(messages: DataFrame, choice: Choice) -> DataFrame:
    """The chosen messages, each once.

    Raises:
        InvalidSetting: the condition cannot be parsed, or names a column that the archive does not have.
        InvalidId: an id is not valid.
    """
    for id in choice.ids:
        MessageId(id)
    if choice.since is not None:
        messages = messages.where(F.col("timestamp") >= F.lit(choice.since))
    if choice.until is not None:
        messages = messages.where(F.col("timestamp") < F.lit(choice.until))
    if choice.ids:
        messages = messages.where(F.col("id").isin(*choice.ids))
    if choice.where is not None:
        try:
            messages = messages.where(choice.where)
        except (AnalysisException, ParseException) as error:
            why = str(error).splitlines()[0]
            raise InvalidSetting(f"--where {shorten(choice.where)} is not a valid condition: {why}") from error
    return messages.dropDuplicates(["id"])
