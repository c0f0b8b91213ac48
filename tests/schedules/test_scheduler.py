"""Schedules fire once for an instant: over restarts, kills, clocks that jump, queues that are gone or full."""

from __future__ import annotations

import logging
from typing import Any, Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft
from mq.broker.clock import LOOK_SECONDS, SETTLE_SECONDS
from mq.errors import BodyTooLarge, Conflict, InvalidSetting, NoSuchQueue, StorageFull, StorageUnsure
from mq.message import QueueName
from mq.schedules import scheduler as module
from mq.schedules.schedule import LARGEST_BODY, Schedule
from mq.schedules.scheduler import RETRY_SECONDS, Fate, Firing, NoSuchSchedule, Progress, Scheduler
from tests.broker.conftest import Opener, WallClock
from tests.schedules.conftest import Served

HOUR: Final = 3600.0
DAY: Final = 86_400.0
START: Final = "2023-11-14T22:13:20Z"
"""When the clock of the tests begins."""
STEP_SECONDS: Final = LOOK_SECONDS + SETTLE_SECONDS + 1
"""After so long cron lines follow a wall clock that was set."""


def every(seconds: float, name: str = "s", **more: Any) -> Schedule:
    draft = Draft(more.pop("body", b"hello"), more.pop("attributes", {}))
    return Schedule(QueueName(name), QueueName(more.pop("queue", "q")), draft, every=seconds, **more)


def daily(name: str = "s", **more: Any) -> Schedule:
    return every(0, name, **more)._replace(every=None, cron="0 3 * * *")


def hourly(name: str = "s", **more: Any) -> Schedule:
    return every(0, name, **more)._replace(every=None, cron="0 * * * *")


async def ready(broker: Broker, queue: str = "q") -> int:
    await wait_all_tasks_blocked()
    return (await broker.status(queue)).ready


async def instants(broker: Broker, queue: str = "q") -> list[str]:
    """For which instants messages are there; takes them out."""
    await wait_all_tasks_blocked()
    found = []
    while (message := await broker.take(queue)) is not None:
        found.append(message.properties.attributes["attributes"]["mq-schedule-instant"])
        await message.body.aclose()
    return found


async def test_it_fires_at_each_instant(served: Served) -> None:
    async with served() as (broker, scheduler):
        assert await scheduler.put(every(60, attributes={"content_type": "text/plain", "attributes": {"a": "b"}}))
        await trio.sleep(59)
        assert await ready(broker) == 0
        await trio.sleep(1)
        assert await ready(broker) == 1
        message = await broker.take("q")
        assert message is not None
        assert await message.body.read() == b"hello"
        assert message.properties.attributes == {
            "content_type": "text/plain",
            "attributes": {"a": "b", "mq-schedule": "s", "mq-schedule-instant": "2023-11-14T22:14:20Z"},
        }
        await trio.sleep(180)
        assert await instants(broker) == [f"2023-11-14T22:{minute}:20Z" for minute in (15, 16, 17)]
        status = scheduler.status("s")
        assert (status.last_ms, status.next_ms, status.error) == (1_700_000_240_000, 1_700_000_300_000, "")


async def test_a_cron_line_fires_in_its_zone(served: Served) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(daily()._replace(zone="Europe/Berlin"))
        await trio.sleep(2 * DAY)
        assert await instants(broker) == ["2023-11-15T02:00:00Z", "2023-11-16T02:00:00Z"]


async def test_what_was_missed_comes_once(served: Served, wall_clock: WallClock) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(60))
        await trio.sleep(60)
        assert await ready(broker) == 1
    wall_clock.ahead_seconds += 3 * DAY + 30
    async with served() as (broker, scheduler):
        assert await ready(broker) == 2
        assert await instants(broker) == ["2023-11-14T22:14:20Z", "2023-11-17T22:14:20Z"]
        await trio.sleep(30)
        assert await instants(broker) == ["2023-11-17T22:15:20Z"], "from now on as before"


async def test_a_restart_after_an_instant_fires_nothing(served: Served) -> None:
    for _ in range(3):
        async with served() as (broker, scheduler):
            if not len(scheduler):
                await scheduler.put(daily())
                await trio.sleep(DAY)
            assert await ready(broker) == 1


