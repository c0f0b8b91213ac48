"""The scheduler: keeps schedules, and fires them. One task and one heap for all.

A schedule fires for the latest instant that has passed since its last firing: what a daemon that was down has missed
comes once. A firing's idempotency key is made of the schedule's name and its instant. So a firing that a crash left in
doubt is done again, and nothing is published twice; where the queue remembers keys no more, it counts as done.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import trio

from mq.broker import Draft, Published
from mq.broker.api import BrokerAPI
from mq.errors import Conflict, MQError, NoSuchMessage, NoSuchQueue
from mq.message import no_such_queue, shorten
from mq.schedules.schedule import KIND, Instants, Never, Schedule, check_schedule

_ROUNDING: Final = 1e-9
LOOK_SECONDS: Final = 60.0
"""How often the clock is looked at. The scheduler notices as late that it was set."""
RETRY_SECONDS: Final = 10.0
"""How long a schedule rests after a firing that failed."""
BACKWARDS_MS: Final = 86_400_000
"""The most that a last firing can be ahead; a later one was noted by a wrong clock."""
MOST_SCHEDULES: Final = 10_000
"""Of all users together."""
SCHEDULES_PER_USER: Final = 100
MESSAGES_PER_SECOND: Final = 10.0
"""That the schedules of one user publish together."""
MOST_TOGETHER: Final = 1000
"""Firings of one batch."""
SCHEDULE: Final = "mq-schedule"
INSTANT: Final = "mq-schedule-instant"
"""Attributes of a message that name its schedule and its instant."""

FIRINGS: Final = "firing"
"""The kind of the records of firings."""
SEGMENTS: Final = 16
"""Records of firings. One is written when one of its schedules fires."""

logger = logging.getLogger("mq.schedules")


class Fate(StrEnum):
    """The outcome of a firing."""

    PUBLISHED = "published"
    SKIPPED = "skipped"
    """The last message was still in its queue."""
    FAILED = "failed"


class ScheduleStatus(NamedTuple):
    """A schedule, its next instant and its last.

    Attributes:
        schedule: as it was given.
        next_ms: its next instant, in milliseconds since 1970; None where none comes.
        last_ms: the last instant for which it fired, or was left out; None for none yet.
        error: why its last firing failed; empty where it did not.
    """

    schedule: Schedule
    next_ms: int | None
    last_ms: int | None
    error: str


class NoSuchSchedule(NoSuchQueue):
    """There is no schedule of that name."""


class ScheduleLimits(NamedTuple):
    """The limits of one user; 0 is no limit.

    Attributes:
        schedules: how many the user may own.
        rate: messages a second that they publish together.
    """

    schedules: int = SCHEDULES_PER_USER
    rate: float = MESSAGES_PER_SECOND

    def check(self, schedule: Schedule, others: Sequence[Schedule], before: float) -> None:
        """Check a schedule that its owner is about to make or change.

        Args:
            schedule: as it will be.
            others: of the same owner.
            before: messages a second of the schedule that it takes the place of, if that is the owner's, too; else 0.

        Raises:
            Conflict: the owner has too many, or they publish too much.
        """
        owner = schedule.owner
        if self.schedules and not before and len(others) >= self.schedules:
            raise Conflict(
                f"user {owner} has {len(others)} schedules, the most that one user may have: delete one first, or "
                "start mq with a greater --schedules-per-user"
            )
        rate = schedule.rate + sum(other.rate for other in others)
        if self.rate and rate > self.rate + _ROUNDING and schedule.rate > before:
            raise Conflict(
                f"the schedules of user {owner} would publish {rate:.4g} messages a second, and may publish "
                f"{self.rate:g}: let them fire less often, or start mq with a greater --schedules-rate"
            )


DEFAULT_LIMITS: Final = ScheduleLimits()


class _Plan:
    """A schedule in memory."""

    def __init__(self, schedule: Schedule, instants: Instants, error: str = "") -> None:
        self.schedule = schedule
        self.instants = instants
        self.error = error
        self.since_ms = 0
        self.due_ms: int | None = None
        self.wake_ms: int | None = None

    @property
    def name(self) -> str:
        return self.schedule.name


class _Outcome(NamedTuple):
    """The outcome of a firing, with its message or its error.

    Attributes:
        fate: in a word; None where it is left as it was.
        id: of the message.
        error: why it failed.
    """

    fate: Fate | None
    id: str = ""
    error: MQError | None = None


class Scheduler:
    """Keeps schedules, and fires them while :meth:`run` runs.

    Args:
        broker: keeps the records, and takes the messages.
        clock_ns: wall clock, nanoseconds since 1970.
        refusal: why no schedules can be kept here; empty where they can.
        limits: of each user.

    Attributes:
        fates: how many firings there were since the start, by their fate.
    """

    def __init__(
        self,
        broker: BrokerAPI,
        clock_ns: Callable[[], int] = time.time_ns,
        refusal: str = "",
        limits: ScheduleLimits = DEFAULT_LIMITS,
    ) -> None:
        self.fates: Counter[Fate] = Counter()
        self._limits = limits
        self._broker = broker
        self._clock_ns = clock_ns
        self._refusal = refusal
        self._progress = Progress(broker)
        self._plans: dict[str, _Plan] = {}
        self._heap: list[tuple[int, str]] = []
        self._seen_ms = 0
        self._changing = trio.Lock()
        self._has_changed = trio.Event()
        self._scope = trio.CancelScope()

    def __len__(self) -> int:
        return len(self._plans)

    async def load(self) -> None:
        """Take up what is in the store. Call it once, before all else.

        Raises:
            StorageError: it cannot be read.
        """
        for name, record in (await self._broker.declarations.records(KIND)).items():
            try:
                schedule = Schedule.stored(record)
            except (ValueError, KeyError, TypeError) as error:
                logger.error("schedule %s is not taken up, its record cannot be read: %r", shorten(name), error)
                continue
            try:
                plan = _Plan(schedule, schedule.instants())
            except MQError as error:  # a zone that this machine does not know: it stays, and says why it rests
                plan = _Plan(schedule, Never(), str(error))
                logger.error("schedule %s rests: %s", name, error)
            self._plans[name] = plan
        if self._plans and self._refusal:
            logger.warning("%d schedules rest: %s", len(self._plans), self._refusal)
        await self._progress.load(self._plans)
        for plan in self._plans.values():
            self._set_due(plan)

    async def put(self, schedule: Schedule) -> bool:
        """Keep a schedule, or change it; durable on return. It fires for instants from now on.

        Returns:
            Whether it is new.

        Raises:
            InvalidSetting: when it fires makes no sense.
            BodyTooLarge: its message is too long.
            NoSuchQueue: there is no queue for its messages.
            Conflict: none are kept here, or there are too many, or those of its owner publish too much.
            StorageError: it cannot be kept now.
        """
        if self._refusal:
            raise Conflict(self._refusal)
        check_schedule(schedule, self._now_ms())
        if not await self._broker.has_queue(schedule.queue):
            raise no_such_queue(schedule.queue)
        async with self._changing:
            old = self._plans.get(schedule.name)
            if old is None and len(self._plans) >= MOST_SCHEDULES:
                raise Conflict(f"there are {MOST_SCHEDULES} schedules, the most there may be: delete one first")
            self._check_limits(schedule, None if old is None else old.schedule)
            now_ms = self._now_ms()
            is_same = old is not None and old.schedule.every == schedule.every
            start_ms = old.schedule.start_ms if old is not None and is_same else now_ms
            kept = schedule._replace(start_ms=start_ms, changed_ms=now_ms)
            await self._broker.declarations.put(KIND, kept.name, kept.record())
            self._plans[kept.name] = plan = _Plan(kept, kept.instants())
            self._set_due(plan)
            self._has_changed.set()
            return old is None

    async def drop(self, name: str) -> None:
        """Delete a schedule; durable on return. Its messages stay.

        Raises:
            NoSuchSchedule: there is none of that name.
            StorageError: it cannot be deleted now.
        """
        async with self._changing:
            self._plan(name)
            await self._broker.declarations.drop(KIND, name)
            del self._plans[name]
            self._progress.forget(name)

    async def look(self) -> None:
        """Let :meth:`status` and :meth:`names` tell what is so now. Here they always do."""

    def status(self, name: str) -> ScheduleStatus:
        """A schedule, its next instant and its last.

        Raises:
            NoSuchSchedule: there is none of that name.
        """
        plan = self._plan(name)
        firing = self._progress.find(name)
        return ScheduleStatus(plan.schedule, plan.due_ms, None if firing is None else firing.instant_ms, plan.error)

    def names(self) -> list[str]:
        """The names of all schedules, sorted."""
        return sorted(self._plans)

    def end(self) -> None:
        """Let :meth:`run` end."""
        self._scope.cancel()

    async def run(self) -> None:
        """Fire what is due, until :meth:`end`."""
        with self._scope:
            while not self._refusal:
                await self._fire_due()
                self._has_changed = trio.Event()
                with trio.move_on_after(self._seconds_left()):
                    await self._has_changed.wait()

    # Implementation

    def _check_limits(self, schedule: Schedule, old: Schedule | None) -> None:
        if not schedule.owner:
            return
        own = [plan.schedule for plan in self._plans.values() if plan.schedule.owner == schedule.owner]
        others = [other for other in own if other.name != schedule.name]
        self._limits.check(schedule, others, old.rate if old is not None and old.owner == schedule.owner else 0.0)

    def _plan(self, name: str) -> _Plan:
        plan = self._plans.get(name)
        if plan is None:
            raise NoSuchSchedule(f"no schedule named {shorten(name)}")
        return plan

    def _now_ms(self) -> int:
        return self._clock_ns() // 1_000_000

    def _since_ms(self, plan: _Plan) -> int:
        """The instant up to which a schedule has fired."""
        firing = self._progress.find(plan.name)
        fired_ms = plan.schedule.changed_ms
        if firing is not None:
            fired_ms = max(fired_ms, firing.instant_ms if firing.is_done else firing.instant_ms - 1)
        now_ms = self._now_ms()
        return now_ms if fired_ms > now_ms + BACKWARDS_MS else fired_ms

    def _set_due(self, plan: _Plan, *, rests: bool = False) -> None:
        plan.since_ms = self._since_ms(plan)
        plan.due_ms = plan.wake_ms = plan.instants.following(plan.since_ms)
        if plan.due_ms is not None:
            rest_ms = self._now_ms() + round(RETRY_SECONDS * 1000) if rests else plan.due_ms
            plan.wake_ms = max(plan.due_ms, rest_ms)
            heapq.heappush(self._heap, (plan.wake_ms, plan.name))

    def _seconds_left(self) -> float:
        """Seconds until the next look: a schedule is due by then, or the clock may have been set."""
        if not self._heap:
            return math.inf
        return max(0.0, min(LOOK_SECONDS, (self._heap[0][0] - self._now_ms()) / 1000))

    async def _fire_due(self) -> None:
        """Fire what is due now, up to :data:`MOST_TOGETHER`."""
        async with self._changing:  # what is changed meanwhile would fire by its old self
            now_ms = self._now_ms()
            due = self._take_due(now_ms)
            if due:
                await self._fire(due, now_ms)

    def _take_due(self, now_ms: int) -> list[_Plan]:
        if now_ms < self._seen_ms - BACKWARDS_MS:  # the clock was wrong, and so may be what is in the heap
            self._heap.clear()
            for plan in self._plans.values():
                self._set_due(plan)
        self._seen_ms = now_ms
        due: list[_Plan] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < MOST_TOGETHER:
            wake_ms, name = heapq.heappop(self._heap)
            found = self._plans.get(name)
            if found is not None and found.wake_ms == wake_ms:  # else it was changed or deleted
                found.wake_ms = None
                due.append(found)
        return due

    async def _fire(self, plans: Sequence[_Plan], now_ms: int) -> None:
        before = {plan.name: self._progress.find(plan.name) for plan in plans}
        outcomes: dict[str, _Outcome] = {}
        firings: dict[str, Firing] = {}
        for plan in plans:
            await trio.lowlevel.checkpoint()  # looking up an instant takes a moment, and there may be many
            instant_ms = plan.instants.latest(plan.since_ms, now_ms)
            if instant_ms is not None:
                firings[plan.name] = Firing(instant_ms, now_ms, id=_id_of(before[plan.name]))
                outcome = await self._outcome_without(plan, before[plan.name], instant_ms)
                if outcome is not None:
                    outcomes[plan.name] = outcome
        to_publish = [plan for plan in plans if plan.name in firings and plan.name not in outcomes]
        outcomes |= await self._publish(to_publish, firings)
        await self._settle(plans, outcomes, firings, before)

    async def _outcome_without(self, plan: _Plan, last: Firing | None, instant_ms: int) -> _Outcome | None:
        """The outcome of a firing that needs no publish; None where it needs one."""
        schedule = plan.schedule
        try:
            if not await self._broker.has_queue(schedule.queue):
                raise no_such_queue(schedule.queue)
            if last is not None and not last.is_done and last.instant_ms == instant_ms:
                window = (await self._broker.status(schedule.queue)).settings.key_window
                if self._now_ms() - last.begun_ms >= window * 1000:
                    return _Outcome(None, last.id)  # it may have been published, and its key is forgotten
            if schedule.unless_waiting and await self._is_there(schedule, _id_of(last)):
                return _Outcome(Fate.SKIPPED, _id_of(last))
        except MQError as error:
            return _Outcome(Fate.FAILED, error=error)
        return None

    async def _is_there(self, schedule: Schedule, id: str) -> bool:
        if not id:
            return False
        try:
            seen = await self._broker.show(schedule.queue, id)
        except NoSuchMessage:
            return False
        await seen.message.body.aclose()
        return True

    async def _publish(self, plans: Sequence[_Plan], firings: dict[str, Firing]) -> dict[str, _Outcome]:
        """Publish the messages of schedules, those of each queue in one batch."""
        outcomes: dict[str, _Outcome] = {}
        if not plans:
            return outcomes
        try:
            await self._progress.note({plan.name: firings[plan.name] for plan in plans})
        except MQError as error:
            return {plan.name: _Outcome(Fate.FAILED, error=error) for plan in plans}
        by_queue: dict[str, list[_Plan]] = defaultdict(list)
        for plan in plans:
            by_queue[plan.schedule.queue].append(plan)

        async def publish(queue: str, batch: Sequence[_Plan]) -> None:
            drafts = [_draft_of(plan.schedule, firings[plan.name].instant_ms) for plan in batch]
            try:
                found: Sequence[Published | MQError] = await self._broker.publish_many(queue, drafts)
            except MQError as error:
                found = [error] * len(batch)
            for each_plan, each in zip(batch, found, strict=True):
                if isinstance(each, MQError):
                    outcomes[each_plan.name] = _Outcome(Fate.FAILED, error=each)
                else:
                    outcomes[each_plan.name] = _Outcome(Fate.PUBLISHED, each.id)

        async with trio.open_nursery() as nursery:
            for queue, batch in by_queue.items():
                nursery.start_soon(publish, queue, batch)
        return outcomes

    async def _settle(
        self,
        plans: Sequence[_Plan],
        outcomes: dict[str, _Outcome],
        firings: dict[str, Firing],
        before: dict[str, Firing | None],
    ) -> None:
        """Note the outcomes of firings, and plan the next instants of their schedules."""
        done: dict[str, Firing] = {}
        for plan in plans:
            outcome = outcomes.get(plan.name)
            if outcome is None:
                continue
            if outcome.fate is not None:
                self.fates[outcome.fate] += 1
            self._tell(plan, outcome.error)
            if outcome.error is None:
                done[plan.name] = firings[plan.name]._replace(is_done=True, id=outcome.id)
            elif outcome.error.is_unsure:  # tried again it might be there twice; a restart knows better, by its key
                self._progress.set(plan.name, firings[plan.name]._replace(is_done=True))
            else:
                self._progress.set(plan.name, before[plan.name])
        try:
            await self._progress.note(done)
        except MQError as error:  # a restart finds the messages by their keys
            logger.warning("the last firings of %d schedules are not durable: %s", len(done), error)
        for plan in plans:
            self._set_due(plan, rests=bool(plan.error))

    def _tell(self, plan: _Plan, error: MQError | None) -> None:
        said = "" if error is None else str(error)
        if said and said != plan.error:
            logger.warning("schedule %s has not published to queue %s: %s", plan.name, plan.schedule.queue, said)
        plan.error = said


def _id_of(firing: Firing | None) -> str:
    return "" if firing is None else firing.id


def _draft_of(schedule: Schedule, instant_ms: int) -> Draft:
    attributes = schedule.draft.attributes
    texts = {SCHEDULE: schedule.name, INSTANT: shown_instant(instant_ms), **attributes.get("attributes", {})}
    return schedule.draft._replace(
        attributes={**attributes, "attributes": texts}, key=f"schedule/{schedule.name}/{instant_ms}"
    )


_LAST_DAY_MS: Final = 253_402_214_400_000
"""9999-12-31: the last day that every calendar has, in all zones."""


def shown_instant(instant_ms: int) -> str:
    """An instant as people and programs read it (RFC 3339), in UTC; one that no calendar has as the last day it has."""
    text = datetime.fromtimestamp(min(instant_ms, _LAST_DAY_MS) / 1000, UTC).isoformat(timespec="milliseconds")
    return f"{text.removesuffix('+00:00').removesuffix('.000')}Z"


class Firing(NamedTuple):
    """The last firing of a schedule.

    Attributes:
        instant_ms: for which instant, in milliseconds since 1970.
        begun_ms: when it was begun.
        is_done: whether its outcome is known.
        id: the last message of the schedule; empty without one.
    """

    instant_ms: int
    begun_ms: int
    is_done: bool = False
    id: str = ""


class Progress:
    """How far each schedule has come: its last firing, durable.

    A firing is *begun* before its message is published and *done* after. A crash in between leaves it in doubt: its
    message may be there. The states of many schedules are one record, so a thousand that fire together cost a few
    writes.

    Args:
        broker: keeps the records.
    """

    def __init__(self, broker: BrokerAPI) -> None:
        self._broker = broker
        self._segments: dict[str, dict[str, Firing]] = defaultdict(dict)

    async def load(self, names: Iterable[str]) -> None:
        """Read the last firings of schedules; what is noted of others is forgotten.

        Raises:
            StorageError: they cannot be read.
        """
        records = await self._broker.declarations.records(FIRINGS)
        for name in names:
            value = records.get(_segment(name), {}).get(name)
            if value is not None:
                self._segments[_segment(name)][name] = Firing(*value)

    def find(self, name: str) -> Firing | None:
        """The last firing of a schedule; None without one."""
        return self._segments[_segment(name)].get(name)

    def forget(self, name: str) -> None:
        """Forget a schedule. Its name may be there again after a restart."""
        self._segments[_segment(name)].pop(name, None)

    def set(self, name: str, firing: Firing | None) -> None:
        """Let this be the last firing of a schedule until mq ends; what is durable stays."""
        if firing is None:
            self.forget(name)
        else:
            self._segments[_segment(name)][name] = firing

    async def note(self, firings: dict[str, Firing]) -> None:
        """Keep these firings by the names of their schedules; durable on return.

        Raises:
            StorageError: they may not be durable.
        """
        for name, firing in firings.items():
            self._segments[_segment(name)][name] = firing
        for segment in sorted({_segment(name) for name in firings}):
            value: dict[str, Any] = {name: list(firing) for name, firing in self._segments[segment].items()}
            await self._broker.declarations.put(FIRINGS, segment, value)


def _segment(name: str) -> str:
    return f"{zlib.crc32(name.encode()) % SEGMENTS:x}"
