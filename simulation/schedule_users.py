"""Schedules over a simulated broker, and a consumer of their messages.

One fires every few seconds of elapsed time, the other by a cron line. The checks hold over all lives of the broker:
each instant has one message at most, no acknowledged message is lost, and a wall clock that steps neither hastens nor
holds up the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

import trio

from mq.broker import Broker, Draft, Published
from mq.broker.api import BrokerAPI
from mq.errors import MQError
from mq.message import QueueName
from mq.schedules.schedule import Schedule
from mq.schedules.scheduler import INSTANT, SCHEDULE, Scheduler
from simulation.claimants import Ask
from simulation.history import History

QUEUE: Final = "t"
PERIOD_SECONDS: Final = 5.0
_SCHEDULES: Final = (
    Schedule(QueueName("every"), QueueName(QUEUE), Draft(b"every"), every=PERIOD_SECONDS),
    Schedule(QueueName("cron"), QueueName(QUEUE), Draft(b"cron"), cron="* * * * *"),
)
_TOLERANCE_SECONDS: Final = 0.01
_ROUNDS: Final = 20
"""Looks of the consumer in one life."""


class ScheduleLedger:
    """The firings of schedules and the messages that came of them, over all lives."""

    def __init__(self, history: History, now: Callable[[], float]) -> None:
        self._history = history
        self._now = now
        self._stored: dict[str, tuple[str, str]] = {}  # schedule and instant, by message
        self._instants: dict[tuple[str, str], str] = {}
        self._gone: set[str] = set()
        self._last: float | None = None  # when the first schedule fired last, in this life
        self._began, self._count = 0.0, 0  # when this life began, and how often that schedule has fired in it

    def begun(self) -> None:
        """Note that a life of the broker begins."""
        self._last, self._began, self._count = None, self._now(), 0

    def stored(self, schedule: str, instant: str, id: str) -> None:
        """Note that the publish of a firing was acknowledged."""
        self._check_unique(schedule, instant, id)
        if id in self._stored:
            return  # it was published before: a queue that repeats no message has not fired
        self._stored[id] = schedule, instant
        if schedule == "every":
            self._last, self._count = self._now(), self._count + 1
            elapsed = self._last - self._began
            if self._count > elapsed / PERIOD_SECONDS + 2:  # the first may be one that was missed
                self._history.violate(f"schedule: {schedule} fired {self._count} times in {elapsed:.3f} s")

    def seen(self, schedule: str, instant: str, id: str) -> None:
        """Note that a message came, and is about to be removed."""
        self._check_unique(schedule, instant, id)
        self._gone.add(id)

    def check_pause(self, *, slow: float) -> None:
        """Check that the first schedule has fired lately. Call it while nothing is in its way."""
        if self._last is not None and self._now() - self._last > PERIOD_SECONDS + slow + _TOLERANCE_SECONDS:
            self._history.violate(f"schedule: every has not fired for {self._now() - self._last:.3f} s")

    def check_lost(self) -> None:
        """Check that nothing is missing, once every message was taken out."""
        for id, (schedule, instant) in self._stored.items():
            if id not in self._gone:
                self._history.violate(f"P1: {id} of schedule {schedule} for {instant} was stored and is not there")

    def _check_unique(self, schedule: str, instant: str, id: str) -> None:
        if self._instants.setdefault((schedule, instant), id) != id:
            self._history.violate(f"schedule: {schedule} has two messages for {instant}")


class _Recorded:
    """A broker whose publishes are recorded."""

    def __init__(self, broker: Broker, ledger: ScheduleLedger) -> None:
        self._broker = broker
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[Published | MQError]:
        outcomes = await self._broker.publish_many(queue, drafts)
        for draft, outcome in zip(drafts, outcomes, strict=True):
            if isinstance(outcome, Published):
                texts = draft.attributes["attributes"]
                self._ledger.stored(texts[SCHEDULE], texts[INSTANT], outcome.id)
        return outcomes


class ScheduleUsers:
    """A scheduler, its schedules, and a consumer.

    Args:
        slow: seconds that one call to the disk may take.
        is_calm: whether the disk has no faults.
    """

    def __init__(self, broker: Broker, ledger: ScheduleLedger, ask: Ask, *, slow: float, is_calm: bool) -> None:
        self._broker = broker
        self._ledger = ledger
        self._ask = ask
        self._slow = slow
        self._is_calm = is_calm

    async def run(self) -> None:
        """Let schedules fire, and consume their messages, for some minutes."""
        self._ledger.begun()
        scheduler = Scheduler(cast(BrokerAPI, _Recorded(self._broker, self._ledger)))
        if not await self._ask(f"make {QUEUE}", lambda: self._make(scheduler)):
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scheduler.run)
            for _ in range(_ROUNDS):
                await trio.sleep(2 * PERIOD_SECONDS)
                if self._is_calm and not self._broker.clock.doubt:
                    self._ledger.check_pause(slow=20 * self._slow)
                await self._consume(patient=False)
            nursery.cancel_scope.cancel()

    async def drain(self) -> None:
        """Take out every message."""
        if await self._broker.has_queue(QUEUE):
            while await self._consume(patient=True):
                pass
            self._ledger.check_lost()

    async def _make(self, scheduler: Scheduler) -> bool:
        await self._broker.create_queue(QUEUE)
        await scheduler.load()
        for schedule in _SCHEDULES:
            if schedule.name not in scheduler.names():
                await scheduler.put(schedule)
        return True

    async def _consume(self, *, patient: bool) -> bool:
        messages = await self._ask(f"fetch {QUEUE}", lambda: self._broker.fetch_many(QUEUE, 10), patient=patient)
        for message in messages or ():
            texts, id = message.properties.attributes["attributes"], message.id
            await message.body.aclose()
            self._ledger.seen(texts[SCHEDULE], texts[INSTANT], id)
            await self._ask("remove", partial(self._remove, id), patient=patient)
        return bool(messages)

    async def _remove(self, id: str) -> bool:
        await self._broker.remove(QUEUE, id)
        return True
