"""Connections share the batches of a store, and a batch ends soon."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mq.broker.commit import (
    BATCH_SECONDS,
    FEWEST,
    FIRST,
    LARGEST_BATCH,
    MEMORY_SECONDS,
    BatchTimes,
    Committer,
    Pace,
    SaveWorker,
    Together,
)
from mq.broker.fairness import SOURCE, FairLine
from mq.message import MessageIds
from mq.storage.interface import AnyOperation, Description, Operation, Outcome, Result, Write
from mq.storage.memory import MemoryStorage
from mq.storage.outcomes import Outcomes

IDS: Final = MessageIds()
EACH_SECONDS: Final = 0.003
"""What a disk takes that syncs about 300 times a second, where each message takes a sync."""


class SlowDisk(MemoryStorage):
    """Takes a time for each batch, and one for each operation. The attributes of a Write say whose it is."""

    def __init__(self, fixed_seconds: float = 0.0, each_seconds: float = EACH_SECONDS) -> None:
        super().__init__()
        self.fixed_seconds = fixed_seconds
        self.each_seconds = each_seconds
        self.batches: list[list[str]] = []

    @property
    def description(self) -> Description:
        return super().description._replace(durable=True, places=False, groups=0)

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        self.batches.append([each.queue for each in operations if isinstance(each, Write)])
        await trio.sleep(self.fixed_seconds + len(operations) * self.each_seconds)
        return [Outcome(Result.DONE)] * len(operations)


class TwoLayers(SlowDisk):
    """Takes a time for each operation. Those for the queue ``memory`` share no flush."""

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        outcomes = Outcomes(await super().commit(operations))
        outcomes.in_memory = self.batches[-1].count("memory")
        return outcomes


class Forgetful(SlowDisk):
    """Takes a time for each operation, and keeps nothing when the power fails, as a folder in memory does."""

    @property
    def description(self) -> Description:
        return super().description._replace(durable=False)


def writes(owner: str, count: int) -> list[Operation]:
    return [Write(owner, IDS.new(), b"") for _ in range(count)]


@asynccontextmanager
async def serving(disk: SlowDisk) -> AsyncIterator[tuple[Committer, trio.Nursery]]:
    committer = Committer(disk)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(SaveWorker(committer).run)
        await trio.testing.wait_all_tasks_blocked()
        yield committer, nursery
        nursery.cancel_scope.cancel()


class Begun(NamedTuple):
    """What :class:`~mq.broker.commit.Together` has begun."""

    operations: list[Operation]

    def done(self, outcomes: list[Outcome], barrier: BatchTimes) -> None:
        assert len(outcomes) == len(self.operations)


async def write_as(owner: str, committer: Committer, count: int) -> None:
    SOURCE.set(owner)
    await committer.commit(writes(owner, count))


async def flood_as(owner: str, committer: Committer, count: int = 2000) -> None:
    """Publish everything at once, as a connection does that publishes without confirms."""
    SOURCE.set(owner)
    together = Together[str](committer)
    together.begin = lambda owners: Begun(writes(owner, len(owners)))
    together.put([owner] * count)


# Whose turn it is


def taken(line: FairLine[str]) -> str:
    found = ""
    while line:
        found += line.take()[2]
    return found


def test_line_serves_sources_in_turn_and_keeps_the_order_of_each() -> None:
    line = FairLine[str]()
    for source, items in (("a", "123"), ("b", "xyz")):
        for item in items:
            line.put(source, item)
    assert taken(line) == "1x2y3z"
    assert not line


def test_line_serves_a_new_source_before_those_that_had_a_turn() -> None:
    line = FairLine[str]()
    for source in range(3):
        line.put(source, "a")
        line.put(source, "b")
    assert [line.take()[2] for _ in range(3)] == list("aaa")
    line.put("new", "n")
    assert "n" in (line.take()[2], line.take()[2])


def test_line_does_not_starve_served_sources_while_new_ones_come() -> None:
    line = FairLine[str]()
    for _ in range(10):
        line.put("greedy", "g")
    served = ""
    for number in range(10):
        line.put(number, "n")
        line.put(-1 - number, "n")
        served += line.take()[2]
    assert served.count("g") >= 2


def test_line_always_counts_the_broker_as_new() -> None:
    line = FairLine[str]()
    for _ in range(6):
        line.put(None, "b")
        line.put("a", "1")
    assert taken(line) == "b1b1bbb1b111"


def test_line_continues_with_the_rest_of_an_item() -> None:
    line = FairLine[str]()
    line.put("a", "2")
    line.put("b", "x")
    line.put_first("a", "1")
    line.put_first("c", "c")
    assert sorted(taken(line)) == ["1", "2", "c", "x"]
    line.put("a", "2")
    line.put_first("a", "1")
    assert taken(line) == "12"


# How much fits into a batch


def test_pace_limits_nothing_on_a_store_that_is_quick() -> None:
    pace = Pace(LARGEST_BATCH)
    for size in (1, 1, 10, 1000, 1000):
        pace.note(size, 0.0003 + size * 0.00002)
    assert pace.limit == LARGEST_BATCH


def test_pace_limits_a_batch_where_each_operation_takes_long() -> None:
    pace = Pace(LARGEST_BATCH)
    for _ in range(5):
        pace.note(pace.limit, 0.002 + pace.limit * EACH_SECONDS)
    assert 0.5 * BATCH_SECONDS < pace.limit * EACH_SECONDS < 1.5 * BATCH_SECONDS


def test_pace_is_careful_before_it_knows_what_an_operation_takes() -> None:
    pace = Pace(LARGEST_BATCH)
    for _ in range(3):
        pace.note(1, EACH_SECONDS)
    assert pace.limit == FIRST


def test_pace_keeps_large_batches_where_one_flush_takes_long() -> None:
    pace = Pace(LARGEST_BATCH)
    for size in (1, 5, 1):
        pace.note(size, 0.5 + size * 0.00003)
    for _ in range(3):
        pace.note(pace.limit, 0.5 + pace.limit * 0.00003)
    assert pace.limit == LARGEST_BATCH


def test_pace_never_stops_a_store_and_follows_it_when_it_is_quick_again() -> None:
    pace = Pace(LARGEST_BATCH)
    for size in (1, 2, 3):
        pace.note(size, size * 10.0)
    assert pace.limit == FEWEST
    for _ in range(40):
        pace.note(pace.limit, pace.limit * 0.00003)
    assert pace.limit == LARGEST_BATCH


def test_pace_doubts_what_it_learned_once_all_batches_are_of_one_size_and_take_long() -> None:
    pace, size, each_seconds = Pace(LARGEST_BATCH), 200, 0.0015
    for number in (1, size, 1):  # slow at first, whatever the size
        pace.note(number, size * each_seconds)
    for _ in range(100):  # so many all the time, as the clients bring no more
        pace.note(min(size, pace.limit), min(size, pace.limit) * each_seconds)
    assert pace.limit * each_seconds < 2 * BATCH_SECONDS


@pytest.mark.parametrize("seconds", [0.026, 0.03, 0.05])
@pytest.mark.parametrize("demand", [20, 400])
@pytest.mark.parametrize("is_cheap", [False, True])
@pytest.mark.parametrize("was_slow", [False, True])
def test_pace_does_not_stay_low_where_a_flush_takes_long_whatever_the_size(
    seconds: float, demand: int, is_cheap: bool, was_slow: bool
) -> None:
    pace, batches = Pace(LARGEST_BATCH, is_cheap=is_cheap), 1000
    for _ in range(50 * was_slow):
        size = min(demand, pace.limit)
        pace.note(size, 0.002 + size * 0.005)
    done = 0
    for _ in range(batches):
        size = min(demand, pace.limit)
        pace.note(size, seconds)
        done += size
    assert done > 0.9 * batches * demand


# Batches


async def test_lone_operation_is_in_the_next_batch_to_begin(autojump_clock: MockClock) -> None:
    disk = SlowDisk()
    async with serving(disk) as (committer, nursery):
        for number in range(10):
            nursery.start_soon(flood_as, f"flood-{number}", committer)
        await trio.sleep(5)
        for number in range(10):
            begun, began = len(disk.batches), trio.current_time()
            await write_as(f"lone-{number}", committer, 1)
            assert f"lone-{number}" in disk.batches[begun]
            assert trio.current_time() - began < 2.5 * BATCH_SECONDS
            await trio.sleep(0.51)


async def test_flooding_connections_share_the_store_evenly(autojump_clock: MockClock) -> None:
    disk = SlowDisk()
    async with serving(disk) as (committer, nursery):
        nursery.start_soon(flood_as, "much", committer, 20_000)
        await trio.sleep(1)
        before = len(disk.batches)
        for owner in ("some", "more"):
            nursery.start_soon(flood_as, owner, committer)
        await trio.sleep(10)
        counts = Counter(owner for batch in disk.batches[before + 2 :] for owner in batch)
    assert max(counts.values()) < 1.3 * min(counts[owner] for owner in ("much", "some", "more"))


async def test_long_submission_goes_into_several_batches_and_is_answered_once(autojump_clock: MockClock) -> None:
    disk = SlowDisk()
    answers: list[tuple[list[Outcome], BatchTimes]] = []
    async with serving(disk) as (committer, _):
        await committer.commit(writes("a", 3))
        await committer.commit(writes("a", 30))
        long = writes("long", 1000)
        committer.submit(lambda: long, 1000, lambda outcomes, times: answers.append((outcomes, times)))
        began = trio.current_time()
        await write_as("b", committer, 1)
        assert trio.current_time() - began < 5 * BATCH_SECONDS
        assert not answers
        await trio.sleep(1000 * EACH_SECONDS + 1)
    [(outcomes, times)] = answers
    assert len(outcomes) == 1000
    assert times.ended - times.began >= 1000 * EACH_SECONDS
    assert sum(batch.count("long") for batch in disk.batches) == 1000


async def test_items_of_one_call_are_divided_and_keep_their_order(autojump_clock: MockClock) -> None:
    disk = SlowDisk()
    begun: list[int] = []

    def begin(items: Sequence[int]) -> Begun:
        begun.extend(items)
        return Begun(writes("items", len(items)))

    async with serving(disk) as (committer, nursery):
        await committer.commit(writes("a", 3))
        await committer.commit(writes("a", 30))
        together = Together[int](committer)
        together.begin = begin
        together.put(range(1000))
        together.put(range(1000, 1100))
        nursery.start_soon(flood_as, "flood", committer, 400)
        await trio.sleep(2)
        assert 0 < len(begun) < 1100
        assert Counter(owner for batch in disk.batches for owner in batch)["flood"] > 100
        await trio.sleep(10)
    assert begun == list(range(1100))
    assert max(map(len, disk.batches[2:])) * EACH_SECONDS < 2 * BATCH_SECONDS


@pytest.mark.parametrize("fixed_seconds", [0.002, 1.0])
async def test_flush_of_all_operations_together_keeps_large_batches(
    autojump_clock: MockClock, fixed_seconds: float
) -> None:
    disk = SlowDisk(fixed_seconds, each_seconds=0.00002)
    async with serving(disk) as (committer, nursery):
        nursery.start_soon(flood_as, "flood", committer, 50_000)
        await trio.sleep(60 * fixed_seconds + 2)
    assert sum(map(len, disk.batches)) / len(disk.batches) > 500


async def test_a_crowd_after_a_quiet_time_does_not_fill_one_batch(autojump_clock: MockClock) -> None:
    """The time of single operations says nothing about large batches, and those in a batch no longer take turns."""
    disk = SlowDisk(fixed_seconds=0.02, each_seconds=0.0)
    async with serving(disk) as (committer, nursery):
        await committer.commit(writes("a", 30))
        await committer.commit(writes("a", 3))  # one more seems to cost nothing
        for _ in range(40):
            await write_as("alone", committer, 1)
        disk.each_seconds = 0.005
        for number in range(4):
            nursery.start_soon(flood_as, f"flood-{number}", committer)
        await trio.sleep(0.1)
        began = trio.current_time()
        await write_as("alone", committer, 1)
        assert trio.current_time() - began < 1


async def test_batches_in_memory_are_shorter_than_those_on_disk(autojump_clock: MockClock) -> None:
    each_seconds = 0.0005
    store = TwoLayers(each_seconds=each_seconds)
    async with serving(store) as (committer, nursery):
        for owner, seconds in (("disk", BATCH_SECONDS), ("memory", MEMORY_SECONDS), ("disk", BATCH_SECONDS)):
            store.batches.clear()
            await committer.commit(writes(owner, 3))
            nursery.start_soon(flood_as, owner, committer, 4000)
            await trio.sleep(3)
            assert sum(map(len, store.batches)) == 3 + 4000
            assert 0.5 * seconds < max(map(len, store.batches[-4:-1])) * each_seconds <= seconds


async def test_batches_of_a_store_that_keeps_nothing_end_as_soon(autojump_clock: MockClock) -> None:
    store = Forgetful(each_seconds=0.0005)
    async with serving(store) as (committer, nursery):
        await committer.commit(writes("a", 3))
        nursery.start_soon(flood_as, "a", committer, 4000)
        await trio.sleep(3)
    assert sum(map(len, store.batches)) == 3 + 4000
    assert max(map(len, store.batches[-4:-1])) * store.each_seconds <= MEMORY_SECONDS
