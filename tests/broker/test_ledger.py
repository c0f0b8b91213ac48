"""The ledger: what was put is there after a restart, what is of no use takes no room, and peers leave each other's."""

from __future__ import annotations

import pytest

from mq.broker.commit import Committer
from mq.broker.ledger import LARGEST_SEGMENT, Ledger
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import WallClock


def ledger(store: MemoryStorage, writer: int = 1, *, is_shared: bool = False) -> Ledger:
    return Ledger(store, Committer(store), "kind", f"{writer:012x}", is_shared=is_shared)


async def loaded(store: MemoryStorage) -> dict[str, object]:
    fresh = ledger(store, 99)
    await fresh.load()
    return {key: fresh.get(key) for key in fresh}


@pytest.fixture
def store(wall_clock: WallClock) -> MemoryStorage:
    return MemoryStorage()


async def test_what_was_put_last_counts(store: MemoryStorage) -> None:
    first = ledger(store)
    await first.put({f"{number}": 1 for number in range(LARGEST_SEGMENT)})
    await first.put({"0": 2})
    second = ledger(store, 2)
    await second.load()
    await second.put({"1": 3})
    there = await loaded(store)
    assert (there["0"], there["1"], there["2"], len(there)) == (2, 3, 1, LARGEST_SEGMENT)


async def test_a_segment_of_no_use_is_dropped(store: MemoryStorage) -> None:
    kept = ledger(store)
    for turn in range(5):
        keys = [f"{turn}-{number}" for number in range(LARGEST_SEGMENT)]
        await kept.put(dict.fromkeys(keys, 1))
        for key in keys:
            kept.forget(key)
    await kept.put({"last": 1})
    assert len(await store.records("kind")) == 1


async def test_what_is_put_later_is_there_with_the_next_that_must_be(store: MemoryStorage) -> None:
    kept = ledger(store)
    kept.put_later({"a": 1})
    assert await loaded(store) == {}
    await kept.put({"b": 2})
    assert await loaded(store) == {"a": 1, "b": 2}


async def test_peers_leave_each_others_segments(store: MemoryStorage) -> None:
    one, other = ledger(store, 1, is_shared=True), ledger(store, 2, is_shared=True)
    await one.put({"a": 1})
    await other.load()
    other.forget("a")
    await one.put({"b": 2})
    await other.put({"c": 3})
    assert await loaded(store) == {"a": 1, "b": 2, "c": 3}
    await one.load()
    await one.put({"c": 4})  # it is known here by now, and later
    assert (await loaded(store))["c"] == 4


async def test_what_a_peer_has_forgotten_is_forgotten(store: MemoryStorage) -> None:
    one, other = ledger(store, 1, is_shared=True), ledger(store, 2, is_shared=True)
    keys = [f"{number}" for number in range(LARGEST_SEGMENT)]
    await one.put(dict.fromkeys(keys, 1))
    await other.load()
    assert len(other) == LARGEST_SEGMENT
    for key in keys:
        one.forget(key)
    await one.put({"last": 1})
    await other.load()
    assert list(other) == ["last"]