async def test_a_schedule_does_not_fire_for_instants_before_it_was_made_or_changed(served: Served) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(daily())
        await trio.sleep(DAY)
        assert await ready(broker) == 1
        await trio.sleep(HOUR)
        await scheduler.put(daily()._replace(cron="30 22 * * *"))
        await scheduler.drop("s")
        await trio.sleep(4 * DAY)
        await scheduler.put(daily())
    async with served() as (broker, scheduler):
        assert await ready(broker) == 1, "the restart has found what the deleted one had noted"


def _killed_after(monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    """The scheduler stops for ever at its note of that number, counted from 0, and has not made it."""
    note, calls = Progress.note, iter(range(100))

    async def stop(self: Progress, firings: dict[str, Firing]) -> None:
        if next(calls) >= which:
            await trio.sleep_forever()
        await note(self, firings)

    monkeypatch.setattr(Progress, "note", stop)


async def test_a_kill_before_a_publish_that_was_begun_loses_nothing(served: Served) -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with served() as (broker, scheduler):
            await scheduler.put(daily())

            async def stop(*_: Any) -> Any:
                await trio.sleep_forever()

            patch.setattr(broker, "publish_many", stop)
            await trio.sleep(DAY / 2)
            assert await ready(broker) == 0
    for _ in range(2):
        async with served() as (broker, scheduler):
            assert await ready(broker) == 1


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("consumed", [False, True])
async def test_a_kill_while_it_fires_doubles_nothing(
    served: Served, wall_clock: WallClock, which: int, consumed: bool
) -> None:
    """Before its message is published, or after, and before that is noted."""
    with pytest.MonkeyPatch.context() as patch:
        async with served() as (broker, scheduler):
            await scheduler.put(daily())
            _killed_after(patch, which)
            await trio.sleep(DAY)
            assert await ready(broker) == which
            if consumed:
                await instants(broker)
    async with served() as (broker, scheduler):
        assert await ready(broker) == (0 if which and consumed else 1)
        await trio.sleep(60)
    async with served() as (broker, scheduler):
        assert await ready(broker) == (0 if which and consumed else 1)


async def test_what_a_kill_left_in_doubt_is_done_when_its_key_is_forgotten(
    served: Served, wall_clock: WallClock
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with served() as (broker, scheduler):
            await scheduler.put(daily()._replace(cron="0 3 14 * *"))
            _killed_after(patch, 1)
            wall_clock.ahead_seconds += 30 * DAY
            await trio.sleep(STEP_SECONDS)
            assert await instants(broker) == ["2023-12-14T03:00:00Z"]
    wall_clock.ahead_seconds += 10 * DAY
    async with served() as (broker, scheduler):
        broker.clock.trust()
        assert await ready(broker) == 0
        wall_clock.ahead_seconds += 30 * DAY
        await trio.sleep(STEP_SECONDS)
        assert await instants(broker) == ["2024-01-14T03:00:00Z"]


async def test_unless_the_last_is_still_there(served: Served) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(60, unless_waiting=True))
        await trio.sleep(200)
        assert await ready(broker) == 1
        assert scheduler.fates == {Fate.PUBLISHED: 1, Fate.SKIPPED: 2}
        [message] = await broker.fetch_many("q", 1, visibility=DAY / 2)
        await message.body.aclose()
        await trio.sleep(60)
        assert scheduler.fates[Fate.SKIPPED] == 3, "leased is there, too"
    async with served() as (broker, scheduler):
        await trio.sleep(60)
        assert scheduler.fates == {Fate.SKIPPED: 1}
        await broker.remove("q", message.id)
        await trio.sleep(60)
        assert scheduler.fates == {Fate.SKIPPED: 1, Fate.PUBLISHED: 1}


@pytest.mark.parametrize("seconds", [1, 60])
async def test_a_full_queue_is_tried_again(served: Served, caplog: pytest.LogCaptureFixture, seconds: int) -> None:
    async with served() as (broker, scheduler):
        await broker.change_settings("q", {"max_messages": 1})
        await scheduler.put(every(seconds))
        await trio.sleep(seconds)
        assert await ready(broker) == 1
        await trio.sleep(61)
        assert "Try again later" in scheduler.status("s").error
        assert scheduler.fates[Fate.FAILED] <= 1 + 60 / RETRY_SECONDS
        await instants(broker)
        await trio.sleep(RETRY_SECONDS)
        assert await ready(broker) == 1
        assert scheduler.fates[Fate.PUBLISHED] == 2
    assert len([record for record in caplog.records if record.name == module.logger.name]) == 1


async def test_a_queue_that_is_deleted_is_told_until_it_is_there_again(served: Served) -> None:
    async with served() as (broker, scheduler):
        with pytest.raises(NoSuchQueue, match="PUT /other"):
            await scheduler.put(every(60, queue="other"))
        await broker.create_queue("other")
        await scheduler.put(every(60, queue="other"))
        await broker.delete_queue("other")
        await trio.sleep(3 * 60)
        assert scheduler.status("s").error == 'queue "other" does not exist. Create it with PUT /other'
        await broker.create_queue("other")
        await trio.sleep(RETRY_SECONDS)
        assert await instants(broker, "other") == ["2023-11-14T22:16:20Z"]


@pytest.mark.parametrize("error", [StorageFull("no room"), StorageUnsure("no answer")])
async def test_a_store_that_takes_nothing(served: Served, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(60))
        with monkeypatch.context() as patch:

            async def fails(*_: Any) -> Any:
                raise error

            patch.setattr(Broker, "publish_many", fails)
            await trio.sleep(65)
            assert scheduler.status("s").error == str(error)
        await trio.sleep(30)
        assert await ready(broker) == (1 if isinstance(error, StorageFull) else 0), "it might be there twice"
        await trio.sleep(60)
        assert scheduler.status("s").error == ""


async def test_progress_that_cannot_be_noted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(60))

        async def fails(*_: Any) -> Any:
            raise StorageFull("no room")

        put = broker.declarations.put
        monkeypatch.setattr(broker.declarations, "put", fails)
        await trio.sleep(65)
        assert (await ready(broker), scheduler.status("s").error) == (0, "no room"), "nothing is published before"
        monkeypatch.setattr(broker.declarations, "put", put)
        await trio.sleep(RETRY_SECONDS)
        assert await ready(broker) == 1


