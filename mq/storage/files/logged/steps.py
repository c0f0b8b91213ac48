"""The file calls of a batch that the log has recorded: without a sync, each message where it is in the end.

Where mq-native is installed, it does the plain operations of a batch in one go. Each of its steps has a twin here,
which knows every error and repeats what did not succeed at once. So mq-native holds no rule of its own, and a store
without it differs in speed only.

An error that can pass refuses one operation. Any other leaves the state on the disk unknown: the store has failed, and
every operation of the batch with it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import Final

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.files.attributes import write_side
from mq.storage.files.calls import Step, is_transient
from mq.storage.files.folders import Folders
from mq.storage.files.hop import EarlyResults
from mq.storage.files.layout import LARGEST_ATTRIBUTES, Planned, noted_of
from mq.storage.files.logged.record import Plain
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.files.outcomes import DONE, GONE, NO_QUEUE, failed, refusal
from mq.storage.files.reserve import BatchReserve
from mq.storage.files.unlinks import is_removal, unlink
from mq.storage.files.writes import undo_side, write_message
from mq.storage.interface import Entry, MessageOperation, Move, Outcome, Result, Unlink, Write

_TWIN_KNOWS: Final = frozenset({errno.EEXIST, errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.ENOSYS})
"""Errors besides those that pass after which nothing is wrong with the disk."""
_REFUSED: Final = -errno.ENOSYS
"""The result of a step that is for its twin."""


def run_plain(root: LoggedRoot, plain: Plain, early: EarlyResults) -> list[Outcome]:
    """Do plain operations. One outcome for each, in order; `early` is told of them as they come."""
    folders = root.folders
    # A removal is more than one step where messages have side files; and unlinks from remove/ come last.
    early.is_over |= folders.has_side_files
    results = _do_at_once(folders, plain, early)
    if min(results) >= 0 and not folders.has_side_files:
        return plain.expected
    early.is_over |= any(_is_late(planned.operation) for planned in plain.planned)
    return Steps(root, plain.planned, early).run(results)


def _do_at_once(folders: Folders, plain: Plain, early: EarlyResults) -> list[int]:
    """What mq-native reports of all steps: all are refused without mq-native, or without the reserve."""
    if folders.native is None or folders.volume.failure:
        return [_REFUSED] * len(plain.steps)
    if plain.writes and not _has_room(folders):
        early.is_over = True  # the moves are done first
        return [_REFUSED] * len(plain.steps)
    return early.do(folders.native, plain.steps, plain.expected)


class Steps:
    """The file calls of one recorded batch. Use it once.

    Args:
        root: the root.
        planned: the operations, in order.
        early: is told of outcomes as they come.
    """

    def __init__(self, root: LoggedRoot, planned: Sequence[Planned], early: EarlyResults) -> None:
        self._root = root
        self._folders = root.folders
        self._calls = root.folders.calls
        self._layout = root.folders.layout
        self._reserve = root.folders.volume.reserve
        self._planned = planned
        self._outcomes = [DONE] * len(planned)
        self._early = early
        self._side_files: dict[int, MessageId] = {}
        self._room = BatchReserve(self._reserve)

    def run(self, done: Sequence[int] | None = None) -> list[Outcome]:
        """Do it all. One outcome for each operation, in order.

        Args:
            done: what mq-native reports of the step of each, if that was done already.
        """
        volume = self._folders.volume
        if not volume.failure:
            try:
                self._write_sides()
                self._do_at_once(done)
                self._write_and_move()
                self._unlink_removed()
                return self._outcomes
            except OSError as error:
                volume.fail(error)
        return failed(volume.failure, len(self._planned))

    def _write_and_move(self) -> None:
        for index, planned in enumerate(self._planned):
            if self._outcomes[index] is not DONE:
                continue  # done at once, or refused with its side file
            operation = planned.operation
            try:
                if isinstance(operation, Write):
                    outcome = self._write(planned)
                elif isinstance(operation, Move):
                    outcome = self._move(planned)
                elif is_removal(operation):
                    outcome = self._unlink(operation.entry)
                else:
                    continue
            except OSError as error:
                outcome = refusal(error)
            self._outcomes[index] = outcome
            self._early.append(outcome, is_expected=outcome.result is Result.DONE)
            if index in self._side_files and outcome.result is not Result.DONE:
                undo_side(self._folders, self._side_files[index])

    # In one go

    def _do_at_once(self, done: Sequence[int] | None) -> None:
        """Do in one go what is plain, in order, unless it is done. The twins of refused steps do them again.

        Raises:
            OSError: the disk has failed; everything that was done is noted.
        """
        if done is None:
            steps = list(self._native_steps())
            done = _do(self._folders, [step for _, step in steps])
            places = [index for index, _ in steps]
        else:
            places = list(range(len(self._planned)))
        failure: OSError | None = None
        removed: list[MessageId] = []
        for index, result in zip(places, done, strict=True):
            operation, entry, path = self._planned[index][:3]
            if result < 0:
                failure = _failure_of(result, path) or failure
            elif isinstance(operation, Unlink):
                removed.append(entry.id)
                self._outcomes[index] = Outcome(Result.DONE)
            else:
                self._outcomes[index] = Outcome(Result.DONE, entry)
        failure = _unlink_sides(self._folders, removed) or failure
        if failure is not None:
            raise failure

    def _native_steps(self) -> Iterator[tuple[int, Step]]:
        """The operations that are plain, by their places, as steps of mq-native."""
        room: bool | None = None
        for index, (operation, entry, path, source, attributes, size, crc) in enumerate(self._planned):
            if self._outcomes[index] is not DONE or index in self._side_files:
                continue
            if isinstance(operation, Move):
                yield index, (source, path)
            elif isinstance(operation, Write):
                if isinstance(operation.body, bytes):
                    room = _has_room(self._folders) if room is None else room
                    if room:
                        attributes, noted = noted_of(attributes, size, crc, LARGEST_ATTRIBUTES)
                        yield index, (path, operation.body, noted, attributes)
            elif entry.state is not State.REMOVED:
                yield index, (path,)

    # Writing

    def _write(self, planned: Planned) -> Outcome:
        self._room.need()
        written = write_message(self._folders, planned, planned.path, self._name)
        if isinstance(written, Outcome):
            return written
        self._calls.close(written)
        return Outcome(Result.DONE, planned.entry)

    def _name(self, _: int, path: str, target: str) -> None:
        self._calls.rename(path, target)

    def _write_sides(self) -> None:
        """Write the side files of messages with long attributes."""
        for index, planned in enumerate(self._planned):
            if isinstance(planned.operation, Write) and len(planned.attributes) > LARGEST_ATTRIBUTES:
                self._folders.has_side_files = True
                try:
                    self._room.need()
                    self._calls.close(write_side(self._calls, self._layout, planned))
                    self._side_files[index] = planned.operation.id
                except OSError as error:
                    self._outcomes[index] = refusal(error)

    # Moving and unlinking

    def _move(self, planned: Planned) -> Outcome:
        try:
            self._reserve.give_way(self._calls.rename, planned.source, planned.path)
        except OSError as error:
            if self._folders.is_queue_missing(planned.entry):
                return NO_QUEUE
            if error.errno == errno.ENOENT:
                return GONE
            raise
        return Outcome(Result.DONE, planned.entry)

    def _unlink_removed(self) -> None:
        """Unlink what is in remove/, after all else."""
        unlinks = [
            (index, planned.operation)
            for index, planned in enumerate(self._planned)
            if isinstance(planned.operation, Unlink) and _is_late(planned.operation) and self._outcomes[index] is DONE
        ]
        gone = _unlink_at_once(self._folders, [operation.entry for _, operation in unlinks])
        for (index, operation), is_gone in zip(unlinks, gone, strict=True):
            try:
                self._outcomes[index] = DONE if is_gone else self._unlink(operation.entry)
            except OSError as error:
                self._outcomes[index] = refusal(error)

    def _unlink(self, entry: Entry) -> Outcome:
        return unlink(self._folders, entry, self._root.removed_queues.rmdir, lambda _: None)


def _is_late(operation: MessageOperation) -> bool:
    """Whether it is done after all else: an unlink from remove/."""
    return isinstance(operation, Unlink) and not is_removal(operation)


def _has_room(folders: Folders) -> bool:
    try:
        folders.volume.reserve.ensure()
    except OSError:
        return False  # each Write asks again, and is refused by itself
    return True


def _failure_of(result: int, path: str) -> OSError | None:
    """Return the failure of the disk that mq-native reports; None if the twin of the step shall try it."""
    error = OSError(-result, os.strerror(-result), path)
    return None if error.errno in _TWIN_KNOWS or is_transient(error) else error


def _do(folders: Folders, steps: list[Step]) -> list[int]:
    """What mq-native reports of steps: all are refused without it."""
    return [_REFUSED] * len(steps) if folders.native is None else folders.native.do_steps(steps, False)


def _unlink_at_once(folders: Folders, entries: Sequence[Entry]) -> list[bool]:
    """Unlink the plain entries in one go. Returns which of them are gone.

    Raises:
        OSError: the disk has failed.
    """
    paths = [folders.layout.path(entry) for entry in entries]
    results = _do(folders, [(path,) for path in paths])
    for path, result in zip(paths, results, strict=True):
        if result < 0 and (failure := _failure_of(result, path)) is not None:
            raise failure
    gone = [entry.id for entry, result in zip(entries, results, strict=True) if not result]
    if (failure := _unlink_sides(folders, gone)) is not None:
        raise failure
    return [result == 0 for result in results]


def _unlink_sides(folders: Folders, ids: Sequence[MessageId]) -> OSError | None:
    """Unlink in one go the side files of messages that are gone. Returns the failure of the disk."""
    paths = [f"{folders.layout.properties}/{id}" for id in ids] if folders.has_side_files else []
    failure: OSError | None = None
    for path, result in zip(paths, _do(folders, [(path,) for path in paths]), strict=True):
        if result < 0:
            failure = _failure_of(result, path) or failure  # what stays for now, recovery takes away
    return failure
