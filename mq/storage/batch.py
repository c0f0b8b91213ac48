"""One commit: what a batch of operations does to the four folders.

Two ways to move a name, by what the file system keeps over a power cut (:mod:`mq.storage.mount`):

* *rename*, where that is atomic. Moves that need not be durable ride on the next barrier.
* *link, barrier, unlink* elsewhere: at no instant is a message without a durable name.

An error that can pass refuses one operation. Any other, and any at all from a barrier, leaves the state on the
medium unknown: the store has failed, and every operation of the batch with it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from typing import Final, NamedTuple

from mq.lifecycle import State
from mq.message import MessageId, Properties, checksum
from mq.storage.at_once import do_at_once, moved_entry
from mq.storage.barrier import Barrier, close_all, sync
from mq.storage.calls import OPEN_NEW, OPEN_READ, FileKind, Native
from mq.storage.folders import Folders
from mq.storage.interface import Entry, Move, Operation, Outcome, Result, Unlink, Write
from mq.storage.passing import is_away, refusal
from mq.storage.properties import ATTRIBUTES, LARGEST_ATTRIBUTES, SUM, encode_attributes, encode_noted, encode_side
from mq.storage.staging import StagedBody, write_all
from mq.storage.unlinking import unlink, unlink_at_once

_ASKS_AGAIN: Final = frozenset({"nfs", "nfs4"})

_DONE: Final = Outcome(Result.DONE)
_GONE: Final = Outcome(Result.GONE)
_NO_QUEUE: Final = Outcome(Result.NO_QUEUE)


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


class Batch:
    """One commit of `folders`. Use it once."""

    def __init__(self, folders: Folders, operations: Sequence[Operation]) -> None:
        self._folders = folders
        self._calls = folders.calls
        self._layout = folders.layout
        self._operations = operations
        self._outcomes = [_DONE] * len(operations)
        self._links: list[_Link] = []
        self._hidden: dict[MessageId, _Hidden] = {}
        self._written: set[MessageId] = set()
        self._must_settle = False
        self._sides: dict[int, MessageId] = {}
        self._barrier = self._new_barrier(sum(type(operation) is Write for operation in operations))
        self._no_room: OSError | None = None

    def run(self) -> list[Outcome]:
        """Do it all. One outcome for each operation, in order."""
        if not self._folders.failure:
            if self._folders.syncs.spare is not None:
                self._folders.syncs.spare.keep()
            try:
                self._write_sides()
                self._write_and_move()
                self._unlink_removed()
                return self._outcomes
            except OSError as error:
                if not is_away(error):
                    self._folders.fail(error)
                self._take_back()
                if is_away(error):
                    return [Outcome(Result.UNKNOWN, reason=error.strerror or "")] * len(self._operations)
            finally:
                self._barrier.close()
                close_all(self._calls, [hidden.fd for hidden in self._hidden.values()])
        return [Outcome(Result.FAILED, reason=self._folders.failure)] * len(self._operations)

    def _take_back(self) -> None:
        """The messages of a failed batch are answered with an error. Take them away while the kernel still shows them,
        wherever they are: after a failed sync their bytes may be nowhere else, and a restart would believe it."""
        for entry in [outcome.entry for outcome in self._outcomes if outcome.entry is not None]:
            if entry.id in self._written:
                with contextlib.suppress(OSError):
                    self._calls.unlink(self._layout.path(entry))

    def _write_and_move(self) -> None:
        durable = self._do_at_once(self._folders.native) if self._folders.native is not None else False
        for index, operation in enumerate(self._operations):
            if self._outcomes[index] is not _DONE:
                continue  # done at once, or refused with its side file
            try:
                if isinstance(operation, Write):
                    outcome = self._write(operation, index)
                elif isinstance(operation, Move):
                    if operation.entry.id in self._hidden:
                        self._reveal()
                    outcome = self._move(operation, index)
                elif _is_removal(operation):
                    outcome = self._remove(operation)
                else:
                    continue
            except OSError as error:
                outcome = self._refusal_of_shared(operation, error) or refusal(error)
            self._outcomes[index] = outcome
            durable |= self._is_durable(operation) and outcome.result is Result.DONE
            if index in self._sides and outcome.result is not Result.DONE:
                self._undo_side(self._sides[index])
        self._reveal()
        if durable or self._links or self._must_settle:
            self._settle(self._barrier)
        if self._links:
            self._finish_links()

    def _do_at_once(self, native: Native) -> bool:
        """Do in one go what can be. Whether something was done that has to be durable."""
        durable, keep = False, self._barrier.wants_files
        waiting = [
            (index, operation)
            for index, operation in enumerate(self._operations)
            if self._outcomes[index] is _DONE and index not in self._sides
        ]
        for index, entry, fd in do_at_once(native, self._folders, waiting, keep=keep):
            operation = self._operations[index]
            if isinstance(operation, Move):
                self._outcomes[index] = self._moved(operation, entry)
            elif isinstance(operation, Unlink):
                self._outcomes[index] = self._removed(operation)
            else:
                self._outcomes[index] = Outcome(Result.DONE, entry)
                self._written.add(entry.id)
                self._barrier.add_folders(self._layout.new)
                self._barrier.add_file(fd) if keep else self._barrier.add_closed_file()
            durable |= self._is_durable(operation)
        return durable

    def _refusal_of_shared(self, operation: Operation, error: OSError) -> Outcome | None:
        """Peers that took us for dead have cleared what was arriving; we find out, and begin anew."""
        if isinstance(operation, Write) and isinstance(error, FileNotFoundError) and self._folders.whole:
            return Outcome(Result.FULL, reason="what was arriving was cleared by a peer that took this one for dead")
        return None

    def _new_barrier(self, files: int = 0) -> Barrier:
        return Barrier(self._folders.syncs, files)

    @property
    def _is_atomic(self) -> bool:
        return self._folders.mount.atomic_rename

    @property
    def _largest_attributes(self) -> int:
        """What an extended attribute may hold. Without a journal only what fits into the inode, and that is taken by
        the sum: a repair can ruin the block in which others stand, when it was a deleted file's before."""
        return LARGEST_ATTRIBUTES if self._is_atomic else 0

    def _is_durable(self, operation: Operation) -> bool:
        return operation.durable or self._folders.careful

    def _settle(self, barrier: Barrier) -> None:
        with self._folders.syncs.costs.of_barrier():
            synced = barrier.settle()
        self._folders.believe()
        self._folders.loose = set() if synced is None else self._folders.loose - synced

    # Writing

    def _write(self, operation: Write, index: int) -> Outcome:
        entry = Entry(operation.queue, operation.id, State.NEW, operation.meta)
        if self._folders.whole and not self._queue_is_there(operation.queue):
            return _NO_QUEUE  # deleted by another broker
        self._need_room()
        target = self._layout.path(entry)
        fd: int | None
        if isinstance(operation.body, bytes):
            path = f"{self._folders.stage}/{operation.id}" if self._folders.whole or not self._is_atomic else target
            fd = self._calls.open(path, OPEN_NEW)
            size, crc = len(operation.body), checksum(operation.body)
        else:
            assert isinstance(operation.body, StagedBody), "staged in another store"
            staged = operation.body.file
            path, fd, size, crc = staged.path, staged.take(), staged.size, staged.checksum
        if fd is None:
            return _GONE  # discarded by whoever staged it
        try:
            self._note(fd, operation, size, crc)
            if isinstance(operation.body, bytes):
                write_all(self._calls, fd, operation.body)
            if path != target and self._is_atomic:
                self._rename(path, target)
        except OSError:
            self._undo_write(operation, fd, path)
            raise
        self._written.add(operation.id)
        self._barrier.add_folders(self._layout.new)
        if self._is_atomic:
            self._barrier.add_file(fd)
        else:
            self._hidden[operation.id] = _Hidden(index, fd, path, target)
        if self._folders.whole:
            self._folders.note_written(operation.id)
        return Outcome(Result.DONE, entry)

    def _reveal(self) -> None:
        """Where a name can reach the medium before the file that it leads to, a file gets its name in new/ when it is
        durable itself: a cut would else leave a name that leads to whatever its inode held before."""
        syncs = self._folders.syncs
        if syncs.prefer_everything(len(self._hidden)):
            syncs.everything()
        else:
            with syncs.costs.of_files(len(self._hidden)):
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
                if position in self._sides:
                    self._undo_side(self._sides[position])
                self._outcomes[position] = refusal(error)
            else:
                close_all(self._calls, [fd])

    def _need_room(self) -> None:
        """What is new waits until there is room for more than itself. Refused once, it is so for the whole batch."""
        if self._no_room is not None:
            raise self._no_room
        try:
            self._folders.ballast.take()
        except OSError as error:
            self._no_room = error
            raise

    def _undo_write(self, operation: Write, fd: int, path: str) -> None:
        """A refused Write leaves nothing behind, and a staged body as it was."""
        if isinstance(operation.body, StagedBody):
            operation.body.file.give_back(fd)
            return
        self._calls.close(fd)
        with contextlib.suppress(OSError):  # what is left is torn, and recovery takes it away
            self._calls.unlink(path)

    def _relink(self, source: str, target: str) -> None:
        """Let a complete file appear under its name. Its temporary name may stay after a crash."""
        self._calls.link(source, target)
        try:
            self._calls.unlink(source)
        except OSError:
            with contextlib.suppress(OSError):
                self._calls.unlink(target)
            raise

    def _note(self, fd: int, operation: Write, size: int, crc: int) -> None:
        """Set the checksum before the first byte, so that a torn file can be told from a whole one."""
        if not self._folders.xattrs:
            return
        attributes, noted = encode_noted(operation.attributes, size, crc, self._largest_attributes)
        if attributes:
            self._calls.set_attribute(fd, ATTRIBUTES, attributes)  # first: where a cut leaves the sum, all is there
        self._calls.set_attribute(fd, SUM, noted)

    def _write_sides(self) -> None:
        """Side files, durable before the names of their messages appear."""
        needed = [
            (index, operation)
            for index, operation in enumerate(self._operations)
            if isinstance(operation, Write) and self._needs_side(operation)
        ]
        if not needed:
            return
        self._folders.sides = True
        barrier = self._new_barrier(len(needed))
        barrier.add_folders(self._layout.properties)
        try:
            for index, operation in needed:
                try:
                    barrier.add_file(self._write_side(operation))
                    self._sides[index] = operation.id
                except OSError as error:
                    self._outcomes[index] = refusal(error)
            self._settle(barrier)
        finally:
            barrier.close()

    def _needs_side(self, operation: Write) -> bool:
        return not self._folders.xattrs or (
            bool(operation.attributes) and len(encode_attributes(operation.attributes)) > self._largest_attributes
        )

    def _write_side(self, operation: Write) -> int:
        body = operation.body
        size, crc = (len(body), checksum(body)) if isinstance(body, bytes) else (body.size, body.checksum)
        path = f"{self._layout.properties}/{operation.id}"
        self._need_room()
        fd = self._calls.open(path, OPEN_NEW)
        try:
            write_all(self._calls, fd, encode_side(Properties(size, crc, operation.attributes)))
        except OSError:
            self._calls.close(fd)
            self._undo_side(operation.id)
            raise
        return fd

    def _undo_side(self, id: MessageId) -> None:
        with contextlib.suppress(OSError):  # recovery takes away a side file without a message
            self._calls.unlink(f"{self._layout.properties}/{id}")

    # Moving

    def _move(self, operation: Move, index: int) -> Outcome:
        entry, moved = operation.entry, moved_entry(operation)
        source, target = self._layout.path(entry), self._layout.path(moved)
        try:
            if entry.state is State.NEW and self._folders.whole:
                self._sync_if_anothers(entry.id, source)
            if self._folders.mount.atomic_rename:
                self._folders.ballast.give_way(self._rename, source, target)
            else:
                self._folders.ballast.give_way(self._calls.link, source, target)
                self._links.append(_Link(index, source, target))
        except OSError as error:
            if moved.state is State.READY and not self._queue_is_there(moved.queue):
                return _NO_QUEUE
            if error.errno == errno.ENOENT:
                return _GONE
            raise
        return self._moved(operation, moved)

    def _moved(self, operation: Move, moved: Entry) -> Outcome:
        """What the barrier has to know of a move."""
        entry = operation.entry
        if entry.id in self._written and self._barrier.brings_move():
            return Outcome(Result.DONE, moved)
        is_durable = self._is_durable(operation)
        if is_durable and not self._folders.mount.folder_syncs:
            self._barrier.add_moved(self._layout.path(moved))
        left, entered = self._layout.folder(entry.state, entry.queue), self._layout.folder(moved.state, moved.queue)
        also = [left] if is_durable and self._folders.mount.atomic_rename else []
        if is_durable or not self._folders.syncs.ordered:
            self._barrier.add_folders(entered, *also)
        if self._folders.mount.atomic_rename and not self._folders.mount.ordered:
            self._folders.loose.add(left)
        return Outcome(Result.DONE, moved)

    def _rename(self, source: str, target: str) -> None:
        """NFS asks again when an answer was lost, and hears then that the source is gone: its own doing."""
        try:
            self._calls.rename(source, target)
        except FileNotFoundError:
            if self._folders.mount.kind not in _ASKS_AGAIN or self._calls.kind(target) is not FileKind.FILE:
                raise

    def _sync_if_anothers(self, id: MessageId, path: str) -> None:
        """Whoever wrote it may have been killed before its barrier, and the kernel have the bytes in memory only."""
        if id in self._folders.written:
            self._folders.written.discard(id)
        else:
            self._barrier.add_file(self._calls.open(path, OPEN_READ))
            self._must_settle = True

    def _queue_is_there(self, queue: str) -> bool:
        return self._calls.kind(f"{self._layout.queues}/{queue}") is FileKind.FOLDER

    def _finish_links(self) -> None:
        """The new names are durable: take the old ones away. Whoever takes a name away has moved the message."""
        barrier = self._new_barrier()
        durable = False
        for position, source, target in self._links:
            operation = self._operations[position]
            assert isinstance(operation, Move)
            try:
                self._folders.ballast.give_way(self._calls.unlink, source)
            except FileNotFoundError:
                with contextlib.suppress(FileNotFoundError):  # somebody has moved it on from there
                    self._calls.unlink(target)
                self._outcomes[position] = _GONE
                continue
            left = self._layout.folder(operation.entry.state, operation.entry.queue)
            self._folders.loose.add(left)  # not before: the first barrier may have synced it
            if self._is_durable(operation):
                durable = True
                barrier.add_folders(left)
        if durable:
            self._settle(barrier)

    # Unlinking

    def _remove(self, operation: Unlink) -> Outcome:
        outcome = unlink(self._folders, operation.entry)
        return self._removed(operation) if outcome.result is Result.DONE else outcome

    def _removed(self, operation: Unlink) -> Outcome:
        """What the barrier has to know of a message that was unlinked where it was."""
        if self._is_durable(operation):
            self._barrier.add_folders(self._layout.folder(operation.entry.state, operation.entry.queue))
        return Outcome(Result.DONE)

    def _unlink_removed(self) -> None:
        """Take removed messages away, when no older name of theirs can come back any more."""
        unlinks = [
            (index, operation)
            for index, operation in enumerate(self._operations)
            if isinstance(operation, Unlink) and not _is_removal(operation)
        ]
        if not unlinks:
            return
        if self._folders.loose:
            barrier = self._new_barrier()
            barrier.add_folders(*self._folders.loose)
            self._settle(barrier)
        durable = False
        gone = unlink_at_once(self._folders, [operation.entry for _, operation in unlinks])
        for (index, operation), is_gone in zip(unlinks, gone, strict=True):
            try:
                self._outcomes[index] = _DONE if is_gone else unlink(self._folders, operation.entry)
            except OSError as error:
                self._outcomes[index] = refusal(error)
            durable |= operation.durable
        if durable:
            barrier = self._new_barrier()
            barrier.add_folders(self._layout.remove)
            self._settle(barrier)


def _is_removal(operation: Operation) -> bool:
    """Whether it is a removal and its unlink in one (:mod:`mq.storage.removals`)."""
    return isinstance(operation, Unlink) and operation.entry.state is not State.REMOVED
