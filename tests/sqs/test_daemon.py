"""The real daemon, killed on the way, as boto3 sees it."""

from __future__ import annotations

import contextlib
import functools
import http.client
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

from tests.e2e.daemon import Daemon
from tests.sqs.clients import make_client

WAIT_SECONDS: Final = 60
FORM: Final = {"content-type": "application/x-www-form-urlencoded"}


def client_of(daemon: Daemon) -> Any:
    """A client of the life that the daemon has now; threads may share it."""
    return _client_at(daemon.port)


@functools.lru_cache(8)
def _client_at(port: int) -> Any:
    return make_client(f"http://127.0.0.1:{port}", "json")


def until(true: Callable[[], object]) -> None:
    """Real time: it is another process's doing."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_what_was_answered_outlives_a_kill(daemon: Daemon) -> None:
    """Queues with their attributes and tags, messages with theirs, and leases."""
    sqs = client_of(daemon)
    made: dict[str, Any] = {"Attributes": {"MaximumMessageSize": "2048", "VisibilityTimeout": "600"}}
    url = sqs.create_queue(QueueName="q", **made, tags={"a": "b"})["QueueUrl"]
    attributes = {"kind": {"DataType": "Number", "StringValue": "7"}}
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=f"m{number}", MessageAttributes=attributes)
    [leased] = sqs.receive_message(QueueUrl=url)["Messages"]
    daemon.kill()
    daemon.start()
    sqs = client_of(daemon)
    url = sqs.create_queue(QueueName="q", **made)["QueueUrl"]
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "b"}
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])["Messages"]
    assert [message["Body"] for message in found] == ["m1", "m2"]
    assert found[0]["MessageAttributes"] == attributes
    sqs.delete_message(QueueUrl=url, ReceiptHandle=leased["ReceiptHandle"])
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessagesNotVisible"])
    assert shown["Attributes"] == {"ApproximateNumberOfMessagesNotVisible": "2"}


@pytest.mark.slow
def test_a_port_for_sqs_alone(temp_root: Path, tmp_path: Path, free_port: int) -> None:
    """The URLs that it gives have its port; neither HTTP nor the page is there."""
    with Daemon(temp_root, tmp_path / "log", "--sqs-port", str(free_port)) as daemon:
        alone = _client_at(free_port)
        url = alone.create_queue(QueueName="q")["QueueUrl"]
        assert url == f"http://127.0.0.1:{free_port}/000000000000/q"
        alone.send_message(QueueUrl=url, MessageBody="hello")
        [message] = client_of(daemon).receive_message(QueueUrl=url)["Messages"]
        assert message["Body"] == "hello"
        for path in ("/-/queues", "/", "/q"):
            connection = http.client.HTTPConnection("127.0.0.1", free_port, timeout=WAIT_SECONDS)
            with contextlib.closing(connection):
                connection.request("GET", path)
                answer = connection.getresponse()
                assert answer.status == 404
                assert b"SQS" in answer.read()
        connection = http.client.HTTPConnection("127.0.0.1", free_port, timeout=WAIT_SECONDS)
        with contextlib.closing(connection):
            connection.request("POST", "/", "Action=ListQueues", {"origin": "http://evil.example"} | FORM)
            assert connection.getresponse().status == 403, "the browser guard stands here, too"


@pytest.mark.slow
def test_a_daemon_that_stops_answers_those_who_wait(daemon: Daemon) -> None:
    sqs = client_of(daemon)
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    answers: list[Any] = []

    def wait() -> None:
        with contextlib.suppress(ConnectionError, HTTPClientError, ClientError):
            answers.append(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: client_of(daemon).list_queues())
    time.sleep(0.3)  # it is on its way; too early would show no less than it does
    begin = time.monotonic()
    daemon.stop()
    waiting.join(WAIT_SECONDS)
    assert time.monotonic() - begin < 10
    assert "Messages" not in answers[0]


class Workload:
    """Threads that send and receive through boto3, ten at a time, while the daemon is killed and comes back.

    Attributes:
        sent: bodies whose sending was answered. One that was not is sent again, and may be there twice.
        deleted: bodies of messages whose deletion was answered.
        wrong: ids that were handed out after that.
        is_over: the senders stop; the receivers do, once nothing is left.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.sent: set[str] = set()
        self.deleted: set[str] = set()
        self.gone: set[str] = set()
        self.wrong: set[str] = set()
        self.is_over = threading.Event()
        self._daemon = daemon

    def ask(self, action: str, **given: Any) -> Any:
        """The answer; asked again, of the daemon's next life, as long as there is none."""
        while True:
            try:
                return getattr(client_of(self._daemon), action)(QueueUrl="q", **given)
            except (ConnectionError, HTTPClientError):
                time.sleep(0.05)

    def send(self, sender: int) -> None:
        number = 0
        while not self.is_over.is_set():
            bodies = {f"e{place}": f"{sender}-{number + place}" for place in range(10)}
            entries = [{"Id": id, "MessageBody": body} for id, body in bodies.items()]
            answer = self.ask("send_message_batch", Entries=entries)
            self.sent |= {bodies[each["Id"]] for each in answer["Successful"]}
            number += 10

    def receive(self) -> None:
        while True:
            over = self.is_over.is_set()
            found = self.ask("receive_message", MaxNumberOfMessages=10, WaitTimeSeconds=2).get("Messages", [])
            if over and not found and self.sent <= self.deleted:
                return
            messages = {f"e{place}": message for place, message in enumerate(found)}
            self.wrong |= self.gone & {message["MessageId"] for message in found}
            entries = [{"Id": id, "ReceiptHandle": message["ReceiptHandle"]} for id, message in messages.items()]
            answer = self.ask("delete_message_batch", Entries=entries) if entries else {}
            done = [messages[each["Id"]] for each in answer.get("Successful", [])]
            self.gone |= {message["MessageId"] for message in done}
            self.deleted |= {message["Body"] for message in done}


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_nothing_is_lost_and_nothing_comes_back_through_kills(daemon: Daemon) -> None:
    client_of(daemon).create_queue(QueueName="q", Attributes={"VisibilityTimeout": "15"})
    work = Workload(daemon)
    threads = [threading.Thread(target=work.send, args=(number,), daemon=True) for number in range(2)]
    threads += [threading.Thread(target=work.receive, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        already = len(work.deleted)
        until(lambda already=already: len(work.deleted) > already + 100)
        daemon.kill()
        daemon.start()
    work.is_over.set()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert len(work.sent) > 500
    assert work.sent <= work.deleted
    assert not work.wrong
