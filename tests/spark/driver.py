"""A Spark driver of its own: streams a queue into Parquet until it is killed, or, when told so, to the end.

    python driver.py URL QUEUE CONSUMER FOLDER MOST [MASTER]

QUEUE is a name, or ``like:`` and a pattern. FOLDER gets ``out`` and ``checkpoint``. MOST is how many messages a
micro-batch has; with ``now:`` before it the query ends when what was there has been read.
"""

from __future__ import annotations

import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession


def main(url: str, queue: str, consumer: str, folder: str, most: str, master: str = "local[2,4]") -> None:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").config(
        "spark.executor.memory", "512m"
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    ends = most.startswith("now:")
    which = {"queuePattern": queue.removeprefix("like:")} if queue.startswith("like:") else {"queue": queue}
    writer = (
        spark.readStream.format("mq")
        .options(url=url, consumer=consumer, maxMessagesPerTrigger=most.removeprefix("now:"), **which)
        .load()
        .writeStream.format("parquet")
        .options(path=f"{folder}/out", checkpointLocation=f"{folder}/checkpoint")
    )
    for _ in range(5):
        query = (writer.trigger(availableNow=True) if ends else writer).start()
        try:
            query.awaitTermination()
            break
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise  # else Spark gave Python ten seconds to come up, and the machine was too busy
    if master.startswith("spark:"):
        rows = spark.read.format("mq").options(url=url, queue="copies").load().count()
        spark.read.parquet(f"{folder}/out").select("value").write.format("mq").options(url=url, queue="copies").mode(
            "append"
        ).save()
        sys.stdout.write(f"{rows} rows before\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
