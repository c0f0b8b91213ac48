"""A removal, and the unlink of what it removes in the same batch: one unlink.

Only where names reach the medium in the order in which they were changed, and nobody else looks into remove/: there
nobody can tell it from a move and an unlink.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import Entry, Move, Operation, Outcome, Result, Unlink

_GONE: Final = Outcome(Result.GONE)


class Removals:
    """A batch in which they are joined.

    Args:
        operations: the batch as it was asked for: each unlink after its removal.

    Attributes:
        joined: the batch as it is to be done.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self.joined: list[Operation] = []
        self._places: list[int] = []  # of each operation, in what is done
        removed: dict[MessageId, int] = {}
        for operation in operations:
            if isinstance(operation, Unlink):
                place = removed.get(operation.entry.id, -1)
                move = self.joined[place] if place >= 0 else None
                if isinstance(move, Move) and operation.entry == _target(move):
                    self.joined[place] = Unlink(move.entry, durable=move.durable)
                    self._places.append(place)
                    continue
            elif isinstance(operation, Move) and operation.state is State.REMOVED:
                removed[operation.entry.id] = len(self.joined)
            self._places.append(len(self.joined))
            self.joined.append(operation)

    def outcomes(self, done: Sequence[Outcome]) -> list[Outcome]:
        """What became of each operation that was asked for.

        Args:
            done: what became of those in :attr:`joined`.
        """
        if len(self.joined) == len(self._operations):
            return list(done)
        return [
            self._outcome(operation, self.joined[place], done[place])
            for operation, place in zip(self._operations, self._places, strict=True)
        ]

    def _outcome(self, asked: Operation, joined: Operation, outcome: Outcome) -> Outcome:
        if asked is joined:
            return outcome
        if isinstance(asked, Move):
            return outcome._replace(entry=_target(asked)) if outcome.result is Result.DONE else outcome
        return outcome if outcome.result is Result.DONE else _GONE


def _target(move: Move) -> Entry:
    return Entry(move.queue or move.entry.queue, move.entry.id, State.REMOVED, move.meta)
