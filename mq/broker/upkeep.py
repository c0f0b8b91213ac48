"""What goes on without anybody asking: deliveries, leases that end, removed messages, what deleted queues left.

It owns the mover and the reaper, and tells them what arrives where: whatever enters NEW or DELAYED is the mover's,
whatever enters REMOVED the reaper's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from mq.broker.catalog import Catalog
from mq.broker.commit import Committer
from mq.broker.config import LONGEST_LEASE_SECONDS, MARGIN_SECONDS, RETRY_SECONDS, BrokerConfig
from mq.broker.index import QueueIndex
from mq.broker.mailbox import Mailbox
from mq.broker.mover import LARGEST_ROUND, Mover
from mq.broker.reaper import Reaper
from mq.broker.workers import Change, Job, Orphan
from mq.lifecycle import Kind, State
from mq.message import MessageId
from mq.storage.interface import Entry, Meta, Move, Outcome, Result

logger = logging.getLogger("mq.broker")


class Upkeep:
    """Keeps messages moving.

    Args:
        catalog: what is known of the store.
        committer: does the moves.
        jobs: where changes that nobody waits for are put.
        config: how the broker works.
        clock_ns: wall clock, nanoseconds since 1970.
    """

    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        jobs: Mailbox[Job],
        config: BrokerConfig,
        clock_ns: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._jobs = jobs
        self._config = config
        self._clock_ns = clock_ns
        self._mover = Mover(committer.commit, self._begin_move, self._end_move)
        self._reaper = Reaper(committer.commit, self._end_reap)
        self._stuck_orphans: Mailbox[Entry] = Mailbox()
        self._delivering: dict[MessageId, QueueIndex] = {}
        catalog.orphaned = self._remove_orphan
        if config.mover:
            catalog.arrivals[State.NEW] = self._mover_add
            catalog.arrivals[State.DELAYED] = self._mover_add
        if config.reaper:
            catalog.arrivals[State.REMOVED] = self._reaper_add

    def start(self, nursery: trio.Nursery) -> None:
        """Start the tasks."""
        nursery.start_soon(self._remove_stuck_orphans)
        if self._config.mover:
            nursery.start_soon(self._mover.run)
        if self._config.reaper:
            nursery.start_soon(self._reaper.run)

    async def deliver_backlog(self) -> None:
        """What a crash left in NEW is READY before the first fetch, if the medium lets it."""
        backlog = sum(len(index.new) for index in self._catalog.queues.values())
        if self._config.mover and backlog:
            for _ in range(-(-backlog // LARGEST_ROUND)):
                await self._mover.finished_round()

    async def settle(self, index: QueueIndex) -> None:
        """Until what is in NEW now has been delivered: one round of moves may be running, the next has all of it."""
        for _ in range(2):
            if index.undelivered and not index.deleted and self._config.mover and not self._committer.failure:
                await self._mover.finished_round()

    def give_back(self, entry: Entry) -> None:
        """A lease that nobody took: READY again at once."""
        if entry.id not in self._catalog.transit:
            self._catalog.begin(entry)
            meta = Meta(receives=entry.meta.receives, order=entry.meta.order)
            self._jobs.put(Change(self._catalog, Move(entry, State.READY, meta), Kind.REQUEUE, "requeue it"))

    def forget(self, index: QueueIndex, *, remove: bool) -> None:
        """The queue is no more. What is left of it outside its folder goes too, if it was deleted through us."""
        index.deleted = True
        self._catalog.queues.pop(index.name, None)
        for entry in [*index.new.values(), *index.delayed.values()]:
            self._mover.cancel(entry.id)
            if remove:
                self._remove_orphan(entry)

    def _remove_orphan(self, entry: Entry) -> None:
        """A message of a deleted queue: nobody waits for this, and a crash before it is repaired at the next start."""
        self._catalog.begin(entry)
        self._jobs.put(Orphan(self._catalog, Move(entry, State.REMOVED, durable=False), self._stuck_orphans.put))

    async def _remove_stuck_orphans(self) -> None:
        """What the medium refused to remove is tried again, in a while."""
        while True:
            entries = await self._stuck_orphans.drain(LARGEST_ROUND)
            await trio.sleep(RETRY_SECONDS)
            for entry in entries:
                if entry.id not in self._catalog.transit:
                    self._remove_orphan(entry)

    def _mover_add(self, entry: Entry, due: float | None) -> None:
        if entry.state is State.NEW:
            self._mover.add(entry)
        elif due is not None:
            self._mover.add(entry, due)
        else:
            self._mover.add(entry, trio.current_time() + self._remaining_seconds(entry))

    def _remaining_seconds(self, entry: Entry) -> float:
        """How long a lease found in the store still runs, by the wall clock, which may have been set since."""
        if entry.meta.deadline_ms is None:
            return self._config.delay_seconds
        remaining = entry.meta.deadline_ms / 1000 - self._clock_ns() / 1e9
        return min(max(remaining, 0.0), LONGEST_LEASE_SECONDS + MARGIN_SECONDS)

    def _begin_move(self, entry: Entry) -> bool:
        index = self._catalog.queues.get(entry.queue)
        if index is None or entry.id in self._catalog.transit or index.find(entry.id) != entry:
            return False
        self._catalog.begin(entry)
        if entry.state is State.NEW:
            index.delivering += 1
            self._delivering[entry.id] = index
        return True

    def _end_move(self, entry: Entry, outcome: Outcome) -> None:
        kind = Kind.DELIVER if entry.state is State.NEW else Kind.REQUEUE
        if kind is Kind.DELIVER:
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

    def _reaper_add(self, entry: Entry, due: float | None) -> None:
        self._reaper.add(entry)

    def _end_reap(self, entry: Entry, outcome: Outcome) -> None:
        if outcome.result is Result.DONE:
            self._catalog.tell(Kind.REAP, entry, None)
