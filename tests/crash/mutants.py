"""Bugs planted in mq, one at a time, that a power cut must bring to light: else a clean table says nothing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from mq.broker.catalog import Catalog
from mq.broker.clock import Clock
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.files import mount, record_changes, recovery, sync
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.folders import Folders
from mq.storage.files.hop import EarlyResults
from mq.storage.files.logged import commit as logged
from mq.storage.files.logged.commit import LoggedPortion
from mq.storage.files.logged.log import Log
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.files.mount import Mount
from mq.storage.files.stepwise.batch import Batch, OrderedBatch
from mq.storage.files.sync import Barrier, WholeSyncs
from mq.storage.interface import Entry, Move, Outcome, Unlink, Write

Patch = pytest.MonkeyPatch
_WRITE_AND_WAIT: Final = 7
"""Of sync_file_range(2): wait for writes that have begun, begin them for the rest, and wait for these."""


class Mutant(NamedTuple):
    """A planted bug.

    Attributes:
        fails: it shows when the disk fails, not when the power does.
    """

    plant: Callable[[Patch], None]
    system: str = "ext4"
    fails: bool = False
    workload: str = "everything"


def _flush_nothing(patch: Patch) -> None:
    """An answer is given without any sync at all."""
    patch.setattr(Barrier, "flush", lambda self: self.close())


def _leave_folders_out(patch: Patch) -> None:
    """Files are synced, folders never."""
    patch.setattr(Barrier, "_sync_folders", lambda self: frozenset(self._folders))
    patch.setattr(sync, "sync_folder", lambda calls, path: None)


def _never_durable(patch: Patch, *states: State) -> None:
    is_durable = Batch._is_durable

    def lazily(self: Batch, operation: Any) -> bool:
        is_unlink = isinstance(operation, Unlink)
        target = State.REMOVED if is_unlink else operation.state if isinstance(operation, Move) else State.NEW
        return target not in states and is_durable(self, operation)

    patch.setattr(Batch, "_is_durable", lazily)


def _forget_to_sync_removes(patch: Patch) -> None:
    """A removal rides on the next barrier, as a delivery may."""
    _never_durable(patch, State.REMOVED)


def _forget_to_sync_leases(patch: Patch) -> None:
    """A lease rides on the next barrier, as a delivery may."""
    _never_durable(patch, State.DELAYED)


def _hand_over_without_sync(patch: Patch) -> None:
    """What is written and leased by one batch is thought to be durable as it is."""
    for batch in (Batch, OrderedBatch):
        _leave_out_handed_over(patch, batch)


def _leave_out_handed_over(patch: Patch, batch: type[Batch]) -> None:
    note_moved = batch._note_moved

    def note(self: Batch, operation: Move, source: str, target: str) -> None:
        barrier = self._barrier
        if operation.entry.id in self._written and barrier._files:
            self._calls.close(barrier._files.pop())
            barrier._folders.clear()
        else:
            note_moved(self, operation, source, target)

    patch.setattr(batch, "_note_moved", note)


def _forget_to_sync_writes(patch: Patch) -> None:
    """A message rides on the next barrier."""
    is_durable = Batch._is_durable
    patch.setattr(
        Batch,
        "_is_durable",
        lambda self, operation: not isinstance(operation, Write) and is_durable(self, operation),
    )


def _keep_torn(patch: Patch) -> None:
    """Recovery does not look for half written messages."""
    patch.setattr(recovery, "_drop_torn", lambda folders, entries, but_empty: 0)


def _trust_every_byte(patch: Patch) -> None:
    """Nobody looks at lengths and checksums, neither recovery nor a fetch."""
    properties = Folders._properties

    def unchecked(self: Folders, entry: Any, fd: int) -> Any:
        found = properties(self, entry, fd)
        return found and found._replace(size=self.calls.file_size(fd) or 0, checksum=None)

    patch.setattr(Folders, "_properties", unchecked)
    patch.setattr(Folders, "_read_file", lambda self, entry, largest: 0)  # it looks, too
    patch.setattr(recovery, "_drop_torn", lambda folders, entries, but_empty: 0)


def _leave_queues_unsynced(patch: Patch) -> None:
    """Folders of queues come and go without a sync."""
    patch.setattr(record_changes, "synced_after", lambda calls, *paths: nullcontext())
    patch.setattr(record_changes, "make_folder", lambda calls, path: calls.mkdir(path))
    patch.setattr(record_changes, "sync_folder", lambda calls, path: None)


def _leave_new_folders_unsynced(patch: Patch) -> None:
    """A queue's name is synced, and its folder is not: with a journal that is enough."""
    patch.setattr(record_changes, "make_folder", lambda calls, path: calls.mkdir(path))
    patch.setattr(record_changes, "sync_folder", lambda calls, path: None)


