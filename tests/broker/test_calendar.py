"""What is far off: delays of years, times that were said, and clocks that are years wrong meanwhile."""

from __future__ import annotations

import logging
import tracemalloc
from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft, open_broker
from mq.broker.calendar import LOOK_SECONDS, NEAR_SECONDS
from mq.broker.clock import PATIENCE_SECONDS
from mq.broker.index import FarOff
from mq.errors import InvalidSetting, NoSuchMessage, NotLeased
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import Entry, Meta
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import Opener, WallClock
from tests.broker.inside import catalog_of
from tests.broker.test_broker import take
from tests.cases import proof

DAY: Final = 86_400.0
YEAR: Final = 365 * DAY
_LONGEST: Final = 315_576_000


async def delayed(broker: Broker) -> int:
    await wait_all_tasks_blocked()
    return (await broker.status("q")).delayed


async def consumed(broker: Broker) -> bytes | None:
    """The body of the first message, which is removed; None without one."""
    message = await broker.take("q")
    return None if message is None else await message.body.read()


def at_ms(wall_clock: WallClock, seconds: float) -> int:
    """The instant so many seconds from now by the wall clock."""
    return wall_clock() // 1_000_000 + round(seconds * 1000)


def far_off(broker: Broker) -> int:
    return len(catalog_of(broker).queues["q"].far_off)


@pytest.mark.slow
async def test_a_delay_of_days_comes_when_it_is_time(broker: Broker) -> None:
    await broker.publish("q", b"x", delay=3 * DAY)
    await wait_all_tasks_blocked()
    assert far_off(broker) == 1
    await trio.sleep(3 * DAY - 1)
    assert await take(broker) is None
    assert far_off(broker) == 0, "for half a day it has had a timer"
    await trio.sleep(1.1)
    assert await take(broker) == b"x"


@pytest.mark.parametrize("is_delivered", [False, True])
async def test_the_longest_delay_goes_on_over_restarts(
    disk_address: str, opened: Opener, wall_clock: WallClock, *, is_delivered: bool
) -> None:
    """Also where the first life has left the message in NEW."""
    async with opened(disk_address, mover=is_delivered) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x", delay=_LONGEST)
        await wait_all_tasks_blocked()
    for _ in range(3):
        wall_clock.ahead_seconds += _LONGEST / 3 - DAY
        async with opened(disk_address) as broker:
            broker.clock.trust()
            await trio.sleep(600)
            assert await delayed(broker) == 1
    wall_clock.ahead_seconds += 3 * DAY
    async with opened(disk_address) as broker:
        await trio.sleep(600)
        assert await take(broker) == b"x"


async def test_delay_given_in_a_second_doubt_ends_in_time_for_a_message_that_the_first_made_older(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        id = await broker.publish("q", b"x", delay=_LONGEST)
    for _ in range(2):
        wall_clock.ahead_seconds += YEAR
        async with opened(disk_address) as broker:
            assert broker.clock.doubt
            await broker.reschedule("q", id, delay=3 * DAY)
            broker.clock.trust()
            await trio.sleep(600)
    async with opened(disk_address) as broker:
        await trio.sleep(3 * DAY - 600 - 10)
        assert await delayed(broker) == 1
        await trio.sleep(20)
        assert await consumed(broker) == b"x"


@pytest.mark.slow
@pytest.mark.parametrize("years", [-53, -2])
async def test_delay_goes_on_by_elapsed_time_when_clock_is_behind_at_start(
    disk_address: str, opened: Opener, wall_clock: WallClock, years: int
) -> None:
    """A machine that starts in 1970, and hears later how late it is."""
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"soon", delay=3 * DAY)
        await broker.publish("q", b"later", delay=5 * DAY)
    wall_clock.ahead_seconds = years * YEAR
    async with opened(disk_address) as broker:
        await trio.sleep(DAY / 2)
        assert broker.clock.doubt
        wall_clock.ahead_seconds = 0
        await trio.sleep(2.5 * DAY - 10)
        assert await delayed(broker) == 2
        await trio.sleep(11)
        assert await consumed(broker) == b"soon"
        await trio.sleep(2 * DAY)
        assert await consumed(broker) == b"later"


