"""An etcd for tests, or none: then they are skipped, and say so."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from mq_etcd.client import Client, open_client
from mq_etcd.testing.cluster import PROGRAM, Cluster, running

from mq.storage.conformance import check_whole
from mq.storage.interface import QUEUE, Storage
from mq.storage.records import put_record
from mq.storage.registry import open_storage

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def installed() -> None:
    """Of every test that needs a server."""
    if PROGRAM is None:
        pytest.skip("etcd is not installed: bash tests/setup-system.sh --yes")


@pytest.fixture(scope="module")
def single(installed: None) -> Iterator[Cluster]:
    """One member, for tests that need only a prefix of their own. A session would outlive it: members end by themselves
    after a while."""
    with running(1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three(installed: None) -> Iterator[Cluster]:
    """Three members, for tests that need only a prefix of their own and leave them running."""
    with running(3) as cluster:
        yield cluster


class Place:
    """Where the stores of a test are: prefixes of one etcd."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.prefix = ""

    @property
    def address(self) -> str:
        return f"etcd:{','.join(self.cluster.endpoints)}?prefix={self.prefix}"

    @asynccontextmanager
    async def make(self) -> AsyncIterator[Storage]:
        self.prefix = f"/store{next(_numbers)}"
        async with self.reopen() as storage:
            yield storage

    @asynccontextmanager
    async def reopen(self) -> AsyncIterator[Storage]:
        async with open_storage(self.address) as storage:
            yield storage


@pytest.fixture
def place(single: Cluster) -> Place:
    return Place(single)


@pytest.fixture
def three_place(three: Cluster) -> Place:
    return Place(three)


@pytest.fixture
async def storage(place: Place) -> AsyncIterator[Storage]:
    """An open store with the queue `orders`; looked over at the end."""
    async with place.make() as storage:
        await put_record(storage, QUEUE, "orders", {"created": 0})
        yield storage
        await check_whole(storage)


@pytest.fixture
def prefix() -> str:
    """Of keys that no other test has."""
    return f"/test{next(_numbers)}/"


@pytest.fixture
async def client(single: Cluster) -> AsyncIterator[Client]:
    async with open_client(single.endpoints) as client:
        yield client
