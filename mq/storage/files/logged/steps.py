"""The file calls of a batch that the log has recorded: without a sync, each message where it is in the end.

Where mq-native is installed, it makes in one go the calls of operations that take one. What it could not do is done
again one by one, by code that knows every error. So mq-native holds no rule of its own, and a store without it differs
in speed only.

An error that can pass refuses one operation. Any other leaves the state on the disk unknown: the store has failed, and
every operation of the batch with it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from mq.storage.files.calls import Calls, Step, is_transient
from mq.storage.files.hop import EarlyResults
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.files.outcomes import GONE, NO_QUEUE, refusal
from mq.storage.files.unlinks import unlink, unlink_side
from mq.storage.files.writes import Planned, undo_side, write_message, write_side
from mq.storage.interface import Move, Outcome, Result, Unlink, Write

_PASSING: Final = frozenset({errno.EEXIST, errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.ENOSYS})
"""Errors besides those that pass after which nothing is wrong with the disk."""


class Messages(NamedTuple):
    """Operations on messages: a whole portion, or a part of one.

    Attributes:
        steps: the file call of each as mq-native makes it; None if it takes more than one.
        expected: the outcome of each if nothing is in its way.
        writes: whether one of them makes a file.
    """

    planned: list[Planned]
    steps: list[Step | None]
    expected: list[Outcome]
    writes: bool


def do_steps(root: LoggedRoot, messages: Messages, early: EarlyResults) -> list[Outcome]:
    """Do operations on messages. One outcome for each, in order: the expected ones themselves if nothing was in the
    way."""
    return _Steps(root, messages, early).run()


class _Steps:
    """The file calls of one recorded batch."""

    def __init__(self, root: LoggedRoot, messages: Messages, early: EarlyResults) -> None:
        self._root = root
        self._folders = root.folders
        self._messages = messages
        self._early = early
        self._outcomes: dict[int, Outcome] = {}
        self._side_files: set[int] = set()
        self._no_room: OSError | None = None  # refuses all further writes

    def run(self) -> list[Outcome]:
        if self._do_at_once():
            return self._messages.expected
        self._do_one_by_one()
        return [self._outcomes[index] for index in range(len(self._messages.planned))]

    # In one go

    def _do_at_once(self) -> bool:
        """Let mq-native do in one go what takes one call. Returns whether everything is done.

        Raises:
            OSError: the disk has failed; everything that was done is noted.
        """
        folders, messages = self._folders, self._messages
        steps = messages.steps
        # A removal is more than one step where messages have side files.
        is_all = not folders.has_side_files and None not in steps
        self._early.is_over |= not is_all
        if folders.native is None:
            return False
        if messages.writes and not folders.volume.reserve.is_ready:
            self._no_room = folders.volume.reserve.missing()
            if self._no_room is not None:
                self._early.is_over = True  # each write is refused by itself
                return False
        if is_all:
            results = self._early.do(folders.native, steps, messages.expected)  # type: ignore[arg-type] # none is None
            if min(results) >= 0:
                return True
            places: Sequence[int] = range(len(steps))
        else:
            places = [place for place, step in enumerate(steps) if step is not None]
            results = folders.native.do_steps([step for step in steps if step is not None], False)
        self._note_done(places, results)
        return False

    def _note_done(self, places: Sequence[int], results: Sequence[int]) -> None:
        """Note what mq-native has done. What it could not do is done again, one by one."""
        failure: OSError | None = None
        for place, result in zip(places, results, strict=True):
            operation, entry, path = self._messages.planned[place][:3]
            if result < 0:
                failure = _failure_of(result, path) or failure
                continue
            self._outcomes[place] = self._messages.expected[place]
            if isinstance(operation, Unlink):
                try:
                    unlink_side(self._folders, entry.id)
                except OSError as error:
                    failure = failure if is_transient(error) else error  # what stays for now, recovery takes away
        if failure is not None:
            raise failure

    # One by one

    def _do_one_by_one(self) -> None:
        self._write_sides()
        for index, planned in enumerate(self._messages.planned):
            if index in self._outcomes:
                continue  # done at once, or refused with its side file
            operation = planned.operation
            try:
                if isinstance(operation, Write):
                    outcome = self._write(planned)
                elif isinstance(operation, Move):
                    outcome = self._move(planned)
                else:
                    outcome = unlink(self._folders, operation.entry, self._root.removed_queues.rmdir, lambda _: None)
            except OSError as error:
                outcome = refusal(error)
            self._outcomes[index] = outcome
            self._early.append(outcome, is_expected=outcome.result is Result.DONE)
            if index in self._side_files and outcome.result is not Result.DONE:
                undo_side(self._folders, planned.entry.id)

    # Writing

    def _need_room(self) -> None:
        reserve = self._folders.volume.reserve
        if self._no_room is None and not reserve.is_ready:
            self._no_room = reserve.missing()
        if self._no_room is not None:
            raise self._no_room

    def _write(self, planned: Planned) -> Outcome:
        self._need_room()
        written = write_message(self._folders, planned, planned.path, _rename)
        if isinstance(written, Outcome):
            return written
        self._folders.calls.close(written)
        return Outcome(Result.DONE, planned.entry)

    def _write_sides(self) -> None:
        """Write the side files of messages with long attributes."""
        for index, planned in enumerate(self._messages.planned):
            if planned.has_side:
                self._folders.has_side_files = True
                try:
                    self._need_room()
                    self._folders.calls.close(write_side(self._folders, planned))
                    self._side_files.add(index)
                except OSError as error:
                    self._outcomes[index] = refusal(error)

    # Moving

    def _move(self, planned: Planned) -> Outcome:
        try:
            self._folders.volume.reserve.give_way(self._folders.calls.rename, planned.source, planned.path)
        except OSError as error:
            if self._folders.is_queue_missing(planned.entry):
                return NO_QUEUE
            if error.errno == errno.ENOENT:
                return GONE
            raise
        return Outcome(Result.DONE, planned.entry)


def _rename(calls: Calls, fd: int, path: str, target: str) -> None:
    calls.rename(path, target)


def _failure_of(result: int, path: str) -> OSError | None:
    """Return the failure of the disk that mq-native reports; None if the call shall be made again, one by one."""
    error = OSError(-result, os.strerror(-result), path)
    return None if error.errno in _PASSING or is_transient(error) else error
