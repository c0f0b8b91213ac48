"""Content-Encoding is kept with a message, and every protocol gives it back; so do the clients and the program."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from mq.client import Client, Outgoing
from mq.testing.ports import HeldPort
from tests.e2e import prepared
from tests.e2e.daemon import Daemon
from tests.sqs.clients import make_client

pytestmark = pytest.mark.slow

PACKED = gzip.compress(b'{"a":1}', mtime=0)


@pytest.fixture(scope="module")
def amqp_port() -> Iterator[int]:
    held = HeldPort()
    yield held.number
    held.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, amqp_port: int) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("encoding")
    with Daemon(folder / "root", folder / "log", "--amqp-port", str(amqp_port)) as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{daemon.port}") as client:
        client.create_queue("q")
        yield client
    with Client(f"http://127.0.0.1:{daemon.port}") as client:  # it may have been started again
        client.delete_queue("q")


def ask(daemon: Daemon, line: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """A request by a client that knows nothing of codings; the answer as it came."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(*line.split(" "), body, named)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def mq(daemon: Daemon, *arguments: str, given: bytes = b"") -> bytes:
    """The output of a command."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
    done = prepared.run(
        [sys.executable, "-m", "mq", *arguments],
        input=given,
        capture_output=True,
        env={**environment, "MQ_URL": f"http://127.0.0.1:{daemon.port}"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def got_by_amqp(port: int, queue: str = "q") -> tuple[Any, bytes]:
    """The properties and the body of the next message."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    try:
        method, properties, body = connection.channel().basic_get(queue, auto_ack=True)
        assert method is not None
        return properties, body
    finally:
        connection.close()


def published_by_amqp(port: int, body: bytes, **properties: str) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", body, pika.BasicProperties(**properties))
    finally:
        connection.close()


def publish(daemon: Daemon, coding: str = "gzip") -> None:
    status, _, _ = ask(daemon, "POST /q/messages", PACKED, content_encoding=coding, content_type="application/json")
    assert status == 201


def test_by_http_alone_and_in_batches(daemon: Daemon, client: Client) -> None:
    publish(daemon)
    status, headers, body = ask(daemon, "GET /q/messages")
    assert (status, headers["content-encoding"], headers["content-type"]) == (200, "gzip", "application/json")
    assert body == PACKED
    id, receipt = headers["x-message-id"], headers["etag"]
    _, headers, body = ask(daemon, f"GET /q/messages/{id}")
    assert (headers["content-encoding"], body) == ("gzip", PACKED)
    ask(daemon, f"PATCH /q/messages/{id}", b'{"visibility": 0}', if_match=receipt)
    for line in ("GET /q/peek", "GET /q/messages?max=5"):
        _, headers, lines = ask(daemon, line, accept="application/x-ndjson")
        assert json.loads(lines)["content_encoding"] == "gzip"
        assert "content-encoding" not in headers, "the batch itself is not compressed"
    _, _, parts = ask(daemon, "GET /q/peek?state=leased", accept="multipart/mixed")
    assert b"content-encoding: gzip\r\n" in parts.lower()


def test_a_batch_in_either_form(daemon: Daemon, client: Client) -> None:
    line = json.dumps({"body": "x", "content_encoding": "br"}).encode()
    assert b'"status": 201' in ask(daemon, "POST /q/messages/batch", line)[2]
    part = b"--b\r\nContent-Encoding: gzip\r\n\r\n" + PACKED + b"\r\n--b--\r\n"
    kind = "multipart/mixed; boundary=b"
    assert b'"status": 201' in ask(daemon, "POST /q/messages/batch", part, content_type=kind)[2]
    assert [message.content_encoding for message in client.fetch_many("q", 5)] == ["br", "gzip"]


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, br", "x-mine"])
def test_from_http_to_amqp(daemon: Daemon, client: Client, amqp_port: int, coding: str) -> None:
    publish(daemon, coding)
    properties, body = got_by_amqp(amqp_port)
    assert (properties.content_encoding, properties.content_type, body) == (coding, "application/json", PACKED)


