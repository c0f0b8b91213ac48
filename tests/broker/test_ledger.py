"""The ledger: what was put is there after a restart, what is of no use takes no room, and peers leave each other's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from mq.broker.commit import Committer
from mq.broker.keys import LARGEST_SEGMENT, Ledger
from mq.errors import StorageFull
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import WallClock


class Records(MemoryStorage):
    """A store whose records can be refused, and take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: list[bool] = []
        self.gate: trio.Event | None = None
        self.is_asked = trio.Event()

    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        if self.refuses and self.refuses.pop(0):
            raise StorageFull("no room")
        self.is_asked.set()
        if self.gate is not None:
            await self.gate.wait()
        return await super().put_record(kind, key, value)


def ledger(store: MemoryStorage, writer: int = 1, *, is_shared: bool = False) -> Ledger:
    return Ledger(store, Committer(store), "kind", f"{writer:012x}", is_shared=is_shared)


async def loaded(store: MemoryStorage) -> dict[str, object]:
    fresh = ledger(store, 99)
    await fresh.load()
    return {key: fresh.get(key) for key in fresh}


@pytest.fixture
def store(wall_clock: WallClock) -> Records:
    return Records()


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


async def test_what_two_peers_put_is_there_until_both_have_forgotten_it(store: Records) -> None:
    one, other = ledger(store, 1, is_shared=True), ledger(store, 2, is_shared=True)
    await one.put({"a": 1})
    await other.put({"a": 1})
    await one.load()
    other.forget("a")
    await other.put({"b": 2})
    await one.put({"c": 3})
    assert await loaded(store) == {"a": 1, "b": 2, "c": 3}
    one.forget("a")
    await one.put({"d": 4})
    assert await loaded(store) == {"b": 2, "c": 3, "d": 4}


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


async def test_what_was_refused_is_written_with_the_next(store: Records) -> None:
    kept = ledger(store)
    store.refuses = [True]
    with pytest.raises(StorageFull):
        await kept.put({"a": 1})
    assert await loaded(store) == {}
    await kept.flush()
    assert await loaded(store) == {"a": 1}


@pytest.mark.parametrize("refuses", [[True, False], [False, True]])
async def test_of_two_segments_each_that_was_refused_is_written_with_the_next(
    store: Records, refuses: list[bool]
) -> None:
    kept = ledger(store)
    await kept.put(dict.fromkeys(map(str, range(LARGEST_SEGMENT - 1)), 1))
    store.refuses = refuses
    with pytest.raises(StorageFull):
        await kept.put({"last": 2, "first of the next": 2})
    await kept.flush()
    there = await loaded(store)
    assert (there.get("last"), there.get("first of the next")) == (2, 2)


async def test_what_moves_on_is_written_where_it_goes_before_it_is_no_more_where_it_was(store: Records) -> None:
    """Between the two writes the power may be cut, or the disk full."""
    kept = ledger(store)
    await kept.put(dict.fromkeys(map(str, range(LARGEST_SEGMENT - 1)), "old"))
    kept.put_later({"last": 1})
    kept.put_later({"0": "new"})
    store.refuses = [False, True]
    with pytest.raises(StorageFull):
        await kept.flush()
    assert (await loaded(store))["0"] in ("old", "new")
    await kept.flush()
    there = await loaded(store)
    assert (there["0"], there["1"], there["last"]) == ("new", "old", 1)


async def test_a_segment_is_kept_until_what_left_it_is_written_elsewhere(store: Records) -> None:
    """Also where it left while another one was being written."""
    kept = ledger(store)
    keys = [str(number) for number in range(LARGEST_SEGMENT)]
    await kept.put(dict.fromkeys(keys, "old"))
    await kept.put({"next": 1})
    for key in keys[1:]:
        kept.forget(key)
    store.gate, store.is_asked = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.put, {"other": 1})
        await store.is_asked.wait()
        kept.put_later({keys[0]: "new"})
        store.gate.set()
    assert (await loaded(store))[keys[0]] in ("old", "new")
    await kept.flush()
    assert await loaded(store) == {keys[0]: "new", "next": 1, "other": 1}
    assert len(await store.records("kind")) == 1


async def test_what_a_segment_holds_when_a_write_begins_is_what_is_written(store: Records) -> None:
    """What moves twice meanwhile would be in no record that is written, and the one that it left first is dropped."""
    kept = ledger(store)
    first, second = ([f"{letter}{number}" for number in range(LARGEST_SEGMENT)] for letter in "ab")
    await kept.put(dict.fromkeys(first, "old"))
    await kept.put(dict.fromkeys(second[:-1], "old"))
    for key in first[2:]:
        kept.forget(key)
    kept.put_later({first[0]: "new"})  # the second is full now
    kept.put_later({first[1]: "new"})  # and this is in a third
    store.gate, store.is_asked = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.flush)
        await store.is_asked.wait()
        kept.put_later({first[1]: "newer", **dict.fromkeys(map(str, range(LARGEST_SEGMENT)), 1)})
        kept.put_later({first[1]: "newest"})
        store.gate.set()
    assert first[1] in await loaded(store)


async def test_what_comes_while_another_segment_is_written_is_written_next(store: Records) -> None:
    kept = ledger(store)
    kept.put_later(dict.fromkeys(map(str, range(LARGEST_SEGMENT + 1)), 1))
    store.gate, store.is_asked = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.flush)
        await store.is_asked.wait()
        kept.put_later({"late": 1})
        store.gate.set()
    await kept.flush()
    assert "late" in await loaded(store)
