"""The scheduler: keeps schedules, and fires them. One task and one heap for all.

A schedule fires for the latest instant that has passed since its last firing: what a daemon that was down has missed
comes once. A firing's idempotency key is made of the schedule's name and its instant. So a firing that a crash left in
doubt is done again, and nothing is published twice; where the queue remembers keys no more, it counts as done.
"""

from __future__ import annotations

import heapq
import logging
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import trio

from mq import turns
from mq.broker import Draft, Published
from mq.broker.api import BrokerAPI
from mq.broker.clock import Clock
from mq.errors import Conflict, MQError, NoSuchMessage, NoSuchQueue
from mq.message import no_such_queue, shorten
from mq.quantities import show_count
from mq.schedules.schedule import KIND, Instants, Never, Schedule, check_schedule

_ROUNDING: Final = 1e-9
RETRY_SECONDS: Final = 10.0
"""How long a schedule rests after a firing that failed."""
LONGEST_AHEAD: Final = 16
"""Instants that a schedule has fired for while the wall clock was ahead, and that it skips once they come again."""
MOST_SCHEDULES: Final = 10_000
"""Of all users together."""
MOST_BYTES: Final = 64 << 20
"""Of the messages of all schedules together, which are in memory."""
SCHEDULES_PER_USER: Final = 100
MESSAGES_PER_SECOND: Final = 10.0
"""That the schedules of one user publish together."""
MOST_TOGETHER: Final = 1000
"""Firings of one batch."""
SCHEDULE: Final = "mq-schedule"
INSTANT: Final = "mq-schedule-instant"
"""Attributes of a message that name its schedule and its instant."""

