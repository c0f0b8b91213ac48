"""Archives: queues as Parquet, a folder for each queue, and in it one for each day of publishing.

*Drain* moves each message into the archive once, whatever is killed on the way: the data source claims messages, each
micro-batch gives files that are named for its number, and only then are its messages removed from the queue. A
micro-batch that Spark runs again has the same rows, and its files take the place of those of the first run. So every
file of an archive counts, for whatever program reads it. *Browse* copies what is READY, and removes nothing. Started
again, both go on where they were stopped.

What a crash can leave: a folder of the staging area, which counts for nothing; some of the files of the last
micro-batch, whose messages are still in the queue; a compaction that has not come to its end. :func:`finish` sees to
the first and the last, and the next drain to all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from mq.errors import Conflict, InvalidSetting
from mq.message import QueueName

SOURCE: Final = "mq"
"""The format of mq.spark's data source."""
_CHECKPOINTS: Final = "_checkpoints"
_STAGING: Final = "_staging"
_DRAINED: Final = "_drained"
"""The file of a drained queue: the id of the query whose micro-batches the folder has."""
_COMPACTION: Final = "_compaction.json"
"""The files that a compaction takes away and brings, once the new ones are complete."""
_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"
_DONE: Final = "_SUCCESS"
_PREFIX: Final = "queue="
_DAY: Final = "day"
_POLL_SECONDS: Final = 1
_SMALL_BYTES: Final = 32 << 20
"""Files below this size are put together, ..."""
_LARGE_BYTES: Final = 128 << 20
"""... into files of about this size."""

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
    """Write queues to an archive, and put its small files together.

    Args:
        out: a folder that the driver and the executors share.
        options: of the data source, such as ``url``; without ``queue`` and ``consumer``.
        consumer: the name under which messages are claimed. Keep it when an archive is gone on with.

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
            _drain(spark, folder, {**asked, "consumer": consumer}, told)
            _finish_queue(spark, folder)
    if progress is not None:
        progress("done", len(queues), len(queues))


def finish(spark: SparkSession, out: str, progress: Progress | None = None) -> None:
    """Clear what drains that were cut off have left in an archive, and put its small files together. No message is
    asked for. Call it while no drain into the archive runs.

    Raises:
        InvalidSetting: it is no archive.
    """
    root = Path(out).absolute()
    folders = sorted(root.glob(f"{_PREFIX}*"))
    if not folders and not (root / _CHECKPOINTS).exists():
        raise InvalidSetting(
            f"{out} is not an archive, because it does not contain a folder named {_PREFIX}QUEUE, where QUEUE is the "
            "name of a queue"
        )
    for number, folder in enumerate(folders):
        if progress is not None:
            progress(folder.name.removeprefix(_PREFIX), number, len(folders))
        if _is_drained(folder):
            _finish_queue(spark, folder)
    shutil.rmtree(root / _STAGING, ignore_errors=True)
    if progress is not None:
        progress("done", len(folders), len(folders))


def read_archive(spark: SparkSession, folder: str, queues: Sequence[str] = ()) -> DataFrame:
    """An archive as a table: the columns of the data source, and `day`.

    Args:
        queues: only these.

    Raises:
        InvalidSetting: the archive has no such queue, or a queue's copy is not complete.
    """
    there = {path.name.removeprefix(_PREFIX): path for path in Path(folder).absolute().glob(f"{_PREFIX}*")}
    there = {queue: path for queue, path in there.items() if _is_drained(path) or any(path.iterdir())}
    missing = [queue for queue in queues if queue not in there]
    if missing or not there:
        raise InvalidSetting(
            f"archive {folder} does not contain these queues: {', '.join(missing)}. It contains: {', '.join(there)}"
            if missing
            else f"archive {folder} does not contain any queues"
        )
    wanted = {queue: there[queue] for queue in queues or sorted(there)}
    unfinished = [path.name for path in wanted.values() if not _is_drained(path) and not (path / _DONE).exists()]
    if unfinished:
        raise InvalidSetting(
            f"archive {folder} is incomplete for these queues: {', '.join(unfinished)}. Run mq-pipeline archive again"
        )
    # Spark takes a folder's name for a number where it looks like one, so the queue is not read from it.
    tables = [
        spark.read.parquet(str(path)).withColumn("queue", F.lit(queue))
        for queue, path in wanted.items()
        if next(path.glob(f"{_DAY}=*/*.parquet"), None) is not None
    ]
    if not tables:
        raise InvalidSetting(f"archive {folder} contains no messages")
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), tables)


# Draining


def _drain(spark: SparkSession, folder: Path, options: Mapping[str, str], told: Callable[[int], None]) -> None:
    checkpoint = folder.parent / _CHECKPOINTS / options["queue"]
    _check(folder, checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _DRAINED).touch()
    messages = spark.readStream.format(SOURCE).options(**options).load()
    writer = _dated(messages).writeStream.foreachBatch(partial(_put_batch, folder, checkpoint))
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start()
    try:
        while not query.awaitTermination(_POLL_SECONDS):
            told(sum(each["numInputRows"] for each in query.recentProgress))
    finally:
        query.stop()


def _check(folder: Path, checkpoint: Path) -> None:
    """Refuse a folder that was browsed, and one whose checkpoint is not the one with which it was made."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not _is_drained(folder):
        raise Conflict(f"archive {folder} was written with --browse. Use --browse again, or choose another archive")
    latest, query = _latest_batch(folder), (folder / _DRAINED).read_text()
    if latest >= 0 and (latest > _latest(checkpoint / _OFFSETS) or query != _query_of(checkpoint)):
        raise Conflict(
            f"archive {folder} contains batches that its checkpoint {checkpoint} does not record (the checkpoint is "
            "missing or is an old copy), so new batches would overwrite existing ones. Either restore the checkpoint, "
            "or write to a new archive with --option takeOver=true"
        )


