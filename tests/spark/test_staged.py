"""Staged writes: all rows of a write come into their queues, or none, whatever is killed."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from mq.client import Client
from mq.spark.errors import InvalidRow, SparkSourceError
from mq.spark.options import Options
from mq.spark.writers import MqStreamWriter, MqWriter, StoredRows
from tests.e2e.daemon import TREE, Daemon
from tests.spark.by_hand import KEYED, VALUE, task, with_options
from tests.spark.conftest import environment, patiently, to_the_end, url

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def client(shared_daemon: Daemon) -> Iterator[Client]:
    with Client(url(shared_daemon)) as client:
        yield client


QUEUED = StructType([*VALUE.fields, StructField("queue", StringType())])


def run_task(writer: Any, number: int, rows: Sequence[dict[str, Any]], **properties: str) -> Any:
    """As an executor does; what it tells the driver."""
    copy = pickle.loads(pickle.dumps(writer))
    with task(number, **properties):
        return pickle.loads(pickle.dumps(copy.write(iter([pa.RecordBatch.from_pylist(list(rows))]))))


def some(*values: str) -> list[dict[str, Any]]:
    return [{"value": value.encode()} for value in values]


def bodies(client: Client, options: Options) -> list[bytes]:
    return [message.body for message in client.browse(options.queue)]


def held(client: Client, options: Options) -> list[Any]:
    """The jobs that hold rows for the queue."""
    import httpx

    found: list[Any] = httpx.get(f"{options.url}/{options.queue}/writes").json()["writes"]
    return found


def test_nothing_is_seen_before_all_tasks_are_done(client: Client, staged: Options) -> None:
    writer = MqWriter(staged, VALUE)
    told = [run_task(writer, 0, some("a", "b")), run_task(writer, 1, some("c"))]
    assert bodies(client, staged) == []
    assert [(job["state"], job["rows"]) for job in held(client, staged)] == [("open", 3)]
    writer.commit(told)
    assert bodies(client, staged) == [b"a", b"b", b"c"]
    assert held(client, staged) == []


def test_of_a_task_that_ran_twice_one_run_counts(client: Client, staged: Options) -> None:
    """Also where the other one had other rows, as of a source that is not the same twice."""
    writer = MqWriter(staged, VALUE)
    run_task(writer, 0, some("of", "the", "first"))
    writer.commit([run_task(writer, 0, some("second")), run_task(writer, 1, some("other"))])
    assert bodies(client, staged) == [b"second", b"other"]
    assert held(client, staged) == []


def test_what_is_aborted_leaves_nothing(client: Client, staged: Options) -> None:
    writer = MqWriter(staged, VALUE)
    told = run_task(writer, 0, some("a"))
    run_task(writer, 1, some("b"))  # it failed afterwards
    writer.abort([told, None])
    assert bodies(client, staged) == []
    assert held(client, staged) == []
    with pytest.raises(SparkSourceError, match=r"nothing was written, because the staged write .*: .* was aborted"):
        writer.commit([told])
    with pytest.raises(SparkSourceError, match=r'option "commitMode": .* does not accept more messages'):
        run_task(writer, 2, some("of a task that did not know"))


def test_a_direct_write_that_fails_says_how_it_could_be_run_again(
    client: Client, staged: Options, caplog: pytest.LogCaptureFixture
) -> None:
    direct = with_options(staged, is_staged=False)
    for options in (staged, with_options(direct, write_id="nightly")):
        MqWriter(options, VALUE).abort([])
        assert not caplog.records
    MqWriter(direct, VALUE).abort([])
    assert f"the write to queue {direct.queue} failed" in caplog.text
    assert 'option "writeId"' in caplog.text


def test_rows_with_one_key_are_refused_and_nothing_is_written(client: Client, staged: Options) -> None:
    writer = MqWriter(staged, KEYED)
    told = [run_task(writer, part, [{"value": b"%d" % part, "idempotencyKey": "k"}]) for part in range(2)]
    with pytest.raises(InvalidRow, match="has the same idempotency key as row 0"):
        writer.commit(told)
    assert bodies(client, staged) == []
    assert held(client, staged) == []


def test_a_write_that_is_named_can_be_run_again(
    client: Client, staged: Options, caplog: pytest.LogCaptureFixture
) -> None:
    named = with_options(staged, write_id="w")
    first, second = MqWriter(named, VALUE), MqWriter(named, VALUE)
    first.commit([run_task(first, 0, some("a", "b"))])
    second.commit([run_task(second, 0, some("b")), run_task(second, 1, some("c", "a"))])
    assert bodies(client, staged) == [b"a", b"b", b"c"]
    assert f"already in queue {staged.queue} (same idempotency key): 2" in caplog.text


def test_rows_for_several_queues_come_together(client: Client, staged: Options) -> None:
    other = f"{staged.queue}-2"
    client.create_queue(other)
    writer = MqWriter(with_options(staged, queue=""), QUEUED)
    rows = [{"value": b"%d" % number, "queue": (staged.queue, other)[number % 2]} for number in range(6)]
    told = run_task(writer, 0, rows)
    assert isinstance(told, StoredRows)
    assert bodies(client, staged) == [] == [message.body for message in client.browse(other)]
    writer.commit([told])
    assert bodies(client, staged) == [b"0", b"2", b"4"]
    assert [message.body for message in client.browse(other)] == [b"1", b"3", b"5"]


def test_rows_that_the_broker_refuses_are_named(client: Client, staged: Options) -> None:
    writer = MqWriter(staged, VALUE)
    with pytest.raises(InvalidRow, match=r"row 1 of partition 0: .*ttl"):
        run_task(writer, 0, [{"value": b"x", "ttlSeconds": 1.0}, {"value": b"y", "ttlSeconds": -1.0}])
    with pytest.raises(InvalidRow, match=r"row 0 of partition 0: the body of"):
        run_task(writer, 0, [{"value": b"x" * 2_000_001}])


def test_rows_that_are_too_long_together_go_in_parts(client: Client, staged: Options) -> None:
    """The last one is longer as a line than the daemon takes, and goes as it is."""
    rows = [{"value": bytes([65 + number]) * 700_000} for number in range(4)] + [{"value": b"\xff" * 1_900_000}]
    writer = MqWriter(staged, VALUE)
    writer.commit([run_task(writer, 0, rows)])
    assert [len(body) for body in bodies(client, staged)] == [700_000] * 4 + [1_900_000]


def test_a_write_without_rows(client: Client, staged: Options) -> None:
    writer = MqWriter(staged, VALUE)
    writer.commit([])
    with pytest.raises(SparkSourceError, match="nowhere"):
        MqWriter(with_options(staged, queue="nowhere"), VALUE).commit([])


def test_a_micro_batch_that_is_run_again_by_another_run(client: Client, staged: Options) -> None:
    """The run before was killed: once before its commit, once after it."""
    writer = MqStreamWriter(staged, VALUE)

    def run(job_group: str, rows: Sequence[dict[str, Any]]) -> Any:
        properties = {
            "sql.streaming.queryId": "q",
            "streaming.sql.batchId": "0",
            "spark.jobGroup.id": job_group,
        }
        return run_task(writer, 0, rows, **properties)

    run("first", some("a", "b"))
    assert bodies(client, staged) == []
    writer.commit([run("second", some("a", "b"))], 0)
    writer.commit([run("third", some("b", "a"))], 0)
    assert bodies(client, staged) == [b"a", b"b"]


def test_a_micro_batch_whose_job_was_aborted(client: Client, staged: Options) -> None:
    """The query that is started again is another run, and writes it under another name."""
    writer = MqStreamWriter(staged, VALUE)
    query = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0"}
    writer.abort([run_task(writer, 0, some("a"), **query, **{"spark.jobGroup.id": "first"}), None], 0)
    writer.commit([run_task(writer, 0, some("a"), **query, **{"spark.jobGroup.id": "second"})], 0)
    assert bodies(client, staged) == [b"a"]


@pytest.mark.slow
def test_a_job_that_is_done_is_forgotten(client: Client, staged: Options) -> None:
    """Else a stream would leave a record each micro-batch, for a day."""
    writer = MqWriter(staged, VALUE)
    told = run_task(writer, 0, some("a"))
    writer.commit([told])
    with pytest.raises(SparkSourceError, match="does not exist"):
        writer.commit([told])


@pytest.mark.slow
@pytest.mark.parametrize(
    "trials", [pytest.param(2, marks=pytest.mark.in_turn(2)), pytest.param(6, marks=pytest.mark.proof)]
)
def test_a_daemon_that_is_killed_at_any_time(tmp_path: Path, free_port: int, trials: int) -> None:
    """By turns it is killed during a commit, and while rows are held back; the write goes on by itself."""
    random = Random(26)
    with Daemon(tmp_path / "root", tmp_path / "log", "--port", str(free_port)) as daemon, Client(url(daemon)) as client:
        client.create_queue("q")
        options = Options(url=url(daemon), queue="q", is_staged=True, retry_seconds=60.0)
        written = 0
        for trial in range(trials):
            writer = MqWriter(options, VALUE)
            told = [run_task(writer, part, some(*(f"{trial}/{part}/{row}" for row in range(1500)))) for part in (0, 1)]
            assert client.queue("q").ready == written
            if trial % 2:
                daemon.kill()
                daemon.start()
                writer.commit(told)
            else:
                pid = os.fork()
                if pid == 0:
                    with contextlib.suppress(BaseException):
                        writer.commit(told)
                    os._exit(0)
                time.sleep(random.uniform(0, 0.3))
                daemon.kill()
                daemon.start()
                os.waitpid(pid, 0)
            written += 3000
            assert client.queue("q").ready == written
            assert len({message.body for message in client.browse("q")}) == written


# With Spark


@pytest.fixture
def served(daemon: Daemon) -> Iterator[Client]:
    """A client of a daemon of the test's own."""
    with Client(url(daemon)) as client:
        yield client


