"""Upkeep: work without a request. Deliveries, ends of leases, expiry and deaths, leftovers of deleted queues.

:class:`Upkeep` owns the mover, the reaper and the timers of expiring messages, and gives each of them its entries: one
in NEW or DELAYED is the mover's, one in REMOVED the reaper's; for one in READY it calls the queue's waiters.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Final, TypeVar

import trio

from mq import turns
from mq.broker.calendar import Calendar
from mq.broker.catalog import CatalogEvents
from mq.broker.clock import Aged, Clock, delay_age_by
from mq.broker.commit import Future
from mq.broker.config import GRACE_SECONDS, LONGEST_LEASE_SECONDS, MARGIN_SECONDS, RETRY_SECONDS
from mq.broker.core import Core
from mq.broker.dead_letters import DROPPED, EXPIRED, RECEIVES, DeadLetters
from mq.broker.index import QueueIndex
from mq.broker.jobs import MoveJob, OrphanJob
from mq.broker.mover import LARGEST_ROUND, Mover, Reaper, to_ready
from mq.broker.settings import DROP_HEAD
from mq.broker.waiters import Waiters
from mq.errors import MQError
from mq.lifecycle import Kind, State
from mq.message import MessageId
from mq.storage.interface import GIVEN_MS, Entry, Move, Outcome, Result

T = TypeVar("T")

_READY: Final = State.READY  # quicker than an attribute of the enumeration
_DELAYED: Final = State.DELAYED
_LARGEST_ROUND: Final = turns.FRAMES_A_TURN
"""Messages that expire in one step of the event loop."""
_DROPPED_AT_ONCE: Final = 16
"""Messages over a queue's limits that are dropped in the step that brings another one. A limit that was lowered leaves
more to a task."""
_SHORTEST_SECONDS: Final = 0.001
"""The shortest wait: expiry is noted in milliseconds."""


class Expiry:
    """Timers of READY messages that expire. Start :meth:`run`.

    Args:
        expire: called with the queue and id of each expired message, which may be gone.
        has_room: waits until few expired messages are left to be moved.

    Attributes:
        due: the timers, by message.
    """

    def __init__(
        self, expire: Callable[[str, MessageId], None], clock: Clock, has_room: Callable[[], Awaitable[None]]
    ) -> None:
        self._expire = expire
        self._has_room = has_room
        self._clock = clock
        self.due: dict[MessageId, tuple[int, MessageId, str]] = {}
        self._heap: list[tuple[int, MessageId, str]] = []
        self._changed = trio.Event()

    def add(self, entry: Entry) -> None:
        """Set the timer of a READY message, if it expires."""
        if entry.meta.expires_ms is None:
            self.forget(entry.id)
            return
        timer = (entry.meta.expires_ms - self._clock.ttl_age_ms(entry), entry.id, entry.queue)
        if self.due.get(entry.id) == timer:
            return  # the message was leased, and is back
        self.due[entry.id] = timer
        heapq.heappush(self._heap, timer)
        if self._heap[0] == timer:
            self._changed.set()

    def forget(self, id: MessageId) -> None:
        """Remove the timer of a message, if it has one."""
        # Its key leaves the heap later, before such keys outnumber the rest.
        if self.due.pop(id, None) is not None and len(self._heap) > 2 * len(self.due) + 64:
            self._heap = list(self.due.values())
            heapq.heapify(self._heap)

    async def run(self) -> None:
        """Call `expire` for expired messages for ever; for none while the wall clock is in doubt."""
        while True:
            await trio.lowlevel.checkpoint()
            self._changed = trio.Event()
            with trio.move_on_after(self._seconds_left()):
                await self._changed.wait()
            await self._clock.trusted()
            now_ms = self._clock.steady_ms()
            for _ in range(_LARGEST_ROUND):
                if not self._heap or self._heap[0][0] > now_ms:
                    break
                timer = heapq.heappop(self._heap)
                if self.due.get(timer[1]) == timer:
                    del self.due[timer[1]]
                    self._expire(timer[2], timer[1])
            await self._has_room()

    def _seconds_left(self) -> float:
        if not self._heap:
            return math.inf
        left_ns = self._heap[0][0] * 1_000_000 - self._clock.steady_ns()
        return max(_SHORTEST_SECONDS, left_ns / 1e9) if left_ns > 0 else 0.0


logger = logging.getLogger("mq.broker")


class Upkeep(CatalogEvents):
    """Keeps messages moving."""

    def __init__(self, core: Core, dead_letters: DeadLetters, waiters: Waiters) -> None:
        self._catalog = core.catalog
        self._committer = core.committer
        self._jobs = core.jobs
        self._dead_letters = dead_letters
        self._waiters = waiters
        self._config = core.config
        self._random = core.random
        self.clock = core.clock
        self._mover = Mover(core.committer.commit, self._begin_move, self._end_move, self._aim)
        self._calendar = Calendar(core.catalog, core.clock, self._is_near)
        self._expiry = Expiry(self._expire, core.clock, dead_letters.has_room)
        self._trimming: set[QueueIndex] = set()
        self._doing: set[Callable[[], Awaitable[None]]] = set()
        self._done = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None
        self._jobs_before: list[Callable[[], Awaitable[None]]] = []
        self._reaper = Reaper(core.committer.commit, self._end_reap)
        self._being_read: set[Entry] = set()
        self._stuck: dict[MessageId, tuple[Entry, QueueIndex | None]] = {}
        self._is_stuck = trio.Event()
        self._delivering: dict[MessageId, QueueIndex] = {}
        self._has_started = False
        self._found: list[tuple[QueueIndex, Entry]] = []  # DELAYED, and without timers until the start
        core.catalog.events = self

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the tasks. Leases that were in the store get their grace from now on."""
        self._has_started = True
        self._nursery = nursery
        found, self._found = self._found, []
        async for index, entry in turns.in_turns(found, turns.LIGHT):
            if index.find(entry.id) == entry:
                self._set_timer(index, entry)
        if not self._config.peers:  # among peers another one may end the lease anyway
            leased = (entry for _, entry in found if entry.meta.receipt is not None)
            await self._mover.postpone(leased, trio.current_time() + GRACE_SECONDS)
        if self.clock.doubt:
            new = (entry for index in list(self._catalog.queues.values()) for entry in list(index.new.values()))
            waiting = turns.in_turns(chain(new, (entry for _, entry in found)), turns.LIGHT // 4)
            named = frozenset([(entry.id, entry.meta.deadline_ms) async for entry in waiting])
            nursery.start_soon(self._count_age, named, self.clock.aged)
        nursery.start_soon(self._retry_orphans)
        nursery.start_soon(self._dead_letters.run)
        nursery.start_soon(self._expiry.run)
        for job in self._jobs_before:
            nursery.start_soon(job)
        self._calendar.start(nursery if self._config.mover else None)
        if self._config.mover:
            nursery.start_soon(self._mover.run)
        if self._config.reaper:
            nursery.start_soon(self._reaper.run)

    async def deliver_backlog(self) -> None:
        """Deliver what a crash left in NEW, as far as the medium takes it. Called before the first fetch."""
        if self._config.mover:
            await self._mover.caught_up()

    async def caught_up(self, index: QueueIndex) -> None:
        """Wait until the queue's messages in NEW were delivered or refused."""
        if index.undelivered and self._config.mover:
            await self._mover.caught_up(index.name)

    def return_claimed(self, entries: Iterable[Entry]) -> None:
        """Make messages of claims READY as soon as their turn comes: those that a claim held whose lease has ended,
        received once more, as far as the claim still has them then; and DELAYED ones, whose lease or delay had ended
        before a crash brought them back to it."""
        for entry in entries:
            self._mover.add(entry)

    def keep_claimed(self, id: MessageId) -> None:
        """Do not make it READY, after all: its claim is renewed."""
        self._mover.cancel(id)

    async def returned(self) -> None:
        """Wait until what :meth:`return_claimed` was given is READY, or was refused."""
        await self.jobs_done()
        await self._mover.caught_up()

    def give_back(self, entry: Entry) -> None:
        """Make a leased message READY at once, without counting it as received, if the lease stands."""
        index = self._catalog.queues.get(entry.queue)
        if index is not None and index.find(entry.id) == entry and entry.id not in self._catalog.locks:
            self._catalog.begin(entry)
            meta = entry.meta.at_rest()._replace(receives=max(0, entry.meta.receives - 1))
            self._jobs.put([MoveJob(self._catalog, Move(entry, State.READY, meta), Kind.REQUEUE, "requeue it")])

    def end_lease(self, entry: Entry, due: float) -> None:
        """Let a lease end by itself at `due` (Trio's clock), if it stands: sooner than its name says."""
        index = self._catalog.queues.get(entry.queue)
        if index is not None and index.find(entry.id) == entry and entry.id not in self._catalog.locks:
            self._set_timer(index, entry, due)

    def is_dead(self, index: QueueIndex, entry: Entry) -> bool:
        """Whether a READY message has expired or was received too often. If so, its removal has begun."""
        dead_letters = self._dead_letters
        if entry.meta.expires_ms is not None and dead_letters.is_expired(entry):
            dead_letters.dead_letter(entry, EXPIRED)
        elif index.settings.max_receives is not None and dead_letters.is_worn_out(entry):
            dead_letters.dead_letter(entry, RECEIVES)
        else:
            return False
        return True

    def trim(self, index: QueueIndex) -> None:
        """Drop the oldest messages of a queue that is over its limits, where its settings say so.

        Called in the step that brings a message, so a queue is never seen over its limits. Only after a limit was
        lowered a task does the rest.
        """
        if index.settings.overflow == DROP_HEAD and self._drop(index) and index not in self._trimming:
            self._trimming.add(index)
            self._begin_job(partial(self._trim_rest, index))

    def _drop(self, index: QueueIndex) -> bool:
        """Drop a few messages. Whether there are more to drop."""
        if self._committer.failure or index.deleted:
            return False
        for _ in range(_DROPPED_AT_ONCE):
            if not _holds_too_much(index) or (oldest := index.oldest()) is None:
                return False
            if oldest.id in index.delivering:
                index.drop_delivered(oldest)
            elif oldest.id in self._catalog.locks:
                return False  # a peer has brought it here, while this broker moves it from elsewhere
            else:
                self._dead_letters.dead_letter(oldest, DROPPED)
        return _holds_too_much(index)

    async def _trim_rest(self, index: QueueIndex) -> None:
        """Drop in turns what is over a queue's limits."""
        while index.settings.overflow == DROP_HEAD and self._drop(index):
            await turns.spend(frames=_DROPPED_AT_ONCE)
            await self._dead_letters.has_room()
        self._trimming.discard(index)

    def in_turns(self, items: Sequence[T], do: Callable[[Sequence[T]], None]) -> None:
        """Do something for items: at once if they are few, else in turns, in a task. :meth:`jobs_done` waits for it."""
        if len(items) <= turns.FRAMES_A_TURN:
            do(items)
            return

        async def job() -> None:
            async for some in turns.slices(items, turns.LIGHT):
                do(some)
            self._doing.discard(job)
            self._done.unpark_all()

        self._doing.add(job)
        self._begin_job(job)

    async def jobs_done(self) -> None:
        """Wait until all that :meth:`in_turns` has begun is done."""
        while self._doing:
            await self._done.park()

    def _begin_job(self, job: Callable[[], Awaitable[None]]) -> None:
        """Do a long job in a task of its own, once tasks run."""
        if self._nursery is None:
            self._jobs_before.append(job)
        else:
            self._nursery.start_soon(job)

    def settings_changed(self, index: QueueIndex) -> None:
        """Apply changed settings: drop what is over the limits, and call the waiters' worker."""
        self.trim(index)
        self._waiters.call(index)

    def forget(self, index: QueueIndex, leftovers: Iterator[Entry] | None = None, *, is_ours: bool = False) -> None:
        """Forget a queue that was deleted. Its timers, and what it leaves, go by and by.

        Args:
            leftovers: its messages outside its folder, which are removed.
            is_ours: whether this broker deleted it; then messages being moved are removed, too, where they arrive.
        """
        index.deleted = True
        self._catalog.drop_queue(index.name)
        self._waiters.call(index)
        self._catalog.closed(index.name)
        if is_ours:
            self._catalog.leave(index)
        else:
            self._catalog.strangers.add(index.name)
        if index.total > _DROPPED_AT_ONCE:
            index.under_way += is_ours  # until the last of its leftovers is begun, it has not left
            self._begin_job(partial(self._clear, index, leftovers if is_ours else None))
            return
        self._forget_timers(index)
        if is_ours:
            for entry in leftovers or ():
                self.orphaned(entry)
            self._catalog.let_go(index)

    def _forget_timers(self, index: QueueIndex) -> None:
        for id in index.expiring():
            self._expiry.forget(id)
        for id in [*index.new, *index.delayed, *index.claimed]:
            self._mover.cancel(id)

    async def _clear(self, index: QueueIndex, leftovers: Iterator[Entry] | None) -> None:
        """Remove in turns what a deleted queue has left, and its timers."""
        if leftovers is not None:
            await self._remove_leftovers(leftovers)
            index.under_way -= 1
            self._catalog.let_go(index)
        # Timers would find nothing, but take memory until they are due.
        async for id in turns.in_turns([*index.new, *index.delayed, *index.claimed], turns.LIGHT):
            self._mover.cancel(id)
        async for id in turns.in_turns(index.expiring(), turns.LIGHT):
            self._expiry.forget(id)

    async def _remove_leftovers(self, leftovers: Iterator[Entry]) -> None:
        while some := list(islice(leftovers, self._committer.portion)):
            await turns.spend(frames=len(some))
            futures = [self.orphaned(entry) for entry in some if entry.id not in self._catalog.locks]
            with suppress(MQError):  # what cannot be removed now is tried again
                for future in futures[-1:]:  # others' operations come in between
                    await future.get()

    def orphaned(self, entry: Entry) -> Future[Entry]:
        """Remove a message of a deleted queue. A queue of that name is made only after its removal
        (:meth:`mq.broker.queues.Queues.create`), so it never gets a message that a crash has left."""
        self._catalog.begin(entry, is_leaving=True)
        orphan = OrphanJob(self._catalog, Move(entry, State.REMOVED), self._remove_later)
        self._jobs.put([orphan])
        return orphan.future

    def _remove_later(self, entry: Entry) -> None:
        leaving = self._catalog.leaving.get(entry.queue)
        if leaving is not None:
            leaving.stuck += 1
        self._stuck[entry.id] = entry, leaving
        self._is_stuck.set()

    async def retry_orphans(self, queue: str | None = None, most: int | None = None) -> None:
        """Try to remove what the medium refused to remove: of deleted queues of one name, or of all."""
        tried = (id for id, (entry, _) in self._stuck.items() if queue in (None, entry.queue))
        async for id in turns.in_turns(list(islice(tried, most)), turns.FRAME):
            if id not in self._stuck:
                continue
            entry, leaving = self._stuck.pop(id)
            if id not in self._catalog.locks:
                self.orphaned(entry)
            if leaving is not None:
                leaving.stuck -= 1
                self._catalog.let_go(leaving)

    async def _retry_orphans(self) -> None:
        while True:
            await self._is_stuck.wait()
            await trio.sleep(RETRY_SECONDS)
            await self.retry_orphans(most=LARGEST_ROUND)
            if not self._stuck:
                self._is_stuck = trio.Event()

    def arrived(self, index: QueueIndex, entry: Entry, due: float | None) -> None:
        """Have the mover, the timers and the waiters do their part."""
        if entry.state is _READY:
            self._expiry.add(entry)
            self.trim(index)
            if index in self._waiters.queues:
                self._waiters.call(index)
        elif entry.state is _DELAYED:
            if self._has_started:
                self._set_timer(index, entry, due)
            else:
                self._found.append((index, entry))  # the clock is not yet known
            if entry.meta.receipt is None:
                self.trim(index)
        else:
            if self._config.mover:
                self._mover.add(entry)
            self.trim(index)

    def freed(self, index: QueueIndex) -> None:
        """Call the queue's waiters."""
        self._waiters.call(index)

    def removed(self, entry: Entry) -> None:
        """Have the reaper unlink it, but for one whose body is being read: that is unlinked later."""
        if self._config.reaper and not (self._being_read and entry in self._being_read):
            self._reaper.add(entry)

    def keep_until_read(self, entry: Entry) -> Callable[[], None]:
        """Let the reaper wait for the reader of a message that is about to be in REMOVED.

        Returns:
            What to call when the body is closed.
        """
        self._being_read.add(entry)
        return partial(self._was_read, entry)

    def _was_read(self, entry: Entry) -> None:
        if entry in self._being_read:
            self._being_read.discard(entry)
            self.removed(entry)

    def departed(self, id: MessageId) -> None:
        """Forget its history and its timers."""
        self._dead_letters.forget(id)
        if id in self._mover.due:
            self._mover.cancel(id)
        if id in self._expiry.due:
            self._expiry.forget(id)

    def _expire(self, queue: str, id: MessageId) -> None:
        index = self._catalog.queues.get(queue)
        entry = index.find(id) if index is not None else None
        if index is None or entry is None or entry.state is not State.READY:
            return
        if index.is_out(id) or id in self._catalog.locks:
            return
        if self._dead_letters.is_expired(entry) and not self._committer.failure:
            self._dead_letters.dead_letter(entry, EXPIRED)

    def _set_timer(self, index: QueueIndex, entry: Entry, due: float | None = None) -> None:
        """Set the timer of a DELAYED message, unless it is far off. `due` is when its lease ends, if known."""
        if self._calendar.add(index, entry):
            self._mover.cancel(entry.id)
        elif self._config.mover:
            if due is None:
                due = trio.current_time() + self._remaining_seconds(entry)
            if index.settings.retry_delay:
                due += self._retry_seconds(index, entry)
            self._mover.add(entry, due)

    async def _count_age(self, found: frozenset[tuple[MessageId, int | None]], aged: Sequence[Aged]) -> None:
        """Once a doubt has ended, set timers anew: messages from before the start are older than was known then.

        Args:
            found: the messages that waited at the start, each with its deadline.
            aged: what the clock went by in the doubt.
        """
        await self.clock.trusted()
        self._calendar.set_ages()

        async def count_moving(index: QueueIndex, id: MessageId) -> None:
            await self._catalog.locks.wait(id)
            if (entry := index.find(id)) is not None and entry.state is State.DELAYED:
                self._count_delay_age(index, entry, found, aged)

        async with trio.open_nursery() as nursery:
            for index in list(self._catalog.queues.values()):
                for id in self._catalog.on_their_way(index):
                    nursery.start_soon(count_moving, index, id)
                async for id in turns.in_turns(list(index.expiring()), turns.LIGHT):
                    if (ready := index.find(id)) is not None:
                        self._expiry.add(ready)
                async for entry in turns.in_turns(list(index.all_delayed()), turns.FRAME):
                    self._count_delay_age(index, entry, found, aged)

    def _count_delay_age(
        self, index: QueueIndex, entry: Entry, found: frozenset[tuple[MessageId, int | None]], aged: Sequence[Aged]
    ) -> None:
        added_ms = self.clock.delay_age_ms(entry) - delay_age_by(aged, entry)
        if not added_ms or entry.id in self._catalog.locks or index.find(entry.id) != entry:
            return
        if (entry.id, entry.meta.deadline_ms) in found:
            if entry.id in index.delayed:  # else the calendar has it
                self._set_timer(index, entry)
        elif (entry.meta.deadline_ms or GIVEN_MS) < GIVEN_MS:
            self._delay_longer(entry, added_ms)

    def _delay_longer(self, entry: Entry, added_ms: int) -> None:
        """Let a delay that was given while the clock was in doubt end no sooner by what its message's age is now more
        than it was then."""
        meta = entry.meta._replace(deadline_ms=(entry.meta.deadline_ms or 0) + added_ms)
        self._catalog.begin(entry)
        self._jobs.put([MoveJob(self._catalog, Move(entry, State.DELAYED, meta), Kind.DELAY, "delay the message")])

    def _is_near(self, index: QueueIndex, entry: Entry) -> None:
        self._set_timer(index, entry)

    def _retry_seconds(self, index: QueueIndex, entry: Entry) -> float:
        """How much longer than its lease a message is held back: a lease that ends by itself is a failure, too."""
        # No move marks this wait, so it costs nothing; and a holder that comes too late may still remove the message.
        if entry.meta.receipt is None or self._dead_letters.is_worn_out(entry):
            return 0.0
        return index.settings.retry_seconds(entry.meta.receives, self._random)

    def _remaining_seconds(self, entry: Entry) -> float:
        """Seconds until a lease ends, within the longest lease, or a delay that is near."""
        if entry.meta.deadline_ms is None:
            return self._config.visibility_seconds
        remaining = self.clock.seconds_until_due(entry)
        return min(max(remaining, 0.0), LONGEST_LEASE_SECONDS + MARGIN_SECONDS)

    def _begin_move(self, entry: Entry) -> bool:
        index = self._catalog.queues.get(entry.queue)
        if index is None or entry.id in self._catalog.locks or index.find(entry.id) != entry:
            return False
        if self._committer.failure:
            return False  # nothing moves any more, until a restart
        if entry.state is State.READY and entry.id not in index.claimed:
            return False  # its claim has let it go meanwhile
        if entry.state is State.DELAYED and self._is_too_early(index, entry):
            return False
        if entry.state is State.DELAYED and self._dead_letters.is_worn_out(entry):
            self._dead_letters.dead_letter(entry, RECEIVES, is_lease_over=True)
            return False
        self._catalog.begin(entry)
        if entry.state is State.NEW:
            index.deliver(entry)
            self._delivering[entry.id] = index
        return True

    def _is_too_early(self, index: QueueIndex, entry: Entry) -> bool:
        """Whether the wall clock was set back since the timer of a given instant was set. If so it is set anew."""
        deadline_ms = entry.meta.deadline_ms or 0
        if deadline_ms < GIVEN_MS:
            return False
        self.clock.look()
        if self.clock.is_over(deadline_ms - GIVEN_MS):
            return False
        if not self._calendar.add(index, entry):
            seconds = self.clock.seconds_until_due(entry)
            # Where it is over already the step has to last first.
            self._mover.add(entry, trio.current_time() + (seconds if seconds > 0 else RETRY_SECONDS))
        return True

    def _end_move(self, entry: Entry, outcome: Outcome) -> None:
        kind = Kind.REQUEUE
        if entry.state is State.NEW:
            kind = Kind.DELIVER if entry.meta.deadline_ms is None else Kind.DELAY
            self._delivering.pop(entry.id).delivered(entry.id)  # that queue may be another one of the same name by now
        index = self._catalog.queues.get(entry.queue)
        if entry.state is State.READY and outcome.entry is not None and outcome.entry.state is State.DELAYED:
            kind = Kind.DELAY
        if entry.state is State.READY and index is not None and outcome.result not in (Result.FULL, Result.UNKNOWN):
            index.unclaim(entry.id)  # else the mover tries again
        if outcome.result is Result.DONE:
            self._catalog.end(entry, outcome.entry, kind)
            if entry.state is State.READY and index is not None and outcome.entry is not None:
                self._end_worn_out(index, outcome.entry)
        elif outcome.result is Result.GONE:
            self._catalog.end(entry, None, kind)
        else:
            self._catalog.end(entry, entry, kind)
            self._mover.cancel(entry.id)
            if outcome.result is Result.NO_QUEUE and index is not None and not index.is_going:
                logger.warning(
                    "the folder for queue %s is missing. mq leaves the queue's messages in other folders unchanged",
                    index.name,
                )
                self.forget(index)

    def _end_worn_out(self, index: QueueIndex, entry: Entry) -> None:
        """Let a message die at once that was in a claim once too often."""
        if entry.state is State.READY and index.find(entry.id) == entry and self._dead_letters.is_worn_out(entry):
            self._dead_letters.dead_letter(entry, RECEIVES)

    def _aim(self, entry: Entry) -> Move:
        """The move of a due entry: from NEW to DELAYED for a message with a delay; for one that a claim held, to where
        a lease that ended by itself leaves it; else to READY."""
        if entry.state is State.NEW and entry.meta.deadline_ms is not None:
            return Move(entry, State.DELAYED, entry.meta, durable=False)
        if entry.state is not State.READY:
            return to_ready(entry)
        meta = entry.meta._replace(receives=entry.meta.receives + 1)
        index = self._catalog.queues.get(entry.queue)
        if index is not None and not self._dead_letters.is_worn_out(entry._replace(meta=meta)):
            seconds = index.settings.retry_seconds(meta.receives, self._random)
            if seconds:
                return Move(entry, State.DELAYED, meta._replace(deadline_ms=self.clock.delayed_ms(entry, seconds)))
        return Move(entry, State.READY, meta)

    def _end_reap(self, entry: Entry, outcome: Outcome) -> None:
        if outcome.result is Result.DONE:
            self._catalog.tell(Kind.REAP, entry, None)


def _holds_too_much(index: QueueIndex) -> bool:
    settings = index.settings
    if settings.max_messages is not None and index.counted - index.reserved > settings.max_messages:
        return True
    return settings.max_bytes is not None and index.bodies is not None and index.bodies.total > settings.max_bytes
