"""The workers, in pairs: a fetch worker serves some of the queues, one request after another; a save worker any queue.

Each drains what waits for it into one group of operations. What they change in memory they change themselves, so that
it happens whether or not whoever asked is still there.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, Final, Protocol

import trio

from mq.broker.catalog import Catalog
from mq.broker.commit import Committer, error_of
from mq.broker.config import MARGIN_SECONDS
from mq.broker.index import QueueIndex
from mq.broker.mailbox import Mailbox, Reply
from mq.errors import NoSuchQueue, StorageError, StorageSlow
from mq.lifecycle import Kind, State
from mq.message import DamagedBody, Message, MessageId, MessageIds
from mq.storage.interface import Entry, Meta, Move, Operation, Outcome, Result, Staged, Storage, Stored, Write

logger = logging.getLogger("mq.broker")

LARGEST_GROUP: Final = 1024
_LONGEST_PAUSE_SECONDS: Final = 0.009


class Job(Protocol):
    """One change of one message, for a save worker."""

    def operation(self) -> Operation:
        """What the store has to do. Called once, in the order of arrival."""

    def done(self, outcome: Outcome) -> None:
        """What became of it: bring the catalog up to date and answer."""


class Publish:
    """Write a message. Its id is made when its turn comes, so that ids and barriers have one order."""

    def __init__(
        self, catalog: Catalog, ids: MessageIds, index: QueueIndex, body: bytes | Staged, attributes: Mapping[str, Any]
    ) -> None:
        self.reply: Reply[MessageId] = Reply()
        self._catalog = catalog
        self._ids = ids
        self._index = index
        self._body = body
        self._attributes = attributes

    def operation(self) -> Operation:
        """A Write."""
        return Write(self._index.name, self._ids.new(), self._body, self._attributes)

    def done(self, outcome: Outcome) -> None:
        """Answer with the id."""
        entry = outcome.entry
        if outcome.result is not Result.DONE or entry is None:
            self.reply.fail(error_of(outcome, "store the message"))
            return
        self._catalog.place(entry)
        self._catalog.tell(
            Kind.PUBLISH, None, entry, len(self._body) if isinstance(self._body, bytes) else self._body.size
        )
        if self._index.deleted:
            self.reply.fail(NoSuchQueue(f"queue {self._index.name} was deleted meanwhile"))
        else:
            self.reply.set(entry.id)


class Change:
    """Move a message that the catalog has let go (:meth:`Catalog.begin`)."""

    def __init__(self, catalog: Catalog, move: Move, kind: Kind, what: str) -> None:
        self.reply: Reply[Entry] = Reply()
        self._catalog = catalog
        self._move = move
        self._kind = kind
        self._what = what

    def operation(self) -> Operation:
        """The Move."""
        return self._move

    def done(self, outcome: Outcome) -> None:
        """Answer with where the message is now."""
        left, now = self._move.entry, outcome.entry
        if outcome.result is Result.DONE and now is not None:
            self._catalog.end(left, now, self._kind)
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
    """Does jobs as they come."""

    def __init__(self, committer: Committer, jobs: Mailbox[Job]) -> None:
        self._committer = committer
        self._jobs = jobs

    async def run(self) -> None:
        """Work for ever."""
        while True:
            jobs = await self._jobs.drain(LARGEST_GROUP)
            outcomes = await self._committer.commit([job.operation() for job in jobs])
            for job, outcome in zip(jobs, outcomes, strict=True):
                job.done(outcome)


class FetchRequest:
    """Somebody wants the next message of a queue."""

    __slots__ = ("held", "index", "reply")

    def __init__(self, index: QueueIndex) -> None:
        self.index = index
        self.held: Entry | None = None
        self.reply: Reply[Message | None] = Reply()


class Leases:
    """How a lease is named: when it falls due, and by whom it is held.

    Args:
        seconds: how long it lasts.
        clock_ns: wall clock, nanoseconds since 1970.
        random: makes claims that nobody else makes.
    """

    def __init__(self, seconds: float, clock_ns: Callable[[], int], random: Random) -> None:
        self.seconds = seconds
        self._clock_ns = clock_ns
        self._claims = random.getrandbits(64)

    def meta(self, entry: Entry) -> Meta:
        """The meta of `entry` once it is leased."""
        self._claims = (self._claims + 1) % (1 << 64)
        deadline_ms = self._clock_ns() // 1_000_000 + round((self.seconds + MARGIN_SECONDS) * 1000)
        return Meta(deadline_ms, entry.meta.receives + 1, f"{self._claims:016x}", entry.meta.order)


class FetchWorker:
    """Serves the fetches of its queues, one group at a time.

    Args:
        catalog: the queues.
        committer: does the moves.
        storage: gives the bodies.
        requests: what waits.
        leases: names leases.
        peers: how many other brokers fetch from the same store.
        random: chooses among candidates.
        refresh: looks at the store again for READY messages of a queue; used at peers > 0.
        settle: waits until messages in NEW have been delivered, where that is under way.
        give_back: makes a leased message READY again at once.
    """

    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        storage: Storage,
        requests: Mailbox[FetchRequest],
        leases: Leases,
        *,
        peers: int,
        random: Random,
        refresh: Callable[[QueueIndex], Awaitable[None]],
        settle: Callable[[QueueIndex], Awaitable[None]],
        give_back: Callable[[Entry], None],
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._storage = storage
        self._requests = requests
        self._leases = leases
        self._peers = peers
        self._random = random
        self._refresh = refresh
        self._settle = settle
        self._give_back = give_back

    async def run(self) -> None:
        """Work for ever."""
        while True:
            waiting = await self._requests.drain(LARGEST_GROUP)
            while waiting:
                chosen = await self._choose(waiting)
                waiting = await self._lease(chosen)

    async def _choose(self, requests: list[FetchRequest]) -> list[tuple[FetchRequest, Entry]]:
        """An entry for each request, begun; who gets none is answered."""
        by_queue: dict[QueueIndex, list[FetchRequest]] = defaultdict(list)
        for request in requests:
            if not request.reply.abandoned:
                by_queue[request.index].append(request)
        chosen = []
        for index, group in by_queue.items():
            try:
                await self._prepare(index, len(group))
            except StorageError as error:
                for request in group:
                    request.reply.fail(error)
                continue
            for request in group:
                entry = None if index.deleted else self._next(index)
                if entry is not None:
                    self._catalog.begin(entry)
                    chosen.append((request, entry))
                elif index.deleted:
                    request.reply.fail(NoSuchQueue(f"queue {index.name} was deleted meanwhile"))
                else:
                    request.reply.set(None)
        return chosen

    async def _prepare(self, index: QueueIndex, wanted: int) -> None:
        """See that what is there can be seen.

        Raises:
            StorageError: the store cannot be looked at.
        """
        if index.ready < wanted and index.undelivered:
            await self._settle(index)
        if self._peers and index.ready <= self._peers:
            await trio.sleep(self._random.uniform(0, _LONGEST_PAUSE_SECONDS))
            await self._refresh(index)

    def _next(self, index: QueueIndex) -> Entry | None:
        """The first message; with peers, any of the first `peers + 1`, so that brokers seldom want the same one."""
        if not self._peers:
            return index.take()
        candidates = index.first(self._peers + 1)
        return self._random.choice(candidates) if candidates else None

    async def _lease(self, chosen: list[tuple[FetchRequest, Entry]]) -> list[FetchRequest]:
        """Lease and hand out. Those whose message turned out to be gone or damaged, to try the next one."""
        if not chosen:
            return []
        moves = [Move(entry, State.DELAYED, self._leases.meta(entry)) for _, entry in chosen]
        started = trio.current_time()
        outcomes = await self._committer.commit(moves)
        now = trio.current_time()
        again: list[FetchRequest] = []
        leased: list[tuple[FetchRequest, Entry]] = []
        for (request, entry), outcome in zip(chosen, outcomes, strict=True):
            held = outcome.entry if outcome.result is Result.DONE else None
            if held is not None:
                self._catalog.end(entry, held, Kind.LEASE, now + self._leases.seconds)
                leased.append((request, held))
            elif outcome.result is Result.GONE:
                self._catalog.end(entry, None, Kind.LEASE)
                again.append(request)
            else:
                self._catalog.end(entry, entry, Kind.LEASE)
                request.reply.fail(error_of(outcome, "lease the message"))
        if now - started > MARGIN_SECONDS:
            for request, entry in leased:
                self._give_back(entry)
                request.reply.fail(
                    StorageSlow(f"the disk took {now - started:.1f} s; nothing was handed out. Try again")
                )
            return again
        return again + await self._hand_out(leased)

    async def _hand_out(self, leased: list[tuple[FetchRequest, Entry]]) -> list[FetchRequest]:
        if not leased:
            return []
        try:
            stored = await self._storage.read([entry for _, entry in leased])
        except StorageError as error:
            for request, entry in leased:
                self._give_back(entry)
                request.reply.fail(error)
            return []
        again = []
        for (request, entry), found in zip(leased, stored, strict=True):
            if request.reply.abandoned:
                self._give_back(entry)
                if found is not None:
                    await found.body.aclose()
            elif found is None or isinstance(found.body, DamagedBody):
                _log_damage(entry, found)
                again.append(request)
            else:
                request.held = entry
                request.reply.set(
                    Message(
                        entry.queue, entry.id, found.body, found.properties, entry.meta.receives, entry.meta.claim or ""
                    )
                )
        return again


def _log_damage(entry: Entry, found: Stored | None) -> None:
    why = found.body.reason if found is not None and isinstance(found.body, DamagedBody) else "its file vanished"
    logger.error("message %s of %s is not handed out: %s. It stays where it is", entry.id, entry.queue, why)
