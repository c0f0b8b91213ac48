"""The README's session and its example are what happens; and what HTTP clients see of a server that goes away."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mq_memcached.testing.server import Server
from mq_memcached.testing.wire import Wire, wire_to

from tests.documents import blocks, commands
from tests.e2e.daemon import Daemon

README = Path(__file__).resolve().parent.parent / "README.md"

pytestmark = pytest.mark.slow


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with wire_to(server.port) as wire:
        yield wire


@pytest.fixture
def daemon(wire: Wire, tmp_path: Path) -> Iterator[Daemon]:
    storage = f"--storage=memcached://127.0.0.1:{wire.port}"
    daemon = Daemon(tmp_path / "root", tmp_path / "log", storage)
    with daemon:
        yield daemon


def ask(daemon: Daemon, method: str, path: str, body: str | None = None) -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers["Retry-After"]
    finally:
        connection.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_session_shows_what_happens(daemon: Daemon) -> None:
    (session,) = blocks(README, "console")
    for shown, printed in commands(session):
        command = shown.replace("127.0.0.1:8080", f"127.0.0.1:{daemon.port}")
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == printed.strip(), shown


def test_the_example_runs(server: Server) -> None:
    (example,) = blocks(README, "python")
    source = example.replace("11211", str(server.port))
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)


def test_a_lost_connection_is_503_and_comes_back_by_itself(daemon: Daemon, wire: Wire) -> None:
    assert ask(daemon, "PUT", "/jobs")[0] == 201
    assert ask(daemon, "POST", "/jobs/messages", "kept")[0] == 201
    assert ask(daemon, "GET", "/jobs/peek")[0] == 200, "it has been delivered"
    wire.cut_after(0)
    for _ in range(2):
        status, text, later = ask(daemon, "POST", "/jobs/messages", "refused")
        assert (status, later is not None, "127.0.0.1" in text) == (503, True, True)
        assert ask(daemon, "GET", "/jobs/messages")[0] == 503
    wire.heal()
    assert ask(daemon, "POST", "/jobs/messages", "later")[0] == 201
    got = [ask(daemon, "GET", "/jobs/messages")[:2] for _ in range(3)]
    assert sorted(got) == [(200, "kept"), (200, "later"), (204, "")]
