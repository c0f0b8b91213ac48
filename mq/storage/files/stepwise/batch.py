"""One commit: what a batch of operations does to the four folders, and which syncs make it durable.

Each message is written in ``state/stage/``, gets its name once it is complete, and is synced with its folder; moves
and unlinks that need not be durable ride on the next sync. How a name moves depends on what the file system keeps over
a power cut (:mod:`mq.storage.files.mount`):

* :class:`Batch`: by a rename, which is done or not. The names of two folders have no order.
* :class:`OrderedBatch`: the same, where all names reach the disk in the order in which they were changed.
* :class:`LinkBatch`: by link, sync, unlink, where a rename can be half done: at no
  instant is a message without a durable name. A file is synced before it is named.

An error that can pass refuses one operation. Any other, and any at all from a sync, leaves the state on the disk
unknown: the store has failed, and every operation of the batch with it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from mq.message import MessageId
from mq.storage.files.calls import OPEN_READ, Calls, FileKind, is_unsure
from mq.storage.files.hop import EarlyResults
from mq.storage.files.outcomes import DONE, GONE, NO_QUEUE, failed, refusal
from mq.storage.files.record_changes import RecordChanges
from mq.storage.files.stepwise.root import SteppedRoot
from mq.storage.files.sync import Barrier, OrderedBarrier, link_synced, sync_folder
from mq.storage.files.unlinks import is_removal, unlink
from mq.storage.files.writes import Planned, plan, undo_side, write_message, write_side
from mq.storage.interface import AnyOperation, Drop, Entry, MessageOperation, Move, Outcome, Put, Result, Unlink, Write

_REPEATS_RENAMES: Final = frozenset({"nfs", "nfs4"})
"""File systems with a client that repeats a rename when the answer to it was lost."""


def commit(
    batch: type[Batch],
    root: SteppedRoot,
    records: RecordChanges,
    _: EarlyResults,
    operations: Sequence[AnyOperation],
) -> list[Outcome]:
    """Do a batch: each record by itself. One outcome for each operation, in order.

    Args:
        operations: in order, and no Group.
    """
    outcomes: list[Outcome] = []
    for is_record, some in groupby(operations, key=_is_record):
        if is_record:
            outcomes += [records.commit(each) for each in some]  # type: ignore[arg-type] # as the key says
        else:
            outcomes += batch(root, list(some)).run()  # type: ignore[arg-type] # no Group comes
    return outcomes


def _is_record(operation: AnyOperation) -> bool:
    return isinstance(operation, Put | Drop)


class Batch:
    """One commit of `root`, which no other process changes. Use it once."""

    barrier: type[Barrier] = Barrier
    """Syncs the batch."""

    def __init__(self, root: SteppedRoot, operations: Sequence[MessageOperation]) -> None:
        self._root = root
        self._folders = root.folders
        self._calls = root.folders.calls
        self._layout = root.folders.layout
        self._mount = root.folders.volume.mount
        self._reserve = root.folders.volume.reserve
        largest = root.folders.largest_attributes
        self._planned = [plan(root.by_state, operation, largest) for operation in operations]
        self._outcomes = [DONE] * len(operations)
        self._written: set[MessageId] = set()
        self._must_flush = False
        self._side_files: dict[int, MessageId] = {}
        self._barrier = self._new_barrier(sum(isinstance(operation, Write) for operation in operations))
        self._no_room: OSError | None = None  # refuses all further writes

    def run(self) -> list[Outcome]:
        """Do it all. One outcome for each operation, in order."""
        volume = self._folders.volume
        if not volume.failure:
            spare = volume.syncs.spare
            if spare is not None and spare.fd is None:
                spare.keep()
            try:
                self._write_sides()
                self._write_and_move()
                self._unlink_removed()
                return self._outcomes
            except OSError as error:
                if not is_unsure(error):
                    volume.fail(error)
                self._take_back()
                self._barrier.close()
                if is_unsure(error):
                    return [Outcome(Result.UNKNOWN, reason=error.strerror or "")] * len(self._planned)
            except BaseException:
                self._barrier.close()
                raise
        return failed(volume.failure, len(self._planned))

    def _take_back(self) -> None:
        """Take the messages of a failed batch away, wherever they are: they are answered with an error."""
        # while the kernel still shows them: after a failed sync their bytes may be in memory only, and a restart that
        # finds the names would believe them
        for entry in [outcome.entry for outcome in self._outcomes if outcome.entry is not None]:
            if entry.id in self._written:
                with contextlib.suppress(OSError):
                    self._calls.unlink(self._layout.path(entry))

    def _write_and_move(self) -> None:
        durable = False
        for index, planned in enumerate(self._planned):
            if self._outcomes[index] is not DONE:
                continue  # refused with its side file
            operation = planned.operation
            try:
                if isinstance(operation, Write):
                    outcome = self._write(operation, planned)
                elif isinstance(operation, Move):
                    outcome = self._move(operation, planned, index)
                elif is_removal(operation):
                    outcome = self._remove(operation)
                else:
                    continue
            except OSError as error:
                outcome = self._refusal(operation, error)
            self._outcomes[index] = outcome
            durable |= self._is_durable(operation) and outcome.result is Result.DONE
            if index in self._side_files and outcome.result is not Result.DONE:
                undo_side(self._folders, self._side_files[index])
        if durable or self._must_flush or self._barrier.has_failed:
            self._flush(self._barrier)
        else:
            self._barrier.close()

    def _refusal(self, operation: MessageOperation, error: OSError) -> Outcome:
        return refusal(error)

    def _new_barrier(self, files: int = 0) -> Barrier:
        return self.barrier(self._folders.volume.syncs, files)

    def _is_durable(self, operation: MessageOperation) -> bool:
        return operation.durable

    def _flush(self, barrier: Barrier) -> None:
        synced = barrier.flush()
        self._root.dirty_folders = set() if synced is None else self._root.dirty_folders - synced

    # Writing

    def _write(self, operation: Write, planned: Planned) -> Outcome:
        entry = planned.entry
        refused = self._admit(operation)
        if refused is not None:
            return refused
        self._need_room()
        written = write_message(self._folders, planned, f"{self._root.stage}/{entry.id}", self._name)
        if isinstance(written, Outcome):
            return written
        self._written.add(entry.id)
        self._barrier.add_folders(_folder(planned.path))
        self._keep(written)
        return Outcome(Result.DONE, entry)

    def _admit(self, operation: Write) -> Outcome | None:
        """Return why a message cannot be written; None if it can."""
        return None

    def _need_room(self) -> None:
        if self._no_room is None and not self._reserve.is_ready:
            self._no_room = self._reserve.missing()
        if self._no_room is not None:
            raise self._no_room

    def _name(self, calls: Calls, fd: int, path: str, target: str) -> None:
        self._rename(path, target)

    def _keep(self, fd: int) -> None:
        self._barrier.add_file(fd)

    def _write_sides(self) -> None:
        """Side files, durable before the names of their messages appear."""
        needed = [(index, planned) for index, planned in enumerate(self._planned) if planned.has_side]
        if not needed:
            return
        self._folders.has_side_files = True
        barrier = self._new_barrier(len(needed))
        barrier.add_folders(self._layout.properties)
        try:
            for index, planned in needed:
                try:
                    self._need_room()
                    barrier.add_file(write_side(self._folders, planned))
                    self._side_files[index] = planned.entry.id
                except OSError as error:
                    self._outcomes[index] = refusal(error)
            self._flush(barrier)
        finally:
            barrier.close()

    # Moving

    def _move(self, operation: Move, planned: Planned, index: int) -> Outcome:
        moved, target, source = planned.entry, planned.path, planned.source
        try:
            if self._needs_sync(operation):
                self._barrier.add_file(self._calls.open(source, OPEN_READ))
                self._must_flush = True
            self._move_name(source, target, index)
        except OSError as error:
            if self._folders.is_queue_missing(moved):
                return NO_QUEUE
            if error.errno == errno.ENOENT:
                return GONE
            raise
        self._note_moved(operation, source, target)
        return Outcome(Result.DONE, moved)

    def _needs_sync(self, operation: Move) -> bool:
        return False  # this process has synced all messages

    def _move_name(self, source: str, target: str, index: int) -> None:
        self._reserve.give_way(self._rename, source, target)

    def _note_moved(self, operation: Move, source: str, target: str) -> None:
        is_durable = self._is_durable(operation)
        if is_durable and not self._mount.folder_syncs:
            self._barrier.add_moved(target)
        left = _folder(source)
        self._barrier.add_folders(_folder(target), *([left] if is_durable else []))
        self._root.dirty_folders.add(left)

    def _rename(self, source: str, target: str) -> None:
        try:
            self._calls.rename(source, target)
        except FileNotFoundError:
            # the source may be gone by the first of two renames of ours
            if self._mount.kind not in _REPEATS_RENAMES or self._calls.kind(target) is not FileKind.FILE:
                raise

    # Unlinking

    def _remove(self, operation: Unlink) -> Outcome:
        outcome = self._unlink(operation.entry)
        if outcome.result is Result.DONE and self._is_durable(operation):
            self._barrier.add_folders(self._layout.folder(operation.entry.state, operation.entry.queue))
        return outcome

    def _unlink_removed(self) -> None:
        """Take removed messages away, when no older name of theirs can come back any more."""
        unlinks = [
            (index, planned.operation)
            for index, planned in enumerate(self._planned)
            if isinstance(planned.operation, Unlink)
            and not is_removal(planned.operation)
            and self._outcomes[index] is DONE
        ]
        if not unlinks:
            return
        if self._root.dirty_folders:
            self._flush_folders(*self._root.dirty_folders)
        durable = False
        for index, operation in unlinks:
            try:
                self._outcomes[index] = self._unlink(operation.entry)
            except OSError as error:
                self._outcomes[index] = refusal(error)
            durable |= operation.durable
        if durable:
            self._flush_folders(self._layout.remove)

    def _unlink(self, entry: Entry) -> Outcome:
        return unlink(self._folders, entry, self._calls.rmdir, self._unlinked)

    def _unlinked(self, folder: str) -> None:
        """Called when files of a deleted queue were unlinked."""

    def _flush_folders(self, *paths: str) -> None:
        """Make names in these folders durable, by a barrier of their own."""
        barrier = self._new_barrier()
        barrier.add_folders(*paths)
        self._flush(barrier)


class OrderedBatch(Batch):
    """A batch where names reach the disk in the order in which they were changed: a durable one brings all others."""

    barrier = OrderedBarrier

    def _note_moved(self, operation: Move, source: str, target: str) -> None:
        if self._is_durable(operation):
            self._barrier.add_folders(_folder(target), _folder(source))


class _Link(NamedTuple):
    position: int
    source: str
    target: str


class LinkBatch(Batch):
    """One commit where no rename is atomic. A name can reach the disk before its file: a cut would leave one that leads
    to what its inode held before. So each file is synced before it gets its name."""

    def __init__(self, root: SteppedRoot, operations: Sequence[MessageOperation]) -> None:
        super().__init__(root, operations)
        self._links: list[_Link] = []

    def _write_and_move(self) -> None:
        super()._write_and_move()
        if self._links:
            self._finish_links()

    # Writing

    _name = staticmethod(link_synced)

    def _keep(self, fd: int) -> None:
        with contextlib.suppress(OSError):  # its sync has reported all errors
            self._calls.close(fd)

    # Moving

    def _move_name(self, source: str, target: str, index: int) -> None:
        self._reserve.give_way(self._calls.link, source, target)
        self._links.append(_Link(index, source, target))
        self._must_flush = True  # the new name is durable before the old one goes

    def _note_moved(self, operation: Move, source: str, target: str) -> None:
        self._barrier.add_folders(_folder(target))

    def _finish_links(self) -> None:
        """Remove the old names, now that the new ones are durable. The racer that removes a name has moved the
        message."""
        barrier = self._new_barrier()
        durable = False
        for position, source, target in self._links:
            try:
                self._reserve.give_way(self._calls.unlink, source)
            except FileNotFoundError:
                with contextlib.suppress(FileNotFoundError):  # it was moved on from there
                    self._calls.unlink(target)
                self._outcomes[position] = GONE
                continue
            left = _folder(source)
            self._root.dirty_folders.add(left)  # not before: the first barrier may have synced it
            if self._is_durable(self._planned[position].operation):
                durable = True
                barrier.add_folders(left)
        if durable:
            self._flush(barrier)

    # Unlinking

    def _unlinked(self, folder: str) -> None:
        sync_folder(self._calls, folder)  # no name in it may outlive its file: inodes are used again


def _folder(path: str) -> str:
    return path[: path.rindex("/")]