_SPARE_DUE: Final = 1000
"""Due times of schedules that were changed or deleted since may be so many, and as many as there are schedules."""
_INSTANT: Final = turns.MESSAGE
"""Units of work to find a schedule's next instant."""
_MISSED: Final = 4 * turns.MESSAGE
"""Units to find its last one: a rare instant of a schedule that has missed years takes a millisecond."""

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
        rate: messages a second that they publish together.
    """

    schedules: int = SCHEDULES_PER_USER
    rate: float = MESSAGES_PER_SECOND

    def check(self, schedule: Schedule, others: Sequence[Schedule], before: float) -> None:
        """Check a schedule that its owner is about to make or change.

        Args:
            before: messages a second of the schedule that it takes the place of, if that is the owner's, too; else 0.

        Raises:
            Conflict: the owner has too many, or they publish too much.
        """
        owner = schedule.owner
        if self.schedules and not before and len(others) >= self.schedules:
            raise Conflict(
                f"user {owner} already has {len(others)} schedules, the maximum per user. Delete a schedule "
                "first, or restart mq with a higher limit in --schedules-per-user"
            )
        rate = schedule.rate + sum(other.rate for other in others)
        if self.rate and rate > self.rate + _ROUNDING and schedule.rate > before:
            raise Conflict(
                f"the schedules of user {owner} would publish {rate:.4g} messages per second, but the limit is "
                f"{self.rate:g} (the rate in --schedules-per-user). Schedule them less often, or restart mq with a "
                "higher rate in --schedules-per-user"
            )


DEFAULT_LIMITS: Final = ScheduleLimits()


class _Plan:
    """A schedule in memory.

    Attributes:
        behind_ms: by so much steady time is behind the schedule's: it went back at a start of the daemon.
    """

    def __init__(self, schedule: Schedule, instants: Instants, error: str = "") -> None:
        self.schedule = schedule
        self.instants = instants
        self.error = error
        self.behind_ms = 0
        self.since_ms = 0
        self.due_ms: int | None = None
        self.wake_ms: int | None = None
        self.is_steady = schedule.every is not None  # its instants are of steady time; of the wall clock otherwise
        self.bytes = schedule.bytes

    @property
    def name(self) -> str:
        return self.schedule.name


class _Outcome(NamedTuple):
    """The outcome of a firing, with its message or its error.

    Attributes:
        fate: in a word; None where it is left as it was.
    """

    fate: Fate | None
    id: str = ""
    error: MQError | None = None


class Scheduler:
    """Keeps schedules, and fires them while :meth:`run` runs.

    Args:
        refusal: why no schedules can be kept here; empty where they can.

    Attributes:
        fates: how many firings there were since the start, by their fate.
    """

    def __init__(self, broker: BrokerAPI, refusal: str = "", limits: ScheduleLimits = DEFAULT_LIMITS) -> None:
        self.fates: Counter[Fate] = Counter()
        self._limits = limits
        self._broker = broker
        self._refusal = refusal
        self._progress = Progress(broker)
        self._plans: dict[str, _Plan] = {}
        self._bytes = 0
        self._heaps: dict[bool, list[tuple[int, str]]] = {False: [], True: []}  # of cron lines, and of steady time
        self._was_set = False  # the wall clock, since the last look
        self._changing = trio.Lock()
        self._has_changed = trio.Event()
        self._scope = trio.CancelScope()

    def __len__(self) -> int:
        return len(self._plans)

    async def load(self) -> None:
        """Take up what is in the store. Call it once, before all else."""
        records = await self._broker.declarations.records(KIND)
        async for name, record in turns.in_turns(records.items(), _INSTANT):
            try:
                schedule = Schedule.stored(record)
            except (ValueError, KeyError, TypeError) as error:
                logger.error("ignoring schedule %s, because its record cannot be read: %r", shorten(name), error)
                continue
            try:
                plan = _Plan(schedule, schedule.instants())
            except MQError as error:  # a zone that this machine does not know: it stays, and says why it rests
                plan = _Plan(schedule, Never(), str(error))
                logger.error("schedule %s cannot run: %s", name, error)
            self._plans[name] = plan
            self._bytes += plan.bytes
        self._clock.on_change(self._note_change)
        if self._plans and self._refusal:
            logger.warning("cannot run any schedules (stored schedules: %d): %s", len(self._plans), self._refusal)
        await self._progress.load(self._plans)
        async for plan in turns.in_turns(self._plans.values(), _INSTANT):
            self._catch_up(plan)
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
        """
        if self._refusal:
            raise Conflict(self._refusal)
        check_schedule(schedule, self._now_ms(is_steady=schedule.every is not None))
        if not await self._broker.has_queue(schedule.queue):
            raise no_such_queue(schedule.queue)
        async with self._changing:
            old = self._plans.get(schedule.name)
            if old is None and len(self._plans) >= MOST_SCHEDULES:
                raise Conflict(f"the maximum of {MOST_SCHEDULES} schedules has been reached. Delete a schedule first")
            more = schedule.bytes - (0 if old is None else old.bytes)
            if more > 0 and self._bytes + more > MOST_BYTES:
                raise Conflict(
                    f"the messages of all schedules must not exceed {MOST_BYTES} bytes in total. Delete a schedule "
                    "first"
                )
            self._check_limits(schedule, None if old is None else old.schedule)
            now_ms = self._now_ms(is_steady=schedule.every is not None)
            is_same = old is not None and old.schedule.every == schedule.every
            start_ms = old.schedule.start_ms if old is not None and is_same else now_ms
            kept = schedule._replace(start_ms=start_ms, changed_ms=now_ms)
            await self._broker.declarations.put(KIND, kept.name, kept.record())
            self._plans[kept.name] = plan = _Plan(kept, kept.instants())
            self._bytes += more
            if old is not None and (old.schedule.every is None) is plan.is_steady:
                self._progress.begin_anew(kept.name)  # its last firing is of the other kind of time
            self._catch_up(plan)
            self._set_due(plan)
            self._has_changed.set()
            return old is None

    async def drop(self, name: str) -> None:
        """Delete a schedule; durable on return. Its messages stay.

        Raises:
            NoSuchSchedule: there is none of that name.
        """
        async with self._changing:
            plan = self._plan(name)
            await self._broker.declarations.drop(KIND, name)
            del self._plans[name]
            self._bytes -= plan.bytes
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
        last_ms = firing.instant_ms if firing is not None and firing.instant_ms else None
        return ScheduleStatus(plan.schedule, self._shown(plan, plan.due_ms), self._shown(plan, last_ms), plan.error)

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
                await self._clock.trusted()
                self._has_changed = trio.Event()
                await self._fire_due()
                is_waiting = any(not plan.is_steady for plan in self._plans.values())
                self._clock.set_waiting("scheduler", is_waiting=is_waiting)
                with trio.move_on_after(self._seconds_left()):
                    await self._has_changed.wait()

    # Implementation

    @property
    def _clock(self) -> Clock:
        return self._broker.clock

    def _check_limits(self, schedule: Schedule, old: Schedule | None) -> None:
        if not schedule.owner:
            return
        own = [plan.schedule for plan in self._plans.values() if plan.schedule.owner == schedule.owner]
        others = [other for other in own if other.name != schedule.name]
        self._limits.check(schedule, others, old.rate if old is not None and old.owner == schedule.owner else 0.0)

    def _plan(self, name: str) -> _Plan:
        plan = self._plans.get(name)
        if plan is None:
            raise NoSuchSchedule(f"schedule {shorten(name)} does not exist")
        return plan

    def _now_ms(self, *, is_steady: bool) -> int:
        return self._clock.steady_ms() if is_steady else self._clock.wall_ms()

    def _shown(self, plan: _Plan, instant_ms: int | None) -> int | None:
        if instant_ms is None or not plan.is_steady:
            return instant_ms
        return self._clock.shown_ms(instant_ms - plan.behind_ms)

    def _note_change(self) -> None:
        self._was_set = True
        self._has_changed.set()

    def _plan_ms(self, plan: _Plan) -> int:
        """The time by which a schedule fires."""
        return self._now_ms(is_steady=plan.is_steady) + plan.behind_ms

    def _catch_up(self, plan: _Plan) -> None:
        # Of instants that steady time shows again a queue would take no second message.
        if plan.is_steady:
            plan.behind_ms = max(0, self._fired_ms(plan) - self._clock.steady_ms())

    def _fired_ms(self, plan: _Plan) -> int:
        firing = self._progress.find(plan.name)
        fired_ms = plan.schedule.changed_ms
        if firing is not None:
            fired_ms = max(fired_ms, firing.instant_ms if firing.is_done else firing.instant_ms - 1)
        return fired_ms

    def _since_ms(self, plan: _Plan) -> int:
        """The instant up to which a schedule has fired."""
        # A clock that was ahead noted what is later than now: instants until then still come.
        return min(self._fired_ms(plan), self._plan_ms(plan))

    def _set_due(self, plan: _Plan, *, rests: bool = False) -> None:
        plan.since_ms = self._since_ms(plan)
        plan.due_ms = plan.instants.following(plan.since_ms)
        firing = self._progress.find(plan.name)
        while plan.due_ms is not None and firing is not None and firing.has_fired(plan.due_ms):
            plan.due_ms = plan.instants.following(plan.due_ms)
        plan.wake_ms = None
        if plan.due_ms is not None:
            now_ms = self._now_ms(is_steady=plan.is_steady)
            wake_ms = plan.due_ms - plan.behind_ms
            plan.wake_ms = max(wake_ms, now_ms + round(RETRY_SECONDS * 1000)) if rests else wake_ms
            heap = self._heaps[plan.is_steady]
            heapq.heappush(heap, (plan.wake_ms, plan.name))
            if len(heap) > _SPARE_DUE + 2 * len(self._plans):
                self._forget_due(heap, is_steady=plan.is_steady)

    def _forget_due(self, heap: list[tuple[int, str]], *, is_steady: bool) -> None:
        """Leave only the due times of schedules as they are now: a client may change one very often."""
        plans = [plan for plan in self._plans.values() if plan.is_steady is is_steady and plan.wake_ms is not None]
        heap[:] = [(plan.wake_ms, plan.name) for plan in plans if plan.wake_ms is not None]
        heapq.heapify(heap)

    def _seconds_left(self) -> float:
        """Seconds until a schedule is due, unless the clock is set meanwhile."""
        left = (
            (heap[0][0] - self._now_ms(is_steady=is_steady)) / 1000 for is_steady, heap in self._heaps.items() if heap
        )
        return max(0.0, min(left, default=math.inf))

    async def _fire_due(self) -> None:
        """Fire what is due now, up to :data:`MOST_TOGETHER`."""
        async with self._changing:  # what is changed meanwhile would fire by its old self
            due = await self._take_due()
            if due:
                await self._fire(due)

    async def _take_due(self) -> list[_Plan]:
        if self._was_set:
            self._was_set = False
            self._heaps[False].clear()
            async for plan in turns.in_turns(self._plans.values(), _INSTANT):
                if not plan.is_steady:
                    self._set_due(plan, rests=bool(plan.error))
        due: list[_Plan] = []
        for is_steady, heap in self._heaps.items():
            now_ms = self._now_ms(is_steady=is_steady)
            while heap and heap[0][0] <= now_ms and len(due) < MOST_TOGETHER:
                wake_ms, name = heapq.heappop(heap)
                found = self._plans.get(name)
                if found is not None and found.wake_ms == wake_ms and found.is_steady is is_steady:
                    found.wake_ms = None  # else it was changed or deleted
                    due.append(found)
        return due

    async def _fire(self, plans: Sequence[_Plan]) -> None:
        before = {plan.name: self._progress.find(plan.name) for plan in plans}
        outcomes: dict[str, _Outcome] = {}
        firings: dict[str, Firing] = {}
        async for plan in turns.in_turns(plans, _MISSED):
            instant_ms = plan.instants.latest(plan.since_ms, self._plan_ms(plan))
            if instant_ms is not None:
                last = before[plan.name] or Firing(0, 0, is_done=True)
                firings[plan.name] = last.followed_by(instant_ms, self._clock.steady_ms())
                outcome = await self._outcome_without(plan, before[plan.name], instant_ms)
                if outcome is not None:
                    outcomes[plan.name] = outcome
        to_publish = [plan for plan in plans if plan.name in firings and plan.name not in outcomes]
        outcomes |= await self._publish(to_publish, firings)
        await self._settle(plans, outcomes, firings, before)

    async def _outcome_without(self, plan: _Plan, last: Firing | None, instant_ms: int) -> _Outcome | None:
        """The outcome of a firing that needs no publish; None where it needs one."""
        schedule = plan.schedule
        if last is not None and last.has_fired(instant_ms):
            return _Outcome(None, last.id)  # when the wall clock was ahead
        try:
            if not await self._broker.has_queue(schedule.queue):
                raise no_such_queue(schedule.queue)
            if last is not None and not last.is_done and last.instant_ms == instant_ms:
                window = (await self._broker.status(schedule.queue)).settings.key_window
                if self._clock.steady_ms() - last.begun_ms >= window * 1000:
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
            some = turns.in_turns(batch, turns.FRAME)
            drafts = [_draft_of(plan.schedule, firings[plan.name].instant_ms) async for plan in some]
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
            logger.warning("cannot save the last run time for %s: %s", show_count(len(done), "schedule"), error)
        async for plan in turns.in_turns(plans, _INSTANT):
            self._set_due(plan, rests=bool(plan.error))

    def _tell(self, plan: _Plan, error: MQError | None) -> None:
        said = "" if error is None else str(error)
        if said and said != plan.error:
            logger.warning("schedule %s failed to publish to queue %s: %s", plan.name, plan.schedule.queue, said)
        plan.error = said


