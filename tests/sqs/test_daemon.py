"""The real daemon, killed on the way, and the programs that stand on SQS."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

from mq.access.rights import Right
from mq.access.users_editor import UsersFile
from tests.e2e.daemon import TREE, Daemon
from tests.sqs.celery_tasks import make_app
from tests.sqs.clients import make_client

WAIT_SECONDS: Final = 60
FORM: Final = {"content-type": "application/x-www-form-urlencoded"}
TASKS: Final = 200
NODE: Final = Path(__file__).parent / "node"
JAVA: Final = Path(__file__).parent / "java" / "Talk.java"
JAVA_SDK: Final = "sagemaker_pyspark==1.4.5"
"""A package of PyPI that carries the bundle of the AWS SDK for Java 1.11.901."""


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


def python_with(package: str, folder: Path) -> Path:
    """The interpreter of a new environment that has the package."""
    python = folder / "own" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "own")], check=True, timeout=WAIT_SECONDS)
    command = [str(python), "-m", "pip", "install", "--quiet", *package.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"pip cannot fetch {package}: {done.stderr[-300:]}")
    return python


class Workload:
    """Threads that send and receive through boto3, ten at a time, while the daemon is killed and comes back.

    Attributes:
        sent: bodies whose sending was answered. One that was not is sent again, and may be there twice.
        deleted: bodies of messages whose deletion was answered.
        gone: the ids of these.
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


