"""Changes of messages, and the save workers that do them.

A worker drains what waits for it into one group of operations. What a job changes in memory it changes itself, so
that it happens whether or not whoever asked is still there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import trio

from mq.broker.bodies import digest_of
from mq.broker.catalog import Catalog
from mq.broker.commit import Committer, error_of
from mq.broker.config import MARGIN_SECONDS
from mq.broker.handover import HandedOver, Handover
from mq.broker.index import QueueIndex
from mq.broker.mailbox import Mailbox, Reply
from mq.broker.offers import Offers
from mq.errors import NoSuchQueue, StorageSlow
from mq.lifecycle import DOOR, Kind
from mq.message import MessageId, MessageIds
from mq.storage.interface import Entry, Meta, Move, Operation, Outcome, Result, Staged, Write

logger = logging.getLogger("mq.broker")

LARGEST_GROUP: Final = 1024
RANK_TICKS: Final = 1 << 49
"""What a rank adds to a message's order, in UUID ticks: about 650 days, which is further ahead than ids follow a
clock."""


class Job(Protocol):
    """One change of one message, for a save worker."""

    def operation(self) -> Operation:
        """What the store has to do. Called once, in the order of arrival."""

    def done(self, outcome: Outcome) -> None:
        """What became of it: bring the catalog up to date and answer."""


class Publish:
    """Write a message.

    Its id is made when its turn comes, so that ids and barriers have one order; unless it had to be known before.

    Args:
        catalog: the queues.
        ids: makes the id.
        index: the queue, in which room was reserved.
        body: the bytes, or what the store has staged.
        digest: of the body, where it is known already.
        attributes: kept with the message.
        meta: its delay and its expiry.
        landed: told, before the answer, of the id when the message is durable, of None when it is not.
        handover: to whoever waits when it is written.
        offers: to whoever waits when it has been written.
        transient: it need not outlive this process.
    """

    def __init__(
        self,
        catalog: Catalog,
        ids: MessageIds,
        index: QueueIndex,
        body: bytes | Staged,
        digest: bytes | None,
        attributes: Mapping[str, Any],
        meta: Meta,
        landed: Callable[[MessageId | None], None],
        *,
        handover: Handover,
        offers: Offers,
        transient: bool,
    ) -> None:
        self.reply: Reply[MessageId] = Reply()
        self.id: MessageId | None = None
        self.index = index
        self._catalog = catalog
        self._ids = ids
        self._body = body
        self._digest = digest
        self._attributes = attributes
        self._meta = meta
        self._landed = landed
        self._handover = handover
        self._offers = offers
        self._transient = transient
        self._is_handed_over = self._is_writing = False
        self._door = DOOR.get()
        self._size = len(body) if isinstance(body, bytes) else body.size
        index.reserved += 1
        index.reserved_bytes += self._size

    def operation(self) -> Operation:
        """A Write. A message whose id is older than this moment is not handed over: it may have been overtaken."""
        id = self.id or self._ids.new()
        write = Write(self.index.name, id, self._body, self._attributes, self._meta, transient=self._transient)
        self._is_handed_over = self.id is None and self._handover.takes(self.index, write)
        self._is_writing = not self._is_handed_over
        self.index.writing += self._is_writing
        return write

    def stand_behind(self, rank: int) -> None:
        """Give it a place behind all messages of a lower rank that come within :data:`RANK_TICKS`."""
        now = self._ids.new()
        self.id = self.id or now
        self._meta = self._meta._replace(order=now.time + rank * RANK_TICKS)

    def done(self, outcome: Outcome) -> None:
        """Answer with the id."""
        entry = outcome.entry
        if outcome.result is not Result.DONE or entry is None:
            self.give_up(error_of(outcome, "store the message"))
            return
        self._release()
        self._note_body(entry.id)
        if self._is_handed_over:
            self._catalog.begin(entry)  # it has left NEW in the same batch, and whoever saw to that knows where it is
        elif self.index.deleted:  # and perhaps made anew: this is no message of that queue
            self._catalog.orphaned(entry)
        else:
            self._offers.consider(self.index, entry, self._body, self._attributes)
            self._catalog.place(entry)
        self._catalog.tell(Kind.PUBLISH, None, entry, self._size, self._door)
        self._tell_landed(entry.id)
        if self.index.deleted:
            self.reply.fail(NoSuchQueue(f"queue {self.index.name} was deleted meanwhile"))
        else:
            self.reply.set(entry.id)

    def give_up(self, error: Exception) -> None:
        """It will not be written."""
        self._release()
        self._tell_landed(None)
        self.reply.fail(error)

    def _tell_landed(self, id: MessageId | None) -> None:
        """Once. Whoever is told may know this job: let go, both are gone at once, and need no garbage collector."""
        landed, self._landed = self._landed, _nobody
        landed(id)

    def _release(self) -> None:
        self.index.reserved -= 1
        self.index.reserved_bytes -= self._size
        self.index.writing -= self._is_writing

    def _note_body(self, id: MessageId) -> None:
        if self.index.bodies is not None:
            if self._digest is None and isinstance(self._body, bytes):
                self._digest = digest_of(self._body)
            if self._digest is not None:
                self.index.bodies.add(id, self._size, self._digest)


def _nobody(id: MessageId | None) -> None:
    """Has been told."""


class Change:
    """Move a message that the catalog has let go (:meth:`Catalog.begin`).

    Args:
        catalog: that has let it go.
        move: where it goes.
        kind: what that is called.
        what: completes "cannot ...".
        seconds: how long its lease lasts from then on, where it stays leased.
    """

    def __init__(self, catalog: Catalog, move: Move, kind: Kind, what: str, seconds: float | None = None) -> None:
        self.reply: Reply[Entry] = Reply()
        self._catalog = catalog
        self._move = move
        self._kind = kind
        self._what = what
        self._seconds = seconds
        self._door = DOOR.get()
        self._started = trio.current_time()

    def operation(self) -> Operation:
        """The Move."""
        return self._move

    def done(self, outcome: Outcome) -> None:
        """Answer with where the message is now."""
        left, now = self._move.entry, outcome.entry
        if outcome.result is Result.DONE and now is not None:
            time = trio.current_time()
            due = None if self._seconds is None else time + self._seconds
            self._catalog.end(left, now, self._kind, due, self._door)
            if self._seconds is not None and time - self._started > MARGIN_SECONDS:
                self.reply.fail(StorageSlow("the disk was too slow: how long the lease lasts is not sure. Try again"))
            else:
                self.reply.set(now)
            return
        self._catalog.end(left, None if outcome.result is Result.GONE else left, self._kind)
        self.reply.fail(error_of(outcome, self._what))


class Orphan(Change):
    """Remove a message of a deleted queue.

    Args:
        catalog: that has let it go.
        move: its removal.
        later: told of an entry that cannot be removed now. One that could not be removed at all is left for the next
            start: it has no queue to go back to.
    """

    def __init__(self, catalog: Catalog, move: Move, later: Callable[[Entry], None]) -> None:
        super().__init__(catalog, move, Kind.REMOVE, "remove what a deleted queue left")
        self._later = later

    def done(self, outcome: Outcome) -> None:
        """Nobody waits for the answer."""
        if outcome.result in (Result.DONE, Result.GONE):
            super().done(outcome)
            return
        self._catalog.end(self._move.entry, None, self._kind)
        if outcome.result in (Result.FULL, Result.UNKNOWN):
            self._later(self._move.entry)


class SaveWorker:
    """Does jobs as they come. Those of one call share a barrier.

    Args:
        committer: does them.
        calls: the jobs of each call.
        handover: of what is written to whoever waits for it.
    """

    def __init__(self, committer: Committer, calls: Mailbox[Sequence[Job]], handover: Handover) -> None:
        self._committer = committer
        self._calls = calls
        self._handover = handover

    async def run(self) -> None:
        """Work for ever."""
        while True:
            jobs: list[Job] = []
            calls = await self._calls.drain(LARGEST_GROUP)
            share = self._committer.share
            for call in calls:
                jobs += call
                if len(jobs) >= share:
                    self._do(jobs)
                    jobs = []
            if jobs:
                self._do(jobs)

    def _do(self, jobs: Sequence[Job]) -> None:
        operations = [job.operation() for job in jobs]
        handed_over = self._handover.collect()
        if handed_over is not None:
            operations += handed_over.moves
        self._committer.submit(operations, len(jobs), partial(_answer, jobs, handed_over))


def _answer(jobs: Sequence[Job], handed_over: HandedOver | None, outcomes: list[Outcome]) -> None:
    for job, outcome in zip(jobs, outcomes, strict=False):  # behind theirs are those of what was handed over
        job.done(outcome)
    if handed_over is not None:
        handed_over.done(outcomes[len(jobs) :])