async def test_cron_line_fires_once_when_wall_clock_is_set_ahead(served: Served, wall_clock: WallClock) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(hourly())
        await trio.sleep(HOUR)
        assert await instants(broker) == ["2023-11-14T23:00:00Z"]
        wall_clock.ahead_seconds += 10 * HOUR
        await trio.sleep(STEP_SECONDS)
        assert await instants(broker) == ["2023-11-15T09:00:00Z"]


async def test_cron_line_repeats_no_instant_and_leaves_none_out_when_wall_clock_is_set_back(
    served: Served, wall_clock: WallClock
) -> None:
    """For ten minutes the clock was hours ahead: the instant that came too early is the only one that does not come."""
    async with served() as (broker, scheduler):
        await scheduler.put(hourly())
        wall_clock.ahead_seconds += 5 * HOUR
        await trio.sleep(600)
        assert await instants(broker) == ["2023-11-15T03:00:00Z"]
        wall_clock.ahead_seconds = 0
        await trio.sleep(6 * HOUR)
        assert await instants(broker) == [
            *(f"2023-11-{day}:00:00Z" for day in ("14T23", "15T00", "15T01", "15T02", "15T04"))
        ]


async def test_cron_line_that_fired_while_clock_was_ahead_is_kept_over_a_restart(
    served: Served, wall_clock: WallClock
) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(hourly())
        wall_clock.ahead_seconds += 2 * HOUR
        await trio.sleep(600)
        assert await instants(broker) == ["2023-11-15T00:00:00Z"]
        wall_clock.ahead_seconds = 0
        await trio.sleep(STEP_SECONDS)
    async with served() as (broker, scheduler):
        await trio.sleep(3 * HOUR)
        assert await instants(broker) == ["2023-11-14T23:00:00Z", "2023-11-15T01:00:00Z"]


