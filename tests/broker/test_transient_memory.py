"""Transient messages and the limit of their memory: refused in order, and nothing stays reserved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import pytest

from mq.broker import Broker, Draft, Published, open_broker
from mq.errors import MQError, NoSuchQueue, StorageFull
from mq.storage.layered import LayeredStorage
from mq.storage.memory import MemoryStorage

LIMIT: Final = 20_000
LARGE: Final = Draft(bytes(LIMIT), transient=True)
SMALL: Final = Draft(b"x", transient=True)
LASTING: Final = Draft(b"x")


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr("mq.storage.memory.MOST_BESIDE", 0)
    async with open_broker(LayeredStorage(MemoryStorage(), LIMIT)) as broker:
        await broker.create_queue("q")
        yield broker


def stored(outcomes: Sequence[Published | MQError]) -> list[bool]:
    """Which were stored. All others found no room."""
    assert all(isinstance(outcome, Published | StorageFull) for outcome in outcomes)
    return [isinstance(outcome, Published) for outcome in outcomes]


async def test_nothing_overtakes_a_message_that_found_no_room(broker: Broker) -> None:
    outcomes = await broker.publish_many("q", [SMALL, LARGE, SMALL, LASTING])
    assert stored(outcomes) == [True, False, False, False]


async def test_nothing_overtakes_a_message_that_found_no_room_in_the_callers_step(broker: Broker) -> None:
    outcomes: list[Published | MQError] = []
    assert broker.publish_now("q", [SMALL, LARGE, LASTING], outcomes.extend)
    await broker.publish_many("q", [LASTING])
    assert stored(outcomes) == [True, False, False]


async def test_messages_on_their_way_count(broker: Broker) -> None:
    """Before any of them is stored."""
    quarter = Draft(bytes(LIMIT // 4), transient=True)
    outcomes: list[Published | MQError] = []
    for _ in range(3):
        assert broker.publish_now("q", [quarter], outcomes.extend)
    await broker.publish_many("q", [LASTING])
    assert sorted(stored(outcomes)) == [False, True, True]


@pytest.mark.parametrize("refused", [SMALL._replace(ttl=-1.0), LARGE, SMALL._replace(key="k")])
async def test_what_is_stored_or_refused_leaves_nothing_reserved(broker: Broker, refused: Draft) -> None:
    for _ in range(100):
        await broker.publish_many("q", [refused])
        await broker.purge("q")
    half = Draft(bytes(LIMIT // 2 - 1000), transient=True)
    assert stored(await broker.publish_many("q", [half])) == [True]


async def test_a_queue_that_is_deleted_leaves_nothing_reserved(broker: Broker) -> None:
    quarter = Draft(bytes(LIMIT // 4), transient=True)
    for _ in range(10):
        outcomes: list[Published | MQError] = []
        assert broker.publish_now("q", [quarter], outcomes.extend)
        await broker.delete_queue("q")
        assert all(isinstance(outcome, Published | NoSuchQueue) for outcome in outcomes)
        await broker.create_queue("q")
    assert stored(await broker.publish_many("q", [quarter])) == [True]
