"""The data source in a real Spark session, over a real daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from mq.client import Client, Outgoing
from tests.e2e.daemon import Daemon
from tests.spark.conftest import url

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def read(spark: Any, daemon: Daemon, **options: Any) -> Any:
    return spark.read.format("mq").options(url=url(daemon), queue="q", retrySeconds=5, **options)


def test_a_table_written_is_the_table_read_and_nothing_is_taken(spark: Any, daemon: Daemon, client: Client) -> None:
    rows = [(f"{number}".encode(), "text/x", [("h", b"1")]) for number in range(2500)]
    schema = "value binary, contentType string, headers array<struct<key string, value binary>>"
    frame = spark.createDataFrame(rows, schema).repartition(3)
    frame.write.format("mq").options(url=url(daemon), queue="q").mode("append").save()
    assert client.queue("q").ready == 2500
    table = read(spark, daemon, numPartitions=3, fetchSize=300, includeHeaders=True).load()
    found = table.orderBy("sequence").collect()
    assert sorted(bytes(row.value) for row in found) == sorted(value for value, _, _ in rows)
    assert {row.contentType for row in found} == {"text/x"}
    assert {(row.headers[0].key, bytes(row.headers[0].value)) for row in found} == {("h", b"1")}
    assert {row.queue for row in found} == {"q"}
    assert {row.deliveryCount for row in found} == {0}
    assert len({row.sequence for row in found}) == len({row.id for row in found}) == 2500
    assert table.count() == 2500
    assert client.queue("q").ready == 2500
    texts = read(spark, daemon).schema("value string, sequence long").load()
    assert texts.where("value = '7'").count() == 1


def test_a_stream_carries_everything_once_and_tells_how_far_it_is(
    spark: Any, daemon: Daemon, client: Client, tmp_path: Path
) -> None:
    client.publish_many("q", [Outgoing(f"{number}") for number in range(1000)])
    for part in range(2):  # the second query goes on where the first one stopped
        stream = spark.readStream.format("mq").options(
            url=url(daemon), queue="q", consumer="c", maxMessagesPerTrigger=300
        )
        query = (
            stream.load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        assert [each["numInputRows"] for each in progress] == [300, 300, 300, 100][: 4 if part == 0 else 1]
        assert progress[-1]["sources"][0]["endOffset"]
        if part == 0:
            client.publish_many("q", [Outgoing(f"{number}") for number in range(1000, 1300)])
    found = [int(bytes(row.value)) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(found) == list(range(1300))
    assert client.queue("q").ready == 0


def test_a_stream_from_queue_to_queue(spark: Any, daemon: Daemon, client: Client, tmp_path: Path) -> None:
    client.create_queue("r")
    client.publish_many("q", [Outgoing(f"{number % 7}") for number in range(500)])
    query = (
        spark.readStream.format("mq")
        .options(url=url(daemon), queue="q", consumer="c")
        .load()
        .select("value")
        .writeStream.format("mq")
        .options(url=url(daemon), queue="r")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert client.queue("r").ready == 500
    assert sorted(message.body for message in client.browse("r")) == sorted(b"%d" % (n % 7) for n in range(500))
