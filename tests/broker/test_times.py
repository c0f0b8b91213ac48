"""Delays and times to live: of a message and of its queue, over restarts and clocks that are set."""

from __future__ import annotations

from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft
from mq.errors import InvalidSetting
from tests.broker.conftest import Opener, WallClock
from tests.broker.inside import wiring_of
from tests.broker.test_broker import take

YEAR: Final = 365 * 86_400.0


async def comes_after(broker: Broker) -> float:
    started = trio.current_time()
    message = await broker.fetch("q", wait=100_000)
    assert message is not None
    return trio.current_time() - started


@pytest.mark.parametrize(
    ("of_queue", "of_message", "seconds"),
    [(0, 5, 5), (5, None, 5), (5, 0, 0), (5, 0.25, 0.25), (5, 43_200, 43_200), (43_200, None, 43_200)],
)
async def test_a_delay_is_the_messages_or_else_the_queues(
    broker: Broker, of_queue: float, of_message: float | None, seconds: float
) -> None:
    await broker.change_settings("q", {"delay": of_queue})
    await broker.publish("q", b"x", delay=of_message)
    assert await comes_after(broker) == pytest.approx(seconds, abs=0.002)


async def test_a_delay_goes_on_over_a_restart(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x", delay=100)
        await trio.sleep(30)
    async with opened(disk_address) as broker:
        await trio.sleep(30)
    await trio.sleep(30)
    async with opened(disk_address) as broker:
        assert (await broker.status("q")).delayed == 1
        assert await comes_after(broker) == pytest.approx(10, abs=0.002)


async def test_what_waited_is_in_its_place_when_it_comes(broker: Broker) -> None:
    await broker.publish("q", b"first", delay=5)
    await broker.publish("q", b"second")
    await trio.sleep(6)
    assert [await take(broker), await take(broker)] == [b"first", b"second"]


@pytest.mark.parametrize(
    ("of_queue", "of_message", "seconds"),
    [(None, 5, 5), (5, None, 5), (5, 7, 5), (7, 5, 5), (None, 0.001, 0.001), (None, 315_576_000, 315_576_000)],
)
async def test_a_time_to_live_is_the_shorter_of_both(
    broker: Broker, of_queue: float | None, of_message: float | None, seconds: float
) -> None:
    await broker.change_settings("q", {"ttl": of_queue})
    await broker.publish("q", b"x", ttl=of_message)
    await wait_all_tasks_blocked()
    await trio.sleep(seconds - 0.0009)
    assert (await broker.status("q")).ready == 1
    await trio.sleep(0.002)
    await wait_all_tasks_blocked()
    assert (await broker.status("q")).ready == 0
    assert await take(broker) is None


@pytest.mark.parametrize("wrong", [{"delay": -0.1}, {"delay": 315_576_001}, {"ttl": 0}, {"ttl": 315_576_001}])
async def test_times_out_of_range_are_refused_and_store_nothing(broker: Broker, wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(wrong))):
        await broker.publish("q", b"x", **wrong)
    assert broker.messages() == 0


