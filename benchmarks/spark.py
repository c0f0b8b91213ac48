"""Queues in Spark: reading against Parquet, and streams and writes against what the broker does without Spark.

All in one run, turn about, on one daemon. A stream's first micro-batch, in which Spark starts its workers, is left
out. The broker's own rates are those of one client of :mod:`mq.client`, in batches of a thousand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.figures import Figure, at_least, at_most, median_ratio, spread
from benchmarks.systems.mq import Mq
from mq.client import Client, Outgoing
from mq.spark.pipelines.session import provide_java

BODY: Final = 200
MOST_A_TRIGGER: Final = 10_000
"""What the data source takes for one micro-batch, unless it is told otherwise."""
MICRO_BATCHES: Final = 4
READS: Final = {10_000: 0.5, 50_000: 0.3, 200_000: 0.25}
"""Rows of a batch read -> the wanted ratio to Parquet."""
READ_A_SECOND: Final = 25_000
WRITTEN_A_SECOND: Final = 8_000
STREAMED_A_SECOND: Final = 7_000
FIRST_ROW_SECONDS: Final = 25
IDLE_QUEUES: Final = 100
IDLE_TRIGGERS: Final = 20
IDLE_MILLISECONDS: Final = 100
_NEWCOMER: Final = """
import sys
from pyspark.sql import SparkSession
from mq.spark.pipelines.session import provide_java
provide_java()
spark = SparkSession.builder.master("local[2]").getOrCreate()
assert spark.read.format("mq").options(url=sys.argv[1], queue="first").load().first()
"""


def measure(folder: str, rounds: int, messages: int, longest: int) -> list[Figure]:
    """Ratios and rates of batch reads, writes and streams.

    Args:
        messages: rows of a turn; a stream has four times as many, in as many micro-batches and one more.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    first = _first_row(folder)
    provide_java()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "ERROR").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    try:
        with Mq().start(Path(folder)) as server, Client(f"http://127.0.0.1:{server.ports[0]}") as client:
            bench = _Bench(spark, client, f"http://127.0.0.1:{server.ports[0]}", Path(folder))
            figures = [figure for rows in READS if rows <= longest for figure in bench.reads(rounds, rows)]
            written, streamed = bench.writes(rounds, messages), bench.streams(rounds, messages)
            return [first, *figures, *written, *streamed, bench.idle()]
    finally:
        spark.stop()


def _first_row(folder: str) -> Figure:
    with Mq().start(Path(folder)) as server, Client(f"http://127.0.0.1:{server.ports[0]}") as client:
        client.create_queue("first")
        client.publish_many("first", map(Outgoing, _bodies(100)))
        program = [sys.executable, "-c", _NEWCOMER, f"http://127.0.0.1:{server.ports[0]}"]
        took = _timed(lambda: subprocess.run(program, check=True, capture_output=True, timeout=600))
    return at_most("Spark: a newcomer's first row, from the start of Python to its end", took, FIRST_ROW_SECONDS, "s")