def _syncfs_everywhere(patch: Patch) -> None:
    """syncfs is trusted where there is no journal, for one folder as for many: few batches change many.

    There Linux does not wait for its own writes of folders before it flushes the disk's cache. The rig's disk takes one
    command at a time, which hides that. So the flush comes first here.
    """
    patch.setattr(mount, "mount_of", lambda path: Mount("ext4", syncfs=True))
    patch.setattr(WholeSyncs, "most_folders", 0)
    patch.setattr(LinuxCalls, "syncfs", _write_folders)


def _write_folders(calls: LinuxCalls, fd: int) -> None:
    """Write what Linux keeps of the device under a file system, its folders among it, and flush nothing."""
    device = os.fstat(fd).st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    name = next(line for line in Path(f"/sys/dev/block/{numbers}/uevent").read_text().split() if "DEVNAME=" in line)
    written = os.open(f"/dev/{name.removeprefix('DEVNAME=')}", os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.sync_file_range(written, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE_AND_WAIT):
            raise OSError(ctypes.get_errno(), "sync_file_range")
    finally:
        os.close(written)


def _sync_again(patch: Patch) -> None:
    """A sync that fails is tried again, and believed when it says that all is well."""
    patch.setattr(LinuxCalls, "fsync", staticmethod(_twice(LinuxCalls.fsync)))
    patch.setattr(LinuxCalls, "syncfs", _twice(LinuxCalls.syncfs))


def _twice(call: Callable[..., None]) -> Callable[..., None]:
    def again(*arguments: Any) -> None:
        try:
            call(*arguments)
        except OSError:
            call(*arguments)

    return again


def _rename_everywhere(patch: Patch) -> None:
    """A file system without a journal is taken for one whose renames are atomic and ordered."""
    patch.setattr(mount, "mount_of", lambda path: Mount("ext4", atomic_rename=True, ordered=True))


def _compare_clocks(patch: Patch) -> None:
    """What joined its queue before that was made is taken for a deleted queue's, and ids go back with the wall clock:
    neither dates nor what is in the store keep them from it."""
    place = Catalog.place

    def place_or_remove(self: Catalog, entry: Entry, due: float | None = None) -> None:
        index = self.queues.get(entry.queue)
        if index is not None and entry.state is not State.REMOVED and entry.joined < index.created:
            self.events.orphaned(entry)
        else:
            place(self, entry, due)

    patch.setattr(Catalog, "place", place_or_remove)
    patch.setattr(Clock, "date_ns", lambda self: self._read_wall_ns())
    patch.setattr(MessageIds, "observe", lambda self, ticks: None)


def _tell_before_the_flush(patch: Patch) -> None:
    """The log is flushed behind the files of a batch, while the first of its clients hear that theirs are there.

    Small batches have early results, too: on a slow disk there may be no large ones.
    """
    commit, append, is_late = logged._commit, Log.append, False
    patch.setattr(logged, "_LEAST_PORTIONS", 0)

    def append_late(log: Log, *args: Any, flushes: bool = False, **options: Any) -> int:
        return append(log, *args, flushes=flushes and not is_late, **options)

    def lazily(root: LoggedRoot, portion: LoggedPortion, early: EarlyResults) -> Sequence[Outcome]:
        nonlocal is_late
        early.every = 4
        is_late = not early.is_over and portion.flushes
        try:
            outcomes = commit(root, portion, early)
        finally:
            is_late = False
        with root.log.lock:
            root.log.flush()
        return outcomes

    patch.setattr(Log, "append", append_late)
    patch.setattr(logged, "_commit", lazily)


MUTANTS: Final = {
    "flush nothing": Mutant(_flush_nothing),
    "leave folders out": Mutant(_leave_folders_out),
    "forget to sync writes": Mutant(_forget_to_sync_writes),
    "forget to sync removes": Mutant(_forget_to_sync_removes),
    "forget to sync leases": Mutant(_forget_to_sync_leases),
    "hand over without a sync": Mutant(_hand_over_without_sync, workload="remove"),
    "keep torn messages": Mutant(_keep_torn, workload="two peers"),
    "trust every byte": Mutant(_trust_every_byte, workload="two peers"),
    "leave queues unsynced": Mutant(_leave_queues_unsynced),
    "compare clocks": Mutant(_compare_clocks),
    "rename without a journal": Mutant(_rename_everywhere, "ext4-nojournal"),
    "leave new folders unsynced": Mutant(_leave_new_folders_unsynced, "ext4-nojournal"),
    "syncfs without a journal": Mutant(_syncfs_everywhere, "ext4-nojournal"),
    "tell before the flush": Mutant(_tell_before_the_flush, workload="log crowd"),
    "sync again": Mutant(_sync_again, fails=True),
}
"""By name."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """mq with one bug in it, or as it is, for the length of the block."""
    with Patch.context() as patch:
        if name:
            MUTANTS[name].plant(patch)
        yield