async def test_a_time_to_live_goes_on_over_a_restart(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x", ttl=50)
        await broker.publish("q", b"y", ttl=70)
    await trio.sleep(60)
    async with opened(disk_address) as broker:
        assert await take(broker) == b"y"
        assert await take(broker) is None


async def test_what_expires_while_it_is_leased_is_its_holders_to_the_end_and_nobodys_then(broker: Broker) -> None:
    await broker.publish("q", b"x", ttl=10)
    message = await broker.fetch("q")
    assert message is not None
    await trio.sleep(20)
    await broker.extend("q", message.id, 30, receipt=message.receipt)
    await trio.sleep(31)
    assert await take(broker) is None
    await wait_all_tasks_blocked()
    assert (await broker.status("q")).leased == 0


async def test_what_expires_before_its_delay_is_over_never_comes(broker: Broker) -> None:
    await broker.publish("q", b"x", delay=20, ttl=10)
    assert await broker.fetch("q", wait=60) is None
    assert broker.messages() == 0


async def test_expired_message_is_not_delivered_while_dead_letters_wait(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    """They wait for a door's sink, so the expired message is still in the index."""
    async with opened(disk_address, awaits_sink=True) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x", ttl=10)
        await trio.sleep(11)
        assert await take(broker) is None
        assert await broker.take("q") is None


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seconds", [-30 * YEAR, -1800.0, 5 * 86_400.0, 2 * YEAR, 30 * YEAR])
@pytest.mark.parametrize("lasts", [4, 600, 86_400])
@pytest.mark.parametrize("ttl", [100_000.0, 400_000.0])
async def test_time_to_live_counts_elapsed_time_when_the_wall_clock_steps(
    broker: Broker, wall_clock: WallClock, seconds: float, lasts: float, ttl: float
) -> None:
    """Also when a client asks while the clock is wrong."""
    await broker.publish_many("q", [Draft(b"x", ttl=ttl)] * 3)
    wall_clock.ahead_seconds = seconds
    for _ in range(4):
        message = await broker.fetch("q", visibility=1)
        assert message is not None
        await broker.requeue("q", message.id)
        await trio.sleep(lasts / 4.001)
    wall_clock.ahead_seconds = 0
    await trio.sleep(ttl - lasts - 1)
    assert (await broker.status("q")).ready == 3
    await trio.sleep(2 + lasts)
    assert (await broker.status("q")).ready == 0


@pytest.mark.parametrize("seconds", [-2 * YEAR, 5 * 86_400.0, 2 * YEAR])
async def test_nothing_expires_after_a_start_with_a_clock_in_doubt(
    disk_address: str, opened: Opener, wall_clock: WallClock, seconds: float
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x", ttl=86_400)
    wall_clock.ahead_seconds = seconds
    async with opened(disk_address) as broker:
        await broker.publish("q", b"y", ttl=600)
        await trio.sleep(1200)
        assert (await broker.status("q")).ready == 2
        wall_clock.ahead_seconds = 0
        await trio.sleep(1200)
        assert not broker.clock.doubt
        assert (await broker.status("q")).ready == 1
    async with opened(disk_address) as broker:
        assert not broker.clock.doubt
        assert await take(broker) == b"x"


async def test_clock_in_doubt_at_a_start_is_trusted_and_what_is_over_expires(
    disk_address: str, opened: Opener, wall_clock: WallClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not what came meanwhile: its time to live is counted from then."""
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(b"x", ttl=86_400)] * 20)
    wall_clock.ahead_seconds = 30 * 86_400.0
    async with opened(disk_address) as broker:
        await broker.publish("q", b"y", ttl=3600)
        await trio.sleep(600)
        assert (await broker.status("q")).ready == 21
        broker.clock.trust()
        await wait_all_tasks_blocked()
        assert (await broker.status("q")).ready == 1
        await trio.sleep(2980)
        assert (await broker.status("q")).ready == 1
        assert "20 messages expired in queue q" in caplog.text
        await trio.sleep(30)
        assert (await broker.status("q")).ready == 0


async def test_timers_of_what_would_expire_in_years_take_no_room_once_it_is_gone(broker: Broker) -> None:
    await broker.create_queue("other")
    for number in range(300):
        id = await broker.publish("q" if number % 2 else "other", b"x", ttl=315_576_000)
        if number % 2:
            for _ in range(2):
                assert await take(broker) == b"x"
                await broker.requeue("q", id)
            await broker.remove("q", id)
    await wait_all_tasks_blocked()
    await broker.delete_queue("other")
    await wait_all_tasks_blocked()  # its timers go after it, by and by
    assert not wiring_of(broker).upkeep._expiry.due
    assert len(wiring_of(broker).upkeep._expiry._heap) < 100


@pytest.mark.slow
async def test_a_thousand_delayed_and_expiring_messages_need_no_task_each(broker: Broker) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    await broker.publish_many("q", [Draft(b"x", delay=500, ttl=1000)] * 400)
    await broker.publish_many("q", [Draft(b"x", ttl=1000)] * 600)
    assert len(await broker.fetch_many("q", 500)) == 500
    after = trio.lowlevel.current_statistics().tasks_living
    assert after == before


# At a time


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 60, 3 * 86_400])
async def test_at_a_time_it_can_be_fetched_whatever_the_queues_delay_is(
    broker: Broker, wall_clock: WallClock, seconds: float
) -> None:
    await broker.change_settings("q", {"delay": 5})
    await broker.publish_many("q", [Draft(b"x", at_ms=wall_clock() // 1_000_000 + round(seconds * 1000))])
    started = trio.current_time()
    await trio.sleep(max(0.0, seconds - 10))
    await comes_after(broker)
    assert trio.current_time() - started == pytest.approx(seconds, abs=0.002)


async def test_a_time_that_is_over_is_at_once(broker: Broker, wall_clock: WallClock) -> None:
    for at_ms in (wall_clock() // 1_000_000, 0, -5):
        await broker.publish_many("q", [Draft(b"x", at_ms=at_ms)])
        assert await take(broker) == b"x"


async def test_a_time_and_a_delay_or_one_too_far_away_are_refused(broker: Broker, wall_clock: WallClock) -> None:
    now_ms = wall_clock() // 1_000_000
    drafts = [Draft(b"x", delay=0, at_ms=now_ms + 1000), Draft(b"x", at_ms=now_ms + 315_576_001_000)]
    both, far = await broker.publish_many("q", drafts)
    assert isinstance(both, InvalidSetting)
    assert "not both" in str(both)
    assert isinstance(far, InvalidSetting)
    assert "ten years" in str(far)
    assert broker.messages() == 0