def write(frame: Any, daemon: Daemon, **options: Any) -> None:
    frame.write.format("mq").options(url=url(daemon), commitMode="staged", **options).mode("append").save()


@pytest.mark.slow
@pytest.mark.in_turn(2)
def test_a_job_of_spark_that_fails_leaves_nothing(spark: Any, daemon: Daemon, served: Client) -> None:
    rows = spark.range(0, 4000, numPartitions=4)
    text = "cast(cast(id as string) as binary)"
    fails = rows.selectExpr(
        f"case when id = 3999 then cast(raise_error('as planned') as binary) else {text} end as value"
    )
    with pytest.raises(Exception, match="as planned"):
        write(fails, daemon, queue="q")
    assert served.queue("q").ready == 0
    write(rows.selectExpr(f"{text} as value"), daemon, queue="q")
    assert served.queue("q").ready == 4000


@pytest.mark.proof
def test_a_stream_of_spark_into_a_queue(spark: Any, daemon: Daemon, served: Client, tmp_path: Path) -> None:
    served.create_queue("copies")
    write(spark.range(0, 600).selectExpr("cast(cast(id as string) as binary) as value"), daemon, queue="q")
    stream = spark.readStream.format("mq").options(url=url(daemon), queue="q", consumer="c", maxMessagesPerTrigger=200)
    writer = (
        stream.load()
        .select("value")
        .writeStream.format("mq")
        .options(url=url(daemon), queue="copies", commitMode="staged", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    patiently(writer.start, to_the_end)
    copies = Counter(message.body for message in served.browse("copies"))
    assert copies == Counter(b"%d" % number for number in range(600))


def wait_until(condition: Callable[[], bool], driver: subprocess.Popen[bytes]) -> None:
    """Until it is so, or the driver has ended."""
    end = time.monotonic() + 120
    while not condition() and driver.poll() is None:
        assert time.monotonic() < end, "the write does not get on"
        time.sleep(0.01)


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills_daemon", [False, True])
def test_drivers_that_are_killed_leave_all_or_nothing(tmp_path: Path, free_port: int, kills_daemon: bool) -> None:
    """At the first row that is held back, half-way, with all of them there, and in the middle of the commit."""
    with Daemon(tmp_path / "root", tmp_path / "log", "--port", str(free_port)) as daemon, Client(url(daemon)) as client:
        for kill_at, wanted in ((1, {0}), (3000, {0}), (6000, {0, 6000}), (None, {6000})):
            queue = f"q{kill_at}"
            client.create_queue(queue)
            options = Options(url=url(daemon), queue=queue)

            def is_time(kill_at: int | None = kill_at, queue: str = queue, options: Options = options) -> bool:
                jobs = held(client, options)
                if kill_at is None:
                    return client.queue(queue).ready > 0
                return any(job["rows"] >= kill_at for job in jobs)

            with (tmp_path / f"{queue}.log").open("wb") as log:
                driver = subprocess.Popen(
                    [sys.executable, str(TREE / "tests/spark/staged_driver.py"), url(daemon), queue],
                    env=environment(),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                try:
                    wait_until(is_time, driver)
                    if kills_daemon:
                        daemon.kill()
                        daemon.start()
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(driver.pid, signal.SIGKILL)
                    driver.wait(30)
            end = time.monotonic() + 60
            while any(job["state"] == "committed" for job in held(client, options)) and time.monotonic() < end:
                time.sleep(0.05)
            there = sum(1 for _ in client.browse(queue))
            assert there in wanted, f"{there} of 6000 rows are there, killed at {kill_at}"