class Worker:
    """A worker of Celery, in a group of its own.

    Args:
        python: of an environment with ``celery[sqs]``, which wants pycurl.
        port: of the daemon.
        folder: for what it writes.
    """

    def __init__(self, python: Path, port: int, folder: Path) -> None:
        self._python = str(python)
        self.done = folder / "done"
        self._log = folder / "worker.log"
        self._environment = {**os.environ, "TASKS_PORT": str(port), "TASKS_DONE": str(self.done)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [self._python, "-m", "celery", "--app", "tests.sqs.celery_tasks", "worker", "--concurrency", "2"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=TREE,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9, with its children."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_SECONDS)

    def numbers(self) -> set[int]:
        return set(map(int, self.done.read_text().split())) if self.done.exists() else set()


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_celery_with_a_worker_that_is_killed(daemon: Daemon, tmp_path: Path) -> None:
    worker = Worker(python_with("celery[sqs]", tmp_path), daemon.port, tmp_path)
    app = make_app(daemon.port)
    try:
        for number in range(TASKS):
            app.send_task("note", (number,))
        worker.start()
        until(lambda: len(worker.numbers()) > TASKS // 4)
        worker.kill()
        assert len(worker.numbers()) < TASKS
        worker.start()
        until(lambda: worker.numbers() == set(range(TASKS)))
    finally:
        worker.kill()
        app.close()


@pytest.mark.proof
def test_the_sdk_for_javascript(daemon: Daemon, tmp_path: Path) -> None:
    """It checks the digests of what it sends and gets."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed: bash tests/setup-system.sh --yes")
    shutil.copytree(NODE, tmp_path / "node")
    command = ["npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=tmp_path / "node", capture_output=True, text=True, timeout=110)
    if done.returncode != 0:
        pytest.skip(f"npm has no @aws-sdk/client-sqs, and cannot fetch it: {done.stderr[-300:]}")
    program = ["node", str(tmp_path / "node" / "talk.mjs"), f"http://127.0.0.1:{daemon.port}"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "sent": ["1"],
        "failed": ["InvalidMessageContents"],
        "bodies": ["größe", "one"],
        "types": {"a": "String", "b": "Binary"},
        "left": 0,
        "refused": "QueueDoesNotExist",
    }


@pytest.fixture
def java_sdk() -> Iterator[str]:
    """The class path of the AWS SDK for Java: as MQ_AWS_JAVA_SDK says, else out of a package of PyPI that has it."""
    if shutil.which("java") is None:
        pytest.skip("Java is not installed: bash tests/setup-system.sh --yes")
    given = os.environ.get("MQ_AWS_JAVA_SDK")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:  # of some 400 MB, which pytest would keep
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        command += ["--no-build-isolation", "--dest", folder, JAVA_SDK]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        if done.returncode != 0:
            pytest.skip(f"MQ_AWS_JAVA_SDK is not set, and pip cannot fetch {JAVA_SDK}: {done.stderr[-300:]}")
        [package] = Path(folder).glob("*.tar.gz")
        with tarfile.open(package) as archive:
            member = next(each for each in archive if "/aws-java-sdk-bundle-" in each.name)
            archive.extract(member, folder, filter="data")
        yield f"{folder}/{member.name}"


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_the_sdk_for_java(java_sdk: str, temp_root: Path, tmp_path: Path) -> None:
    """It speaks the query protocol, signs with a user's key, and checks digests. Its daemon knows users."""
    users = UsersFile(str(tmp_path / "users.toml"))
    users.add("anna", {Right.ADMINISTER: ["*"]}, None, only_aws_key=True)
    key = users.add_aws_key("anna")
    with Daemon(temp_root, tmp_path / "log", "--users", str(tmp_path / "users.toml")) as daemon:
        program = ["java", "-Dfile.encoding=UTF-8", "-cp", java_sdk, str(JAVA), f"http://127.0.0.1:{daemon.port}"]
        done = subprocess.run([*program, key.id, key.secret], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "sent": "1",
        "failed": ["InvalidMessageContents"],
        "bodies": ["größe", "one"],
        "types": {"a": "String", "b": "Binary"},
        "dead": "one",
        "refused": "AWS.SimpleQueueService.NonExistentQueue",
        "known again": True,
        "in order": ["first", "second"],
    }


PROGRAMS: Final = {
    "aiobotocore": """
import asyncio, sys
from aiobotocore.session import get_session

async def main():
    access = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
    async with get_session().create_client("sqs", endpoint_url=sys.argv[1], **access) as sqs:
        url = (await sqs.create_queue(QueueName="q"))["QueueUrl"]
        waiting = asyncio.create_task(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))
        await asyncio.sleep(0.5)
        await sqs.send_message(QueueUrl=url, MessageBody="hello")
        [message] = (await waiting)["Messages"]
        await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        print(message["Body"])

asyncio.run(main())
""",
    "boto3==1.28.0 botocore==1.31.0": """
import sys
import boto3

access = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
sqs = boto3.client("sqs", endpoint_url=sys.argv[1], **access)
assert sqs.meta.service_model.metadata["protocol"] == "query"
url = sqs.create_queue(QueueName="q", Attributes={"DelaySeconds": "0"}, tags={"a": "b"})["QueueUrl"]
kind = {"DataType": "String", "StringValue": "x"}
sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "1", "MessageBody": "hello", "MessageAttributes": {"k": kind}}])
receive = {"WaitTimeSeconds": 5, "AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
[message] = sqs.receive_message(QueueUrl=url, **receive)["Messages"]
assert message["MessageAttributes"] == {"k": kind} and message["Attributes"]["ApproximateReceiveCount"] == "1"
handle = message["ReceiptHandle"]
assert not sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": "1", "ReceiptHandle": handle}]).get("Failed")
try:
    sqs.get_queue_url(QueueName="none")
except sqs.exceptions.QueueDoesNotExist:
    print(message["Body"])
""",
    "awscli": """
import json, os, subprocess, sys
access = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}

def sqs(*arguments):
    command = [sys.executable, "-m", "awscli", "--endpoint-url", sys.argv[1], "sqs", *arguments]
    return subprocess.run(command, capture_output=True, check=True, env={**os.environ, **access}).stdout

url = json.loads(sqs("create-queue", "--queue-name", "q"))["QueueUrl"]
sqs("send-message", "--queue-url", url, "--message-body", "hello")
[message] = json.loads(sqs("receive-message", "--queue-url", url))["Messages"]
sqs("delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
print(message["Body"])
""",
    "dramatiq_sqs": """
import sys, threading
import dramatiq
from dramatiq_sqs import SQSBroker

access = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
broker = SQSBroker(endpoint_url=sys.argv[1], dead_letter=True, **access)
dramatiq.set_broker(broker)
done, seen = threading.Event(), set()

@dramatiq.actor
def note(number):
    seen.add(number)
    if len(seen) == 50:
        done.set()

for number in range(50):
    note.send(number)
worker = dramatiq.Worker(broker, worker_threads=2)
worker.start()
print("hello" if done.wait(50) else seen)
worker.stop()
""",
}
"""By packages that need other versions of botocore than boto3, and an old boto3, which speaks the query protocol by
itself: each runs in an environment of its own."""


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("package", PROGRAMS)
def test_programs_over_other_packages(daemon: Daemon, tmp_path: Path, package: str) -> None:
    told = [str(python_with(package, tmp_path)), "-c", PROGRAMS[package], f"http://127.0.0.1:{daemon.port}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(told, capture_output=True, text=True, timeout=WAIT_SECONDS, env=environment)
    assert done.stdout == "hello\n", done.stderr[-2000:]
