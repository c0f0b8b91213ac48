"""Jobs: changes of one message each, which a save worker (:mod:`mq.broker.commit`) gives to the store in batches.

A job changes the catalog itself when it is done, so the catalog is right even if the requesting task was cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from mq.broker.catalog import Catalog
from mq.broker.commit import BatchTimes, Future
from mq.broker.config import MARGIN_SECONDS
from mq.errors import MQError, NoSuchMessage, StorageUnsure
from mq.lifecycle import PROTOCOL, Kind
from mq.storage.interface import Entry, Move, Operation, Outcome, Result
from mq.storage.records import error_of

logger = logging.getLogger("mq.broker")


async def last_error(moves: Iterable[Future[Entry] | Future[None]]) -> MQError | None:
    """Wait for all of these moves; None if none failed. A message that another move was faster with is no failure."""
    failed: MQError | None = None
    for move in moves:
        try:
            await move.get()
        except NoSuchMessage:
            pass
        except MQError as error:
            failed = error
    return failed


class Job(Protocol):
    """One change of one message, for a save worker."""

    def operation(self) -> Operation:
        """The operation for the store. Called once, in the order of arrival."""

    def done(self, outcome: Outcome, barrier: BatchTimes) -> None:
        """Bring the catalog up to date with the outcome, and answer."""


class MoveJob:
    """Moves one message that :meth:`Catalog.begin` has locked; `future` has its new entry then.

    Args:
        seconds: length of its lease from then on, if it is leased then.
    """

    def __init__(self, catalog: Catalog, move: Move, kind: Kind, what: str, seconds: float | None = None) -> None:
        self.future: Future[Entry] = Future()
        self._catalog = catalog
        self._move = move
        self._kind = kind
        self._what = what
        self._seconds = seconds
        self._protocol = PROTOCOL.get()
        self._started = trio.current_time()

    def operation(self) -> Operation:
        """The Move."""
        return self._move

    def done(self, outcome: Outcome, barrier: BatchTimes) -> None:
        """End the move in the catalog, and answer with the new entry."""
        left, now = self._move.entry, outcome.entry
        if outcome.result is Result.DONE and now is not None:
            due = None if self._seconds is None else trio.current_time() + self._seconds
            self._catalog.end(left, now, self._kind, due, self._protocol)
            if self._seconds is not None and barrier.ended - self._started > MARGIN_SECONDS:
                self.future.fail(
                    StorageUnsure("the disk was too slow, so the lease may not have been extended. Try again")
                )
            else:
                self.future.set(now)
            return
        self._catalog.end(left, None if outcome.result is Result.GONE else left, self._kind)
        self.future.fail(error_of(outcome, self._what))


class OrphanJob(MoveJob):
    """Removes a message of a deleted queue. The removal is durable: a queue of that name may be made right after.

    Args:
        later: called with an entry that cannot be removed now. After any other failure the entry is left for the next
            start, for it has no queue to go back to.
    """

    def __init__(self, catalog: Catalog, move: Move, later: Callable[[Entry], None]) -> None:
        super().__init__(catalog, move, Kind.REMOVE, "cannot remove the remains of a deleted queue")
        self._later = later

    def done(self, outcome: Outcome, barrier: BatchTimes) -> None:
        """End the move in the catalog, and answer when the message is gone."""
        if outcome.result in (Result.DONE, Result.GONE):
            super().done(outcome, barrier)
            return
        if outcome.result in (Result.FULL, Result.UNKNOWN):
            self._later(self._move.entry)
        self._catalog.end(self._move.entry, None, self._kind)
        self.future.fail(error_of(outcome, self._what))