def _put_batch(folder: Path, checkpoint: Path, rows: DataFrame, number: int) -> None:
    """Write a micro-batch into the archive: all of its files are on disk on return."""
    staging = folder.parent / _STAGING / folder.name / str(number)
    ordered = rows.repartition(_DAY).sortWithinPartitions(_DAY, "sequence")  # one file for each day
    ordered.write.partitionBy(_DAY).mode("overwrite").parquet(str(staging))
    _write_synced(folder / _DRAINED, _query_of(checkpoint))
    # If Spark runs a micro-batch again, the files of the first run go before the first of the second comes. So a
    # reader finds no message twice, whenever it looks.
    name = f"batch-{number:010d}"
    touched = {folder}
    for old in folder.glob(f"{_DAY}=*/{name}-*"):
        old.unlink()
        touched.add(old.parent)
    _sync_folders(touched)
    for place, new in enumerate(sorted(staging.glob(f"{_DAY}=*/*.parquet"))):
        day = folder / new.parent.name
        day.mkdir(exist_ok=True)
        _sync(new)
        new.replace(day / f"{name}-{place}.parquet")
        touched.add(day)
    _sync_folders(touched)
    shutil.rmtree(staging)


# Finishing


def _finish_queue(spark: SparkSession, folder: Path) -> None:
    """End what was cut off in a queue's folder, and put its small files together."""
    shutil.rmtree(folder.parent / _STAGING / folder.name, ignore_errors=True)
    staging = folder.parent / _STAGING
    if staging.exists() and not any(staging.iterdir()):
        staging.rmdir()
    done = _latest(folder.parent / _CHECKPOINTS / folder.name.removeprefix(_PREFIX) / _COMMITS)
    for day in sorted(folder.glob(f"{_DAY}=*")):
        _end_compaction(day)
        _compact(spark, day, done)


