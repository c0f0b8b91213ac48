"""What one record of the log says is done: units of operations, each of them as a whole, without any sync.

A unit is one operation, or those of a group. Of a group that is refused half-way, what was done is taken back; the log
says so before (:attr:`Doing.undoing`), so that a power cut leaves it all or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from mq.lifecycle import State
from mq.storage.files.batch import Batch, refusal
from mq.storage.files.calls import FileKind
from mq.storage.files.folders import Folders
from mq.storage.files.records import Records
from mq.storage.files.sayings import Forgotten, Kept, Moved, Removed, Saying
from mq.storage.interface import AnyOperation, Drop, Entry, Move, Outcome, Put, Result, Unlink, Write

Unit = tuple[AnyOperation, ...]
_REFUSED = frozenset({Result.FULL, Result.EXISTS, Result.GONE, Result.NO_QUEUE})
"""What a record said would be done, and was not."""
_DONE = Outcome(Result.DONE)


class _Step(NamedTuple):
    """How something that was done is taken back."""

    saying: Saying
    do: Callable[[], object]


class Doing:
    """Does units that a record has said.

    Args:
        folders: of the root.
        records: of the root.
        units: in order.

    Attributes:
        outcomes: one of each unit.
        refused: the numbers of operations, counted through all units, that were not done.
        undoing: what the log has to say before :meth:`undo`.
    """

    def __init__(self, folders: Folders, records: Records, units: Sequence[Unit]) -> None:
        self._folders = folders
        self._records = records
        self._undo: list[_Step] = []
        self.refused: list[int] = []
        messages = [each for unit in units for each in unit if isinstance(each, Write | Move | Unlink)]
        outcomes = iter(Batch(folders, messages).run() if messages else ())
        self.outcomes: list[Outcome] = []
        first = 0
        for unit in units:
            self.outcomes.append(self._end(unit, first, outcomes))
            first += len(unit)

    @property
    def undoing(self) -> list[Saying]:
        """What :meth:`undo` does."""
        return [step.saying for step in self._undo]

    def undo(self) -> None:
        """Take back what was done of groups that were refused.

        Raises:
            OSError: that is not possible.
        """
        for step in self._undo:
            step.do()

    def _end(self, unit: Unit, first: int, of_messages: Iterator[Outcome]) -> Outcome:
        """Do the records of a unit, once its messages are done; the outcome of all of it."""
        if len(unit) == 1 and not isinstance(unit[0], Put | Drop):
            outcome = next(of_messages)
            # to take away what is not there changes nothing, also when it is done again
            if outcome.result in _REFUSED and not (isinstance(unit[0], Unlink) and outcome.result is Result.GONE):
                self.refused.append(first)
            return outcome
        numbered = list(enumerate(unit, first))
        outcomes = {number: next(of_messages) for number, each in numbered if not isinstance(each, Put | Drop)}
        refused = next((outcome for outcome in outcomes.values() if outcome.result is not Result.DONE), None)
        steps = {
            number: self._taking_back(operation)
            for number, operation in numbered
            if len(unit) > 1 and number in outcomes and outcomes[number].result is Result.DONE
        }
        for number, operation in numbered:
            if isinstance(operation, Put | Drop) and refused is None:
                before = self._restoring(operation) if len(unit) > 2 else None
                outcomes[number] = self._keep(operation)
                if outcomes[number].result not in (Result.DONE, Result.GONE):
                    refused = outcomes[number]
                elif before is not None:
                    steps[number] = before
        if refused is not None and refused.result in _REFUSED:
            self._undo += [steps[number] for number in sorted(steps, reverse=True)]
            self.refused += [number for number, _ in numbered if number not in steps]
        return refused or (_DONE if len(unit) > 1 else outcomes[first])

    def _keep(self, operation: Put | Drop) -> Outcome:
        try:
            if isinstance(operation, Drop):
                return _DONE if self._records.drop(*operation) else Outcome(Result.GONE)
            self._folders.reserve.ensure()
            self._records.put(*operation)
        except OSError as error:
            return refusal(error)
        return _DONE

    def _restoring(self, operation: Put | Drop) -> _Step:
        kind, key = operation.kind, operation.key
        value = self._records.all(kind).get(key)
        if value is None:
            return _Step(Forgotten(kind, key), partial(self._records.drop, kind, key))
        return _Step(Kept(kind, key, value), partial(self._records.put, kind, key, value))

    def _taking_back(self, operation: AnyOperation) -> _Step:
        layout, reserve, calls = self._folders.layout, self._folders.reserve, self._folders.calls
        if isinstance(operation, Move):
            old, new = layout.path(operation.entry), layout.path(operation.target)
            saying = Moved(layout.below_root(new), layout.below_root(old))
            return _Step(saying, partial(reserve.give_way, calls.rename, new, old))
        assert isinstance(operation, Write), "a group has no other operations on messages"
        path = layout.path(operation.entry)
        return _Step(Removed(layout.below_root(path)), partial(self._take_away, operation.entry, path))

    def _take_away(self, entry: Entry, path: str) -> None:
        self._folders.reserve.give_way(self._folders.calls.unlink, path)
        with contextlib.suppress(FileNotFoundError):
            self._folders.calls.unlink(f"{self._folders.layout.properties}/{entry.id}")


def refused_before(folders: Folders, unit: Unit) -> Outcome | None:
    """Why a group cannot be done, as far as that shows before; None where it can."""
    for operation in unit:
        if isinstance(operation, Move):
            if folders.calls.kind(folders.layout.path(operation.entry)) is not FileKind.FILE:
                return Outcome(Result.GONE)
            if folders.calls.kind(folders.layout.path(operation.target)) is not None:
                return Outcome(Result.EXISTS)
            target = operation.target
        elif isinstance(operation, Write):
            target = operation.entry
        else:
            continue
        folder = folders.layout.folder(target.state, target.queue)
        if target.state is State.READY and folders.calls.kind(folder) is not FileKind.FOLDER:
            return Outcome(Result.NO_QUEUE)
    return None