@pytest.mark.slow
@pytest.mark.parametrize("is_delivered", [False, True])
@pytest.mark.parametrize("years", [2, 80])
async def test_a_clock_that_starts_years_ahead_and_is_set_releases_nothing(
    disk_address: str, opened: Opener, wall_clock: WallClock, years: int, is_delivered: bool
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x", delay=3 * DAY)
        if is_delivered:
            await wait_all_tasks_blocked()
    wall_clock.ahead_seconds = years * YEAR
    async with opened(disk_address) as broker:
        await broker.publish("q", b"with an id of the wrong time")
        assert await consumed(broker) == b"with an id of the wrong time"
        await trio.sleep(2 * LOOK_SECONDS)
        assert await delayed(broker) == 1
        wall_clock.ahead_seconds = 0
        await trio.sleep(2 * DAY)
        assert await delayed(broker) == 1
        await trio.sleep(DAY)
        assert await delayed(broker) == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_trusted", [False, True])
async def test_delay_counts_time_without_a_daemon_once_a_clock_far_ahead_is_trusted(
    disk_address: str, opened: Opener, wall_clock: WallClock, caplog: pytest.LogCaptureFixture, *, is_trusted: bool
) -> None:
    """The daemon was off for two years."""
    caplog.set_level(logging.WARNING)
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x", delay=30 * DAY)
        await broker.publish("q", b"near", delay=DAY / 4)
        await broker.publish("q", b"much later", delay=3 * YEAR)
    wall_clock.ahead_seconds = 2 * YEAR
    async with opened(disk_address) as broker:
        await trio.sleep(3600)
        assert await take(broker) is None
        assert "the wall clock is 730 days ahead of the last time" in caplog.text
        await broker.publish("q", b"new", delay=PATIENCE_SECONDS + DAY)
        if is_trusted:
            broker.clock.trust()
        await trio.sleep(PATIENCE_SECONDS)
        assert {await consumed(broker), await consumed(broker)} == {b"x", b"near"}
        assert ("an operator confirmed it" if is_trusted else "24 hours without a jump") in caplog.text
        assert await delayed(broker) == 2
        await trio.sleep(DAY - 60)
        assert await take(broker) is None
        await trio.sleep(61)
        assert await consumed(broker) == b"new"
        await trio.sleep(PATIENCE_SECONDS)
        assert caplog.text.count("days ahead") == 1


async def test_delay_given_while_clock_was_ahead_comes_in_time_once_the_clock_is_set(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    """Also after a restart, and when another message was published with the delay's own clock."""
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"old", delay=3 * DAY)
    wall_clock.ahead_seconds = 2 * YEAR
    async with opened(disk_address) as broker:
        await broker.publish("q", b"far", delay=2 * DAY)
        await broker.publish("q", b"near", delay=3600)
        await trio.sleep(600)
        wall_clock.ahead_seconds = 0
        await trio.sleep(600)
        assert not broker.clock.doubt
    async with opened(disk_address) as broker:
        assert await delayed(broker) == 3
        await trio.sleep(2400 + 1)
        assert await consumed(broker) == b"near"
        await trio.sleep(2 * DAY - 3600)
        assert await consumed(broker) == b"far"
        await trio.sleep(DAY)
        assert await consumed(broker) == b"old"


@pytest.mark.parametrize("starts", [1, 2])
async def test_time_without_a_daemon_before_a_doubt_does_not_count_for_what_came_during_it(
    disk_address: str, opened: Opener, wall_clock: WallClock, starts: int
) -> None:
    """Neither where the doubt ends with the daemon, and the next start finds a time that fits."""
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"old", delay=DAY)
    await trio.sleep(DAY / 2)
    wall_clock.ahead_seconds = 2 * YEAR
    for number in range(starts):
        async with opened(disk_address) as broker:
            assert broker.clock.doubt
            if not number:
                await broker.publish("q", b"new", delay=DAY)
    wall_clock.ahead_seconds = 0
    async with opened(disk_address) as broker:
        assert not broker.clock.doubt
        await trio.sleep(DAY - 60)
        assert await take(broker) is None
        await trio.sleep(61)
        # Half a day late: a delay of an old message may have been given in the doubt, too, and none ends early.
        assert await consumed(broker) == b"old"
        assert await consumed(broker) == b"new"


