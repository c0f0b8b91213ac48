"""Archives: queues as Parquet, a folder for each queue, and in it one for each day of publishing.

*Drain* moves each message into the archive once, whatever is killed on the way: the data source claims messages,
Spark's file sink notes which files count, and only messages in these are removed from the queue. *Browse* copies what
is READY, and removes nothing. Started again, both go on where they were stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from mq.errors import Conflict, InvalidSetting
from mq.message import QueueName

SOURCE: Final = "mq"
"""The format of mq.spark's data source."""
_CHECKPOINTS: Final = "_checkpoints"
_SINK_LOG: Final = "_spark_metadata"
_OFFSETS: Final = "offsets"
_DONE: Final = "_SUCCESS"
_PREFIX: Final = "queue="
_DAY: Final = "day"
_POLL_SECONDS: Final = 1

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many queues are done, and how many there are."""


def archive(
    spark: SparkSession,
    queues: Sequence[str],
    out: str,
    options: Mapping[str, str],
    *,
    browse: bool = False,
    consumer: str = "archive",
    progress: Progress | None = None,
) -> None:
    """Write queues to an archive.

    Args:
        spark: a session.
        queues: their names.
        out: a folder that the driver and the executors share.
        options: of the data source, such as ``url``; without ``queue`` and ``consumer``.
        browse: leave the messages where they are.
        consumer: the name under which messages are claimed. Keep it when an archive is gone on with.
        progress: called as it goes.

    Raises:
        InvalidSetting: a queue's name is not valid.
        Conflict: a queue's folder is of the other kind, or its checkpoint is lost or an old copy.
    """
    for number, queue in enumerate(map(QueueName, queues)):
        folder = Path(out).absolute() / f"{_PREFIX}{queue}"
        asked = {**options, "queue": str(queue), "includeHeaders": "true"}

        def told(messages: int, queue: str = queue, number: int = number) -> None:
            if progress is not None:
                progress(f"{queue}: {messages:,} messages", number, len(queues))

        told(0)
        if browse:
            _browse(spark, folder, asked)
        else:
            checkpoint = folder.parent / _CHECKPOINTS / queue
            _drain(spark, folder, checkpoint, {**asked, "consumer": consumer}, told)
    if progress is not None:
        progress("done", len(queues), len(queues))


def read_archive(spark: SparkSession, folder: str, queues: Sequence[str] = ()) -> DataFrame:
    """An archive as a table: the columns of the data source, and `day`.

    Args:
        spark: a session.
        folder: of the archive.
        queues: only these.

    Raises:
        InvalidSetting: the archive has no such queue.
    """
    there = {path.name.removeprefix(_PREFIX): path for path in Path(folder).absolute().glob(f"{_PREFIX}*")}
    missing = [queue for queue in queues if queue not in there]
    if missing or not there:
        raise InvalidSetting(f"no {', '.join(missing) or 'queue'} in the archive {folder}; it has {', '.join(there)}")
    wanted = [there[queue] for queue in queues or sorted(there)]
    unfinished = [path.name for path in wanted if not _is_drained(path) and not (path / _DONE).exists()]
    if unfinished:
        raise InvalidSetting(f"{', '.join(unfinished)} in {folder} is not finished: run mq-pipeline archive again")
    tables = (spark.read.parquet(str(path)) for path in wanted)  # archives of earlier releases have fewer columns
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), tables)


def _drain(
    spark: SparkSession, folder: Path, checkpoint: Path, options: Mapping[str, str], told: Callable[[int], None]
) -> None:
    if folder.exists() and not _is_drained(folder) and any(folder.iterdir()):
        raise Conflict(f"{folder} was browsed: drain into another archive")
    if _latest(folder / _SINK_LOG) > _latest(checkpoint / _OFFSETS):
        raise Conflict(
            f"{folder} has more batches than its checkpoint {checkpoint}, which is lost or an old copy: Spark would "
            "skip the next ones. Put the checkpoint back, or drain into another archive, with --option takeOver=true"
        )
    messages = spark.readStream.format(SOURCE).options(**options).load()
    writer = _dated(messages).writeStream.format("parquet").partitionBy(_DAY).trigger(availableNow=True)
    query = writer.option("path", str(folder)).option("checkpointLocation", str(checkpoint)).start()
    try:
        while not query.awaitTermination(_POLL_SECONDS):
            told(sum(each["numInputRows"] for each in query.recentProgress))
    finally:
        query.stop()


def _browse(spark: SparkSession, folder: Path, options: Mapping[str, str]) -> None:
    if _is_drained(folder):
        raise Conflict(f"{folder} was drained: browse into another archive")
    if (folder / _DONE).exists():
        return
    messages = spark.read.format(SOURCE).options(**options).load()
    _dated(messages).write.partitionBy(_DAY).mode("overwrite").parquet(str(folder))  # what an unfinished run has left


def _dated(messages: DataFrame) -> DataFrame:
    return messages.withColumn(_DAY, F.to_date("timestamp"))


def _is_drained(folder: Path) -> bool:
    return (folder / _SINK_LOG).exists()


def _latest(log: Path) -> int:
    """The number of the last batch in one of Spark's logs; -1 for none."""
    names = (path.name.removesuffix(".compact") for path in log.iterdir()) if log.exists() else ()
    return max((int(name) for name in names if name.isdecimal()), default=-1)
