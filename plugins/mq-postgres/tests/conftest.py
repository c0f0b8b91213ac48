"""A PostgreSQL for tests, or none: then they are skipped, and say so."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from mq_postgres.testing.server import PROGRAMS, ROLE, Server, running

from mq.storage.conformance import check_whole
from mq.storage.interface import QUEUE, Storage
from mq.storage.records import put_record
from mq.storage.registry import open_storage

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def installed() -> None:
    """Of every test that needs a server."""
    if PROGRAMS is None:
        pytest.skip("PostgreSQL is not installed: bash tests/setup-system.sh --yes")


@pytest.fixture(scope="session")
def server(installed: None) -> Iterator[Server]:
    """One server, for tests that need only a schema of their own. Who kills it starts it again."""
    with running() as server:
        yield server


class Place:
    """Where the stores of a test are: schemas of one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.schema = ""
        self.options = ""
        self.port = server.port

    @property
    def address(self) -> str:
        return f"postgres://{ROLE}@127.0.0.1:{self.port}/{ROLE}?schema={self.schema}{self.options}"

    @asynccontextmanager
    async def make(self) -> AsyncIterator[Storage]:
        self.schema = f"store{next(_numbers)}"
        async with self.reopen() as storage:
            yield storage

    @asynccontextmanager
    async def reopen(self) -> AsyncIterator[Storage]:
        async with open_storage(self.address) as storage:
            yield storage


@pytest.fixture
def place(server: Server) -> Place:
    place = Place(server)
    place.schema = f"store{next(_numbers)}"
    return place


@pytest.fixture
async def storage(place: Place) -> AsyncIterator[Storage]:
    """An open store with the queue `orders`; looked over at the end."""
    async with place.make() as storage:
        await put_record(storage, QUEUE, "orders", {"created": 0})
        yield storage
        await check_whole(storage)
