"""What was published a moment ago is held without being read; and only so much of it is kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mq.broker import Broker, Draft, open_broker
from mq.broker.catalog import LARGEST_BODY, OVERHEAD, RecentBodies
from mq.message import MessageId, MessageIds, SharedAttributes
from mq.storage.interface import Entry, Stored
from mq.storage.memory import MemoryStorage


class Counting(MemoryStorage):
    """A store that counts what is read from it."""

    reads = 0

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        self.reads += len(entries)
        return await super().read(entries)


async def _held(broker: Broker, most: int) -> list[tuple[bytes, dict[str, object]]]:
    held = await broker.hold("q", most)
    found = [(await each.message.body.read(), dict(each.message.properties.attributes)) for each in held]
    await broker.put_back(held)
    return found


async def test_it_is_not_read_the_first_time(autojump_clock: object) -> None:
    storage = Counting()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        drafts = [Draft(b"%d" % number, {"content_type": f"text/{number}"}) for number in range(3)]
        await broker.publish_many("q", drafts)
        first = await _held(broker, 3)
        assert first == [(draft.body, draft.attributes) for draft in drafts]
        assert storage.reads == 0
        assert await _held(broker, 3) == first
        assert storage.reads == 3


async def test_what_it_says_is_what_reading_it_says(autojump_clock: object) -> None:
    async with open_broker("memory:") as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x" * 1000, {"content_type": "text/plain", "attributes": {"a": "b"}})
        told = []
        for _ in range(2):
            [held] = await broker.hold("q")
            told.append(held.message.properties)
            await broker.put_back([held])
        assert told[0] == told[1]


async def test_a_long_body_is_read(autojump_clock: object) -> None:
    storage = Counting()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x" * (LARGEST_BODY + 1))
        await _held(broker, 1)
        assert storage.reads == 1


def _kept(recent: RecentBodies, ids: Sequence[MessageId]) -> list[bool]:
    return [recent.take(id) is not None for id in ids]


@pytest.mark.parametrize(
    ("seconds", "kept"), [(0.1, [True, True, False, True, True]), (10, [False, True, True, True, True])]
)
def test_the_first_of_a_burst_stay_for_some_seconds(seconds: float, kept: list[bool]) -> None:
    made = MessageIds()
    ids = [made.new(now_ns=int((10**9 + number * seconds) * 1e9)) for number in range(5)]
    recent = RecentBodies(4 * (OVERHEAD + 100))
    for id in ids:
        recent.keep(id, bytes(100), {})
    assert _kept(recent, ids) == kept
    assert _kept(recent, ids) == [False] * 5


@pytest.mark.parametrize("hours_ahead", [0, 1])
def test_a_publisher_that_fills_the_cache_does_not_keep_others_out(hours_ahead: int) -> None:
    made, now = MessageIds(), 10**18
    recent = RecentBodies(20 * OVERHEAD)
    for _ in range(5):
        for _ in range(30):
            recent.keep(made.new(now_ns=now + hours_ahead * 3600 * 10**9), b"", {})
        for _ in range(10):
            now += 10**9
            other = MessageIds().new(now_ns=now)
            recent.keep(other, b"", {})
            assert recent.take(other) is not None


def test_what_is_taken_needs_no_room_any_more() -> None:
    made = MessageIds()
    ids = [made.new() for _ in range(3)]
    recent = RecentBodies(2 * OVERHEAD)
    recent.keep(ids[0], b"", {})
    assert recent.take(ids[0]) is not None
    for id in ids[1:]:
        recent.keep(id, b"", {})
    assert _kept(recent, ids) == [False, True, True]


def test_what_is_stored_again_takes_up_no_more() -> None:
    recent, ids = RecentBodies(most_bytes=2 * (OVERHEAD + 10)), MessageIds()
    again, other = ids.new(), ids.new()
    for _ in range(3):  # a publisher over the network may try again
        recent.keep(again, bytes(10), {})
    recent.keep(other, bytes(10), {})
    assert recent.has(again)
    assert recent.has(other)
    recent.take(again)
    recent.take(other)
    recent.keep(again, bytes(10), {})
    assert recent.has(again)


def test_a_body_that_is_too_long_takes_the_place_of_the_one_before() -> None:
    recent, id = RecentBodies(4 * OVERHEAD), MessageIds().new()
    recent.keep(id, b"before", {})
    recent.keep(id, bytes(2 * OVERHEAD), {})
    assert recent.take(id) is None


def test_all_are_forgotten_and_there_is_room_again() -> None:
    recent, ids = RecentBodies(2 * OVERHEAD), MessageIds()
    before, after = [ids.new(), ids.new()], [ids.new(), ids.new()]
    for id in before:
        recent.keep(id, b"", {})
    recent.clear()
    for id in after:
        recent.keep(id, b"", {})
    assert _kept(recent, [*before, *after]) == [False, False, True, True]


@pytest.mark.parametrize("kind", [dict, SharedAttributes])
def test_long_attributes_count_as_what_they_take(kind: type[dict[str, object]]) -> None:
    ids = MessageIds()
    recent, kept = RecentBodies(10 * (OVERHEAD + 10_000)), [ids.new() for _ in range(30)]
    for id in kept:
        recent.keep(id, b"", kind({"amqp": {"properties": "y" * 5000}}))
    assert sum(_kept(recent, kept)) == 8  # four in each half: each name counts, too
    for id in kept:
        recent.take(id)
    for id in kept:
        recent.keep(id, b"x" * 10_000, kind({"attributes": {"a": "b"}}))
    assert sum(_kept(recent, kept)) == 10


def test_message_with_very_long_attributes_is_not_kept() -> None:
    recent, id = RecentBodies(), MessageIds().new()
    recent.keep(id, b"x", {"attributes": {f"a{number}": "y" * 1000 for number in range(40)}})
    assert not recent.has(id)