def test_from_amqp_to_http(daemon: Daemon, client: Client, amqp_port: int) -> None:
    published_by_amqp(amqp_port, PACKED, content_encoding="gzip", content_type="application/json")
    published_by_amqp(amqp_port, b"[]", content_encoding="utf-8", content_type="application/json")
    _, headers, body = ask(daemon, "POST /q/take")
    assert (headers["content-encoding"], body) == ("gzip", PACKED)
    _, headers, body = ask(daemon, "POST /q/take")
    assert ("content-encoding" in headers, body) == (False, b"[]"), "a charset, as Celery names it, is no coding"


def test_to_sqs(daemon: Daemon, client: Client) -> None:
    publish(daemon)
    sqs = make_client(f"http://127.0.0.1:{daemon.port}", "json")
    [message] = sqs.receive_message(QueueUrl=f"http://127.0.0.1:{daemon.port}/000000000000/q")["Messages"]
    told = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    assert told == {"mq.encoding": "base64", "mq.content-encoding": "gzip"}


def test_by_the_client(daemon: Daemon, client: Client) -> None:
    client.publish("q", PACKED, content_type="application/json", content_encoding="gzip")
    client.publish_many("q", [Outgoing(PACKED, content_encoding="gzip"), Outgoing(b"plain")])
    message = client.fetch("q")
    assert message is not None
    assert (message.content_encoding, message.body) == ("gzip", PACKED), "and it is left as it is"
    assert client.show("q", message.id).content_encoding == "gzip"
    assert [each.content_encoding for each in client.fetch_many("q", 5)] == ["gzip", ""]
    client.publish("q", PACKED, content_encoding="gzip")
    with client.stream("q") as stream:
        assert stream is not None
        assert (stream.message.content_encoding, b"".join(stream)) == ("gzip", PACKED)


def test_by_the_program(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    mq(daemon, "send", "q", "--content-encoding", "gzip", "--content-type", "application/json", given=PACKED)
    told = json.loads(mq(daemon, "receive", "q", "--json"))
    assert (told["content_encoding"], told["content_type"]) == ("gzip", "application/json")
    mq(daemon, "send", "q", "--content-encoding", "gzip", given=PACKED)
    assert mq(daemon, "receive", "q", "--exec", 'echo "$MQ_CONTENT_ENCODING"') == b"gzip\n"
    for name in ("messages.jsonl", "messages.tar"):
        publish(daemon)
        file = str(tmp_path / name)
        mq(daemon, "export", "q", file)
        client.purge("q")
        mq(daemon, "import", "q", file)
        message = client.take("q")
        assert message is not None
        assert (message.content_encoding, message.body) == ("gzip", PACKED), name


def test_over_a_death_a_redrive_and_a_restart(daemon: Daemon, client: Client) -> None:
    client.create_queue("dead")
    client.configure("q", dead_letter_queue="dead", max_receives=1)
    publish(daemon)
    message = client.fetch("q")
    assert message is not None
    client.requeue(message)
    daemon.stop()
    daemon.start()
    with Client(f"http://127.0.0.1:{daemon.port}") as client:
        client.redrive("dead")
        again = client.take("q")
        assert again is not None
        assert (again.content_encoding, again.body) == ("gzip", PACKED)


@pytest.mark.parametrize("coding", ["gzip;q=1", "g zip", "gzip,", "x" * 256])
def test_what_names_no_coding_is_refused(daemon: Daemon, client: Client, coding: str) -> None:
    status, _, body = ask(daemon, "POST /q/messages", PACKED, content_encoding=coding)
    assert (status, b"content_encoding must consist of content codings" in body) == (400, True)
    assert client.queue("q").ready == 0


@pytest.mark.parametrize("coding", ["identity", "Identity", "", "utf-8"])
def test_identity_and_charsets_are_no_codings(daemon: Daemon, client: Client, coding: str) -> None:
    publish(daemon, coding)
    assert "content-encoding" not in ask(daemon, "POST /q/take")[1]


def test_a_batch_that_is_compressed_is_refused_with_the_reason(daemon: Daemon, client: Client) -> None:
    packed = gzip.compress(b'{"body": "x"}\n')
    status, _, body = ask(daemon, "POST /q/messages/batch", packed, content_encoding="gzip")
    assert (status, b"not supported for a batch" in body) == (400, True)
