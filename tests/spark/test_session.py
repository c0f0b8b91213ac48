"""The data source in a real Spark session, over a real daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException

from mq.client import Client, Outgoing
from tests.e2e.daemon import Daemon
from tests.spark.conftest import patiently, to_the_end, url

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
        writer = (
            stream.load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        queries = patiently(writer.start, to_the_end)
        progress = [each for query in queries for each in query.recentProgress if each["numInputRows"]]
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
    writer = (
        spark.readStream.format("mq")
        .options(url=url(daemon), queue="q", consumer="c")
        .load()
        .select("value")
        .writeStream.format("mq")
        .options(url=url(daemon), queue="r")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    patiently(writer.start, to_the_end)
    assert client.queue("r").ready == 500
    assert sorted(message.body for message in client.browse("r")) == sorted(b"%d" % (n % 7) for n in range(500))


def test_what_is_wrong_is_said_with_its_option_or_row(
    spark: Any, daemon: Daemon, client: Client, tmp_path: Path
) -> None:
    for options, why in (
        ({"queue": "q", "numPartition": "2"}, 'did you mean "numPartitions"'),
        ({}, 'option "queue" is missing'),
    ):
        with pytest.raises(AnalysisException, match=why):
            spark.read.format("mq").options(**options).load().count()
    away = {"url": "http://127.0.0.1:9", "queue": "q", "retrySeconds": 0}
    with pytest.raises(Exception, match='option "url": no daemon answers'):
        spark.read.format("mq").options(**away).load().count()
    nulls = spark.createDataFrame([(b"x",), (None,)], "value binary").coalesce(1)
    with pytest.raises(Exception, match='row 1 of partition 0: column "value" is null'):
        nulls.write.format("mq").options(url=url(daemon), queue="q").mode("append").save()
    no_value = spark.createDataFrame([(b"x",)], "body binary")
    with pytest.raises(Exception, match='there is no column "value"'):
        no_value.write.format("mq").options(url=url(daemon), queue="q").mode("append").save()
    with pytest.raises(Exception, match="overwrite"):
        nulls.write.format("mq").options(url=url(daemon), queue="q").mode("overwrite").save()


def test_the_older_of_two_queries_with_one_name_fails_and_nothing_is_lost(
    spark: Any, daemon: Daemon, client: Client, tmp_path: Path
) -> None:
    stream = spark.readStream.format("mq").options(url=url(daemon), queue="q", consumer="c", retrySeconds=5).load()

    def start(name: str, **trigger: Any) -> Any:
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / name))
        return writer.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint")).trigger(**trigger).start()

    client.publish_many("q", [Outgoing(f"{number}") for number in range(100)])
    older = patiently(
        lambda: start("older", processingTime="200 milliseconds"), lambda query: query.processAllAvailable()
    )[-1]
    client.publish_many("q", [Outgoing(f"{number}") for number in range(100, 200)])
    patiently(lambda: start("newer", availableNow=True), to_the_end)
    with pytest.raises(StreamingQueryException, match="was started again"):
        older.awaitTermination(120)
    found = {
        int(bytes(row.value))
        for name in ("older", "newer")
        for row in spark.read.parquet(str(tmp_path / name)).collect()
    }
    assert found == set(range(200))


def test_a_queue_that_is_deleted_ends_the_query_with_its_name(
    spark: Any, daemon: Daemon, client: Client, tmp_path: Path
) -> None:
    client.publish("q", "1")
    writer = (
        spark.readStream.format("mq")
        .options(url=url(daemon), queue="q", consumer="c", retrySeconds=1)
        .load()
        .writeStream.format("parquet")
        .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
    )
    query = patiently(writer.start, lambda query: query.processAllAvailable())[-1]
    client.delete_queue("q")
    with pytest.raises(StreamingQueryException, match='option "queue"'):
        query.awaitTermination(120)