def _compact(spark: SparkSession, day: Path, done: int) -> None:
    """Put the small files of a day together, but for those of a micro-batch that Spark may run again: `done` is the
    last that it will not."""
    files = [path for path in sorted(day.glob("batch-*.parquet")) if _batch_of(path) <= done]
    small = [path for path in files if path.stat().st_size < _SMALL_BYTES]
    if len(small) < 2:
        return
    count = -(-sum(path.stat().st_size for path in small) // _LARGE_BYTES)
    rows = spark.read.parquet(*map(str, small))
    parts = rows.coalesce(1) if count == 1 else rows.repartitionByRange(count, "sequence")
    staging = day.parent.parent / _STAGING / day.parent.name / f"{day.name}-compacted"
    parts.sortWithinPartitions("sequence").write.mode("overwrite").parquet(str(staging))
    last = max(map(_batch_of, small))
    begun = max(int(path.stem.rpartition("-")[2]) for path in files) + 1
    made = {f"batch-{last:010d}-{begun + n}.parquet": new for n, new in enumerate(sorted(staging.glob("*.parquet")))}
    for name, new in made.items():
        _sync(new)
        new.replace(_hidden(day, name))
    _sync_folders([day])
    plan = {"remove": [path.name for path in small], "add": list(made)}
    _write_synced(day / _COMPACTION, json.dumps(plan))
    _end_compaction(day)
    shutil.rmtree(staging)


def _end_compaction(day: Path) -> None:
    """Go on with a compaction whose new files are complete; take away those of one that was cut off before."""
    plan = day / _COMPACTION
    if plan.exists():
        told: dict[str, Any] = json.loads(plan.read_text())
        for name in told["remove"]:
            (day / name).unlink(missing_ok=True)
        _sync_folders([day])
        for name in told["add"]:
            if _hidden(day, name).exists():
                _hidden(day, name).replace(day / name)
        _sync_folders([day])
        plan.unlink()
    for left in day.glob("_batch-*"):
        left.unlink()


def _hidden(day: Path, name: str) -> Path:
    """A file that no reader takes for one of the archive: by its beginning, or by its end."""
    return day / f"_{name}.new"


# Browsing


def _browse(spark: SparkSession, folder: Path, options: Mapping[str, str]) -> None:
    if folder.exists() and _is_drained(folder):
        raise Conflict(f"archive {folder} was written without --browse. Omit --browse, or choose another archive")
    if (folder / _DONE).exists():
        return
    messages = spark.read.format(SOURCE).options(**options).load()
    _dated(messages).write.partitionBy(_DAY).mode("overwrite").parquet(str(folder))  # what an unfinished run has left


# Files


def _dated(messages: DataFrame) -> DataFrame:
    """Rows with their day, and without the queue, which the folder's name says: pandas refuses to read both."""
    return messages.withColumn(_DAY, F.to_date("timestamp")).drop("queue")


def _is_drained(folder: Path) -> bool:
    return (folder / _DRAINED).exists()


def _batch_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def _latest_batch(folder: Path) -> int:
    """The number of the last micro-batch in a queue's folder; -1 for none."""
    return max(map(_batch_of, folder.glob(f"{_DAY}=*/batch-*.parquet")), default=-1)


def _latest(log: Path) -> int:
    """The number of the last micro-batch in one of Spark's logs; -1 for none."""
    names = (path.name.removesuffix(".compact") for path in log.iterdir()) if log.exists() else ()
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _query_of(checkpoint: Path) -> str:
    """The id of the query with this checkpoint; empty where there is none."""
    metadata = checkpoint / "metadata"
    return str(json.loads(metadata.read_text())["id"]) if metadata.exists() else ""


def _write_synced(path: Path, text: str) -> None:
    """Write a small file: all of it or nothing, and on disk on return."""
    new = path.with_name(f"_{path.name}.new")
    new.write_text(text)
    _sync(new)
    new.replace(path)
    _sync_folders([path.parent])


def _sync_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        _sync(folder)
        _sync(folder.parent)


def _sync(path: Path) -> None:
    """Bring a file or a folder to the disk: the messages are removed from their queue on the word of it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