class _Bench:
    def __init__(self, spark: SparkSession, client: Client, url: str, folder: Path) -> None:
        self._spark = spark
        self._client = client
        self._url = url
        self._folder = folder
        self._queues = 0

    def reads(self, rounds: int, messages: int) -> list[Figure]:
        """A table of a queue, in two partitions and in one, and the same rows from a Parquet file."""
        queue, file = self._new_queue(), str(self._folder / "rows.parquet")
        self._fill(queue, messages)
        source = self._spark.read.format("mq").options(url=self._url, queue=queue)
        table, in_one = source.load(), source.option("numPartitions", 1).load()
        table.write.mode("overwrite").parquet(file)
        parquet = self._spark.read.parquet(file)
        ours, alone, theirs = [], [], []
        for _ in range(rounds):
            theirs.append(messages / _timed(lambda: _read(parquet)))
            ours.append(messages / _timed(lambda: _read(table)))
            alone.append(messages / _timed(lambda: _read(in_one)))
        note = f"{spread(ours, 'rows/s')} against {spread(theirs, 'rows/s')}"
        title = f"Spark: batch read of {messages:,} rows"
        return [
            at_least(f"{title}, against Parquet", median_ratio(ours, theirs), READS[messages], note),
            _rate(title, ours, READ_A_SECOND),
            at_least(f"{title}: two partitions, against one", median_ratio(ours, alone), 1.5),
        ]

    def writes(self, rounds: int, messages: int) -> list[Figure]:
        """Rows into a queue, and the same published in batches."""
        bodies = _bodies(messages)
        frame = self._spark.createDataFrame([(body,) for body in bodies], "value binary").repartition(2).cache()
        frame.count()
        ours, theirs = [], []
        for _ in range(rounds + 1):
            queue, other = self._new_queue(), self._new_queue()
            writer = frame.write.format("mq").options(url=self._url, queue=queue).mode("append")
            ours.append(messages / _timed(writer.save))
            theirs.append(messages / _timed(lambda other=other: self._fill(other, messages)))
        ours, theirs = ours[1:], theirs[1:]
        note = f"{spread(ours, 'rows/s')} against {spread(theirs, 'messages/s')}"
        ratio = at_least("Spark: write, against batch publishes", median_ratio(ours, theirs), 0.5, note)
        return [ratio, _rate("Spark: write", ours, WRITTEN_A_SECOND)]

    def streams(self, rounds: int, messages: int) -> list[Figure]:
        """A stream into nowhere, and batches fetched and deleted."""
        ours, theirs = [], []
        for number in range(rounds):
            queue, other = self._new_queue(), self._new_queue()
            for each in (queue, other):
                self._fill(each, messages * (MICRO_BATCHES + 1))
            ours.append(self._stream(queue, messages, number))
            theirs.append(messages * (MICRO_BATCHES + 1) / _timed(lambda other=other: self._drain(other)))
        rates = f"{spread(ours, 'rows/s')} against {spread(theirs, 'messages/s')}"
        note = f"{rates}; micro-batches of {min(messages, MOST_A_TRIGGER):,}"
        ratio = at_least("Spark: stream read, against fetch and delete", median_ratio(ours, theirs), 0.5, note)
        return [ratio, _rate("Spark: stream read", ours, STREAMED_A_SECOND)]

    def idle(self) -> Figure:
        """Triggers of a stream over many queues in which there is nothing, in Spark's own measure."""
        for number in range(IDLE_QUEUES):
            self._client.create_queue(f"idle.{number}")
        self._spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "200")
        stream = self._new_stream(self._folder / "checkpoint-idle", queuePattern="idle[.].*")
        query = stream.trigger(processingTime="250 milliseconds").start()
        try:
            while len(query.recentProgress) < IDLE_TRIGGERS:
                query.awaitTermination(1)
            took = [each["durationMs"]["latestOffset"] for each in query.recentProgress[2:]]
        finally:
            query.stop()
        title = f"Spark: idle trigger over {IDLE_QUEUES} queues (durationMs.latestOffset)"
        return at_most(title, median(took), IDLE_MILLISECONDS, "ms")

    def _stream(self, queue: str, messages: int, number: int) -> float:
        checkpoint = self._folder / f"checkpoint-{number}"
        stream = self._new_stream(checkpoint, queue=queue, maxMessagesPerTrigger=min(messages, MOST_A_TRIGGER))
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination()
        shutil.rmtree(checkpoint)
        rest = [each for each in query.recentProgress if each["numInputRows"]][1:]
        rows: int = sum(each["numInputRows"] for each in rest)
        milliseconds: int = sum(each["durationMs"]["triggerExecution"] for each in rest)
        return rows / milliseconds * 1000

    def _new_stream(self, checkpoint: Path, **options: Any) -> Any:
        """A stream from queues into nowhere."""
        table = self._spark.readStream.format("mq").options(url=self._url, consumer="bench", **options).load()
        return table.writeStream.format("noop").option("checkpointLocation", str(checkpoint))

    def _new_queue(self) -> str:
        self._queues += 1
        self._client.create_queue(f"q{self._queues}")
        return f"q{self._queues}"

    def _fill(self, queue: str, messages: int) -> None:
        self._client.publish_many(queue, map(Outgoing, _bodies(messages)))

    def _drain(self, queue: str) -> None:
        while messages := self._client.fetch_many(queue, 1000):
            self._client.remove_many(queue, messages)


def _rate(title: str, rates: list[float], bound: float) -> Figure:
    return Figure(title, median(rates), "rows/s", f"≥ {bound:,.0f}", median(rates) >= bound)


def _bodies(messages: int) -> list[bytes]:
    return [f"{number:0{BODY}d}".encode() for number in range(messages)]


def _read(table: Any) -> None:
    table.write.format("noop").mode("overwrite").save()


def _timed(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