@pytest.mark.slow
@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seconds", [-2 * YEAR, -1800.0, 3600.0, 2 * YEAR])
@pytest.mark.parametrize("lasts", [4, proof(600), None])
@pytest.mark.parametrize("delay", [60.0, 3 * DAY])
async def test_delay_counts_elapsed_time_when_the_wall_clock_steps(
    broker: Broker, wall_clock: WallClock, seconds: float, lasts: float | None, delay: float
) -> None:
    await broker.publish("q", b"x", delay=delay)
    wall_clock.ahead_seconds = seconds
    for pause in (delay / 2, delay / 2 - 0.01):
        await trio.sleep(pause if lasts is None else min(pause, lasts))
        if lasts is not None:
            wall_clock.ahead_seconds = 0
            await trio.sleep(pause - min(pause, lasts))
        assert await take(broker) is None
    await trio.sleep(0.02)
    assert await consumed(broker) == b"x"


@pytest.mark.parametrize("seconds", [3 * DAY, 2 * YEAR])
async def test_given_instant_follows_a_wall_clock_that_is_set_ahead_within_a_minute(
    broker: Broker, wall_clock: WallClock, seconds: float
) -> None:
    await broker.publish_many("q", [Draft(b"x", at_ms=at_ms(wall_clock, seconds))])
    await trio.sleep(600)
    wall_clock.ahead_seconds = seconds
    await trio.sleep(60)
    assert await consumed(broker) == b"x"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [30.0, 600.0, 3 * DAY])
async def test_given_instant_follows_a_wall_clock_that_is_set_back(
    broker: Broker, wall_clock: WallClock, seconds: float
) -> None:
    await broker.publish_many("q", [Draft(b"x", at_ms=at_ms(wall_clock, seconds))])
    wall_clock.ahead_seconds = -DAY
    await trio.sleep(seconds + DAY - 1)
    assert await take(broker) is None
    await trio.sleep(2)
    assert await consumed(broker) == b"x"


async def test_given_instant_does_not_follow_a_wrong_clock_of_some_seconds(
    broker: Broker, wall_clock: WallClock
) -> None:
    await broker.publish_many("q", [Draft(b"x", at_ms=at_ms(wall_clock, 3600))])
    await trio.sleep(60)
    wall_clock.ahead_seconds = 2 * YEAR
    await broker.publish_many("q", [Draft(b"while it is wrong", at_ms=at_ms(wall_clock, 3600 - 2 * YEAR))])
    await trio.sleep(5)
    wall_clock.ahead_seconds = 0
    await trio.sleep(3600 - 66)
    assert await take(broker) is None
    await trio.sleep(66)
    assert await consumed(broker) == b"x"
    assert await consumed(broker) == b"while it is wrong"


async def test_given_instant_goes_on_over_a_restart_and_waits_while_the_clock_is_in_doubt(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(b"x", at_ms=at_ms(wall_clock, DAY))])
        [seen] = await broker.peek("q", state="delayed")
        assert seen.at_ms == at_ms(wall_clock, DAY)
    wall_clock.ahead_seconds = 2 * YEAR
    async with opened(disk_address) as broker:
        await trio.sleep(600)
        assert await take(broker) is None
        wall_clock.ahead_seconds = 0
        await trio.sleep(DAY - 601)
        assert await take(broker) is None
        await trio.sleep(2)
        assert await consumed(broker) == b"x"


