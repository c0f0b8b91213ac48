"""Archive and replay: each message once, over interruptions and killed daemons."""

from __future__ import annotations

import http.client
import itertools
import json
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from mq.cli.pipeline import main
from mq.client import Client, Outgoing
from mq.errors import Conflict, InvalidId, InvalidSetting
from mq.message import MessageId
from mq.spark.pipelines import archive as module
from mq.spark.pipelines.archive import read_archive
from mq.spark.pipelines.replay import Choice, replay
from tests.e2e.daemon import Daemon
from tests.pipelines.test_insight import NotStopped
from tests.spark.conftest import BUSY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BODIES = [b"", b"text", bytes(range(256)), "löss".encode(), *(b"%d" % number for number in range(196))]


class Interrupted(Exception):
    """Somebody pressed Control-C."""


def archive(*given: Any, **options: Any) -> Any:
    """Archive, and go on with it as an operator would where Spark has given up on a busy machine."""
    for _ in range(4):
        try:
            return module.archive(*given, **options)
        except StreamingQueryException as error:
            if BUSY not in str(error):
                raise
    return module.archive(*given, **options)


def address(daemon: Daemon) -> dict[str, str]:
    return {"url": f"http://127.0.0.1:{daemon.port}"}


def publish(daemon: Daemon, queue: str) -> dict[str, bytes]:
    """Bodies by id, in order: what is no number first, and the last one last, each later than what was before."""
    with Client(address(daemon)["url"]) as client:
        client.create_queue(queue)
        sent = [Outgoing(body, content_type="text/plain") for body in BODIES]
        outcomes = [o for part in (sent[:4], sent[4:-1], sent[-1:]) for o in client.publish_many(queue, part)]
    assert all(outcome.ok for outcome in outcomes)
    return {str(outcome.id): body for outcome, body in zip(outcomes, BODIES, strict=True)}


def drain(daemon: Daemon, queue: str) -> list[bytes]:
    bodies = []
    with Client(address(daemon)["url"]) as client:
        while messages := client.fetch_many(queue, len(BODIES)):
            bodies += [bytes(message.body) for message in messages]
            assert all(outcome.ok for outcome in client.remove_many(queue, messages))
    return bodies


def interrupt_after(messages: int) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, of: int) -> None:
        if int(what.split(": ")[1].split()[0].replace(",", "")) >= messages:
            raise Interrupted

    return progress


def archived(spark: SparkSession, folder: Path) -> list[tuple[str, bytes]]:
    return sorted((row["id"], bytes(row["value"])) for row in read_archive(spark, str(folder)).collect())


