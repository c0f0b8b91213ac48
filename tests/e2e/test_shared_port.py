"""Two real daemons on one root and one port."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.daemon import Daemon, DaemonFailed

CONNECTIONS: Final = 40
LEAST: Final = 3
"""That one of two daemons gets no more than so many by chance happens once in 50 million times."""
ESTABLISHED: Final = "01"
"""A connection's state in /proc/net/tcp."""
SHARED: Final = ("--peers", "1", "--reuse-port")

pytestmark = pytest.mark.slow


@pytest.fixture
def daemons(temp_root: Path, tmp_path: Path, free_port: int) -> Iterator[list[Daemon]]:
    with ExitStack() as stack:
        shared = (*SHARED, "--amqp-port", str(free_port))
        first = stack.enter_context(Daemon(temp_root, tmp_path / "first", *shared))
        port = ("--port", str(first.port))
        yield [first, stack.enter_context(Daemon(temp_root, tmp_path / "second", *shared, *port))]


def accepted(daemon: Daemon, port: int) -> int:
    """How many connections of that port this daemon holds.

    All its sockets would be too many: the one that asked whether it is ready may be there still.
    """
    inodes = set()
    for path in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a file that it has closed meanwhile
            inodes.add(os.readlink(path))
    table = [line.split() for line in Path(f"/proc/{daemon.pid}/net/tcp").read_text().splitlines()[1:]]
    ours = [row for row in table if row[1].endswith(f":{port:04X}") and row[3] == ESTABLISHED]
    return sum(f"socket:[{row[9]}]" in inodes for row in ours)


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection.request(method, path, body)
    response = connection.getresponse()
    return response.status, response.read()


def connect(stack: ExitStack, port: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    return stack.enter_context(closing(connection))


def test_both_serve_the_same_messages(daemons: list[Daemon]) -> None:
    with ExitStack() as stack:
        connections = [connect(stack, daemons[0].port) for _ in range(CONNECTIONS)]
        assert ask(connections[0], "PUT", "/q")[0] == 201
        for number, connection in enumerate(connections):
            assert ask(connection, "POST", "/q/messages", b"%d" % number)[0] == 201
        held = [accepted(daemon, daemons[0].port) for daemon in daemons]
        assert min(held) > LEAST, held

        bodies = []
        for connection in reversed(connections):
            status, body = ask(connection, "GET", "/q/messages?wait=20&visibility=600")
            assert status == 200
            bodies.append(int(body))
        assert sorted(bodies) == list(range(CONNECTIONS))


def test_they_share_the_port_of_amqp_too(daemons: list[Daemon], free_port: int) -> None:
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", free_port), timeout=30))
            connection.sendall(b"AMQP\0\0\x09\x01")
            assert connection.recv(1) == b"\x01", "a frame: connection.start"
        held = [accepted(daemon, free_port) for daemon in daemons]
        assert sum(held) == CONNECTIONS
        assert min(held) > LEAST, held


def test_one_goes_on_when_the_other_has_stopped(daemons: list[Daemon]) -> None:
    first, second = daemons
    port = first.port
    first.stop()
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            assert ask(connect(stack, port), "GET", "/-/live")[0] == 200
    second.stop()


def test_who_does_not_say_so_is_refused(daemons: list[Daemon], temp_root: Path, tmp_path: Path) -> None:
    port = str(daemons[0].port)
    with pytest.raises(DaemonFailed, match=f"port {port}: Address already in use"):
        Daemon(temp_root, tmp_path / "third", "--peers", "1", "--port", port).start()


def test_without_peers_it_is_refused(temp_root: Path, tmp_path: Path) -> None:
    with pytest.raises(DaemonFailed, match="for several daemons on one root"):
        Daemon(temp_root, tmp_path / "log", "--reuse-port").start()
