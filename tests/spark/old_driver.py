"""What every Spark from 4.0 on can do, in a process of its own. The queues q and copies are there.

    python old_driver.py URL FOLDER [REMOTE]

REMOTE is an address of Spark Connect; ``local[2]`` starts a server.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from io import StringIO

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession


def main(url: str, folder: str, remote: str = "") -> None:
    builder = SparkSession.builder.remote(remote) if remote else SparkSession.builder.master("local[2]")
    builder = builder.config("spark.ui.enabled", "false").config("spark.connect.grpc.binding.address", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
    if not remote:
        spark.sparkContext.setLogLevel("ERROR")
    rows = [(f"{number}".encode(), [("h", b"1")]) for number in range(1500)]
    schema = "value binary, headers array<struct<key string, value binary>>"
    frame = spark.createDataFrame(rows, schema).repartition(3)
    frame.write.format("mq").options(url=url, queue="q").mode("append").save()
    table = spark.read.format("mq").options(url=url, queue="q", includeHeaders=True).load()
    found = table.where("headers[0].key = 'h'").orderBy("sequence").collect()
    assert sorted(bytes(row.value) for row in found) == sorted(value for value, _ in rows)
    check_filters(spark, url, found)
    table.select("value").write.mode("overwrite").parquet(f"{folder}/rows")
    stream = spark.readStream.schema("value binary").parquet(f"{folder}/rows").writeStream.format("mq")
    stream = stream.options(url=url, queue="copies", checkpointLocation=f"{folder}/copies").trigger(availableNow=True)
    assert stream.start().awaitTermination(120)
    assert spark.read.format("mq").options(url=url, queue="copies").load().count() == 1500
    query = spark.readStream.format("mq").options(url=url, queue="q", consumer="c")
    try:
        writer = query.load().writeStream.format("parquet").trigger(availableNow=True)
        running = writer.options(path=f"{folder}/out", checkpointLocation=f"{folder}/out-checkpoint").start()
        assert running.awaitTermination(120)
        read = spark.read.parquet(f"{folder}/out").count()
    except PySparkException as error:
        if "readStream requires Spark 4.2 or later" not in str(error):
            raise
        read = 0
    spark.stop()
    sys.stdout.write(f"Spark {pyspark.__version__}: {read} rows streamed\n")


def check_filters(spark: SparkSession, url: str, found: list[Row]) -> None:
    """Filters are pushed down from Spark 4.1 on, and rows are the same with and without. docs/spark.md says why the
    table is loaded for each query."""
    middle = found[len(found) // 2]
    source = spark.read.format("mq").options(url=url, queue="q", includeHeaders=True)
    for condition, count in {
        "queue = 'q'": len(found),
        "queue = 'copies'": 0,
        f"id = '{middle.id}'": 1,
        f"sequence > {middle.sequence}": len(found) - len(found) // 2 - 1,
        f"timestamp >= timestamp'{found[0].timestamp}'": len(found),
        "`group` = 'g'": 0,
    }.items():
        for is_pushed in (False, True):
            spark.conf.set("spark.sql.python.filterPushdown.enabled", str(is_pushed).lower())
            plan, rows = StringIO(), source.load().where(condition)
            with redirect_stdout(plan):
                rows.explain("formatted")
            has_filters = "PushedFilters: [" in plan.getvalue()
            if has_filters != (is_pushed and not pyspark.__version__.startswith("4.0")):
                raise AssertionError(f"{condition}, pushed: {is_pushed}: {plan.getvalue()}")
            if (counted := rows.count()) != count:
                raise AssertionError(f"{condition}, pushed: {is_pushed}: {counted} rows instead of {count}")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


if __name__ == "__main__":
    main(*sys.argv[1:])
