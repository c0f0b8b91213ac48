"""Leases: as long as was said, extended and given back by their holder only, over restarts."""

from __future__ import annotations

from typing import Final

import pytest
import trio

from mq.broker import Broker, Removal
from mq.broker.config import GRACE_SECONDS
from mq.errors import InvalidSetting, NoSuchMessage, NotLeased, ReceiptMismatch
from mq.message import Message
from tests.broker.conftest import Opener, WallClock
from tests.broker.inside import wiring_of
from tests.broker.test_broker import take
from tests.cases import for_each

STEPS: Final = (-30 * 365 * 86_400.0, -1800.0, 3 * 86_400.0, 2 * 365 * 86_400.0)
"""Seconds by which a wall clock is set."""


async def fetch(broker: Broker, visibility: float | None = None) -> Message:
    message = await broker.fetch("q", visibility=visibility)
    assert message is not None
    return message


async def lasts(broker: Broker, seconds: float) -> bool:
    """Whether the one message of the queue is held for just so long from now."""
    started = trio.current_time()
    message = await broker.fetch("q", wait=100_000)
    assert message is not None
    return trio.current_time() - started == pytest.approx(seconds, abs=0.002)


@pytest.mark.parametrize(
    ("of_queue", "of_fetch", "seconds"),
    [(None, None, 30), (0.25, None, 0.25), (None, 0.001, 0.001), (0.25, 600, 600), (43_200, None, 43_200)],
)
async def test_a_lease_lasts_as_long_as_the_fetch_the_queue_or_the_broker_says(
    broker: Broker, of_queue: float | None, of_fetch: float | None, seconds: float
) -> None:
    await broker.change_settings("q", {"visibility": of_queue})
    await broker.publish("q", b"x")
    await fetch(broker, of_fetch)
    assert await lasts(broker, seconds)


@for_each("visibility", [0, 0.0009, 43_200.1, float("nan"), float("inf")])
async def test_a_lease_of_any_other_length_is_refused(broker: Broker, visibility: float) -> None:
    await broker.publish("q", b"x")
    with pytest.raises(InvalidSetting, match="visibility must be"):
        await broker.fetch("q", visibility=visibility)
    message = await fetch(broker)
    with pytest.raises(InvalidSetting, match="visibility must be"):
        await broker.extend("q", message.id, visibility)


@pytest.mark.parametrize("seconds", [0.5, 30, 600])
async def test_a_lease_is_extended_from_now_on(broker: Broker, seconds: float) -> None:
    await broker.publish("q", b"x")
    message = await fetch(broker)
    await trio.sleep(20)
    await broker.extend("q", message.id, seconds, receipt=message.receipt)
    assert await lasts(broker, seconds)


async def test_a_lease_can_be_extended_again_and_again_by_the_same_receipt(broker: Broker) -> None:
    await broker.publish("q", b"x")
    message = await fetch(broker)
    for _ in range(300):
        await broker.extend("q", message.id, 43_200, receipt=message.receipt)
    assert len(wiring_of(broker).upkeep._mover._heap) < 100
    await broker.remove("q", message.id, receipt=message.receipt)
    assert not wiring_of(broker).upkeep._mover.due


async def test_who_was_too_slow_can_do_nothing_to_what_another_has(broker: Broker) -> None:
    await broker.publish("q", b"x")
    slow = await fetch(broker)
    await trio.sleep(30.01)
    for is_held in (False, True):
        if is_held:
            assert (await fetch(broker)).receives == 2
        with pytest.raises(ReceiptMismatch):
            await broker.remove("q", slow.id, receipt=slow.receipt)
        with pytest.raises(ReceiptMismatch):
            await broker.extend("q", slow.id, 60, receipt=slow.receipt)
        with pytest.raises(ReceiptMismatch):
            await broker.requeue("q", slow.id, receipt=slow.receipt)
        [outcome] = await broker.remove_many("q", [Removal(slow.id, slow.receipt)])
        assert isinstance(outcome, ReceiptMismatch)
    await trio.sleep(29.9)
    assert await take(broker) is None


