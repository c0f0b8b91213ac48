"""An etcd for tests, or none: then they are skipped, and say so."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from mq_etcd.client import Client, open_client
from mq_etcd.testing.cluster import PROGRAM, Cluster, running

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def installed() -> None:
    """Of every test that needs a server."""
    if PROGRAM is None:
        pytest.skip("etcd is not installed: bash tests/setup-system.sh --yes")


@pytest.fixture(scope="session")
def single(installed: None) -> Iterator[Cluster]:
    """One member, for tests that need only a prefix of their own."""
    with running(1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three(installed: None) -> Iterator[Cluster]:
    """Three members, for tests that need only a prefix of their own and leave them running."""
    with running(3) as cluster:
        yield cluster


@pytest.fixture
def prefix() -> str:
    """Of keys that no other test has."""
    return f"/test{next(_numbers)}/"


@pytest.fixture
async def client(single: Cluster) -> AsyncIterator[Client]:
    async with open_client(single.endpoints) as client:
        yield client
