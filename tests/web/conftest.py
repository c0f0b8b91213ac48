"""A broker, and a server over it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.storage.memory import MemoryStorage
from mq.web.endpoints import Endpoints
from tests.web.talking import MAX_BODY, Server, start_server


@pytest.fixture
async def store() -> AsyncIterator[MemoryStorage]:
    store = MemoryStorage()
    await store.open()
    yield store
    await store.aclose()


@pytest.fixture
async def broker(store: MemoryStorage) -> AsyncIterator[Broker]:
    async with open_broker(store, BrokerConfig(max_body=MAX_BODY)) as broker:
        yield broker


@pytest.fixture
def endpoints(broker: Broker) -> Endpoints:
    return Endpoints(broker, MAX_BODY)


@pytest.fixture(params=[True, False], ids=["fast lane", "hypercorn"])
def fast_lane(request: pytest.FixtureRequest) -> bool:
    """For what has to be so in both lanes."""
    return request.param


@pytest.fixture
async def server(endpoints: Endpoints, nursery: trio.Nursery) -> Server:
    return await start_server(nursery, endpoints)


@pytest.fixture
async def queue(broker: Broker) -> str:
    await broker.create_queue("q")
    return "q"
