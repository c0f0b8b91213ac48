"""Removing what is held: whatever was acknowledged together leaves in one batch, and is answered once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from mq.broker.catalog import Catalog
from mq.broker.commit import Committer, error_of
from mq.broker.mailbox import Mailbox, Reply
from mq.errors import MQError
from mq.lifecycle import DOOR, Kind, State
from mq.storage.interface import Entry, Move, Outcome, Result

LARGEST_GROUP: Final = 16
"""Batches that are committed together at the most."""


class _Batch(NamedTuple):
    moves: list[Move]
    door: str
    reply: Reply[None]


class Remover:
    """Removes messages that stand in the index, a batch at a time.

    Args:
        catalog: the queues.
        committer: does the moves.
    """

    def __init__(self, catalog: Catalog, committer: Committer) -> None:
        self._catalog = catalog
        self._committer = committer
        self._waiting: Mailbox[_Batch] = Mailbox()

    def remove(self, entries: Sequence[Entry], *, durable: bool) -> Reply[None]:
        """Remove these, whoever waits for the answer. One that is not there any more is passed over; if another cannot
        be removed it is where it was, and the answer is why."""
        for entry in entries:
            self._catalog.begin(entry, is_leaving=True)
        moves = [Move(entry, State.REMOVED, durable=durable) for entry in entries]
        batch = _Batch(moves, DOOR.get(), Reply())
        if moves:
            self._waiting.put(batch)
        else:
            batch.reply.set(None)
        return batch.reply

    async def run(self) -> None:
        """Remove for ever."""
        while True:
            batches = await self._waiting.drain(LARGEST_GROUP)
            outcomes = iter(await self._committer.commit([move for batch in batches for move in batch.moves]))
            for batch in batches:
                error = self._end(batch, [next(outcomes) for _ in batch.moves])
                if error is None:
                    batch.reply.set(None)
                else:
                    batch.reply.fail(error)

    def _end(self, batch: _Batch, outcomes: Iterable[Outcome]) -> MQError | None:
        """They have left, or are back. Why, for the last one that could not be removed."""
        error = None
        for move, outcome in zip(batch.moves, outcomes, strict=True):
            if outcome.result is Result.DONE:
                self._catalog.end(move.entry, outcome.entry, Kind.REMOVE, door=batch.door)
            elif outcome.result is Result.GONE:
                self._catalog.end(move.entry, None, Kind.REMOVE)
            else:
                self._catalog.end(move.entry, move.entry, Kind.REMOVE)
                error = error_of(outcome, "remove the message")
        return error
