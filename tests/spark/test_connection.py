"""What the data source does on the wire: it tries again, asks ahead, renews leases, and proves who it is."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import trustme

from mq.client import Access, Client
from mq.client.calls import Answer, Call
from mq.spark import calls
from mq.spark.connection import DaemonConnection
from mq.spark.errors import SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import COLUMNS
from mq.spark.source import MqReader
from mq.spark.stream import _Keeper
from mq.spark.writers import MqStreamWriter, MqWriter
from tests.access.files import OTHER_TOKEN, PASSWORD, TOKEN, write_users
from tests.e2e.daemon import Daemon
from tests.e2e.test_client import TLSDaemon
from tests.spark.by_hand import LIMIT, VALUE, fill, rows, stream, task, unsettled, with_options, write
from tests.spark.conftest import url


@pytest.fixture
def client(shared_daemon: Daemon) -> Iterator[Client]:
    with Client(url(shared_daemon)) as client:
        yield client


def test_a_request_is_sent_again_when_its_connection_broke(
    client: Client, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = http.client.HTTPConnection.getresponse
    broken = []

    def breaking(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        if not broken:
            broken.append(connection)
            connection.close()
            raise ConnectionResetError
        return answers(connection)

    bodies = fill(client, options, 3)
    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", breaking)
    reader = MqReader(with_options(options, retry_seconds=30.0), COLUMNS)
    assert rows(reader, reader.partitions()) == bodies
    assert broken


@pytest.mark.slow
def test_a_read_and_a_write_outlast_a_restart_of_the_daemon_by_default(tmp_path: Path, free_port: int) -> None:
    """The daemon is killed between two pages, and starts while the next one is asked for."""
    with Daemon(tmp_path / "root", tmp_path / "log", "--port", str(free_port)) as daemon, Client(url(daemon)) as client:
        client.create_queue("q")
        options = Options(url=url(daemon), queue="q", fetch_size=2, num_partitions=1, consumer="c")
        assert options.retry_seconds >= 300
        bodies = fill(client, options, 7)
        reader = MqReader(options, COLUMNS)
        [part] = reader.partitions()
        pages = reader.read(part)
        found = next(pages)["value"].to_pylist()
        with restarting(daemon):
            found += [value for page in pages for value in page["value"].to_pylist()]
        assert found == bodies
        with restarting(daemon):
            write(MqWriter(options, VALUE), [{"value": b"7"}])
        assert client.queue("q").ready == 8


@contextmanager
def restarting(daemon: Daemon) -> Iterator[None]:
    """Killed before the block, and started while it runs."""
    daemon.kill()
    starting = threading.Thread(target=daemon.start)
    starting.start()
    try:
        yield
    finally:
        starting.join()


@pytest.mark.parametrize("status", [None, 503])
def test_what_a_query_waits_for_is_told_when_it_begins_to_wait(
    options: Options, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: int | None
) -> None:
    """Of a daemon that is not there yet, a newcomer would hear after ten minutes. The clock of the tries is real."""
    away = with_options(options, url="http://127.0.0.1:9", retry_seconds=0.5)
    if status is not None:
        monkeypatch.setattr(DaemonConnection, "_send", lambda connection, call: Answer(status, {}))
    why = "cannot connect to" if status is None else "the daemon at"
    with pytest.raises(SparkSourceError):
        MqReader(away, COLUMNS).partitions()
    [told] = [record.getMessage() for record in caplog.records if record.name == "mq.spark"]
    assert told.startswith(f"{why} http://127.0.0.1:9")
    assert told.endswith(". Retrying for up to 0.5 s (retrySeconds)")
    caplog.clear()
    with pytest.raises(SparkSourceError):
        MqReader(with_options(away, retry_seconds=0.0), COLUMNS).partitions()
    assert not caplog.records  # the error says it


def test_the_next_page_is_asked_for_before_this_one_is_worked_on(
    client: Client, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends, asked = DaemonConnection._ask, []

    def asking(connection: DaemonConnection, wire: Any, call: Call[Any]) -> None:
        asked.append(call.target)
        sends(connection, wire, call)

    bodies = fill(client, options, 5)
    reader = MqReader(with_options(options, fetch_size=2, num_partitions=1, snapshot=True), COLUMNS)
    [part] = reader.partitions()
    monkeypatch.setattr(DaemonConnection, "_ask", asking)
    pages = reader.read(part)
    found = next(pages)["value"].to_pylist()
    assert len(asked) == 2
    found += [value for page in pages for value in page["value"].to_pylist()]
    assert found == bodies
    assert len(set(asked)) == len(asked) == 3  # and each once


def test_leases_are_renewed_while_the_driver_lives(
    client: Client, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases of 3 ms are renewed each millisecond; how long they take is of no matter here."""
    renewed: list[str] = []
    is_renewed = threading.Event()

    def attempt(connection: DaemonConnection, call: Call[Any]) -> None:
        renewed.append(f"{call.method} {call.target}")
        if len(renewed) == 3:
            is_renewed.set()

    fill(client, options, 1)
    reader = stream(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    assert end["batch"] == 1
    monkeypatch.setattr(DaemonConnection, "attempt", attempt)
    keeper = _Keeper(with_options(options, lease_seconds=0.003))
    keeper.keep(options.queue, 1, 7)
    assert is_renewed.wait(3)
    assert renewed[0].startswith(f"PUT /{options.queue}/consumers/c/claim?batch=1&epoch=7&lease=0.003")
    keeper.let_go(options.queue)
    keeper.stop()


class Wire:
    """Counts connections and requests of the data source."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections = 0
        self.requests: list[str] = []
        connect, request = http.client.HTTPConnection.connect, http.client.HTTPConnection.request

        def connecting(connection: http.client.HTTPConnection) -> None:
            self.connections += 1
            connect(connection)

        def requesting(connection: http.client.HTTPConnection, method: str, target: str, *more: Any) -> None:
            self.requests.append(f"{method} {target}")
            request(connection, method, target, *more)

        monkeypatch.setattr(http.client.HTTPConnection, "connect", connecting)
        monkeypatch.setattr(http.client.HTTPConnection, "request", requesting)


def test_an_idle_trigger_over_many_queues_is_one_request_on_one_connection(
    client: Client, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{options.queue}.{number}" for number in range(30)]
    for name in names:
        client.create_queue(name)
    wire = Wire(monkeypatch)
    reader = stream(with_options(options, queue="", queue_pattern=f"{options.queue}[.].*"))
    start = reader.initialOffset()
    for _ in range(3):
        asked = len(wire.requests)
        assert reader.latestOffset(start, LIMIT) == start
        assert wire.requests[asked:] == ["GET /-/consumers/c"]
        assert reader.reportLatestOffset()["ready"] == 0
    assert wire.connections <= 1
    fill(client, with_options(options, queue=names[7]), 1)
    asked = len(wire.requests)
    end = reader.latestOffset(start, LIMIT)
    busy = [f"/{names[7]}/" in each for each in wire.requests[asked:]]
    assert busy == [False, True, True]  # how all are; start and claim of the one
    assert rows(reader, reader.partitions(start, end)) == [b"0"]
    assert reader.latestOffset(end, LIMIT) == end
    assert unsettled(client, with_options(options, queue=names[7])) == 0
    assert wire.connections <= 1
    reader.stop()


def test_positions_in_queues_with_long_names_take_several_requests() -> None:
    names = [f"{number:03}{'n' * 97}" for number in range(90)]
    targets = [call.target for call in calls.positions("c", names)]
    assert max(map(len, targets)) < 4200
    asked = [unquote(target.partition("?queues=")[2]).split(",") for target in targets]
    assert [name for some in asked for name in some] == names
    assert len(targets) == 3
    assert [call.target for call in calls.positions("c", None)] == ["/-/consumers/c"]


def test_a_connection_that_the_daemon_has_closed_is_not_used_again(
    client: Client, options: Options, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire(monkeypatch)
    with DaemonConnection(options) as connection:
        connection.queue()
        sock = connection._http.sock if connection._http is not None else None
    assert sock is not None
    sock.shutdown(socket.SHUT_RD)  # as a daemon that ends does
    before = wire.connections
    with DaemonConnection(options) as connection:
        connection.queue()
    assert wire.connections == before + 1
    assert not caplog.records  # nothing was tried again


def test_an_answer_that_was_not_read_is_not_taken_for_the_next_one(client: Client, options: Options) -> None:
    bodies = fill(client, options, 5)
    reader = MqReader(with_options(options, fetch_size=2, num_partitions=1), COLUMNS)
    [part] = reader.partitions()
    pages = reader.read(part)
    next(pages)
    pages.close()  # type: ignore[attr-defined]
    assert rows(reader, [part]) == bodies


def test_micro_batches_with_the_same_rows_are_each_stored(client: Client, options: Options) -> None:
    """And one that is run again is stored once."""
    batch = pa.RecordBatch.from_pylist([{"value": b"x"}])
    for micro_batch, stored in (("0", 1), ("1", 2), ("1", 2), ("2", 3)):
        writer = MqStreamWriter(options, VALUE)
        with task(0, **{"sql.streaming.queryId": "query", "streaming.sql.batchId": micro_batch}):
            writer.commit([writer.write(iter([batch]))], int(micro_batch))
        assert client.queue(options.queue).ready == stored
    with task(0, **{"sql.streaming.queryId": "another", "streaming.sql.batchId": "2"}):
        MqStreamWriter(options, VALUE).write(iter([batch]))
    assert client.queue(options.queue).ready == 4
    with (
        task(0),
        pytest.raises(SparkSourceError, match="does not provide mq with the IDs of the query and the micro-batch"),
    ):
        MqStreamWriter(options, VALUE).write(iter([batch]))


@pytest.mark.slow
def test_over_tls_as_a_user(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server, own = authority.issue_cert("127.0.0.1"), authority.issue_cert("me@example.org")
    server.private_key_pem.write_to_path(tmp_path / "key.pem")
    for number, pem in enumerate(server.cert_chain_pems):
        pem.write_to_path(tmp_path / "cert.pem", append=number > 0)
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    said = (
        '[users.me]\ntokens = ["TOKEN"]\nadminister = ["*"]\n'
        '[users.reader]\npassword = "PASSWORD"\nconsume = ["q"]\n'
        '[users.other]\ntokens = ["OTHER_TOKEN"]\npublish = ["other"]\n'
    )
    users = write_users(tmp_path / "users.toml", said)
    files = {"--tls-cert": "cert.pem", "--tls-key": "key.pem", "--tls-client-ca": "ca.pem"}
    flags = [part for flag, file in files.items() for part in (flag, str(tmp_path / file))]
    ca, certificate = str(tmp_path / "ca.pem"), str(tmp_path / "own.pem")
    with TLSDaemon(tmp_path / "root", tmp_path / "log", "--users", users, *flags) as daemon:
        at = f"https://127.0.0.1:{daemon.port}"
        with Client(Access(url=at, token=TOKEN, ca=tmp_path / "ca.pem", certificate=tmp_path / "own.pem")) as client:
            client.create_queue("q")
            client.publish("q", b"x")
        options = Options(url=at, queue="q", ca_file=ca, certificate_file=certificate, retry_seconds=0.0)
        for known in (
            with_options(options, token=TOKEN),
            with_options(options, user="reader", password=PASSWORD),
        ):
            reader = MqReader(known, COLUMNS)
            assert rows(reader, reader.partitions()) == [b"x"]
        for unknown in (options, with_options(options, token=OTHER_TOKEN)):
            with pytest.raises(SparkSourceError, match='options "token", "user" and "password": '):
                MqReader(unknown, COLUMNS).partitions()
        for wrong in ({"ca_file": ""}, {"certificate_file": ""}):
            with pytest.raises(SparkSourceError, match=r'option "url": cannot connect to|the connection .* was lost'):
                MqReader(with_options(options, token=TOKEN, **wrong), COLUMNS).partitions()
        for wrong in ({"ca_file": "/nowhere.pem"}, {"certificate_file": "/nowhere.pem"}):
            [name] = wrong
            with pytest.raises(SparkSourceError, match=f'option "{name.split("_")[0]}File": cannot use /nowhere.pem'):
                MqReader(with_options(options, token=TOKEN, **wrong), COLUMNS).partitions()
