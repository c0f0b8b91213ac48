"""The operations that a record names, done unit by unit: one operation, or a group as a whole.

A backup sees the files and not the log. As long as a group may be half done, the name of a file tells it so
(:attr:`~mq.storage.files.layout.Layout.half`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from mq.lifecycle import State
from mq.storage.files.calls import FileKind, Step, is_transient
from mq.storage.files.folders import Folders
from mq.storage.files.hop import EarlyResults
from mq.storage.files.logged.record import Forgotten, Kept, Moved, Removed, Saying
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.files.logged.steps import Messages, do_steps
from mq.storage.files.outcomes import DONE, refusal
from mq.storage.files.writes import Planned
from mq.storage.interface import AnyOperation, Drop, Entry, Move, Outcome, Put, Result, Unlink, Write

NOT_DONE: Final = frozenset({Result.FULL, Result.EXISTS, Result.GONE, Result.NO_QUEUE})
"""What a record said would be done, and was not."""
_MAKE_MARK: Final = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW

Unit = tuple[AnyOperation, ...]
"""One operation, or those of a group."""


def is_gone(operation: AnyOperation, outcome: Outcome) -> bool:
    """Whether something was to be taken away that is not there. That changes nothing, also when it is done again."""
    return outcome.result is Result.GONE and isinstance(operation, Unlink | Drop)


class _Step(NamedTuple):
    """How something that was done is taken back, or ended for good."""

    saying: Callable[[], Saying]
    do: Callable[[], object]
    end: Callable[[], object] = lambda: None


class RecordedOperations(Protocol):
    """The operations that a record names (:class:`mq.storage.files.logged.commit.LoggedPortion`)."""

    recorded: list[Planned | Kept | Forgotten]
    steps: list[Step | None]
    expected: list[Outcome]
    writes: bool


class Units:
    """Do the operations and groups that a record names.

    Args:
        units: these operations, as single ones and groups.
        early: is ended at once: no outcome is certain before all groups are done.

    Attributes:
        refused: the numbers of operations, counted through all groups, that were not done.
        undoing: what the log has to say before :meth:`end`.
    """

    def __init__(
        self, root: LoggedRoot, recorded: RecordedOperations, units: Sequence[Unit], early: EarlyResults
    ) -> None:
        self._root = root
        self._folders = root.folders
        self._records = root.records
        self._undo: list[_Step] = []
        self._is_marked = any(len(unit) > 1 for unit in units)
        self._unmarked = _mark_half(self._folders) if self._is_marked else None
        self.outcomes: list[Outcome] = []
        self.refused: list[int] = []
        early.is_over = True
        self._do(recorded, units, early)

    def _do(self, recorded: RecordedOperations, units: Sequence[Unit], early: EarlyResults) -> None:
        kept = [self._keep_all(unit) for unit in units]  # first: they are what a full disk refuses
        chosen = Messages([], [], [], recorded.writes)
        in_order = iter(zip(recorded.recorded, recorded.steps, recorded.expected, strict=True))
        for unit, (_, refused) in zip(units, kept, strict=True):
            for each, step, expected in islice(in_order, len(unit)):
                if isinstance(each, Planned) and refused is None:
                    chosen.planned.append(each)
                    chosen.steps.append(step)
                    chosen.expected.append(expected)
        done = iter(do_steps(self._root, chosen, early) if chosen.planned else ())
        first = 0
        for unit, (steps, refused) in zip(units, kept, strict=True):
            self.outcomes.append(self._end(unit, first, steps, refused, done))
            first += len(unit)

    @property
    def undoing(self) -> list[Saying]:
        """What :meth:`end` takes back."""
        return [step.saying() for step in self._undo]

    def end(self) -> None:
        """Take back what was done of groups that were refused. Then tell that all groups are whole."""
        for step in self._undo:
            step.do()
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
            return DONE if self._records.drop(*operation) else Outcome(Result.GONE)
        self._folders.volume.reserve.ensure()
        self._records.put(*operation)
        return DONE

    def _end(
        self, unit: Unit, first: int, steps: dict[int, _Step], refused: Outcome | None, done: Iterator[Outcome]
    ) -> Outcome:
        """The outcome of a unit with its records done, and perhaps its messages."""
        moved: list[int] = []  # places of messages that were written or moved, of a group
        if refused is None:
            for place, operation in enumerate(unit):
                if isinstance(operation, Write | Move | Unlink):
                    outcome = next(done)
                    if len(unit) == 1 or outcome.result is not Result.DONE:
                        refused = refused or outcome
                    else:
                        moved.append(place)
        if refused is None:
            for step in steps.values():
                step.end()
            return DONE
        steps |= {place: self._taking_back(unit[place]) for place in moved}
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
        self._folders.volume.reserve.ensure()
        made, older = self._records.put_beside(*operation)
        return _Step(saying, self._forgetting(operation, [made]), self._forgetting(operation, older))

    def _forgetting(self, operation: Put | Drop, versions: Sequence[int]) -> Callable[[], None]:
        forget, reserve = self._records.forget, self._folders.volume.reserve
        return partial(reserve.give_way, forget, operation.kind, operation.key, versions)

    def _taking_back(self, operation: AnyOperation) -> _Step:
        layout, reserve, calls = self._folders.layout, self._folders.volume.reserve, self._folders.calls
        if isinstance(operation, Move):
            old, new = layout.path(operation.entry), layout.path(operation.target)
            saying = Moved(layout.below_root(new), layout.below_root(old))
            return _Step(lambda: saying, partial(reserve.give_way, calls.rename, new, old))
        assert isinstance(operation, Write), "a group has no other operations on messages"
        path = layout.path(operation.entry)
        removed = Removed(layout.below_root(path))
        return _Step(lambda: removed, partial(self._take_away, operation.entry, path))

    def _take_away(self, entry: Entry, path: str) -> None:
        self._folders.volume.reserve.give_way(self._folders.calls.unlink, path)
        with suppress(FileNotFoundError):
            self._folders.calls.unlink(f"{self._folders.layout.properties}/{entry.id}")


def mark_whole(folders: Folders) -> None:
    """Tell that no group is half done."""
    calls, layout = folders.calls, folders.layout
    with suppress(FileNotFoundError):  # it is told, or the file was taken away by hand
        try:
            calls.rename(layout.half, layout.whole)  # cheaper than a file that comes and goes
        except OSError as error:
            if not is_transient(error) and error.errno != errno.EEXIST:
                raise
            calls.unlink(layout.half)  # which needs no room, and leaves the other of two that a cut or a hand has left


def _mark_half(folders: Folders) -> Outcome | None:
    """Tell that a group may be half done. Returns why no group can be done, if a full disk does not let it tell."""
    calls, layout = folders.calls, folders.layout
    try:  # not at the cost of the reserve: what a group keeps or writes is new, and has to leave it alone
        try:
            calls.rename(layout.whole, layout.half)
        except FileNotFoundError:  # the first one, or the file was taken away by hand
            calls.close(calls.open(layout.half, _MAKE_MARK))
        except FileExistsError:  # made by hand: it tells what it has to
            pass
    except OSError as error:
        return refusal(error)
    return None


def refused_before(folders: Folders, unit: Unit) -> Outcome | None:
    """Why a group cannot be done, as far as that shows before; None where it can."""
    kind, path = folders.calls.kind, folders.layout.path
    wanted: set[str] = set()  # queues
    for operation in unit:
        if isinstance(operation, Move):
            if kind(path(operation.entry)) is not FileKind.FILE:
                return Outcome(Result.GONE)
            if kind(path(operation.target)) is not None:
                return Outcome(Result.EXISTS)
            if operation.state is State.READY:
                wanted.add(operation.queue or operation.entry.queue)
        elif isinstance(operation, Write) and operation.state is State.READY:  # its id is new, so nothing is there
            wanted.add(operation.queue)
    if any(kind(folders.layout.folder(State.READY, queue)) is not FileKind.FOLDER for queue in wanted):
        return Outcome(Result.NO_QUEUE)
    return None