@pytest.mark.parametrize("seconds", [-30 * 365 * DAY, -300, 10 * HOUR, 2 * 365 * DAY])
async def test_every_fires_by_elapsed_time_whatever_the_wall_clock_shows(
    served: Served, wall_clock: WallClock, seconds: float
) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(60))
        await trio.sleep(61)
        wall_clock.ahead_seconds += seconds
        await trio.sleep(300)
        wall_clock.ahead_seconds -= seconds
        await trio.sleep(240)
        assert await ready(broker) == 10


@pytest.mark.parametrize("seconds", [0, -30, -55])
async def test_every_leaves_no_instant_out_after_a_start_at_which_steady_time_went_back(
    served: Served, wall_clock: WallClock, seconds: float
) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(10))
        await trio.sleep(101)
        before = await instants(broker)
        assert len(before) == 10
    wall_clock.ahead_seconds = seconds  # less than a doubt needs: the start goes by what the wall clock shows
    async with served() as (broker, scheduler):
        for _ in range(9):
            await trio.sleep(10)
            (instant,) = await instants(broker)
            assert instant > max(before)
            before.append(instant)


@pytest.mark.parametrize("years", [-2, 2])
async def test_no_schedule_fires_while_the_clock_is_in_doubt_after_a_start(
    served: Served, wall_clock: WallClock, years: int
) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(hourly())
        await scheduler.put(every(60)._replace(name=QueueName("steady")))
    wall_clock.ahead_seconds = years * 365 * DAY
    async with served() as (broker, scheduler):
        await trio.sleep(2 * HOUR)
        assert await ready(broker) == 0
        wall_clock.ahead_seconds = 0
        await trio.sleep(STEP_SECONDS + 61)
        assert sorted((await instants(broker))[:2]) == ["2023-11-15T00:00:00Z", "2023-11-15T00:13:20Z"]


async def test_a_schedule_of_another_kind_of_time_fires_from_its_change_on(served: Served) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(60))
        await trio.sleep(61)
        await scheduler.put(hourly()._replace(name=QueueName("s")))
        assert scheduler.status("s").last_ms is None
        await trio.sleep(HOUR)
        assert len(await instants(broker)) == 2


@pytest.mark.parametrize("restart", [False, True])
async def test_a_clock_that_was_years_ahead_stops_no_schedule(
    served: Served, wall_clock: WallClock, restart: bool
) -> None:
    wall_clock.ahead_seconds = 900 * DAY
    async with served() as (broker, scheduler):
        await scheduler.put(every(60))
        await trio.sleep(61)
        wall_clock.ahead_seconds = 0
        await trio.sleep(120)
        assert await ready(broker) == 3
        if not restart:
            await trio.sleep(120)
            assert await ready(broker) == 5
    if restart:
        async with served() as (broker, scheduler):
            await trio.sleep(120)
            assert await ready(broker) == 5


async def test_one_is_replaced_while_it_fires(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(60))
        publish_many = broker.publish_many

        async def slowly(*given: Any) -> Any:
            await trio.sleep(5)
            return await publish_many(*given)

        monkeypatch.setattr(broker, "publish_many", slowly)
        await trio.sleep(62)
        assert not await scheduler.put(every(60, body=b"new"))
        assert trio.current_time() % 60 == 5, "it waits for the firing"
        monkeypatch.undo()
        await trio.sleep(60)
        assert [await message.body.read() for message in await broker.fetch_many("q", 9)] == [b"hello", b"new"]


async def test_many_at_once_cost_few_writes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (broker, scheduler):
        puts: list[str] = []
        put = broker.declarations.put

        async def counted(kind: str, *more: Any) -> None:
            puts.append(kind)
            await put(kind, *more)

        for number in range(300):
            await scheduler.put(every(3600, f"s{number}"))
        monkeypatch.setattr(broker.declarations, "put", counted)
        await trio.sleep(3600)
        assert await ready(broker) == 300
        assert puts.count("firing") == 32, "not one for each"
        await trio.sleep(3600)
        assert await ready(broker) == 600


