"""Removing: whatever was acknowledged together leaves in one batch, and is answered once. It is unlinked in the same
batch, for a store may do both in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from mq.broker.catalog import Catalog
from mq.broker.commit import Committer, error_of
from mq.broker.mailbox import Mailbox, Reply
from mq.errors import MQError
from mq.lifecycle import DOOR, Kind, State
from mq.storage.interface import Entry, Move, Operation, Outcome, Result, Unlink

LARGEST_GROUP: Final = 1024
"""Calls that are taken up together at the most."""


class _Batch(NamedTuple):
    moves: list[Move]
    unlinks: list[Unlink]
    strict: bool
    door: str
    reply: Reply[None]


class Remover:
    """Removes messages that stand in the index, a batch at a time.

    Args:
        catalog: the queues.
        committer: does the moves.
        reaps: whether removed messages are unlinked here.
    """

    def __init__(self, catalog: Catalog, committer: Committer, *, reaps: bool) -> None:
        self._catalog = catalog
        self._committer = committer
        self._reaps = reaps
        self._waiting: Mailbox[Sequence[_Batch]] = Mailbox()  # those of each call

    def remove(self, entries: Sequence[Entry], *, durable: bool, strict: bool = False) -> Reply[None]:
        """Remove these, whoever waits for the answer. If one cannot be removed it is where it was, and the answer is
        why. One that is not there any more is passed over; not where `strict`."""
        batch = self._batch(entries, durable=durable, strict=strict)
        if entries:
            self._waiting.put([batch])
        else:
            batch.reply.set(None)
        return batch.reply

    def remove_each(self, entries: Sequence[Entry]) -> list[Reply[None]]:
        """Remove these under one barrier, durably and strictly; an answer for each."""
        batches = [self._batch([entry], durable=True, strict=True) for entry in entries]
        if batches:
            self._waiting.put(batches)
        return [batch.reply for batch in batches]

    def _batch(self, entries: Sequence[Entry], *, durable: bool, strict: bool) -> _Batch:
        for entry in entries:
            self._catalog.begin(entry, is_leaving=True)
        moves = [Move(entry, State.REMOVED, durable=durable) for entry in entries]
        unlinks = [Unlink(Entry(queue, id, State.REMOVED)) for queue, id, *_ in entries] if self._reaps else []
        return _Batch(moves, unlinks, strict, DOOR.get(), Reply())

    async def run(self) -> None:
        """Remove for ever."""
        while True:
            batches: list[_Batch] = []
            size = 0
            calls = await self._waiting.drain(LARGEST_GROUP)
            share = self._committer.share
            for call in calls:
                batches += call
                size += sum(len(batch.moves) for batch in call)
                if size >= share:
                    self._do(batches)
                    batches, size = [], 0
            if batches:
                self._do(batches)

    def _do(self, batches: Sequence[_Batch]) -> None:
        operations: list[Operation] = []
        messages = 0
        for batch in batches:
            operations += batch.moves
            operations += batch.unlinks
            messages += len(batch.moves)
        self._committer.submit(operations, messages, partial(self._answer, batches))

    def _answer(self, batches: Sequence[_Batch], done: list[Outcome]) -> None:
        outcomes = iter(done)
        for batch in batches:
            moved = list(islice(outcomes, len(batch.moves)))
            error = self._end(batch, moved, list(islice(outcomes, len(batch.unlinks))))
            if error is None:
                batch.reply.set(None)
            else:
                batch.reply.fail(error)

    def _end(self, batch: _Batch, moved: Sequence[Outcome], unlinked: Sequence[Outcome]) -> MQError | None:
        """They have left, or are back. Why, for the last one that could not be removed."""
        error = None
        reaped = zip(batch.moves, unlinked, strict=False)  # all, or none was to be
        gone = {move.entry.id for move, outcome in reaped if outcome.result is Result.DONE}
        for move, outcome in zip(batch.moves, moved, strict=True):
            left, now = move.entry, outcome.entry
            if outcome.result is Result.GONE:
                self._catalog.end(left, None, Kind.REMOVE)
                error = error_of(outcome, "remove the message") if batch.strict else error
            elif outcome.result is not Result.DONE:
                self._catalog.end(left, left, Kind.REMOVE)
                error = error_of(outcome, "remove the message")
            elif left.id in gone:
                self._catalog.end(left, None, Kind.REMOVE)
                self._catalog.departed(left.id)
                self._catalog.tell(Kind.REMOVE, left, now, door=batch.door)
                self._catalog.tell(Kind.REAP, now, None)
            else:
                self._catalog.end(left, now, Kind.REMOVE, door=batch.door)
        return error