@contextmanager
def counting_rows(port: int) -> Iterator[tuple[str, Counter[str]]]:
    """Stands between Spark and the daemon: its address, and how many messages it has passed on, by queue."""
    rows: Counter[str] = Counter()

    class Between(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            asked = {name: text for name, text in self.headers.items() if name.lower() not in ("host", "connection")}
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request(self.command, self.path, sent, asked)
            answer = connection.getresponse()
            body = answer.read()
            kept = [(name, text) for name, text in answer.getheaders() if name in ("content-type", "link", "etag")]
            connection.close()
            if answer.headers["content-type"] == "application/vnd.mq.columns":
                rows[urlsplit(self.path).path.split("/")[1]] += json.loads(body.partition(b"\n")[0])["messages"]
            self.send_response(answer.status)
            for name, text in (*kept, ("content-length", str(len(body)))):
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815 - as http.server calls them

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the test counts."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Between) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", rows
        finally:
            server.shutdown()
            thread.join()


def whole(folder: Path, pattern: str = "**/*.parquet") -> list[tuple[str, bytes]]:
    """Every row of every file, as a program reads them that knows nothing of Spark."""
    tables = [pq.read_table(path, partitioning=None) for path in folder.glob(pattern)]
    rows = [row for table in tables for row in table.select(["id", "value"]).to_pylist()]
    return sorted((row["id"], row["value"]) for row in rows)


in_turn = pytest.mark.in_turn(4)


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("cuts", [(1, 5), (2, 8), (3, 11)])
@pytest.mark.parametrize("point", ["_sync", "_sync_folders"])
def test_an_archive_has_each_message_once_for_any_reader_wherever_it_is_cut_off(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, cuts: tuple[int, ...]
) -> None:
    """Between any two changes of the folder: a run that goes on writes the micro-batch again in place of what is
    there, and --finish completes a compaction."""
    out = tmp_path / "archive"
    calls, limit = 0, 0
    sync = getattr(module, point)

    def cut_off(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == limit:
            raise Interrupted
        sync(*given)

    monkeypatch.setattr(module, point, cut_off)
    with Daemon(tmp_path / "root", tmp_path / "log") as daemon:
        sent = sorted(publish(daemon, "orders").items())
        options = {**address(daemon), "maxMessagesPerTrigger": "40"}
        for cut in (*cuts, None):
            calls, limit = 0, cut or sys.maxsize
            if cut is None:
                archive(spark, ["orders"], str(out), options)
            else:
                with pytest.raises((Interrupted, StreamingQueryException)):
                    archive(spark, ["orders"], str(out), options)
            found = whole(out, "queue=*/day=*/*.parquet")
            assert len(set(found)) == len(found)
            assert set(found) <= set(sent)
        assert drain(daemon, "orders") == []
        daemon.stop()
    assert whole(out) == sent  # nothing else is left under the folder
    assert sorted((row["id"], bytes(row["value"])) for row in spark.read.parquet(str(out)).collect()) == sent
    assert len(list(out.glob("queue=*/day=*/*.parquet"))) == len(list(out.glob("queue=*/day=*")))  # one file a day


@in_turn
def test_finish_ends_a_compaction_that_was_cut_off(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "archive"
    with Daemon(tmp_path / "root", tmp_path / "log") as daemon:
        sent = sorted(publish(daemon, "orders").items())
        options = {**address(daemon), "maxMessagesPerTrigger": "70"}
        with monkeypatch.context() as patch:
            patch.setattr(module, "_end_compaction", interrupt_second())
            with pytest.raises(Interrupted):
                archive(spark, ["orders"], str(out), options)
        daemon.stop()
    [day] = out.glob("queue=orders/day=*")
    assert (day / "_compaction.json").exists()
    assert whole(out, "queue=*/day=*/*.parquet") == sent
    told = json.loads((day / "_compaction.json").read_text())
    for name in told["remove"][:2]:
        (day / name).unlink()  # as far as it came
    result = invoke(spark, monkeypatch, "archive", "--finish", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert whole(out) == sent
    assert [path.name for path in day.iterdir()] == told["add"]
    assert not (out / "_staging").exists()
    result = invoke(spark, monkeypatch, "archive", "--finish", "--out", str(tmp_path))
    assert (result.exit_code, "is not an archive" in result.stderr) == (2, True), result.output


def interrupt_second() -> Callable[[Path], None]:
    """Ends the first compaction of a day, which is none, and is interrupted at the next."""
    end, calls = module._end_compaction, itertools.count()

    def ending(day: Path) -> None:
        if next(calls):
            raise Interrupted
        end(day)

    return ending


def invoke(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *command: str) -> Result:
    monkeypatch.setattr("mq.spark.pipelines.session.open_session", lambda master: NotStopped(spark))
    return CliRunner().invoke(main, command)


def test_pandas_and_pyarrow_read_an_archive(spark: SparkSession, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas", reason="needs pandas")
    out = tmp_path / "archive"
    with Daemon(tmp_path / "root", tmp_path / "log") as daemon:
        sent = [*publish(daemon, "a"), *publish(daemon, "b")]
        archive(spark, ["a", "b"], str(out), {**address(daemon), "maxMessagesPerTrigger": "70"})
        daemon.stop()
    table = pd.read_parquet(out)
    assert sorted(table["id"]) == sorted(sent)
    assert sorted(set(table["queue"])) == ["a", "b"]


@in_turn
@pytest.mark.parametrize("browse", [True, False])
def test_each_message_is_read_once(spark: SparkSession, tmp_path: Path, browse: bool) -> None:
    """In one pass, of however many queues, micro-batches and partitions."""
    with Daemon(tmp_path / "root", tmp_path / "log") as daemon:
        sent = [*publish(daemon, "a").items(), *publish(daemon, "b").items()]
        with counting_rows(daemon.port) as (url, rows):
            options = {"url": url, "fetchSize": "30", "numPartitions": "3"}
            options |= {} if browse else {"maxMessagesPerTrigger": "70"}
            archive(spark, ["a", "b"], str(tmp_path / "out"), options, browse=browse)
        assert rows == {"a": len(BODIES), "b": len(BODIES)}
        assert archived(spark, tmp_path / "out") == sorted(sent)
        daemon.stop()


def test_a_drain_goes_on_where_it_was_cut_off_and_a_replay_brings_each_message_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "archive"
    with Daemon(tmp_path / "root", tmp_path / "log", "--visibility", "1") as daemon:
        sent = publish(daemon, "orders")
        options = {**address(daemon), "maxMessagesPerTrigger": "70", "leaseSeconds": "5"}
        small = {**options, "maxMessagesPerTrigger": "10"}  # 20 micro-batches take longer than the second between looks
        with pytest.raises(Interrupted):
            archive(spark, ["orders"], str(out), small, progress=interrupt_after(10))
        assert 0 < len(archived(spark, out)) < len(sent)
        daemon.kill()
        daemon.start()
        options |= address(daemon)
        archive(spark, ["orders"], str(out), options)
        assert archived(spark, out) == sorted(sent.items())
        assert drain(daemon, "orders") == []
        archive(spark, ["orders"], str(out), options)  # there is nothing more
        assert archived(spark, out) == sorted(sent.items())

        for _ in range(2):  # the second time it is known that they are there
            assert replay(spark, str(out), address(daemon)) == len(sent)
        assert drain(daemon, "orders") == list(sent.values())

        numbers = [id for id, body in sent.items() if body.isdigit()]
        first, last = (
            datetime.fromtimestamp(MessageId(id).published_ns / 1e9, UTC) for id in (numbers[0], numbers[-1])
        )
        moment = timedelta(microseconds=10)
        choice = Choice(["orders"], first - moment, last - moment, where="CAST(value AS STRING) < '11'")
        expected = [sent[id] for id in numbers[:-1] if sent[id] < b"11"]
        assert replay(spark, str(out), address(daemon), choice, run="some") == len(expected)
        assert drain(daemon, "orders") == expected

        monkeypatch.setattr("mq.spark.pipelines.session.open_session", lambda master: NotStopped(spark))
        with Client(address(daemon)["url"]) as client:
            client.create_queue("other")
        command = ["replay", str(out), "--id", numbers[3], "--to", "other", "--url", address(daemon)["url"]]
        result = CliRunner().invoke(main, command)
        assert (result.exit_code, result.stdout) == (0, "1\n"), result.output
        assert drain(daemon, "other") == [sent[numbers[3]]]
        result = CliRunner().invoke(main, [*command[:-3], "nowhere", "--url", address(daemon)["url"]])
        assert result.exit_code == 1
        assert "nowhere" in result.stderr.splitlines()[-1]
        daemon.stop()


@in_turn
def test_a_lost_checkpoint_takes_no_message_with_it(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "archive"
    with Daemon(tmp_path / "root", tmp_path / "log") as daemon:
        options = {**address(daemon), "maxMessagesPerTrigger": "100"}
        before = publish(daemon, "orders")
        archive(spark, ["orders"], str(out), options)
        after = publish(daemon, "orders")
        (out / "_checkpoints").rename(tmp_path / "lost")
        with pytest.raises(Conflict, match=r"contains batches that its checkpoint .* a new archive"):
            archive(spark, ["orders"], str(out), options)
        shutil.copytree(tmp_path / "lost", out / "_checkpoints")
        for log in ("offsets", "commits"):  # an old copy
            for name in ("1", ".1.crc"):
                (out / "_checkpoints" / "orders" / log / name).unlink()
        with pytest.raises(Conflict, match="is missing or is an old copy"):
            archive(spark, ["orders"], str(out), options)
        with pytest.raises(
            StreamingQueryException, match=r'is in use by a query with a different checkpoint.* "takeOver"'
        ):
            archive(spark, ["orders"], str(tmp_path / "other"), options)
        archive(spark, ["orders"], str(tmp_path / "other"), {**options, "takeOver": "true"})
        assert archived(spark, out) == sorted(before.items())
        assert archived(spark, tmp_path / "other") == sorted(after.items())
        assert drain(daemon, "orders") == []
        daemon.stop()


@in_turn
def test_a_browse_takes_nothing_and_kinds_do_not_mix(spark: SparkSession, tmp_path: Path) -> None:
    browsed, drained = str(tmp_path / "browsed"), str(tmp_path / "drained")
    with Daemon(tmp_path / "root", tmp_path / "log") as daemon:
        sent = publish(daemon, "a")
        more = publish(daemon, "b")
        archive(spark, ["a"], browsed, address(daemon), browse=True)
        archive(spark, ["a", "b"], browsed, address(daemon), browse=True)  # only b is left to do
        assert archived(spark, tmp_path / "browsed") == sorted([*sent.items(), *more.items()])
        table = read_archive(spark, browsed, ["b"])
        assert {row["contentType"] for row in table.collect()} == {"text/plain"}
        assert [path.name for path in sorted((tmp_path / "browsed").iterdir())] == ["queue=a", "queue=b"]
        archive(spark, ["a"], drained, address(daemon))
        with pytest.raises(Conflict, match="was written with --browse"):
            archive(spark, ["a"], browsed, address(daemon))
        with pytest.raises(Conflict, match="was written without --browse"):
            archive(spark, ["a"], drained, address(daemon), browse=True)
        assert drain(daemon, "b") == list(more.values())
        for choice, error in (
            (Choice(["nowhere"]), "does not contain these queues: nowhere"),
            (Choice(where="price > 3"), "is not a valid condition"),
            (Choice(where="id ="), "is not a valid condition"),
        ):
            with pytest.raises(InvalidSetting, match=error):
                replay(spark, browsed, address(daemon), choice)
        with pytest.raises(InvalidId):
            replay(spark, browsed, address(daemon), Choice(ids=["1"]))
        assert drain(daemon, "b") == []
        (tmp_path / "browsed" / "queue=a" / "_SUCCESS").unlink()
        with pytest.raises(InvalidSetting, match="is incomplete"):
            replay(spark, browsed, address(daemon))
        daemon.stop()
