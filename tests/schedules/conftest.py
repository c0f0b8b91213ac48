"""Schedulers over brokers on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio

from mq.broker import Broker
from mq.schedules.scheduler import Scheduler
from tests.broker.conftest import (  # noqa: F401 - fixtures and a hook
    Opener,
    WallClock,
    disk_address,
    disk_backend,
    observer,
    opened,
    pytest_collection_modifyitems,
    wall_clock,
)

Served = Callable[..., AbstractAsyncContextManager[tuple[Broker, Scheduler]]]


@pytest.fixture
def served(opened: Opener, disk_address: str, wall_clock: WallClock) -> Served:  # noqa: F811
    """A broker with a queue ``q`` and a scheduler at work, on a disk that is there again the next time."""

    @asynccontextmanager
    async def serve(**config: Any) -> AsyncIterator[tuple[Broker, Scheduler]]:
        async with opened(disk_address, **config) as broker:
            await broker.create_queue("q")
            scheduler = Scheduler(broker)
            await scheduler.load()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scheduler.run)
                yield broker, scheduler
                nursery.cancel_scope.cancel()

    return serve
