"""Batches: one barrier, each entry with an outcome of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft, Published, Removal, open_broker
from mq.errors import BodyTooLarge, InvalidId, InvalidSetting, MQError, NoSuchMessage, ReceiptMismatch
from mq.message import MessageIds
from mq.storage.interface import Move, Operation, Outcome, Unlink, Write
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import Opener, WallClock
from tests.broker.inside import catalog_of
from tests.broker.test_broker import pieces


class Counting(MemoryStorage):
    """A store that counts its barriers: the batches in which something had to be durable."""

    def __init__(self) -> None:
        super().__init__()
        self.barriers = 0

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        self.barriers += any(isinstance(each, Write | Move | Unlink) and each.durable for each in operations)
        return await super().commit(operations)


@pytest.mark.parametrize("count", [1, 7, 1000])
async def test_a_batch_of_any_length_is_one_barrier(wall_clock: WallClock, count: int) -> None:
    store = Counting()
    async with open_broker(store, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(b"%d" % number) for number in range(count)])
        assert store.barriers == 1
        messages = await broker.fetch_many("q", count)
        assert (len(messages), store.barriers) == (count, 2)
        changes = [(each.id, each.receipt, 600 * (number % 2)) for number, each in enumerate(messages)]
        assert await broker.change_leases("q", changes) == [None] * count
        assert store.barriers == 3
        status = await broker.status("q")
        assert (status.ready, status.leased) == (count - count // 2, count // 2)
        assert await broker.remove_many("q", [Removal(each.id) for each in messages]) == [None] * count
        assert store.barriers == 4


async def test_a_message_that_is_being_moved_does_not_hold_up_the_changes_of_others(broker: Broker) -> None:
    await broker.publish_many("q", [Draft(b"x")] * 2)
    moving, other = await broker.fetch_many("q", 2)
    changes = [(each.id, each.receipt, 600.0) for each in (moving, other, other)]
    locks = catalog_of(broker).locks
    waiting = trio.lowlevel.ParkingLot()
    locks[moving.id] = None, False, waiting
    async with trio.open_nursery() as nursery:
        errors: list[MQError | None] = []
        nursery.start_soon(collect, errors, broker, changes)
        await wait_all_tasks_blocked(0.01)
        index = catalog_of(broker).queues["q"]
        entry = index.find(other.id)
        assert entry is not None
        assert entry.meta.deadline_ms is not None
        assert entry.meta.deadline_ms - broker.clock.steady_ms() > 500_000
        assert errors == []
        del locks[moving.id]
        waiting.unpark_all()
    assert errors == [None, None, None]


async def collect(errors: list[MQError | None], broker: Broker, changes: Sequence[tuple[str, str, float]]) -> None:
    errors += await broker.change_leases("q", changes)


async def test_a_batch_comes_out_in_its_order(broker: Broker) -> None:
    await broker.publish_many("q", [Draft(b"%d" % number) for number in range(300)])
    bodies = [await message.body.read() for message in await broker.fetch_many("q", 1000)]
    assert bodies == [b"%d" % number for number in range(300)]


async def test_each_draft_has_an_outcome_of_its_own(address: str, opened: Opener) -> None:
    async with opened(address, max_body=10) as broker:
        await broker.create_queue("q")
        staged = await broker.stage(pieces(b"sta", b"ged"))
        first, long, wrong, large = await broker.publish_many(
            "q", [Draft(b"first"), Draft(b"x" * 11), Draft(b"x", delay=-1), Draft(staged)]
        )
        assert isinstance(first, Published)
        assert isinstance(large, Published)
        assert isinstance(long, BodyTooLarge)
        assert isinstance(wrong, InvalidSetting)
        messages = await broker.fetch_many("q", 10)
        assert [message.id for message in messages] == [first.id, large.id]
        assert catalog_of(broker).queues["q"].reserved == 0


async def test_each_removal_has_an_outcome_of_its_own(broker: Broker) -> None:
    await broker.publish_many("q", [Draft(b"x") for _ in range(3)])
    one, two, three = await broker.fetch_many("q", 3)
    outcomes = await broker.remove_many(
        "q",
        [
            Removal(one.id, one.receipt),
            Removal(one.id, one.receipt),
            Removal(two.id, three.receipt),
            Removal(three.id),
            Removal(MessageIds().new()),
            Removal("not an id"),
        ],
    )
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        NoSuchMessage,
        ReceiptMismatch,
        type(None),
        NoSuchMessage,
        InvalidId,
    ]
    status = await broker.status("q")
    assert (status.ready, status.leased) == (0, 1)


async def test_each_change_of_a_lease_has_an_outcome_of_its_own(broker: Broker) -> None:
    await broker.publish_many("q", [Draft(b"x") for _ in range(3)])
    one, two, three = await broker.fetch_many("q", 3)
    outcomes = await broker.change_leases(
        "q",
        [
            (one.id, one.receipt, 600),
            (one.id, one.receipt, 700),
            (two.id, three.receipt, 600),
            (three.id, three.receipt, 0),
            (three.id, three.receipt, 600),
            (two.id, two.receipt, -1),
            (MessageIds().new(), two.receipt, 0),
            ("not an id", two.receipt, 600),
        ],
    )
    expected = [None, None, ReceiptMismatch, None, ReceiptMismatch, InvalidSetting, NoSuchMessage, InvalidId]
    assert [outcome and type(outcome) for outcome in outcomes] == expected
    status = await broker.status("q")
    assert (status.ready, status.leased) == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(25))
async def test_a_batch_that_is_given_up_in_any_step_leaves_the_counts_right(broker: Broker, steps: int) -> None:
    await broker.publish_many("q", [Draft(b"%d" % number) for number in range(5)])

    async def work() -> None:
        messages = await broker.fetch_many("q", 3)
        await broker.remove_many("q", [Removal(each.id, each.receipt) for each in messages[:2]])
        await broker.publish_many("q", [Draft(b"x"), Draft(b"y", key="k"), Draft(b"z", delay=50)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    await wait_all_tasks_blocked()
    index = catalog_of(broker).queues["q"]
    assert (index.moving, index.reserved, index.reserved_bytes, len(index.delivering), len(index.dropping)) == (
        0,
        0,
        0,
        0,
        0,
    )
    assert index.total == len(list(index.entries()))
    assert index.leased == sum(entry.meta.receipt is not None for entry in index.entries())
    await trio.sleep(100)
    assert len(await broker.fetch_many("q", 100)) == index.total


async def test_publish_of_an_id_that_the_store_has_answers_with_that_message(wall_clock: WallClock) -> None:
    ids = MessageIds()
    async with open_broker(MemoryStorage(), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        draft = Draft(b"once", id=ids.new())
        for _ in range(2):
            assert await broker.publish_many("q", [draft]) == [Published(draft.id)]
        assert len(await broker.fetch_many("q", 2)) == 1
