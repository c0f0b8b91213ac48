"""Schedules of a cluster, as one of its nodes has them: the leader keeps them in its store and fires them, and
every node asks it.

What an instant has come to is in the same store as the messages, fenced with them. So the next leader goes on as a
daemon does that was started again: an instant that is in doubt is done again under its key, and none is done twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from mq.broker.api import BrokerAPI
from mq.errors import CallerError, Conflict, NoSuchQueue
from mq.message import shorten
from mq.schedules.schedule import Schedule
from mq.schedules.scheduler import DEFAULT_LIMITS, Fate, NoSuchSchedule, ScheduleLimits, Scheduler, ScheduleStatus

PUT: Final = "put"
DROP: Final = "drop"
ALL: Final = "all"

Ask = Callable[..., Awaitable[Any]]
"""Ask the leader: (one of the above, its arguments) -> the answer, JSON."""


class LeaderSchedules:
    """Answers what nodes ask of the leader's schedules."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def answer(self, method: str, args: Sequence[Any]) -> Any:
        """The answer, JSON.

        Raises:
            CallerError: there is nothing of that name to ask; or as :class:`~mq.schedules.scheduler.Scheduler`.
        """
        if method == ALL:
            return [_as_json(self._scheduler.status(name)) for name in self._scheduler.names()]
        if method == PUT:
            return await self._scheduler.put(Schedule.stored(args[0]))
        if method != DROP:
            raise CallerError(
                f"this node does not support the schedule operation {shorten(method)}. Run the same version of mq on "
                "all nodes"
            )
        try:
            return await self._scheduler.drop(args[0])
        except NoSuchSchedule as error:
            raise NoSuchQueue(str(error)) from error  # links know errors of mq alone


class ClusterSchedules:
    """As :class:`~mq.schedules.scheduler.Scheduler`, on a node of a cluster. What a node shows is what the leader said
    when it was last looked (:meth:`look`).

    Attributes:
        ask: asks the leader; set before anything else is called.
        has_own: whether this node has a queue for itself; set likewise.
        fates: how many firings there were at this node since its start, by their fate.
    """

    def __init__(self, limits: ScheduleLimits = DEFAULT_LIMITS) -> None:
        self.ask: Ask
        self.has_own: Callable[[str], bool]
        self.fates: Counter[Fate] = Counter()
        self._limits = limits
        self._leading: Scheduler | None = None
        self._seen: dict[str, ScheduleStatus] = {}

    def __len__(self) -> int:
        """How many there are: told by the leader alone, so that a sum over the nodes is right."""
        return 0 if self._leading is None else len(self._leading)

    @asynccontextmanager
    async def leading(self, broker: BrokerAPI) -> AsyncIterator[LeaderSchedules]:
        """Keep and fire them over the leader's broker, for the length of the block."""
        scheduler = Scheduler(broker, limits=self._limits)
        scheduler.fates = self.fates
        await scheduler.load()
        self._leading = scheduler
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scheduler.run)
                yield LeaderSchedules(scheduler)
                nursery.cancel_scope.cancel()
        finally:
            self._leading = None

    async def look(self) -> None:
        """Look anew.

        Raises:
            NotServed: there is no leader.
        """
        self._seen = {each["schedule"]["name"]: _from_json(each) for each in await self.ask(ALL)}

    async def put(self, schedule: Schedule) -> bool:
        """As a scheduler's.

        Raises:
            Conflict: its queue is this node's own.
            NotServed: there is no leader.
        """
        if self.has_own(schedule.queue):
            raise Conflict(
                f"queue {schedule.queue} is local to this node, but in a cluster schedules can publish only to cluster "
                "queues. Use a queue that was created with store=cluster"
            )
        is_new = bool(await self.ask(PUT, schedule.record()))
        await self.look()
        return is_new

    async def drop(self, name: str) -> None:
        """As a scheduler's."""
        try:
            await self.ask(DROP, name)
        except NoSuchQueue as error:
            raise NoSuchSchedule(str(error)) from error

    def status(self, name: str) -> ScheduleStatus:
        """As a scheduler's, when it was last looked."""
        if name not in self._seen:
            raise NoSuchSchedule(f"schedule {shorten(name)} does not exist")
        return self._seen[name]

    def names(self) -> list[str]:
        """As a scheduler's, when it was last looked."""
        return sorted(self._seen)

    def end(self) -> None:
        """Nothing to do: they end with the leader."""

    async def run(self) -> None:
        """Nothing to do: they are fired where the leader is."""


def _as_json(status: ScheduleStatus) -> dict[str, Any]:
    return {**status._asdict(), "schedule": status.schedule.record()}


def _from_json(value: dict[str, Any]) -> ScheduleStatus:
    return ScheduleStatus(**{**value, "schedule": Schedule.stored(value["schedule"])})