async def test_a_lease_from_a_clock_that_was_ahead_lasts_half_a_day_at_the_longest(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        await take(broker)
    wall_clock.ahead_seconds = -2 * YEAR
    async with opened(disk_address) as broker:
        assert far_off(broker) == 0
        await trio.sleep(NEAR_SECONDS + 1)
        assert await take(broker) == b"x"


# What can be done with one that waits


async def test_what_is_far_off_is_seen_and_counted_and_can_be_removed(broker: Broker) -> None:
    ids = [await broker.publish("q", b"%d" % number, delay=YEAR, ttl=2 * YEAR) for number in range(3)]
    assert await delayed(broker) == 3
    assert [seen.message.id for seen in await broker.peek("q", state="delayed")] == ids
    assert [seen.message.id for seen in await broker.peek("q", state="delayed", after=ids[0], most=1)] == ids[1:2]
    assert (await broker.show("q", ids[1])).state == "delayed"
    await broker.remove("q", ids[1])
    with pytest.raises(NoSuchMessage):
        await broker.remove("q", ids[1])
    assert await delayed(broker) == 2
    assert await broker.purge("q") == 2
    assert broker.messages() == 0


async def test_what_is_far_off_counts_for_limits_and_goes_with_its_queue(broker: Broker) -> None:
    await broker.change_settings("q", {"max_messages": 2, "overflow": "drop-head"})
    for number in range(3):
        await broker.publish("q", b"%d" % number, delay=YEAR)
    assert await delayed(broker) == 2
    await broker.delete_queue("q")
    await broker.create_queue("q")
    await wait_all_tasks_blocked()
    assert broker.messages() == 0


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("before", [60, 2 * DAY])
@pytest.mark.parametrize("after", [0, 30, 3 * DAY])
async def test_the_time_of_one_that_waits_can_be_changed(
    broker: Broker, wall_clock: WallClock, before: float, after: float
) -> None:
    id = await broker.publish("q", b"x", delay=before)
    await broker.reschedule("q", id, delay=after)
    await trio.sleep(max(0.0, after - 0.01))
    assert await take(broker) is None or not after
    await trio.sleep(0.02)
    if after:
        assert await take(broker) == b"x"
    assert (await broker.status("q")).delayed == 0


async def test_a_changed_time_goes_on_over_a_restart(disk_address: str, opened: Opener, wall_clock: WallClock) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        id = await broker.publish("q", b"x", delay=YEAR)
        await broker.reschedule("q", id, at_ms=wall_clock() // 1_000_000 + 5000)
    async with opened(disk_address) as broker:
        assert await take(broker) is None
        await trio.sleep(5.1)
        assert await take(broker) == b"x"


async def test_only_what_waits_has_a_time_to_change(broker: Broker) -> None:
    id = await broker.publish("q", b"x")
    with pytest.raises(NotLeased, match="its delay cannot be changed"):
        await broker.reschedule("q", id, delay=5)
    await take(broker)
    with pytest.raises(NotLeased):
        await broker.reschedule("q", id, delay=5)
    with pytest.raises(NoSuchMessage):
        await broker.reschedule("q", MessageIds().new(), delay=5)
    for wrong in (-1.0, _LONGEST + 1.0):
        with pytest.raises(InvalidSetting):
            await broker.reschedule("q", id, delay=wrong)


async def test_many_that_are_far_off_come_in_their_order_whatever_was_taken_out() -> None:
    ids = MessageIds()
    there = FarOff("q")
    entries = [Entry("q", ids.new(), State.DELAYED, Meta(1000 + number % 7, number % 2)) for number in range(500)]
    for entry in entries:
        key = entry.id.key
        there.add(entry, key)
        there.add(entry._replace(meta=entry.meta._replace(deadline_ms=2000)), key)
        there.add(entry, key)
    for entry in entries[100:]:
        assert there.discard(entry.id) == entry
        assert there.find(entry.id) is None
    left = entries[:100]
    assert sorted(there) == sorted(left)
    assert there.after(left[49].id.key, 10) == left[50:60]
    assert there.take(999, 100) == []
    first = there.take(1003, 50)
    assert len(first) == 50
    assert first + there.take(5000, 1000) == sorted(left, key=lambda entry: (entry.meta.deadline_ms, entry.id.key))
    assert len(there) == 0
    assert there.discard(left[0].id) is None


@pytest.mark.slow
async def test_one_that_is_far_off_takes_at_most_300_bytes(wall_clock: WallClock) -> None:
    """A million for a year fit into 300 MB. Counted in a broker's index, at a number just above a dictionary's resize,
    where it is at its largest."""
    count = 175_000 // 8
    ids = MessageIds(wall_clock)
    async with open_broker(MemoryStorage(), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        catalog = catalog_of(broker)
        deadline_ms = wall_clock() // 1_000_000 + round(YEAR * 1000)
        await broker.publish("q", b"x", delay=YEAR)
        await wait_all_tasks_blocked()
        tracemalloc.start()
        try:
            for number in range(count):
                catalog.place(Entry("q", ids.new(), State.DELAYED, Meta(deadline_ms + number)))
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert far_off(broker) == count + 1
        assert taken / count <= 300
