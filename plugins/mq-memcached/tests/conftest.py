"""A memcached of the tests' own: on a free port of 127.0.0.1, ended with the test session."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from mq.storage.conformance import check_whole
from mq.storage.interface import QUEUE, Storage
from mq.storage.registry import open_storage

PROGRAM = shutil.which("memcached")
PATIENCE_SECONDS = 20
_prefixes = itertools.count()


class Server:
    """One memcached. Without `flags` as it should be: with -M, in 64 MiB."""

    def __init__(self, *flags: str) -> None:
        if PROGRAM is None:
            pytest.skip("memcached is not installed: tests/setup-system.sh --yes")
        self._flags = flags or ("-M",)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        """Of a store; add a prefix to have one of its own."""
        return f"memcached://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Again, on the same port; what was in it is lost."""
        assert PROGRAM is not None
        user = ["-u", "nobody"] if os.getuid() == 0 else []
        arguments = [PROGRAM, "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", *user, *self._flags]
        self._process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
        ends = time.monotonic() + PATIENCE_SECONDS
        while not self.answers():
            assert self._process.poll() is None, f"memcached ended with {self._process.returncode}"
            assert time.monotonic() < ends, "memcached does not answer"
            time.sleep(0.01)

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def stop(self) -> None:
        """At once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """It does not answer any more, and its port stays open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ask(self, line: str) -> list[str]:
        """A command by hand; the lines of its reply."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection, connection.makefile("rwb") as file:
            file.write(line.encode() + b"\r\n")
            file.flush()
            lines = [file.readline().decode().rstrip()]
            while lines[-1].startswith(("STAT", "VALUE", "key=")):
                lines.append(file.readline().decode().rstrip())
            return lines

    def keys(self) -> set[str]:
        """All there are, the ballast excepted."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection, connection.makefile("rwb") as file:
            file.write(b"lru_crawler metadump all\r\n")
            file.flush()
            found = set()
            while not (line := file.readline()).startswith(b"END"):
                found.add(line.split()[0].decode().removeprefix("key=").replace("%23", "#"))
            return {key for key in found if "e:00000000000000000" not in key}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """For tests that need only a prefix of their own."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server() -> Iterator[Server]:
    """For tests that stop it, fill it, or look at all its keys."""
    server = Server()
    yield server
    server.stop()


class Place:
    """Where the stores of a test are: prefixes of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._prefix = ""

    @property
    def address(self) -> str:
        return f"{self._server.address}/{self._prefix}"

    @asynccontextmanager
    async def make(self) -> AsyncIterator[Storage]:
        self._prefix = f"test{next(_prefixes)}"
        async with self.reopen() as storage:
            yield storage

    @asynccontextmanager
    async def reopen(self) -> AsyncIterator[Storage]:
        async with open_storage(self.address) as storage:
            yield storage


@pytest.fixture
def place(shared_server: Server) -> Place:
    return Place(shared_server)


@pytest.fixture
async def storage(place: Place) -> AsyncIterator[Storage]:
    """An open store with the queue `orders`; looked over at the end."""
    async with place.make() as storage:
        await storage.put_record(QUEUE, "orders", {"created": 0})
        yield storage
        await check_whole(storage)
