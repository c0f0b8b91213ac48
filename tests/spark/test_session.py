"""The data source in a real Spark session, over a real daemon."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.streaming import StreamingQueryListener

from mq.client import Client, Outgoing
from mq.spark import SourceProgress, progress_of, register
from tests.e2e.daemon import TREE, Daemon
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
    kept = read(spark, daemon, snapshot=True).load()
    assert table.count() == kept.count() == 2500
    client.publish("q", b"later")
    assert table.count() == 2501
    assert kept.count() == client.queue("q").ready - 1 == 2500
    texts = read(spark, daemon).schema("value string, sequence long").load()
    assert texts.where("value = '7'").count() == 1
    [row] = texts.where("value = '7'").collect()
    wanted = f"queue LIKE 'q%' AND sequence >= {row.sequence} AND timestamp > '2020-01-01' AND value = '7'"
    assert [bytes(each.value) for each in table.where(wanted).collect()] == [b"7"]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        filtered = table.where(wanted)
        assert [bytes(each.value) for each in filtered.collect()] == [b"7"]
        plan = plan_of(filtered)
        assert re.search(r"PushedFilters: .*queue,q.*sequence.*timestamp", plan)
        assert "LIKE" not in plan
        assert table.where("queue <> 'q'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    name = register(spark, queue="q", url=url(daemon), retrySeconds="5")
    named = spark.read.format(name).load()
    assert named.count() == client.queue("q").ready
    assert f"BatchScan mq: q at {url(daemon)}" in plan_of(named)


def plan_of(frame: Any) -> str:
    """What ``frame.explain("formatted")`` prints."""
    return str(frame._sc._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted"))


class Listener(StreamingQueryListener):
    """Keeps the numbers of each progress."""

    def __init__(self, heard: list[SourceProgress]) -> None:
        self._heard = heard

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self._heard += progress_of(event.progress)

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


def test_a_stream_carries_everything_once_and_tells_how_far_it_is(
    spark: Any, daemon: Daemon, client: Client, tmp_path: Path
) -> None:
    client.publish_many("q", [Outgoing(f"{number}") for number in range(1000)])
    heard: list[SourceProgress] = []
    listener = Listener(heard)
    spark.streams.addListener(listener)
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
        [source] = progress[-1]["sources"]
        end, lag = (
            json.loads(told) if isinstance(told, str) else told
            for told in (source["endOffset"], source["latestOffset"])
        )
        assert (end["consumer"], end["rows"]) == ("c", [100, 300][part])
        assert lag.keys() == {"ready", "leased", "delayed", "oldestSeconds"}
        assert lag["ready"] == 0
        if part == 0:
            client.publish_many("q", [Outgoing(f"{number}") for number in range(1000, 1300)])
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # listeners are told later
    spark.streams.removeListener(listener)
    assert {(each.consumer, each.queues) for each in heard} == {("c", ("q",))}
    assert sum(each.rows for each in heard) == 1300
    assert max(each.leased for each in heard) == 300
    found = [int(bytes(row.value)) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(found) == list(range(1300))
    assert client.queue("q").ready == 0


@pytest.mark.in_turn(4)
def test_a_stream_from_queue_to_queue(spark: Any, daemon: Daemon, client: Client, tmp_path: Path) -> None:
    client.create_queue("r")
    client.publish_many("q", [Outgoing(f"{number % 7}") for number in range(500)])
    writer = (
        spark.readStream.format("mq")
        .options(url=url(daemon), queue="q", consumer="c", maxMessagesPerTrigger=250)
        .load()
        .select("value")
        .writeStream.format("mq")
        .options(url=url(daemon), queue="r")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    queries = patiently(writer.start, to_the_end)
    read = [each["numInputRows"] for query in queries for each in query.recentProgress]
    assert [rows for rows in read if rows] == [250, 250]
    assert client.queue("r").ready == 500
    assert sorted(message.body for message in client.browse("r")) == sorted(b"%d" % (n % 7) for n in range(500))


@pytest.mark.in_turn(4)
def test_the_first_example_of_the_page_does_what_the_page_says(
    spark: Any, daemon: Daemon, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (TREE / "docs" / "spark.md").read_text()
    shell, code = (page.partition(f"```{language}\n")[2].partition("```")[0] for language in ("sh", "python"))
    queues = [word.split()[0] for word in shell.split("mq queue create ")[1:]]
    assert queues == ["orders", "copies"]
    for queue in queues:
        client.create_queue(queue)
    client.publish_many("orders", [Outgoing(f"order {number}") for number in (1, 2, 3)])
    here = code.replace("/tmp/", f"{tmp_path}/").replace('format("mq")', f'format("mq").option("url", "{url(daemon)}")')
    whole = compile(here, "spark.md", "exec")
    patiently(dict, lambda names: exec(whole, names))  # to run it again copies nothing twice, as the page says
    said = capsys.readouterr().out.strip()
    assert said == "3 written, 0 left"
    assert f"`{said}`" in page
    assert sorted(message.body for message in client.browse("copies")) == [b"order 1", b"order 2", b"order 3"]


@pytest.mark.in_turn(4)
def test_a_view_in_sql_is_read_anew_and_a_table_is_refused(spark: Any, daemon: Daemon, client: Client) -> None:
    options = f"OPTIONS (queue 'q', url '{url(daemon)}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW asked USING mq {options}")
    read(spark, daemon).load().createOrReplaceTempView("framed")
    for count in (1, 2, 3):
        client.publish("q", f"{count}")
        if count == 2:
            spark.sql("REFRESH TABLE framed")
        for view in ("asked", "framed"):
            recent = "WHERE timestamp > current_timestamp() - INTERVAL 1 HOUR"
            assert spark.sql(f"SELECT count(*) FROM {view} {recent}").first()[0] == count
    with pytest.raises(Exception, match="not enough data columns"):
        spark.sql("INSERT INTO asked VALUES (CAST('4' AS BINARY))")
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW name USING mq"):
        spark.sql(f"CREATE TABLE kept USING mq {options}")


@pytest.mark.in_turn(4)
def test_asynchronous_progress_is_refused(spark: Any, daemon: Daemon, client: Client, tmp_path: Path) -> None:
    """By Spark, for the sink mq and for files: a batch is acknowledged on the word of a commit log that would lag."""
    client.create_queue("r")
    client.publish("q", "1")
    stream = spark.readStream.format("mq").options(url=url(daemon), queue="q", consumer="c").load().select("value")
    for name, options in (("mq", {"url": url(daemon), "queue": "r"}), ("parquet", {"path": str(tmp_path / "out")})):
        writer = stream.writeStream.format(name).options(asyncProgressTrackingEnabled=True, **options)
        with pytest.raises(Exception, match=r"[Aa]sync"):
            writer.option("checkpointLocation", str(tmp_path / name)).start().awaitTermination(120)
    assert client.queue("q").ready == 1


@pytest.mark.in_turn(4)
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
    with pytest.raises(Exception, match='option "url": cannot connect to'):
        spark.read.format("mq").options(**away).load().count()
    nulls = spark.createDataFrame([(b"x",), (None,)], "value binary").coalesce(1)
    with pytest.raises(Exception, match='row 1 of partition 0: column "value" is null'):
        nulls.write.format("mq").options(url=url(daemon), queue="q").mode("append").save()
    no_value = spark.createDataFrame([(b"x",)], "body binary")
    with pytest.raises(Exception, match=r'the column "value" \(the message body\) is missing'):
        no_value.write.format("mq").options(url=url(daemon), queue="q").mode("append").save()
    with pytest.raises(Exception, match="overwrite"):
        nulls.write.format("mq").options(url=url(daemon), queue="q").mode("overwrite").save()


@pytest.mark.proof
def test_rows_are_not_taken_for_one_another(spark: Any, daemon: Daemon, client: Client) -> None:
    rows = [(f"{number}".encode(), f"{number % 10}") for number in range(1000)]

    def write(frame: Any, **options: Any) -> None:
        frame.write.format("mq").options(url=url(daemon), queue="q", **options).mode("append").save()

    frame = spark.createDataFrame(rows, "value binary, key string")
    with pytest.raises(Exception, match=r'the column "key" is ambiguous.* "group" .* "idempotencyKey"'):
        write(frame)
    assert client.queue("q").ready == 0
    for column in ("idempotencyKey", "id"):
        repeated = frame.withColumnRenamed("key", column)
        with pytest.raises(
            Exception, match=r"row \d+ of partition \d has the same idempotency key as row \d+ of partition \d"
        ):
            write(repeated.repartition(4))
    client.purge("q")
    for count in (4, 6, 3):  # a task has other rows then, and the write the same ones
        write(frame.select("value").repartition(count), writeId="nightly")
        assert client.queue("q").ready == 1000


@pytest.mark.proof
def test_the_older_of_two_queries_with_one_name_fails_and_nothing_is_lost(
    spark: Any, daemon: Daemon, client: Client, tmp_path: Path
) -> None:
    stream = spark.readStream.format("mq").options(url=url(daemon), queue="q", consumer="c", retrySeconds=5).load()

    def start(stream: Any, name: str, **trigger: Any) -> Any:
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / name))
        return writer.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint")).trigger(**trigger).start()

    client.publish_many("q", [Outgoing(f"{number}") for number in range(100)])
    older = patiently(
        lambda: start(stream, "older", processingTime="200 milliseconds"), lambda query: query.processAllAvailable()
    )[-1]
    client.publish_many("q", [Outgoing(f"{number}") for number in range(100, 200)])
    with pytest.raises(StreamingQueryException, match=r'is in use by a query with a different checkpoint.* "takeOver"'):
        patiently(lambda: start(stream, "newer", availableNow=True), to_the_end)
    older.processAllAvailable()  # who was refused has not ended it
    client.publish_many("q", [Outgoing(f"{number}") for number in range(200, 300)])
    taking = spark.readStream.format("mq").options(url=url(daemon), queue="q", consumer="c", takeOver=True).load()
    patiently(lambda: start(taking, "newer", availableNow=True), to_the_end)
    with pytest.raises(StreamingQueryException, match="another program has started consumer"):
        older.awaitTermination(120)
    found = {
        int(bytes(row.value))
        for name in ("older", "newer")
        for row in spark.read.parquet(str(tmp_path / name)).collect()
    }
    assert found == set(range(300))


@pytest.mark.proof
def test_a_checkpoint_that_is_lost_takes_no_message_with_it(
    spark: Any, daemon: Daemon, client: Client, tmp_path: Path
) -> None:
    """Spark's file sink skips the numbers of batches that it knows, and commits them nevertheless."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def run(**options: Any) -> None:
        stream = spark.readStream.format("mq").options(
            **{"url": url(daemon), "queue": "q", "consumer": "c", "maxMessagesPerTrigger": 100, **options}
        )
        writer = stream.load().writeStream.format("parquet").trigger(availableNow=True)
        patiently(writer.options(path=str(out), checkpointLocation=str(checkpoint)).start, to_the_end)

    def there() -> list[int]:
        written = [int(bytes(row.value)) for row in spark.read.parquet(str(out)).collect()]
        found = client.queue("q")
        return sorted(written) if not found.ready + found.leased else []

    client.publish_many("q", [Outgoing(f"{number}") for number in range(300)])
    run()
    assert there() == list(range(300))
    client.publish_many("q", [Outgoing(f"{number}") for number in range(300, 600)])
    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException, match=r'is in use by a query with a different checkpoint.* "takeOver"'):
        run()
    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException, match=r'read only 0 of its 100 rows.*_spark_metadata .* "takeOver"'):
        run(consumer="d")
    forget = urllib.request.Request(f"{url(daemon)}/q/consumers/d", method="DELETE")
    with urllib.request.urlopen(forget, timeout=60) as answer:
        assert answer.status == 200
    shutil.rmtree(checkpoint)
    run(takeOver=True)
    assert there() == list(range(600))


