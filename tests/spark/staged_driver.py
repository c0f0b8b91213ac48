"""A Spark driver of its own that writes 6,000 rows into a queue, staged, until it is killed.

python staged_driver.py URL QUEUE
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(url: str, queue: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.range(0, 6000, numPartitions=6).selectExpr("cast(cast(id as string) as binary) as value")
    rows.write.format("mq").options(url=url, queue=queue, commitMode="staged").mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
