"""Clients of other languages, from Debian: rabbitmq-c's tools, php-amqplib, RabbitMQ's client for Java."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.amqp.clients.servers import Server

pytestmark = pytest.mark.slow

PROGRAMS: Final = Path(__file__).parent / "programs"
PHP_LIBRARY: Final = Path("/usr/share/php/PhpAmqpLib/autoload.php")
JARS: Final = [Path("/usr/share/java") / f"{name}.jar" for name in ("amqp-client", "slf4j-api", "slf4j-nop")]
WAIT_SECONDS: Final = 90
INSTALL: Final = "is not installed: bash tests/setup-system.sh --yes"


def run(*command: str, given: bytes = b"") -> str:
    done = subprocess.run(command, input=given, capture_output=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def url(server: Server) -> str:
    """Without a slash at its end: rabbitmq-c takes that for a vhost without a name."""
    return f"amqp://guest:guest@127.0.0.1:{server.port}"


@pytest.mark.skipif(shutil.which("amqp-publish") is None, reason=f"amqp-tools {INSTALL}")
def test_the_tools_of_rabbitmq_c(server: Server, queue: str) -> None:
    at = f"--url={url(server)}"
    assert run("amqp-declare-queue", at, "--queue", queue, "--durable") == f"{queue}\n"
    for number in range(3):
        run("amqp-publish", at, "--routing-key", queue, "--persistent", "--body", f"{number},")
    run("amqp-publish", at, "--routing-key", queue, given=b"from standard input")
    assert run("amqp-get", at, "--queue", queue) == "0,"
    assert run("amqp-consume", at, "--queue", queue, "--count", "3", "cat") == "1,2,from standard input"
    assert subprocess.run(["amqp-get", at, "--queue", queue], capture_output=True, timeout=WAIT_SECONDS).returncode == 2
    run("amqp-publish", at, "--routing-key", queue, "--body", "left")
    assert run("amqp-delete-queue", at, "--queue", queue) == "1\n"


@pytest.mark.skipif(shutil.which("php") is None or not PHP_LIBRARY.exists(), reason=f"php-amqplib {INSTALL}")
def test_php_amqplib(server: Server, queue: str) -> None:
    assert json.loads(run("php", str(PROGRAMS / "talk.php"), "127.0.0.1", str(server.port), queue)) == {
        "acked": 50,
        "headers": {"number": 0, "deep": {"list": [1, "x"]}},
        "inOrder": True,
        "redelivered": [False, True, 1_000_000],
        "returned": 312,
        "committed": "committed",
        "refused": 404,
    }


@pytest.mark.skipif(
    shutil.which("javac") is None or not all(jar.exists() for jar in JARS),
    reason=f"RabbitMQ's client for Java {INSTALL}",
)
def test_java(server: Server, queue: str) -> None:
    path = ":".join(map(str, JARS))
    assert run("java", "-cp", path, str(PROGRAMS / "Talk.java"), url(server), queue).splitlines() == [
        "waiting 200",
        "in order true",
        "redelivered true 1000000",
        "headers 7",
        "returned 312",
        "reply hello!",
        "refused 404",
        "closed",
    ]
