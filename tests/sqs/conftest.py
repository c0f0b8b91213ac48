"""The SQS door over a broker, on a port, and unmodified clients of boto3 that speak to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.doors.budget import Budget
from mq.sqs.door import SqsDoor
from mq.storage.memory import MemoryStorage
from mq.web.endpoints import Endpoints
from tests.e2e.daemon import Daemon
from tests.sqs.clients import Client, make_client
from tests.web.talking import MAX_BODY, Server, start_server


@pytest.fixture
async def store() -> AsyncIterator[MemoryStorage]:
    store = MemoryStorage()
    await store.open()
    yield store
    await store.aclose()


@pytest.fixture
async def broker(store: MemoryStorage) -> AsyncIterator[Broker]:
    async with open_broker(store, BrokerConfig(max_body=8 * MAX_BODY)) as broker:
        yield broker


@pytest.fixture
def budget() -> Budget:
    return Budget()


@pytest.fixture
async def door(broker: Broker, budget: Budget, nursery: trio.Nursery) -> SqsDoor:
    return SqsDoor(Endpoints(broker, MAX_BODY), broker, budget, nursery)


@pytest.fixture
async def server(door: SqsDoor, nursery: trio.Nursery) -> Server:
    return await start_server(nursery, door)


@pytest.fixture(params=["json", "query"])
async def sqs(request: pytest.FixtureRequest, server: Server) -> Client:
    """A client of boto3, in each of the two protocols."""
    return Client(make_client(server.url, request.param))


@pytest.fixture
async def make_queue(sqs: Client) -> Callable[..., Any]:
    """Makes a queue, and returns its URL."""

    async def make(name: str = "q", **attributes: str) -> str:
        url: str = (await sqs.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"]
        return url

    return make


@pytest.fixture
def daemon(temp_root: Path, tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(temp_root, tmp_path / "log") as daemon:
        yield daemon