async def test_a_deleted_one_fires_no_more(served: Served) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(60))
        await scheduler.put(every(60, "t"))
        await scheduler.drop("s")
        for refused in (scheduler.drop("s"), scheduler.drop("x" * 5000)):
            with pytest.raises(NoSuchSchedule, match="does not exist"):
                await refused
        with pytest.raises(NoSuchSchedule):
            scheduler.status("s")
        assert scheduler.names() == ["t"]
        await trio.sleep(60)
        assert await ready(broker) == 1
    async with served() as (broker, scheduler):
        assert scheduler.names() == ["t"]


async def test_what_makes_no_sense_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (_, scheduler):
        for wrong, error in (
            (daily()._replace(cron="0 0 31 2,4 *"), InvalidSetting),
            (daily()._replace(cron="0 0 */31 * MON#5"), InvalidSetting),
            (daily()._replace(zone="Mars/Olympus"), InvalidSetting),
            (every(60, body=bytes(LARGEST_BODY + 1)), BodyTooLarge),
        ):
            with pytest.raises(error):
                await scheduler.put(wrong)
        monkeypatch.setattr(module, "MOST_SCHEDULES", 1)
        await scheduler.put(every(60))
        await scheduler.put(every(90))
        with pytest.raises(Conflict, match="the maximum"):
            await scheduler.put(every(60, "another"))
        assert len(scheduler) == 1


async def test_messages_of_all_schedules_are_limited_in_bytes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    async with served() as (_, scheduler):
        await scheduler.put(every(60, "a", body=bytes(600)))
        await scheduler.put(every(60, "b", body=bytes(300)))
        with pytest.raises(Conflict, match="must not exceed 1000 bytes in total"):
            await scheduler.put(every(60, "c", body=bytes(300)))
        with pytest.raises(Conflict, match="must not exceed 1000 bytes in total"):
            await scheduler.put(every(60, "b", body=bytes(500)))
        await scheduler.put(every(60, "a", body=bytes(10)))
        await scheduler.put(every(60, "c", body=bytes(300)))
        await scheduler.drop("b")
    async with served() as (_, scheduler):  # those of the store count
        await scheduler.put(every(60, "d", body=bytes(600)))
        with pytest.raises(Conflict, match="must not exceed 1000 bytes in total"):
            await scheduler.put(every(60, "e", body=bytes(300)))


async def test_schedule_that_is_changed_very_often_leaves_few_due_times(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SPARE_DUE", 10)
    async with served() as (broker, scheduler):
        for _ in range(100):
            await scheduler.put(every(60))
        assert max(map(len, scheduler._heaps.values())) <= 12
        await scheduler.put(daily())
        await trio.sleep(61)
        assert (await broker.status("q")).ready == 0  # it fires by its cron line now
        await scheduler.put(every(60))
        await trio.sleep(61)
        assert (await broker.status("q")).ready == 1


async def test_where_others_change_the_store_there_are_none(
    opened: Opener, disk_address: str, served: Served, wall_clock: WallClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(60))
    async with opened(disk_address) as broker:
        scheduler = Scheduler(broker, refusal="not with peers")
        await scheduler.load()
        await scheduler.run()  # ends at once
        with pytest.raises(Conflict, match="not with peers"):
            await scheduler.put(every(60))
        assert scheduler.names() == ["s"]
        await scheduler.drop("s")
    assert "cannot run any schedules (stored schedules: 1): not with peers" in caplog.text


async def test_records_that_cannot_be_read_stop_nothing(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (broker, scheduler):
        await scheduler.put(every(60))
        await scheduler.put(daily("far"))
        record = daily("far")._replace(zone="Europe/Atlantis").record()
        await broker.declarations.put("schedule", "far", record)
        await broker.declarations.put("schedule", "odd", {"name": "odd"})
    with caplog.at_level(logging.ERROR):
        async with served() as (broker, scheduler):
            assert scheduler.names() == ["far", "s"]
            assert "Europe/Atlantis" in scheduler.status("far").error
            assert scheduler.status("far").next_ms is None
            await trio.sleep(60)
            assert await ready(broker) == 1
    assert 'ignoring schedule "odd", because its record cannot be read' in caplog.text
