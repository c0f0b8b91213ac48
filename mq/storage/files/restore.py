"""Makes a root of a backup, in an empty folder that no daemon serves before all of it is on the medium.

The root is marked as half restored (``format``) before the first message is written, and until the last one is durable.
A restore that was killed is begun anew in the same folder, which it empties first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from mq.errors import StorageFull, StorageUnusable
from mq.message import Properties, shorten
from mq.storage.files.backup_folder import (
    THREADS,
    Backup,
    BackupDamaged,
    BackupFolder,
    BackupHeader,
    FileSyncs,
    SavedMessage,
    is_vacant,
    open_backups,
)
from mq.storage.files.calls import NO_ROOM, OPEN_FOLDER, OPEN_NEW, Calls, FileKind, LinuxCalls, write_all
from mq.storage.files.explain import explain
from mq.storage.files.format import RootUse, is_half_restored, note_use
from mq.storage.files.inventory import keep_inventory
from mq.storage.files.layout import ATTRIBUTES, SUM, Layout, Senseless, Sum, decode_attributes, encode_side
from mq.storage.files.mount import mount_of
from mq.storage.files.ownership import check_root
from mq.storage.files.probes import has_xattrs
from mq.storage.files.records import Records, file_of
from mq.storage.files.sync import Syncs, close_all, make_folder, make_syncs, sync_folder
from mq.storage.interface import QUEUE
from mq.storage.options import StorageOptions

_LOCK_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_KEPT: Final = frozenset({"format", "lock"})
_BEGUN: Final = frozenset({"format.new", "lock"})


class RestoreReport(NamedTuple):
    """What a restore did.

    Attributes:
        restored: how many messages are in the root.
        damaged: ids of messages whose bytes in the backup are missing, or differ from the copied ones.
    """

    header: BackupHeader
    restored: int
    damaged: tuple[str, ...]


def list_backups(folder: str) -> list[BackupHeader]:
    """The backups in a folder that are whole, the oldest first.

    Raises:
        StorageUnusable: it is no folder of backups.
    """
    calls = LinuxCalls()
    try:
        with open_backups(calls, os.path.realpath(folder), make=False) as backups:
            return list(_headers(backups))
    except OSError as error:
        raise StorageUnusable(f"cannot read {shorten(folder, 200)}: {error.strerror}") from error


def _headers(backups: BackupFolder) -> Iterator[BackupHeader]:
    for number in backups.numbers():
        try:
            if backups.has_end(number):
                yield backups.header(number)
        except BackupDamaged as error:
            backups.warn(number, error)


def restore(
    folder: str,
    root: str,
    options: StorageOptions,
    *,
    number: int | None = None,
    told: Callable[[int, int], object] = lambda done, total: None,
) -> RestoreReport:
    """Make a root of a backup.

    Args:
        root: a folder that is empty, or not there.
        options: which users to trust with the root.
        number: of the backup; where not given, the newest.
        told: called with how many messages are restored, and how many there are, now and then.

    Raises:
        StorageUnusable: in one line, why not and what to do.
        StorageFull: there is no room for the root.
    """
    calls = LinuxCalls()
    folder, root = os.path.realpath(folder), os.path.realpath(root)
    if os.path.commonpath([root, folder]) in (root, folder):
        raise StorageUnusable(
            f"the backup folder {shorten(folder, 200)} must not be inside the root or contain it: choose another root"
        )
    try:
        above = root if calls.kind(root) is FileKind.FOLDER else os.path.dirname(root)
        mount = mount_of(above)
        if mount.flaw:
            raise StorageUnusable(f"root {shorten(root)} {mount.flaw}")
        if calls.kind(root) is FileKind.FOLDER:
            check_root(calls, root, options, mount)
        with open_backups(calls, folder, make=False) as backups:
            backup = _find(backups, number)
            syncfs = mount.can_syncfs()
            return bring_back(calls, backups, backup, root, syncfs=syncfs, threads=THREADS, told=told)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StorageFull(
                f"no space left for root {shorten(root, 200)}: free some space, then run the same command again"
            ) from error
        raise StorageUnusable(f"cannot restore {shorten(root, 200)}: {explain(error)}") from error


def _find(backups: BackupFolder, number: int | None) -> Backup:
    shown = shorten(backups.path, 200)
    if number is None:
        newest = backups.newest()
        if newest is None:
            raise StorageUnusable(f"{shown} does not contain a complete backup: mq backup was interrupted")
        return newest
    if number not in backups.numbers():
        raise StorageUnusable(f"{shown} does not contain backup {number}: list the backups with mq restore --list")
    try:
        return backups.read(number)
    except BackupDamaged as error:
        raise StorageUnusable(f"backup {number} in {shown} is damaged ({error}). Restore another backup") from error


def bring_back(
    calls: Calls,
    backups: BackupFolder,
    backup: Backup,
    root: str,
    *,
    syncfs: bool,
    threads: int = 1,
    told: Callable[[int, int], object] = lambda done, total: None,
) -> RestoreReport:
    """Make a root of a backup that was read. Durable on return.

    Args:
        syncfs: whether one call brings the whole file system of the root to the medium.
        threads: where it does not: how many files are synced at a time.
        told: as in :func:`restore`.

    Raises:
        StorageUnusable: something is in its place.
    """
    layout = Layout.under(root)
    with contextlib.ExitStack() as stack:
        _begin(calls, layout, root)
        lock = calls.open(layout.lock, _LOCK_FILE)
        stack.callback(calls.close, lock)
        try:
            calls.lock(lock, exclusive=True)
        except BlockingIOError as error:
            raise StorageUnusable(
                f"{shorten(root, 200)} is in use by a daemon or another restore: stop the daemon, or wait for the "
                "other restore to finish"
            ) from error
        root_fd = calls.open(root, OPEN_FOLDER)  # before anything is written: it hears of every error since
        stack.callback(calls.close, root_fd)
        _empty(calls, layout, root)
        syncs = make_syncs(calls, root_fd, syncfs=syncfs)
        files = FileSyncs(syncs, threads=threads)
        stack.callback(files.close)
        writer = _Writer(syncs, layout, backups, files, xattrs=has_xattrs(calls, lock))
        writer.write_all(backup, told)
        files.finish()
        syncs.whole(partial(_sync_folders, calls, (root, layout.state, *writer.folders)))
        _settle_records(calls, layout, backup)
        note_use(calls, layout, RootUse.CLEAN)
    return RestoreReport(backup.header, len(backup.messages) - len(writer.damaged), tuple(writer.damaged))


def _sync_folders(calls: Calls, folders: Iterable[str]) -> None:
    for folder in folders:
        sync_folder(calls, folder)


def _settle_records(calls: Calls, layout: Layout, backup: Backup) -> None:
    """Remove torn records that were being written at the backup's instant, as a start does after a power cut, and list
    the others in the inventory. A damaged record stays, for the start to report."""
    records = Records(calls, layout.records)
    records.keep_names()
    records.check(is_settled=False, answered={(QUEUE, file_of(queue)) for queue in backup.queues})
    keep_inventory(records)


def _begin(calls: Calls, layout: Layout, root: str) -> None:
    """Mark the root as half restored.

    Raises:
        StorageUnusable: something else is there.
    """
    kind = calls.kind(root)
    if kind is None:
        make_folder(calls, root)
        sync_folder(calls, os.path.dirname(root))
    elif kind is not FileKind.FOLDER:
        raise StorageUnusable(f"{shorten(root, 200)} is not a folder: choose an empty folder or a new one")
    elif not (is_vacant(calls, root) or is_half_restored(calls, layout) or _has_just_begun(calls, layout, root)):
        raise StorageUnusable(
            f"{shorten(root, 200)} is not empty: move it elsewhere, or choose an empty or new folder, so that "
            "restored messages are not mixed with others"
        )
    if calls.kind(layout.state) is None:
        make_folder(calls, layout.state)
        sync_folder(calls, root)
    if not is_half_restored(calls, layout):
        note_use(calls, layout, RootUse.RESTORING)


def _has_just_begun(calls: Calls, layout: Layout, root: str) -> bool:
    """Whether a restore was cut off before it could mark the root."""
    if [name for name, _ in calls.names(root)] != ["state"]:
        return False
    return all(name in _BEGUN for name, _ in calls.names(layout.state))


def _empty(calls: Calls, layout: Layout, root: str) -> None:
    """Remove what a restore that was cut off has left."""
    for folder in layout.all():
        if os.path.dirname(folder) == root and folder != layout.state:
            _take_away(calls, folder)
    for name, kind in calls.names(layout.state):
        if name not in _KEPT:
            path = f"{layout.state}/{name}"
            _take_away(calls, path) if kind is FileKind.FOLDER else calls.unlink(path)


def _take_away(calls: Calls, folder: str) -> None:
    if calls.kind(folder) is None:
        return
    for name, kind in calls.names(folder):
        if kind is FileKind.FOLDER:
            _take_away(calls, f"{folder}/{name}")
        else:
            calls.unlink(f"{folder}/{name}")
    calls.rmdir(folder)


class _Writer:
    """Writes the files of a root.

    Attributes:
        damaged: messages that the backup does not have as they were.
    """

    def __init__(self, syncs: Syncs, layout: Layout, backups: BackupFolder, files: FileSyncs, *, xattrs: bool) -> None:
        self.folders: list[str] = []
        self.damaged: list[str] = []
        self._calls = syncs.calls
        self._layout = layout
        self._backups = backups
        self._syncs = syncs
        self._files = files
        self._xattrs = xattrs

    def write_all(self, backup: Backup, told: Callable[[int, int], object]) -> None:
        """Folders, records, messages."""
        for folder in self._layout.all():
            if folder != self._layout.state:
                self._make(folder)
        for kind in sorted({path.partition("/")[0] for path in backup.records}):
            self._make(f"{self._layout.records}/{kind}")
        for path, content in backup.records.items():
            self._write(f"{self._layout.records}/{path}", [content.encode("latin-1")])
        for queue in backup.queues:
            self._make(f"{self._layout.queues}/{queue}")
        for name in backup.removed_queues:
            self._make(f"{self._layout.remove}/{name}")
        for done, (path, saved) in enumerate(backup.messages.items(), 1):
            self._write_message(path, saved)
            told(done, len(backup.messages))

    def _write_message(self, path: str, saved: SavedMessage) -> None:
        id = path.rpartition("/")[2].rpartition(":")[2].partition(",")[0]
        if saved.size and not self._backups.has_body(id, saved):
            self.damaged.append(id)
            return
        noted: SavedMessage | None = saved
        side = None if saved.side is None else saved.side.encode("latin-1")
        if not self._xattrs:
            noted, side = None, _side_of(saved) if side is None else side
        if side is not None:
            self._write(f"{self._layout.properties}/{id}", [side])
        body = self._backups.body(id) if saved.size else ()
        self._write(self._layout.above(path), body, noted)

    def _note(self, fd: int, saved: SavedMessage) -> None:
        """Set the properties of a message. The attributes come first, as at a publish: with the sum everything is
        there."""
        for name, value in ((ATTRIBUTES, saved.attributes), (SUM, saved.sum)):
            if value is not None:
                self._calls.set_attribute(fd, name, value.encode("latin-1"))

    def _make(self, folder: str) -> None:
        with contextlib.suppress(FileExistsError):  # a daemon was started, made its folders, and found the root locked
            self._syncs.make_folder(folder)
        self.folders.append(folder)

    def _write(self, path: str, content: Iterable[bytes], saved: SavedMessage | None = None) -> None:
        fd = self._calls.open(path, OPEN_NEW)
        try:
            if saved is not None:
                self._note(fd, saved)
            for chunk in content:
                write_all(self._calls, fd, chunk)
        except BaseException:
            close_all(self._calls, [fd])
            raise
        self._files.add(fd)


def _side_of(saved: SavedMessage) -> bytes | None:
    """Return the content of a message's side file where files have no extended attributes; None if it has none."""
    if saved.sum is None:
        return None
    try:
        noted = Sum.decode(saved.sum.encode("latin-1"))
        attributes = {} if saved.attributes is None else decode_attributes(saved.attributes.encode("latin-1"))
    except Senseless:
        return None
    return None if noted is None else encode_side(Properties(noted.size, noted.checksum, attributes))