def _id_of(firing: Firing | None) -> str:
    return "" if firing is None else firing.id


def _draft_of(schedule: Schedule, instant_ms: int) -> Draft:
    attributes = schedule.draft.attributes
    # That of `every` is steady time as it is: shown by a wall clock that steps, two instants could look the same.
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
        begun_ms: when it was begun, in steady time.
        is_done: whether its outcome is known.
        id: the last message of the schedule; empty without one.
        ahead_ms: later instants that it fired for already, when the wall clock was ahead.
    """

    instant_ms: int
    begun_ms: int
    is_done: bool = False
    id: str = ""
    ahead_ms: Sequence[int] = ()

    def has_fired(self, instant_ms: int) -> bool:
        """Whether the schedule has fired for an instant, as far as that is kept."""
        return instant_ms in self.ahead_ms or (self.is_done and instant_ms == self.instant_ms)

    def followed_by(self, instant_ms: int, begun_ms: int) -> Firing:
        """The schedule's next firing, which begins."""
        fired = [*self.ahead_ms, *([self.instant_ms] if self.is_done else [])]
        ahead = sorted(each for each in fired if each > instant_ms)
        return Firing(instant_ms, begun_ms, id=self.id, ahead_ms=ahead[:LONGEST_AHEAD])


class Progress:
    """How far each schedule has come: its last firing, durable.

    A firing is *begun* before its message is published and *done* after. A crash in between leaves it in doubt: its
    message may be there. The states of many schedules are one record, so a thousand that fire together cost a few
    writes.
    """

    def __init__(self, broker: BrokerAPI) -> None:
        self._broker = broker
        self._segments: dict[str, dict[str, Firing]] = defaultdict(dict)

    async def load(self, names: Iterable[str]) -> None:
        """Read the last firings of schedules; what is noted of others is forgotten."""
        records = await self._broker.declarations.records(FIRINGS)
        async for name in turns.in_turns(names, turns.LIGHT):
            value = records.get(_segment(name), {}).get(name)
            if value is not None:
                self._segments[_segment(name)][name] = Firing(*value)

    def find(self, name: str) -> Firing | None:
        """The last firing of a schedule; None without one."""
        return self._segments[_segment(name)].get(name)

    def forget(self, name: str) -> None:
        """Forget a schedule. Its name may be there again after a restart."""
        self._segments[_segment(name)].pop(name, None)

    def begin_anew(self, name: str) -> None:
        """Forget for which instants a schedule has fired, but not its last message."""
        firing = self.find(name)
        if firing is not None:
            self.set(name, Firing(0, 0, is_done=True, id=firing.id))

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