@pytest.mark.proof
def test_rows_that_foreach_batch_has_not_read_stay_in_the_queue(
    spark: Any, daemon: Daemon, client: Client, tmp_path: Path
) -> None:
    client.publish_many("q", [Outgoing(f"{number}") for number in range(100)])
    found: list[int] = []

    def run(write: Callable[[Any, int], None], **options: Any) -> None:
        stream = spark.readStream.format("mq").options(url=url(daemon), queue="q", consumer="c", **options)
        writer = stream.load().writeStream.foreachBatch(write).trigger(availableNow=True)
        patiently(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start, to_the_end)

    with pytest.raises(StreamingQueryException, match=r"read only 0 of its 100 rows.* foreachBatch"):
        run(lambda frame, batch: None)
    assert client.queue("q").leased == 100
    run(lambda frame, batch: found.extend(int(bytes(row.value)) for row in frame.collect()), takeOver=True)
    assert sorted(found) == list(range(100))
    assert client.queue("q").ready == client.queue("q").leased == 0


@pytest.mark.proof
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


@pytest.mark.proof
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    spark: Any, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MQ_URL", url(daemon))
    cells = json.loads((TREE / "examples" / "spark.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "spark.ipynb", "exec"), names)
    assert [row["count"] for row in names["customers"].collect()] == []  # the stream has taken them
    said = capsys.readouterr().out
    assert "|       0|  143|" in said
    assert said.endswith("1000 orders in the files, 0 in the queue\n")
