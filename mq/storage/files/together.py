"""What one record of the log says is done: units of operations, each of them as a whole, without any sync.

A unit is one operation, or those of a group. Of a group that is refused half-way, what was done is taken back; the log
says so before (:attr:`Doing.undoing`), so that a power cut leaves it all or not at all.

A backup sees the files and not the log. As long as a group may be half done, the name of a file tells it so
(:attr:`~mq.storage.files.layout.Layout.half`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from mq.lifecycle import State
from mq.storage.files.batch import Batch, refusal
from mq.storage.files.calls import FileKind, is_transient
from mq.storage.files.folders import Folders
from mq.storage.files.records import Records
from mq.storage.files.sayings import Forgotten, Kept, Moved, Removed, Saying
from mq.storage.interface import AnyOperation, Drop, Entry, Move, Outcome, Put, Result, Unlink, Write

Unit = tuple[AnyOperation, ...]
NOT_DONE: Final = frozenset({Result.FULL, Result.EXISTS, Result.GONE, Result.NO_QUEUE})
"""What a record said would be done, and was not."""
_DONE = Outcome(Result.DONE)
_MAKE_MARK: Final = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW


def is_gone(operation: AnyOperation, outcome: Outcome) -> bool:
    """Whether something was to be taken away that is not there. That changes nothing, also when it is done again."""
    return outcome.result is Result.GONE and isinstance(operation, Unlink | Drop)


class _Step(NamedTuple):
    """How something that was done is taken back, or ended for good."""

    saying: Callable[[], Saying]
    do: Callable[[], object]
    end: Callable[[], object] = lambda: None


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
        self._is_marked = any(len(unit) > 1 for unit in units)
        self.outcomes: list[Outcome] = []
        self.refused: list[int] = []
        self._unmarked = _mark_half(folders) if self._is_marked else None
        kept = [self._keep_all(unit) for unit in units]  # first: they are what a full disk refuses
        messages = [
            each
            for unit, (_, refused) in zip(units, kept, strict=True)
            for each in unit
            if refused is None and isinstance(each, Write | Move | Unlink)
        ]
        done = iter(Batch(folders, messages).run() if messages else ())
        first = 0
        for unit, (steps, refused) in zip(units, kept, strict=True):
            self.outcomes.append(self._end(unit, first, steps, refused, done))
            first += len(unit)

    @property
    def undoing(self) -> list[Saying]:
        """What :meth:`undo` does."""
        return [step.saying() for step in self._undo]

    def undo(self) -> None:
        """Take back what was done of groups that were refused.

        Raises:
            OSError: that is not possible.
        """
        for step in self._undo:
            step.do()

    def end(self) -> None:
        """Tell that all groups are whole.

        Raises:
            OSError: that is not possible.
        """
        if self._is_marked:
            mark_whole(self._folders)

    def _keep_all(self, unit: Unit) -> tuple[dict[int, _Step], Outcome | None]:
        """Do the records of a unit: how each is taken back, by its place; and why one is refused, which ends that. What
        a group forgets is there until all else is done."""
        steps: dict[int, _Step] = {}
        if len(unit) > 1 and self._unmarked is not None:
            return steps, self._unmarked
        outcome: Outcome | None = None
        for place, operation in enumerate(unit):
            if isinstance(operation, Put | Drop):
                try:
                    if len(unit) > 1:
                        steps[place] = self._keep_for_now(operation)
                    else:
                        outcome = self._keep(operation)
                except OSError as error:
                    return steps, refusal(error)
        return steps, outcome if len(unit) == 1 else None

    def _keep(self, operation: Put | Drop) -> Outcome:
        if isinstance(operation, Drop):
            return _DONE if self._records.drop(*operation) else Outcome(Result.GONE)
        self._folders.reserve.ensure()
        self._records.put(*operation)
        return _DONE

    def _end(
        self, unit: Unit, first: int, steps: dict[int, _Step], refused: Outcome | None, done: Iterator[Outcome]
    ) -> Outcome:
        """The outcome of a unit whose records are done, and whose messages may be."""
        if refused is None:
            for place, operation in enumerate(unit):
                if isinstance(operation, Write | Move | Unlink):
                    outcome = next(done)
                    if len(unit) == 1 or outcome.result is not Result.DONE:
                        refused = refused or outcome
                    else:
                        steps[place] = self._taking_back(operation)
        if refused is None:
            for step in steps.values():
                step.end()
            return _DONE
        if refused.result in NOT_DONE and not is_gone(unit[0], refused):
            self._undo += [steps[place] for place in sorted(steps, reverse=True)]
            self.refused += [first + place for place in range(len(unit)) if place not in steps]
        return refused

    def _keep_for_now(self, operation: Put | Drop) -> _Step:
        kind, key = operation.kind, operation.key
        before = self._records.reading(kind, key)

        def saying() -> Saying:
            value = before()
            return Forgotten(kind, key) if value is None else Kept(kind, key, value)

        # both ways by unlinks alone, which need no room: what a full disk refuses could not be put back, either
        if isinstance(operation, Drop):
            return _Step(saying, lambda: None, self._forgetting(operation, self._records.versions(kind, key)))
        self._folders.reserve.ensure()
        made, older = self._records.put_beside(*operation)
        return _Step(saying, self._forgetting(operation, [made]), self._forgetting(operation, older))

    def _forgetting(self, operation: Put | Drop, versions: Sequence[int]) -> Callable[[], None]:
        forget, reserve = self._records.forget, self._folders.reserve
        return partial(reserve.give_way, forget, operation.kind, operation.key, versions)

    def _taking_back(self, operation: AnyOperation) -> _Step:
        layout, reserve, calls = self._folders.layout, self._folders.reserve, self._folders.calls
        if isinstance(operation, Move):
            old, new = layout.path(operation.entry), layout.path(operation.target)
            saying = Moved(layout.below_root(new), layout.below_root(old))
            return _Step(lambda: saying, partial(reserve.give_way, calls.rename, new, old))
        assert isinstance(operation, Write), "a group has no other operations on messages"
        path = layout.path(operation.entry)
        removed = Removed(layout.below_root(path))
        return _Step(lambda: removed, partial(self._take_away, operation.entry, path))

    def _take_away(self, entry: Entry, path: str) -> None:
        self._folders.reserve.give_way(self._folders.calls.unlink, path)
        with contextlib.suppress(FileNotFoundError):
            self._folders.calls.unlink(f"{self._folders.layout.properties}/{entry.id}")


def mark_whole(folders: Folders) -> None:
    """Tell that no group is half done.

    Raises:
        OSError: that is not possible.
    """
    calls, layout = folders.calls, folders.layout
    with contextlib.suppress(FileNotFoundError):  # it is told, or the file was taken away by hand
        try:
            calls.rename(layout.half, layout.whole)  # cheaper than a file that comes and goes
        except OSError as error:
            if not is_transient(error):
                raise
            calls.unlink(layout.half)  # which needs no room


def _mark_half(folders: Folders) -> Outcome | None:
    """Tell that a group may be half done. Returns why no group can be done, if a full disk does not let it tell.

    Raises:
        OSError: the medium has failed.
    """
    calls, layout = folders.calls, folders.layout
    try:  # not at the cost of the reserve: what a group keeps or writes is new, and has to leave it alone
        try:
            calls.rename(layout.whole, layout.half)
        except FileNotFoundError:  # the first one, or the file was taken away by hand
            calls.close(calls.open(layout.half, _MAKE_MARK))
    except OSError as error:
        return refusal(error)
    return None


def refused_before(folders: Folders, unit: Unit) -> Outcome | None:
    """Why a group cannot be done, as far as that shows before; None where it can.

    Raises:
        OSError: the medium has failed.
    """
    kind, path = folders.calls.kind, folders.layout.path
    for operation in unit:
        if not isinstance(operation, Write | Move):
            continue
        target = operation.target if isinstance(operation, Move) else operation.entry
        if isinstance(operation, Move) and kind(path(operation.entry)) is not FileKind.FILE:
            return Outcome(Result.GONE)
        if kind(path(target)) is not None:
            return Outcome(Result.EXISTS)
        if (
            target.state is State.READY
            and kind(folders.layout.folder(target.state, target.queue)) is not FileKind.FOLDER
        ):
            return Outcome(Result.NO_QUEUE)
    return None
