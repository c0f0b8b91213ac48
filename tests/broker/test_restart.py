"""What was answered is still so after a restart, and nothing that was there is stranded."""

from __future__ import annotations

import pytest
import trio

from mq.broker.config import GRACE_SECONDS
from mq.message import MessageIds
from mq.storage.interface import Meta, Move, State, Write
from mq.storage.registry import open_storage
from tests.broker.conftest import Opener, WallClock
from tests.broker.test_broker import take


async def test_order_is_kept_over_restarts(disk_address: str, opened: Opener, wall_clock: WallClock) -> None:
    for day in range(3):
        async with opened(disk_address) as broker:
            await broker.create_queue("q")
            for number in range(10):
                await broker.publish("q", b"%d" % (day * 10 + number))
        wall_clock.ahead_seconds -= 3600  # the clock is set back each time
    async with opened(disk_address) as broker:
        assert [await take(broker) for _ in range(30)] == [b"%d" % number for number in range(30)]


async def test_a_lease_outlives_a_restart_and_ends(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        await take(broker)
        await trio.sleep(10)
    async with opened(disk_address) as broker:
        await trio.sleep(19.9)
        assert await take(broker) is None
        await trio.sleep(2.2)
        message = await broker.fetch("q")
        assert message is not None
        assert message.receives == 2


async def test_a_clock_set_back_a_year_holds_a_lease_for_half_a_day_at_most(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        await take(broker)
    wall_clock.ahead_seconds = -365 * 86400
    async with opened(disk_address) as broker:
        await trio.sleep(43_203)
        assert await take(broker) == b"x"


async def test_what_a_crash_left_in_new_and_delay_is_delivered(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
    ids = MessageIds()
    stranded, leased = ids.new(), ids.new()
    async with open_storage(disk_address) as storage:
        outcomes = await storage.commit([Write("q", stranded, b"stranded"), Write("q", leased, b"leased")])
        assert outcomes[1].entry is not None
        await storage.commit([Move(outcomes[1].entry, State.DELAYED, Meta(0, 7, "0" * 16))])
    async with opened(disk_address) as broker:
        assert await take(broker) == b"stranded"
        message = await broker.fetch("q", wait=GRACE_SECONDS + 1)
        assert message is not None
        assert (await message.body.read(), message.receives) == (b"leased", 8)


async def test_a_removal_cut_short_is_finished(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
    async with open_storage(disk_address) as storage:
        (written,) = await storage.commit([Write("q", MessageIds().new(), b"x")])
        assert written.entry is not None
        await storage.commit([Move(written.entry, State.REMOVED)])
    async with opened(disk_address) as broker:
        await trio.testing.wait_all_tasks_blocked()
        assert await take(broker) is None
    async with open_storage(disk_address) as storage:
        assert await storage.scan(State.REMOVED) == []


async def test_a_deleted_queue_stays_deleted_and_a_new_one_empty(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, reaper=False) as broker:
        await broker.create_queue("q")
        for _ in range(3):
            await broker.publish("q", b"old")
        await take(broker)
        await broker.delete_queue("q")
    async with opened(disk_address) as broker:
        assert not await broker.has_queue("q")
        await broker.create_queue("q")
        await trio.sleep(100)
        assert await take(broker) is None


async def test_a_backlog_longer_than_a_round_is_in_order_at_once(
    disk_address: str, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.broker.mover.LARGEST_ROUND", 10)
    monkeypatch.setattr("mq.broker.upkeep.LARGEST_ROUND", 10)
    ids = MessageIds()
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
    async with open_storage(disk_address) as storage:
        writes = [Write("q", ids.new(), b"%d" % number) for number in range(35)]
        await storage.commit(writes)
    async with opened(disk_address) as broker:
        assert [await take(broker) for _ in range(35)] == [b"%d" % number for number in range(35)]