async def test_what_is_not_leased_can_be_neither_extended_nor_given_back(broker: Broker) -> None:
    ready = await broker.publish("q", b"x")
    delayed = await broker.publish("q", b"x", delay=50)
    for id in (ready, delayed):
        with pytest.raises(NotLeased):
            await broker.extend("q", id, 60)
        with pytest.raises(NotLeased):
            await broker.requeue("q", id)
    message = await fetch(broker)
    await broker.remove("q", message.id)
    with pytest.raises(NoSuchMessage):
        await broker.extend("q", message.id, 60)


async def test_a_receipt_holds_over_a_restart_and_so_does_an_extended_lease(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        message = await fetch(broker)
        await broker.extend("q", message.id, 100, receipt=message.receipt)
    async with opened(disk_address) as broker:
        await trio.sleep(99.9)
        assert await take(broker) is None
        await broker.extend("q", message.id, 0.5, receipt=message.receipt)
    async with opened(disk_address) as broker:
        again = await broker.fetch("q", wait=GRACE_SECONDS + 1)
        assert again is not None
        with pytest.raises(ReceiptMismatch):
            await broker.remove("q", message.id, receipt=message.receipt)
        await broker.remove("q", again.id, receipt=again.receipt)


@pytest.mark.parametrize("step", STEPS)
async def test_a_lease_counts_elapsed_time_when_the_wall_clock_steps(
    broker: Broker, wall_clock: WallClock, step: float
) -> None:
    await broker.publish("q", b"x")
    message = await fetch(broker, 600)
    await broker.publish("q", b"y")
    await fetch(broker, 50)
    wall_clock.ahead_seconds = step
    await trio.sleep(100)
    short = await fetch(broker)
    await broker.remove("q", short.id, receipt=short.receipt)
    await broker.extend("q", message.id, 1000, receipt=message.receipt)
    await trio.sleep(400)
    wall_clock.ahead_seconds = 0
    assert await lasts(broker, 600)


@pytest.mark.parametrize("ahead_seconds", [0.0, 3 * 365 * 86_400.0, -3 * 365 * 86_400.0])
@pytest.mark.parametrize("away_seconds", [0.0, 3.5, 100_000.0])
async def test_who_lives_finds_its_lease_after_a_start_that_outlasted_it(
    disk_address: str, opened: Opener, wall_clock: WallClock, away_seconds: float, ahead_seconds: float
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        message = await fetch(broker, 1)
    await trio.sleep(away_seconds)
    wall_clock.ahead_seconds = ahead_seconds
    async with opened(disk_address) as broker:
        await trio.sleep(GRACE_SECONDS - 0.01)
        assert await take(broker) is None
        await broker.extend("q", message.id, 1, receipt=message.receipt)
        await trio.sleep(0.99)
        assert await take(broker) is None
        await broker.remove("q", message.id, receipt=message.receipt)


async def test_whose_holder_does_not_come_back_is_anybodys_after_the_grace(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        await fetch(broker, 1)
        await broker.publish("q", b"later", delay=1)
    await trio.sleep(100)
    async with opened(disk_address) as broker:
        await trio.testing.wait_all_tasks_blocked()
        assert await take(broker) == b"later"  # it was nobody's
        assert await lasts(broker, GRACE_SECONDS)


async def test_a_short_lease_given_after_the_start_has_no_grace(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
    async with opened(disk_address) as broker:
        await fetch(broker, 0.5)
        assert await lasts(broker, 0.5)


async def test_messages_given_back_are_not_counted_and_only_by_their_holder(broker: Broker) -> None:
    await broker.publish("q", b"x")
    message = await fetch(broker)
    await broker.give_back([message])
    await trio.testing.wait_all_tasks_blocked()
    again = await fetch(broker)
    assert (again.id, again.receives) == (message.id, 1)
    await broker.give_back([message])  # it is the other one's now
    await trio.testing.wait_all_tasks_blocked()
    assert await take(broker) is None


async def test_timers_of_leases_that_were_ended_take_no_room(broker: Broker) -> None:
    for _ in range(200):
        await broker.publish("q", b"x")
        message = await fetch(broker, 43_200)
        await broker.remove("q", message.id, receipt=message.receipt)
    assert len(wiring_of(broker).upkeep._mover._heap) < 100
