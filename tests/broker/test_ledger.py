"""The ledger: what was put is there after a restart, what is of no use takes no room, and peers leave each other's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio

from mq.broker.commit import Committer
from mq.broker.ledger import LARGEST_SEGMENT, Ledger
from mq.errors import StorageFull
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import WallClock
from tests.record_hooks import RecordHooks


class Records(RecordHooks, MemoryStorage):
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


class Plain:
    """Keys of up to ``width`` characters, and values that JSON has."""

    width = 24

    def name(self, key: str) -> bytes:
        return key.encode().ljust(self.width)

    def pack(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def unpack(self, packed: bytes) -> Any:
        return json.loads(packed)

    def to_json(self, value: Any) -> Any:
        return value

    def from_json(self, key: str, kept: Any) -> Any:
        return kept


def ledger(store: MemoryStorage, writer: int = 1, *, is_shared: bool = False) -> Ledger[Any]:
    return Ledger(store, Committer(store), "kind", f"{writer:012x}", Plain(), is_shared=is_shared)


def keys_of(kept: Ledger[Any]) -> list[str]:
    return [name.decode().rstrip() for name in kept]


async def loaded(store: MemoryStorage) -> dict[str, object]:
    fresh = ledger(store, 99)
    await fresh.load()
    return {key: fresh.get(key) for key in keys_of(fresh)}


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
    assert keys_of(other) == ["last"]


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


async def test_full_segments_are_packed_and_all_is_there(store: Records) -> None:
    """As it was put, also of what has moved to a later one, and of what was packed again since most had left."""
    kept = ledger(store)
    keys = [f"{number}" for number in range(3 * LARGEST_SEGMENT)]
    await kept.put({key: [key, "ö"] for key in keys})
    assert not any(segment.open for segment in kept._segments.values() if segment is not kept._filling)
    await kept.put({keys[7]: "moved"})
    left = {key for place, key in enumerate(keys) if place % 5 == 0 or key == keys[7]}
    for key in keys:
        if key not in left:
            kept.forget(key)
    assert {key: kept.get(key) for key in left} == {key: [key, "ö"] for key in left} | {keys[7]: "moved"}
    assert {key for key in keys if kept.get(key) is not None} == left
    assert sum(len(segment._packed.ends) for segment in kept._segments.values()) < len(left) + 3 * LARGEST_SEGMENT / 3
    fresh = ledger(store, 99)
    await fresh.load()
    assert all(fresh.get(key) == kept.get(key) for key in left)


async def test_a_name_is_not_found_between_two_others(store: Records) -> None:
    class Two(Plain):
        width = 2

    kept: Ledger[Any] = Ledger(store, Committer(store), "kind", "1" * 12, Two(), is_shared=False)
    for key in ("ab", "ca", "bc"):  # "abcabc" has "bc" twice
        await kept.put({key: key})
    await kept.put({f"{number:02}": number for number in range(LARGEST_SEGMENT) if number < 100})
    segment = kept._segments["000000000001-" + "1" * 12]
    segment.pack([(name, value) for name, (_, value) in segment.open.items()])
    assert [kept.get(key) for key in ("ab", "ca", "bc", "99", "b0")] == ["ab", "ca", "bc", 99, None]


async def test_a_sweep_looks_at_each_in_turn_whatever_comes_and_goes(store: Records) -> None:
    kept = ledger(store)
    await kept.put({f"{number}": number for number in range(2 * LARGEST_SEGMENT)})
    seen: list[int] = []

    def is_over(value: int) -> bool:
        seen.append(value)
        return value % 2 == 0

    while not kept.sweep(100, is_over):
        await kept.put({f"new {len(seen)}": 1})
    assert set(seen) == set(range(2 * LARGEST_SEGMENT))
    assert all(kept.get(f"{number}") == (number if number % 2 else None) for number in range(2 * LARGEST_SEGMENT))
    assert len(kept) < 2 * LARGEST_SEGMENT


async def test_a_sweep_forgets_nothing_that_was_put_again(store: Records) -> None:
    kept = ledger(store)
    await kept.put({f"{number}": "old" for number in range(LARGEST_SEGMENT + 1)})
    await kept.put({"7": "new"})
    kept.sweep(10 * LARGEST_SEGMENT, lambda value: value == "old")
    assert keys_of(kept) == ["7"]


async def test_what_was_full_before_it_was_written_is_not_packed_yet(store: Records) -> None:
    kept = ledger(store)
    store.gate, store.is_asked = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.put, {"first": 1})
        await store.is_asked.wait()
        kept.put_later(dict.fromkeys(map(str, range(LARGEST_SEGMENT)), 1))
        store.gate.set()
    await kept.flush()
    assert len(await loaded(store)) == LARGEST_SEGMENT + 1
