"""What goes on without anybody asking: deliveries, leases that end, messages that die, what deleted queues left.

It owns the mover, the reaper and the timers of what expires, and tells them what arrives where: whatever enters NEW
or DELAYED is the mover's, whatever enters REMOVED the reaper's, and whoever waits for a queue is called when a
message of it is READY.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from mq.broker.catalog import Catalog
from mq.broker.commit import Committer
from mq.broker.config import LONGEST_LEASE_SECONDS, MARGIN_SECONDS, RETRY_SECONDS, BrokerConfig
from mq.broker.deaths import DROPPED, EXPIRED, RECEIVES, Deaths
from mq.broker.expiry import Expiry
from mq.broker.fetches import Fetches
from mq.broker.index import QueueIndex
from mq.broker.jobs import Change, Job, Orphan
from mq.broker.mailbox import Mailbox
from mq.broker.mover import LARGEST_ROUND, Mover, to_ready
from mq.broker.offers import Offers
from mq.broker.queue_settings import DROP_HEAD
from mq.broker.reaper import Reaper
from mq.lifecycle import Kind, State
from mq.message import MessageId
from mq.storage.interface import Entry, Move, Outcome, Result

logger = logging.getLogger("mq.broker")


class Upkeep:
    """Keeps messages moving.

    Args:
        catalog: what is known of the store.
        committer: does the moves.
        jobs: where changes that nobody waits for are put.
        deaths: takes care of dead messages.
        fetches: who waits for what is READY.
        offers: to whoever waits for what is in NEW.
        config: how the broker works.
        clock_ns: wall clock, nanoseconds since 1970.
    """

    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        jobs: Mailbox[Sequence[Job]],
        deaths: Deaths,
        fetches: Fetches,
        offers: Offers,
        config: BrokerConfig,
        clock_ns: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._jobs = jobs
        self._deaths = deaths
        self._fetches = fetches
        self._offers = offers
        self._config = config
        self.clock_ns = clock_ns
        self._mover = Mover(committer.commit, self._begin_move, self._end_move, _aim)
        self._expiry = Expiry(self._expire, clock_ns)
        self._reaper = Reaper(committer.commit, self._end_reap)
        self._stuck_orphans: Mailbox[Entry] = Mailbox()
        self._delivering: dict[MessageId, QueueIndex] = {}
        catalog.orphaned = self._remove_orphan
        catalog.departed = self._departed
        catalog.arrivals[State.READY] = self._ready_add
        catalog.arrivals[State.DELAYED] = self._delayed_add
        if config.mover:
            catalog.arrivals[State.NEW] = self._new_add
        if config.reaper:
            catalog.removed = self._reaper.add

    def start(self, nursery: trio.Nursery) -> None:
        """Start the tasks."""
        nursery.start_soon(self._remove_stuck_orphans)
        nursery.start_soon(self._deaths.run)
        nursery.start_soon(self._expiry.run)
        if self._config.mover:
            nursery.start_soon(self._mover.run)
        if self._config.reaper:
            nursery.start_soon(self._reaper.run)

    async def deliver_backlog(self) -> None:
        """What a crash left in NEW is READY before the first fetch, if the medium lets it."""
        if self._config.mover:
            await self._mover.caught_up()

    async def settle(self, index: QueueIndex) -> None:
        """Until what is in NEW now has been delivered, or cannot be."""
        if index.undelivered and self._config.mover:
            self.deliver_offers(index)
            await self._mover.caught_up()

    def give_back(self, entry: Entry) -> None:
        """A lease that nobody took: READY again at once, and not counted. One that has ended meanwhile is let be."""
        index = self._catalog.queues.get(entry.queue)
        if index is not None and index.find(entry.id) == entry and entry.id not in self._catalog.transit:
            self._catalog.begin(entry)
            meta = entry.meta.at_rest()._replace(receives=max(0, entry.meta.receives - 1))
            self._jobs.put([Change(self._catalog, Move(entry, State.READY, meta), Kind.REQUEUE, "requeue it")])

    def is_dead(self, index: QueueIndex, entry: Entry) -> bool:
        """Whether a READY message must not be handed out any more. Then it is on its way out."""
        for reason, is_so in ((EXPIRED, self._deaths.is_expired), (RECEIVES, self._deaths.is_worn_out)):
            if is_so(entry):
                self._deaths.bury(entry, reason)
                return True
        return False

    def deliver_offers(self, index: QueueIndex) -> None:
        """Nobody takes what else is offered: deliver it."""
        for entry in self._offers.leave(index):
            self._mover.add(entry)

    def trim(self, index: QueueIndex) -> None:
        """Let go of the oldest messages of a queue that holds too much and may drop some."""
        if index.settings.overflow == DROP_HEAD and not self._committer.failure:
            while _holds_too_much(index) and (oldest := index.oldest()) is not None:
                if oldest.id in self._catalog.transit:
                    break  # a peer has brought it here, while it is being moved from elsewhere
                self._deaths.bury(oldest, DROPPED)

    def settings_changed(self, index: QueueIndex) -> None:
        """What may be handed out, or must go, may be another thing now."""
        self.trim(index)
        self._fetches.call(index)

    def forget(self, index: QueueIndex, *, remove: bool) -> None:
        """The queue is no more. What is left of it outside its folder goes too, if it was deleted through us."""
        index.deleted = True
        self._catalog.queues.pop(index.name, None)
        self._fetches.call(index)
        self._catalog.closed(index.name)
        for id in index.expiring():
            self._expiry.forget(id)
        for entry in [*index.new.values(), *index.delayed.values()]:
            self._mover.cancel(entry.id)
            if remove:
                self._remove_orphan(entry)

    def _remove_orphan(self, entry: Entry) -> None:
        """A message of a deleted queue: nobody waits for this, and a crash before it is repaired at the next start."""
        self._catalog.begin(entry, is_leaving=True)
        orphan = Orphan(self._catalog, Move(entry, State.REMOVED, durable=False), self._stuck_orphans.put)
        self._jobs.put([orphan])

    async def _remove_stuck_orphans(self) -> None:
        """What the medium refused to remove is tried again, in a while."""
        while True:
            entries = await self._stuck_orphans.drain(LARGEST_ROUND)
            await trio.sleep(RETRY_SECONDS)
            for entry in entries:
                if entry.id not in self._catalog.transit:
                    self._remove_orphan(entry)

    def _ready_add(self, index: QueueIndex, entry: Entry, due: float | None) -> None:
        self._expiry.add(entry)
        self.trim(index)
        self._fetches.call(index)

    def _expire(self, queue: str, id: MessageId) -> None:
        index = self._catalog.queues.get(queue)
        entry = index.find(id) if index is not None else None
        if index is None or entry is None or entry.state is not State.READY:
            return
        if id in index.held or id in self._catalog.transit:
            return
        if self._deaths.is_expired(entry) and not self._committer.failure:
            self._deaths.bury(entry, EXPIRED)

    def _departed(self, id: MessageId) -> None:
        self._deaths.forget(id)
        self._mover.cancel(id)
        self._expiry.forget(id)

    def _new_add(self, index: QueueIndex, entry: Entry, due: float | None) -> None:
        if self._offers.is_offered(index, entry):
            self._fetches.call(index)
        else:
            self._mover.add(entry)

    def _delayed_add(self, index: QueueIndex, entry: Entry, due: float | None) -> None:
        if self._config.mover:
            self._mover.add(entry, trio.current_time() + self._remaining_seconds(entry) if due is None else due)
        if entry.meta.claim is None:
            self.trim(index)

    def _remaining_seconds(self, entry: Entry) -> float:
        """How long a lease found in the store still runs, by the wall clock, which may have been set since."""
        if entry.meta.deadline_ms is None:
            return self._config.delay_seconds
        remaining_ns = entry.meta.deadline_ms * 1_000_000 - self.clock_ns()
        return min(max(remaining_ns / 1e9, 0.0), LONGEST_LEASE_SECONDS + MARGIN_SECONDS)

    def _begin_move(self, entry: Entry) -> bool:
        index = self._catalog.queues.get(entry.queue)
        if index is None or entry.id in self._catalog.transit or index.find(entry.id) != entry:
            return False
        if self._committer.failure:
            return False  # nothing moves any more, until a restart
        if entry.state is State.DELAYED and self._deaths.is_worn_out(entry):
            self._deaths.bury(entry, RECEIVES, is_lease_over=True)
            return False
        self._catalog.begin(entry)
        if entry.state is State.NEW:
            index.delivering += 1
            self._delivering[entry.id] = index
        return True

    def _end_move(self, entry: Entry, outcome: Outcome) -> None:
        kind = Kind.REQUEUE
        if entry.state is State.NEW:
            kind = Kind.DELIVER if entry.meta.deadline_ms is None else Kind.DELAY
            self._delivering.pop(entry.id).delivering -= 1  # that queue may be another one of the same name by now
        index = self._catalog.queues.get(entry.queue)
        if outcome.result is Result.DONE:
            self._catalog.end(entry, outcome.entry, kind)
        elif outcome.result is Result.GONE:
            self._catalog.end(entry, None, kind)
        else:
            self._catalog.end(entry, entry, kind)
            self._mover.cancel(entry.id)
            if outcome.result is Result.NO_QUEUE and index is not None:
                logger.warning("the folder of queue %s is gone; its other messages are left where they are", index.name)
                self.forget(index, remove=False)

    def _end_reap(self, entry: Entry, outcome: Outcome) -> None:
        if outcome.result is Result.DONE:
            self._catalog.tell(Kind.REAP, entry, None)


def _aim(entry: Entry) -> Move:
    """What is to be delayed goes from NEW to DELAYED; everything else to READY."""
    if entry.state is State.NEW and entry.meta.deadline_ms is not None:
        return Move(entry, State.DELAYED, entry.meta, durable=False)
    return to_ready(entry)


def _holds_too_much(index: QueueIndex) -> bool:
    settings = index.settings
    if settings.max_messages is not None and index.counted - index.reserved > settings.max_messages:
        return True
    return settings.max_bytes is not None and index.bodies is not None and index.bodies.total > settings.max_bytes
