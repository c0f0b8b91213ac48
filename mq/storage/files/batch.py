"""One commit: what a batch of operations does to the four folders.

Two ways to move a name, by what the file system keeps over a power cut (:mod:`mq.storage.files.mount`):

* *rename*, where that is atomic. Moves that need not be durable ride on the next barrier.
* *link, barrier, unlink* elsewhere: at no instant is a message without a durable name.

An error that can pass refuses one operation. Any other, and any at all from a barrier, leaves the state on the
medium unknown: the store has failed, and every operation of the batch with it.

Where mq-native is installed, it does the plain operations of a batch in one go. Each of its steps has a twin here or in
:mod:`mq.storage.files.folders`, which knows every error and repeats what did not succeed at once. So mq-native holds no
rule of its own, and a store without it differs in speed only.

:class:`ReadAhead` keeps what was read in the hop that moved it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mq.lifecycle import State
from mq.message import MessageId, Properties
from mq.storage.files.barrier import MOST_OPEN, Barrier, close_all, sync, sync_folder
from mq.storage.files.calls import OPEN_NEW, OPEN_READ, FileKind, Native, Step, is_transient, is_unsure, write_all
from mq.storage.files.folders import Folders, Opened
from mq.storage.files.hop import EarlyResults
from mq.storage.files.layout import (
    ATTRIBUTES,
    LARGEST_ATTRIBUTES,
    SUM,
    Planned,
    encode_side,
    noted_of,
    parse_leaf,
    plan,
)
from mq.storage.files.payload import Plain
from mq.storage.files.staging import StagedBody
from mq.storage.interface import AnyOperation, Entry, MessageOperation, Move, Outcome, Result, Unlink, Write

FILES_PER_UNLINK: Final = 256
"""Files of a deleted queue that one Unlink takes away."""

LARGEST_READ_AHEAD: Final = 1 << 16
"""Bytes of a body that is read ahead."""
MOST_READ_AHEAD: Final = 2048
"""Messages that wait to be asked for. A caller that moved one and was too slow with it does not ask."""
MOST_BYTES_READ_AHEAD: Final = 16 << 20
"""Of their bodies, before nothing more is read ahead."""
_READ_IN_ONE_GO: Final = 128

_REPEATS_RENAMES: Final = frozenset({"nfs", "nfs4"})
"""File systems with a client that repeats a rename when the answer to it was lost."""

_TWIN_KNOWS: Final = frozenset({errno.EEXIST, errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.ENOSYS})
"""Errors besides those that pass after which nothing is wrong with the medium."""

_DONE: Final = Outcome(Result.DONE)
_GONE: Final = Outcome(Result.GONE)
_EXISTS: Final = Outcome(Result.EXISTS)
_NO_QUEUE: Final = Outcome(Result.NO_QUEUE)
_MORE: Final = Outcome(Result.MORE)


class _Link(NamedTuple):
    position: int
    source: str
    target: str


class _Hidden(NamedTuple):
    """A file that is written and has no name in new/ yet."""

    position: int
    fd: int
    source: str
    target: str


def run_batch(folders: Folders, operations: Sequence[MessageOperation]) -> list[Outcome]:
    """Do a batch as :class:`Batch` does it. One outcome for each operation, in order."""
    return Batch(folders, [plan(folders.layout, each) for each in operations]).run()


def run_plain(folders: Folders, plain: Plain, early: EarlyResults | None = None) -> list[Outcome]:
    """The same, of what the log has said. If `early` is given, it is told of outcomes as they come."""
    if early is not None and folders.has_side_files:
        early.is_over = True  # a removal is more than one step
    results = None if folders.failure else _do_at_once(folders, plain, early)
    if results is not None and not folders.has_side_files and min(results) >= 0:
        return plain.expected
    if early is not None and any(isinstance(each, Unlink) and not _is_removal(each) for each in plain.operations):
        early.is_over = True  # these come last
    return Batch(folders, [plan(folders.layout, each) for each in plain.operations], early).run(results)


def _do_at_once(folders: Folders, plain: Plain, early: EarlyResults | None) -> list[int] | None:
    """What mq-native says of all steps; None where it is not there, or the reserve is not."""
    if folders.native is None:
        return None
    if plain.writes and not _has_room(folders):
        if early is not None:
            early.is_over = True  # the others are done first
        return None
    if early is None or early.is_over:
        return folders.native.do_steps(plain.steps, False)
    results = early.do(folders.native, plain.steps, plain.expected)
    early.is_over = min(results) < 0
    return results


class Batch:
    """One commit of `folders`. Use it once.

    Args:
        folders: of the root.
        planned: the operations, in order.
        early: is told of outcomes as they come, where they count without a barrier.
    """

    def __init__(self, folders: Folders, planned: Sequence[Planned], early: EarlyResults | None = None) -> None:
        self._folders = folders
        self._calls = folders.calls
        self._layout = folders.layout
        self._planned = planned
        self._operations = [each.operation for each in planned]
        self._outcomes = [_DONE] * len(planned)
        self._early = early
        self._is_atomic = folders.mount.atomic_rename
        # Without a journal only what fits into the inode, which the sum takes: a repair can ruin the block in which
        # other attributes stand, when it was a deleted file's before.
        self._largest_attributes = LARGEST_ATTRIBUTES if self._is_atomic else 0
        self._links: list[_Link] = []
        self._hidden: dict[MessageId, _Hidden] = {}
        self._written: set[MessageId] = set()
        self._must_flush = False
        self._side_files: dict[int, MessageId] = {}
        self._barrier = self._new_barrier(sum(isinstance(each, Write) for each in self._operations))
        self._no_room: OSError | None = None

    def run(self, done: Sequence[int] | None = None) -> list[Outcome]:
        """Do it all. One outcome for each operation, in order.

        Args:
            done: what mq-native says of the step of each, where that was done already.
        """
        if not self._folders.failure:
            if self._folders.syncs.spare is not None:
                self._folders.syncs.spare.keep()
            try:
                self._write_sides()
                self._write_and_move(done)
                self._unlink_removed()
                return self._outcomes
            except OSError as error:
                if not is_unsure(error):
                    self._folders.fail(error)
                if self._folders.log is None:
                    self._take_back()
                if is_unsure(error):
                    return [Outcome(Result.UNKNOWN, reason=error.strerror or "")] * len(self._operations)
            finally:
                if self._barrier is not None:
                    self._barrier.close()
                    close_all(self._calls, [hidden.fd for hidden in self._hidden.values()])
        return [Outcome(Result.FAILED, reason=self._folders.failure)] * len(self._operations)

    def _tell(self, early: EarlyResults, outcome: Outcome) -> None:
        """Tell of an operation that was not done natively, in its turn."""
        early.is_over = early.is_over or outcome.result is not Result.DONE
        if not early.is_over:
            early.expected.append(outcome)
            if len(early.expected) % early.every == 0:
                early.tell(len(early.expected))

    def _take_back(self) -> None:
        """Take the messages of a failed batch away, wherever they are: they are answered with an error."""
        # while the kernel still shows them: after a failed sync their bytes may be in memory only, and a restart that
        # finds the names would believe them
        for entry in [outcome.entry for outcome in self._outcomes if outcome.entry is not None]:
            if entry.id in self._written:
                with contextlib.suppress(OSError):
                    self._calls.unlink(self._layout.path(entry))

    def _write_and_move(self, done: Sequence[int] | None) -> None:
        durable = self._do_natively(self._folders.native, done) if self._folders.native is not None else False
        for index, operation in enumerate(self._operations):
            if self._outcomes[index] is not _DONE:
                continue  # done at once, or refused with its side file
            try:
                if isinstance(operation, Write):
                    outcome = self._write(operation, self._planned[index], index)
                elif isinstance(operation, Move):
                    if operation.entry.id in self._hidden:
                        self._reveal()
                    outcome = self._move(operation, self._planned[index], index)
                elif _is_removal(operation):
                    outcome = self._remove(operation)
                else:
                    continue
            except OSError as error:
                outcome = self._refusal_of_shared(operation, error) or refusal(error)
            self._outcomes[index] = outcome
            if self._early is not None:
                self._tell(self._early, outcome)
            durable |= self._is_durable(operation) and outcome.result is Result.DONE
            if index in self._side_files and outcome.result is not Result.DONE:
                self._undo_side(self._side_files[index])
        self._reveal()
        has_failed = self._barrier is not None and self._barrier.has_failed
        if durable or self._links or self._must_flush or has_failed:
            self._flush(self._barrier)
        if self._links:
            self._finish_links()

    def _do_natively(self, native: Native, done: Sequence[int] | None) -> bool:
        """Do in one go what is plain, in order, unless it is done. Whether something was done that has to be durable.

        Raises:
            OSError: the medium has failed; everything that was done is noted.
        """
        if done is not None:
            return self._note_native(native, [(i, [(each.path,)]) for i, each in enumerate(self._planned)], done)
        keep = self._barrier is not None and self._barrier.wants_files
        chosen = list(self._native_steps())
        at_once = MOST_OPEN if keep else len(chosen)
        durable = False
        for begin in range(0, len(chosen), at_once or 1):
            durable |= self._do_some_natively(native, chosen[begin : begin + at_once], keep=keep)
        return durable

    def _do_some_natively(self, native: Native, chosen: Sequence[tuple[int, Sequence[Step]]], *, keep: bool) -> bool:
        results = native.do_steps([step for _, steps in chosen for step in steps], keep)
        return self._note_native(native, chosen, results, keep=keep)

    def _note_native(
        self, native: Native, chosen: Sequence[tuple[int, Sequence[Step]]], done: Sequence[int], *, keep: bool = False
    ) -> bool:
        """Note what became of steps of mq-native; their twins do again what was refused.

        Raises:
            OSError: the medium has failed.
        """
        results = iter(done)
        durable, failure = False, None
        removed: list[MessageId] = []
        for index, steps in chosen:
            first = result = next(results)
            if len(steps) > 1:
                result = min(first, next(results))
            try:
                if result >= 0:
                    durable |= self._done_natively(index, first, removed)
                    continue
                if first >= 0:  # written, and did not get its name
                    _take_back_staged(self._folders, steps[0][0], first if keep else None)
                _check_refused(result, self._planned[index].path)
            except OSError as error:
                failure = error
        try:
            _unlink_sides(native, self._folders, removed)
        except OSError as error:
            failure = error
        if failure is not None:
            raise failure
        return durable

    def _native_steps(self) -> Iterator[tuple[int, Sequence[Step]]]:
        """The operations that are plain, by their places, as steps of mq-native."""
        folders = self._folders
        room: bool | None = None
        queues: dict[str, bool] = {}  # whether they are there: looked at once a batch
        for index, (operation, entry, path, source, attributes, size, crc) in enumerate(self._planned):
            if self._outcomes[index] is not _DONE or index in self._side_files:
                continue
            if isinstance(operation, Move):
                if not _is_anothers(folders, operation.entry):
                    yield index, [(source, path)]
            elif isinstance(operation, Write):
                body = operation.body
                if not isinstance(body, bytes):
                    continue
                room = _has_room(folders) if room is None else room
                if not room or not _is_wanted(folders, operation.queue, queues):
                    continue
                attributes, noted = noted_of(attributes, size, crc, LARGEST_ATTRIBUTES)
                if folders.published_whole:  # other processes look into its folder: under another name first
                    staged = f"{folders.stage}/{entry.id}"
                    yield index, [(staged, body, noted, attributes), (staged, path)]
                else:
                    yield index, [(path, body, noted, attributes)]
            elif entry.state is not State.REMOVED:
                yield index, [(path,)]

    def _done_natively(self, index: int, fd: int, removed: list[MessageId]) -> bool:
        """Note an operation that mq-native has done. `fd` is the file that it wrote, where that is kept open.
        Whether it has to be durable."""
        operation, entry = self._planned[index][:2]
        if isinstance(operation, Move):
            self._outcomes[index] = self._moved(operation, entry)
            self._folders.written.discard(entry.id)
        elif isinstance(operation, Unlink):
            removed.append(entry.id)
            self._outcomes[index] = self._removed(operation)
        else:
            self._outcomes[index] = Outcome(Result.DONE, entry)
            if self._barrier is not None:
                self._note_written(entry, self._barrier)
                self._barrier.add_file(fd) if self._barrier.wants_files else self._barrier.add_closed_file()
        return self._is_durable(operation)

    def _note_written(self, entry: Entry, barrier: Barrier) -> None:
        self._written.add(entry.id)
        if self._folders.published_whole:
            self._folders.note_written(entry.id)
        barrier.add_folders(self._layout.folder(entry.state, entry.queue))

    def _refusal_of_shared(self, operation: MessageOperation, error: OSError) -> Outcome | None:
        """The answer where peers took this process for dead and cleared what was arriving: the caller begins anew."""
        if isinstance(operation, Write) and isinstance(error, FileNotFoundError) and self._folders.published_whole:
            return Outcome(Result.FULL, reason="a peer considered this daemon dead and removed its incoming messages")
        return None

    def _new_barrier(self, files: int = 0) -> Barrier | None:
        """What syncs changes; None where the log has made them durable before they are made."""
        return Barrier(self._folders.syncs, files) if self._folders.log is None else None

    def _is_durable(self, operation: MessageOperation) -> bool:
        return operation.durable or self._folders.sync_every_move

    def _flush(self, barrier: Barrier | None) -> None:
        if barrier is None:
            return
        synced = barrier.flush()
        self._folders.check_alarm()
        self._folders.dirty_folders = set() if synced is None else self._folders.dirty_folders - synced

    # Writing

    def _write(self, operation: Write, planned: Planned, index: int) -> Outcome:
        _, entry, target, _, attributes, size, crc = planned
        if self._folders.published_whole and not self._queue_is_there(operation.queue):
            return _NO_QUEUE  # deleted by another broker
        self._need_room()
        fd: int | None
        if isinstance(operation.body, bytes):
            path = (
                f"{self._folders.stage}/{operation.id}"
                if self._folders.published_whole or not self._is_atomic
                else target
            )
            try:
                fd = self._calls.open(path, OPEN_NEW)
            except FileNotFoundError:
                if self._is_queue_missing(entry):
                    return _NO_QUEUE
                raise
        else:
            assert isinstance(operation.body, StagedBody), "staged in another store"
            staged = operation.body.file
            path, fd = staged.path, staged.take()
        if fd is None:
            return _GONE  # discarded by its stager
        try:
            self._note(fd, attributes, size, crc)
            if isinstance(operation.body, bytes):
                write_all(self._calls, fd, operation.body)
            if path != target and self._is_atomic:
                self._rename(path, target)
        except OSError:
            self._undo_write(operation, fd, path)
            if self._is_queue_missing(entry):
                return _NO_QUEUE
            raise
        if self._barrier is None:
            self._calls.close(fd)
            return Outcome(Result.DONE, entry)
        self._note_written(entry, self._barrier)
        if self._is_atomic:
            self._barrier.add_file(fd)
        else:
            self._hidden[operation.id] = _Hidden(index, fd, path, target)
        return Outcome(Result.DONE, entry)

    def _reveal(self) -> None:
        """Give the files that were written their names in new/, once they are durable."""
        if not self._hidden:
            return
        # here a name can reach the medium before its file: a cut would leave a name that leads to what its inode held
        # before
        for hidden in self._hidden.values():
            sync(self._calls, hidden.fd)
        for id in list(self._hidden):
            position, fd, source, target = self._hidden.pop(id)
            operation = self._operations[position]
            assert isinstance(operation, Write)
            try:
                self._relink(source, target)
            except OSError as error:
                self._undo_write(operation, fd, source)
                if position in self._side_files:
                    self._undo_side(self._side_files[position])
                self._outcomes[position] = refusal(error)
            else:
                close_all(self._calls, [fd])

    def _need_room(self) -> None:
        """Refuse writes until the reserve is in place.

        Raises:
            OSError: there is none, for the whole batch.
        """
        if self._no_room is not None:
            raise self._no_room
        try:
            self._folders.reserve.ensure()
        except OSError as error:
            self._no_room = error
            raise

    def _undo_write(self, operation: Write, fd: int, path: str) -> None:
        """A refused Write leaves nothing behind, and a staged body as it was."""
        if isinstance(operation.body, StagedBody):
            operation.body.file.give_back(fd)
            return
        self._calls.close(fd)
        if operation.state is State.NEW:
            with contextlib.suppress(OSError):  # what is left is torn, and recovery takes it away
                self._calls.unlink(path)
            return
        try:
            self._folders.reserve.give_way(self._calls.unlink, path)
        except OSError as error:  # no start would take it for torn, once the log says nothing of it
            raise OSError(errno.EIO, "cannot remove one of the message's files", path) from error

    def _relink(self, source: str, target: str) -> None:
        """Let a complete file appear under its name. Its temporary name may stay after a crash."""
        self._calls.link(source, target)
        try:
            self._calls.unlink(source)
        except OSError:
            with contextlib.suppress(OSError):
                self._calls.unlink(target)
            raise

    def _note(self, fd: int, attributes: bytes, size: int, crc: int) -> None:
        """Set the checksum before the first byte, so that a torn file can be told from a whole one."""
        if not self._folders.xattrs:
            return
        attributes, noted = noted_of(attributes, size, crc, self._largest_attributes)
        if attributes:
            self._calls.set_attribute(fd, ATTRIBUTES, attributes)  # first: where a cut leaves the sum, all is there
        self._calls.set_attribute(fd, SUM, noted)

    def _write_sides(self) -> None:
        """Side files, durable before the names of their messages appear."""
        needed = [
            (index, operation)
            for index, operation in enumerate(self._operations)
            if isinstance(operation, Write) and self._needs_side(self._planned[index])
        ]
        if not needed:
            return
        self._folders.has_side_files = True
        barrier = self._new_barrier(len(needed))
        if barrier is not None:
            barrier.add_folders(self._layout.properties)
        try:
            for index, operation in needed:
                try:
                    fd = self._write_side(operation, self._planned[index])
                    self._calls.close(fd) if barrier is None else barrier.add_file(fd)
                    self._side_files[index] = operation.id
                except OSError as error:
                    self._outcomes[index] = refusal(error)
            self._flush(barrier)
        finally:
            if barrier is not None:
                barrier.close()

    def _needs_side(self, planned: Planned) -> bool:
        return not self._folders.xattrs or len(planned.attributes) > self._largest_attributes

    def _write_side(self, operation: Write, planned: Planned) -> int:
        path = f"{self._layout.properties}/{operation.id}"
        self._need_room()
        fd = self._calls.open(path, OPEN_NEW)
        try:
            write_all(self._calls, fd, encode_side(Properties(planned.size, planned.checksum, operation.attributes)))
        except OSError:
            self._calls.close(fd)
            self._undo_side(operation.id)
            raise
        return fd

    def _undo_side(self, id: MessageId) -> None:
        with contextlib.suppress(OSError):  # recovery takes away a side file without a message
            self._calls.unlink(f"{self._layout.properties}/{id}")

    # Moving

    def _move(self, operation: Move, planned: Planned, index: int) -> Outcome:
        entry, moved, target, source = operation.entry, planned.entry, planned.path, planned.source
        try:
            if entry.state is State.NEW and self._folders.published_whole:
                self._sync_if_anothers(entry.id, source)
            if self._folders.mount.atomic_rename:
                self._folders.reserve.give_way(self._rename, source, target)
            else:
                self._folders.reserve.give_way(self._calls.link, source, target)
                self._links.append(_Link(index, source, target))
        except OSError as error:
            if self._is_queue_missing(moved):
                return _NO_QUEUE
            if error.errno == errno.ENOENT:
                return _GONE
            raise
        return self._moved(operation, moved)

    def _moved(self, operation: Move, moved: Entry) -> Outcome:
        """What the barrier has to know of a move."""
        if self._barrier is None:
            return Outcome(Result.DONE, moved)
        entry = operation.entry
        is_durable = self._is_durable(operation)
        if is_durable and not self._folders.mount.folder_syncs:
            self._barrier.add_moved(self._layout.path(moved))
        left, entered = self._layout.folder(entry.state, entry.queue), self._layout.folder(moved.state, moved.queue)
        also = [left] if is_durable and self._folders.mount.atomic_rename else []
        if is_durable or not self._folders.syncs.ordered:
            self._barrier.add_folders(entered, *also)
        if self._folders.mount.atomic_rename and not self._folders.mount.ordered:
            self._folders.dirty_folders.add(left)
        return Outcome(Result.DONE, moved)

    def _rename(self, source: str, target: str) -> None:
        """Move a name, also where the client repeats a rename of which the answer was lost."""
        try:
            self._calls.rename(source, target)
        except FileNotFoundError:
            # the source may be gone by the first of two renames of ours
            if self._folders.mount.kind not in _REPEATS_RENAMES or self._calls.kind(target) is not FileKind.FILE:
                raise

    def _sync_if_anothers(self, id: MessageId, path: str) -> None:
        """Sync a message that another process wrote, with this batch."""
        # its writer may have been killed before its barrier, and the kernel have the bytes in memory only
        if id in self._folders.written:
            self._folders.written.discard(id)
        elif self._barrier is not None:
            self._barrier.add_file(self._calls.open(path, OPEN_READ))
            self._must_flush = True

    def _is_queue_missing(self, target: Entry) -> bool:
        return target.state is State.READY and not self._queue_is_there(target.queue)

    def _queue_is_there(self, queue: str) -> bool:
        return self._calls.kind(f"{self._layout.queues}/{queue}") is FileKind.FOLDER

    def _finish_links(self) -> None:
        """Remove the old names, now that the new ones are durable. The racer that removes a name has moved the
        message."""
        barrier = self._new_barrier()
        durable = False
        for position, source, target in self._links:
            operation = self._operations[position]
            assert isinstance(operation, Move)
            try:
                self._folders.reserve.give_way(self._calls.unlink, source)
            except FileNotFoundError:
                with contextlib.suppress(FileNotFoundError):  # it was moved on from there
                    self._calls.unlink(target)
                self._outcomes[position] = _GONE
                continue
            left = self._layout.folder(operation.entry.state, operation.entry.queue)
            self._folders.dirty_folders.add(left)  # not before: the first barrier may have synced it
            if self._is_durable(operation) and barrier is not None:
                durable = True
                barrier.add_folders(left)
        if durable:
            self._flush(barrier)

    # Unlinking

    def _remove(self, operation: Unlink) -> Outcome:
        outcome = _unlink(self._folders, operation.entry)
        return self._removed(operation) if outcome.result is Result.DONE else outcome

    def _removed(self, operation: Unlink) -> Outcome:
        """What the barrier has to know of a message that was unlinked where it was."""
        if self._barrier is not None and self._is_durable(operation):
            self._barrier.add_folders(self._layout.folder(operation.entry.state, operation.entry.queue))
        return Outcome(Result.DONE)

    def _unlink_removed(self) -> None:
        """Take removed messages away, when no older name of theirs can come back any more."""
        unlinks = [
            (index, operation)
            for index, operation in enumerate(self._operations)
            if isinstance(operation, Unlink) and not _is_removal(operation) and self._outcomes[index] is _DONE
        ]
        if not unlinks:
            return
        if self._folders.dirty_folders:
            self._flush_folders(*self._folders.dirty_folders)
        durable = False
        gone = _unlink_natively(self._folders, [operation.entry for _, operation in unlinks])
        for (index, operation), is_gone in zip(unlinks, gone, strict=True):
            try:
                self._outcomes[index] = _DONE if is_gone else _unlink(self._folders, operation.entry)
            except OSError as error:
                self._outcomes[index] = refusal(error)
            durable |= operation.durable
        if durable:
            self._flush_folders(self._layout.remove)

    def _flush_folders(self, *paths: str) -> None:
        """Make names in these folders durable, by a barrier of their own."""
        barrier = self._new_barrier()
        if barrier is not None:
            barrier.add_folders(*paths)
            self._flush(barrier)


def refusal(error: OSError) -> Outcome:
    """The outcome of an operation that changed nothing; raises when that is not known."""
    if error.errno == errno.EEXIST:
        return _EXISTS
    if is_unsure(error):
        return Outcome(Result.UNKNOWN, reason=error.strerror or str(error))
    if is_transient(error):
        return Outcome(Result.FULL, reason=error.strerror or str(error))
    raise error


def _is_removal(operation: MessageOperation) -> bool:
    """Whether it takes a message out of another place than REMOVED (:attr:`Description.removes`)."""
    return isinstance(operation, Unlink) and operation.entry.state is not State.REMOVED


# What is plain, in one go


def _is_anothers(folders: Folders, entry: Entry) -> bool:
    """Whether another process may have written a message in NEW, and not have synced it yet."""
    return folders.published_whole and entry.state is State.NEW and entry.id not in folders.written


def _is_wanted(folders: Folders, queue: str, known: dict[str, bool]) -> bool:
    """Whether a message may be written for a queue: not where another broker has deleted it."""
    if folders.published_whole and queue not in known:
        known[queue] = folders.calls.kind(f"{folders.layout.queues}/{queue}") is FileKind.FOLDER
    return known.get(queue, True)


def _take_back_staged(folders: Folders, path: str, fd: int | None) -> None:
    """Take a file away that was written in one go and did not get its name: its twin begins anew."""
    if fd is not None:
        folders.calls.close(fd)
    with contextlib.suppress(OSError):  # then its twin is refused, for the name is taken
        folders.calls.unlink(path)


def _has_room(folders: Folders) -> bool:
    try:
        folders.reserve.ensure()
    except OSError:
        return False  # each Write asks again, and is refused by itself
    return True


def _check_refused(result: int, path: str) -> None:
    """Let the twin of a step that was refused try it, unless the medium has failed.

    Raises:
        OSError: it has.
    """
    error = OSError(-result, os.strerror(-result), path)
    if error.errno not in _TWIN_KNOWS and not is_transient(error):
        raise error


# Unlinking


def _unlink_natively(folders: Folders, entries: Sequence[Entry]) -> list[bool]:
    """Remove the plain entries in one go. Returns which of them are gone; the others are for :func:`_unlink`.

    Raises:
        OSError: the medium has failed.
    """
    if folders.native is None:
        return [False] * len(entries)
    paths = [folders.layout.path(entry) for entry in entries]
    results = folders.native.do_steps([(path,) for path in paths], False)
    for path, result in zip(paths, results, strict=True):
        if result < 0:
            _check_refused(result, path)
    _unlink_sides(
        folders.native, folders, [entry.id for entry, result in zip(entries, results, strict=True) if not result]
    )
    return [result == 0 for result in results]


def _unlink(folders: Folders, entry: Entry) -> Outcome:
    """Take one away: MORE when something is left of a deleted queue, EXISTS when foreign things are in it.

    Raises:
        OSError: it was refused.
    """
    path = folders.layout.path(entry)
    try:
        folders.reserve.give_way(folders.calls.unlink, path)
    except FileNotFoundError:
        return _GONE
    except IsADirectoryError:
        return _unlink_folder(folders, entry, path)
    _unlink_side(folders, entry.id)
    return _DONE


def _unlink_folder(folders: Folders, entry: Entry, path: str) -> Outcome:
    """Take a deleted queue away: its messages, some at a time, then the folder. Foreign things in it stay."""
    calls = folders.calls
    if path in folders.removed_queues.emptied:
        return _GONE
    try:
        listed: list[str] = []
        has_foreign = False
        for name, kind in calls.names(path):
            if kind is FileKind.FILE and parse_leaf(name, entry.queue, State.READY):
                listed.append(name)
            else:
                has_foreign = True
                folders.skip(path, name, "not a message")
        for name in listed[:FILES_PER_UNLINK]:
            folders.reserve.give_way(calls.unlink, f"{path}/{name}")
            _unlink_side(folders, name.partition(",")[0])
        if not folders.mount.atomic_rename:
            sync_folder(calls, path)  # no name in it may outlive its file: inodes are used again
        if len(listed) > FILES_PER_UNLINK:
            return _MORE
        if has_foreign:
            return _EXISTS
        if not folders.removed_queues.keep(path):
            calls.rmdir(path)
    except FileNotFoundError:
        return _MORE if calls.kind(path) else _GONE  # another reaper is at work on it
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return _EXISTS
    return _DONE


def _unlink_side(folders: Folders, id: str) -> None:
    if folders.has_side_files:
        with contextlib.suppress(FileNotFoundError):
            folders.calls.unlink(f"{folders.layout.properties}/{id}")


def _unlink_sides(native: Native, folders: Folders, ids: Sequence[MessageId]) -> None:
    """Take away in one go the side files of messages that are gone.

    Raises:
        OSError: the medium has failed.
    """
    if not ids or not folders.has_side_files:
        return
    paths = [f"{folders.layout.properties}/{id}" for id in ids]
    for path, result in zip(paths, native.do_steps([(path,) for path in paths], False), strict=True):
        if result < 0:
            _check_refused(result, path)  # what stays for now, recovery takes away


class ReadAhead:
    """Messages that were read in the same hop as their move, because the caller reads them next. They are read before
    they are moved, so that they are there when the first ones are told of.

    Filled in the thread that moves, asked for in the event loop's.
    """

    def __init__(self) -> None:
        self._read: dict[MessageId, tuple[Entry, Opened]] = {}
        self._bytes = 0

    def fill(self, folders: Folders, operations: Sequence[AnyOperation]) -> None:
        """Read what is about to be moved to be read, where it is plain."""
        moves = [each for each in operations if type(each) is Move and each.reads]
        if not moves:
            return
        if len(self._read) + len(moves) > MOST_READ_AHEAD or self._bytes > MOST_BYTES_READ_AHEAD:
            self._read.clear()
            self._bytes = 0
        for start in range(0, len(moves), _READ_IN_ONE_GO):
            if self._bytes > MOST_BYTES_READ_AHEAD:
                return  # the others are read when they are asked for
            some = moves[start : start + _READ_IN_ONE_GO]
            found = folders.read_plain([move.entry for move in some], LARGEST_READ_AHEAD)
            for move, opened in zip(some, found, strict=True):
                if opened is not None:
                    self._read[move.entry.id] = move.target, opened
                    self._bytes += len(opened.data)

    def take(self, entries: Sequence[Entry]) -> list[Opened] | None:
        """All of them; None when one was not read, or moved since."""
        if not self._read:
            return None
        taken = [self._read.pop(entry.id, None) for entry in entries]
        self._bytes -= sum(len(each[1].data) for each in taken if each is not None)
        if not self._read:
            self._bytes = 0  # two threads count, so it may be a little wrong by now
        found = [each[1] for each, entry in zip(taken, entries, strict=True) if each is not None and each[0] == entry]
        return found if len(found) == len(entries) else None
