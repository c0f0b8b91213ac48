"""Servers and places for tests. Without memcached they are skipped, and say so."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from mq_memcached import chains
from mq_memcached.testing.server import PROGRAM, Server

from mq.storage.conformance import check_whole
from mq.storage.interface import QUEUE, Storage
from mq.storage.registry import open_storage

_prefixes = itertools.count()


@pytest.fixture(scope="session")
def installed() -> None:
    """Of every test that needs a server."""
    if PROGRAM is None:
        pytest.skip("memcached is not installed: bash tests/setup-system.sh --yes")


@pytest.fixture(scope="session")
def shared_server(installed: None) -> Iterator[Server]:
    """For tests that need only a prefix of their own."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def serve(installed: None) -> Iterator[Callable[..., Server]]:
    """Starts servers, with flags of the test's own."""
    servers: list[Server] = []

    def start(*flags: str) -> Server:
        servers.append(Server(*flags))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    """For tests that stop it, fill it, or look at all its keys."""
    return serve()


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


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tidying client takes a slot for a dead writer's at once."""
    monkeypatch.setattr(chains, "GRACE_SECONDS", 0)
