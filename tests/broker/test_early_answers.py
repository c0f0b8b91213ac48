"""A store that tells of the first outcomes of a batch before the last: who is concerned by them is answered at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft, Removal, commit, open_broker
from mq.message import Message
from mq.storage.interface import Description, Hear, Operation, Outcome, Result
from mq.storage.memory import MemoryStorage


class Telling(MemoryStorage):
    """A durable store that tells of all but the last operation of a batch, and ends the batch when it may.

    Attributes:
        may_end: set while batches may end.
        fails: the last operation of the next batch fails, as on a medium that breaks.
    """

    tells = True
    is_instant = False  # type: ignore[assignment] # its batches wait

    def __init__(self) -> None:
        super().__init__()
        self.may_end = trio.Event()
        self.may_end.set()
        self.fails = False

    @property
    def description(self) -> Description:
        return super().description._replace(durable=True)

    async def commit_in_parts(self, operations: Sequence[Operation], hear: Hear) -> list[Outcome]:
        await trio.lowlevel.checkpoint()
        hear(await self.commit(operations[:-1]), 0.0)
        await self.may_end.wait()
        return [Outcome(Result.FAILED, reason="it broke")] if self.fails else await self.commit(operations[-1:])


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Telling]:
    monkeypatch.setattr(commit, "ANSWERED_TOGETHER", 1)
    store = Telling()
    await store.open()
    yield store
    await store.aclose()


@pytest.fixture
async def broker(store: Telling) -> AsyncIterator[Broker]:
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        yield broker


async def test_of_publishes_that_share_a_batch_the_first_is_answered_while_the_last_goes_on(
    store: Telling, broker: Broker
) -> None:
    published: list[str] = []

    async def publish(body: bytes) -> None:
        await broker.publish("q", body)
        published.append(body.decode())

    store.may_end = trio.Event()
    async with trio.open_nursery() as nursery:
        for body in (b"1", b"2", b"3"):
            nursery.start_soon(publish, body)
        await wait_all_tasks_blocked()
        first = list(published)
        assert len(first) == 2
        assert len([entry for queue in broker.inventory() for entry in queue.entries]) == 2
        store.may_end.set()
    assert published[:2] == first
    assert len(await broker.fetch_many("q", 3)) == 3


async def test_a_fetch_is_answered_while_the_last_lease_of_its_batch_goes_on(store: Telling, broker: Broker) -> None:
    await broker.publish_many("q", [Draft(b"%d" % number) for number in range(3)])
    got: list[list[Message]] = []

    async def fetch() -> None:
        got.append(await broker.fetch_many("q", 1))

    store.may_end = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(fetch)
        await wait_all_tasks_blocked()
        bodies = [await message.body.read() for [message] in got]
        assert len(bodies) == 2
        store.may_end.set()
    assert sorted([*bodies, await got[2][0].body.read()]) == [b"0", b"1", b"2"]


async def test_what_was_answered_early_stays_when_the_medium_breaks_behind_it(store: Telling, broker: Broker) -> None:
    outcomes: list[object] = []

    async def publish() -> None:
        try:
            outcomes.append(await broker.publish("q", b"body"))
        except Exception as error:  # noqa: BLE001 - it is looked at
            outcomes.append(type(error).__name__)

    store.fails = True
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(publish)
    assert outcomes[2] == "StorageFailed"
    assert {entry.id for queue in broker.inventory() for entry in queue.entries} == set(outcomes[:2])


class Wakings(trio.abc.Instrument):
    """Counts how often a task is woken."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.count = 0
        self._task = task

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self._task


class OneByOne(Telling):
    """Tells of each operation of a batch by itself, a pass of the event loop after the one before."""

    async def commit_in_parts(self, operations: Sequence[Operation], hear: Hear) -> list[Outcome]:
        for operation in operations:
            await trio.lowlevel.checkpoint()
            hear(await self.commit([operation]), 0.0)
        return []


async def test_a_batch_wakes_its_caller_once_though_its_outcomes_come_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit, "ANSWERED_TOGETHER", 1)
    store = OneByOne()
    await store.open()
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        wakings = Wakings(trio.lowlevel.current_task())
        trio.lowlevel.add_instrument(wakings)
        published = await broker.publish_many("q", [Draft(b"%d" % number) for number in range(20)])
        assert wakings.count == 1
        ids = [outcome.id for outcome in published if not isinstance(outcome, Exception)]
        assert await broker.remove_many("q", [Removal(id) for id in ids]) == [None] * 20
        assert wakings.count == 2
        trio.lowlevel.remove_instrument(wakings)
    await store.aclose()
