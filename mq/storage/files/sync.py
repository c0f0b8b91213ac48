"""Syncs of a root: what makes a file, the names in a folder, or the whole file system durable.

* :class:`Syncs`: syncs of one root, one by one; :class:`WholeSyncs` may use one syncfs(2) of the file system instead.
* :class:`Barrier`: the syncs of one batch of changes. A few files and folders are synced one by one, many by syncfs(2).
  In an :class:`OrderedBarrier` one sync brings all that was changed before, and the bytes that were written out before.
* Functions for a single file or folder, for both engines.

Every result is checked: what is not known to be durable raises :class:`~mq.storage.files.calls.SyncFailed`. A sync is
never tried again (the second fsync after an error says OK and the bytes are not there).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from mq.storage.files.calls import (
    NO_HANDLES,
    OPEN_FOLDER,
    OPEN_READ,
    STALE,
    Calls,
    SyncFailed,
    UnsyncedCalls,
    is_transient,
    is_unsure,
)
from mq.storage.files.spare import Spare

MOST_MOVED: Final = 32
"""Files that were moved are kept open for their sync, up to so many."""
MOST_OPEN: Final = 64
"""Files that were written are kept open, up to so many."""


class Syncs:
    """Syncs changes below a root one by one: a file, or a folder.

    Args:
        root_fd: any folder of the file system, opened before what is written.
        held: folders that are kept open, by their paths.
        folders: whether the sync of a folder does anything; if not, none is made.

    Attributes:
        most_files, most_folders: more files or folders than these are synced by :meth:`everything`.
        needs_handles: whether :meth:`everything` may not be used in place of the sync of a file that cannot be opened.
        spare: a handle for when no other is free.
    """

    most_files: float = math.inf
    most_folders: float = math.inf
    needs_handles = True

    def __init__(
        self, calls: Calls, root_fd: int, held: Mapping[str, int] = MappingProxyType({}), *, folders: bool = True
    ) -> None:
        self.calls = calls
        self.root_fd = root_fd
        self.held = held
        self.folders = folders
        self.spare: Spare | None = None

    def everything(self) -> None:
        """Make the whole file system durable."""
        sync_all(self.calls, self.root_fd)

    def folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        if path in self.held:
            sync(self.calls, self.held[path])
        else:
            sync_folder(self.calls, path)

    def whole(self, one_by_one: Callable[[], object]) -> None:
        """Make a whole root durable.

        Args:
            one_by_one: syncs all its files and folders.

        Raises:
            OSError: it is not known to be.
        """
        one_by_one()

    def one_of(self, one: Callable[[], object]) -> None:
        """Sync something that the next :meth:`whole` may leave out."""
        one()

    def make_folder(self, path: str) -> None:
        """Make a folder that :meth:`whole` will make durable."""
        make_folder(self.calls, path)

    def keep_spare(self, path: str) -> None:
        """Keep a handle for when no other is free. `path` is any folder."""
        self.spare = Spare(self.calls, path)


class WholeSyncs(Syncs):
    """Syncs below a root, where one syncfs(2) for everything is cheaper than many others."""

    most_files: float = 1
    most_folders: float = 4
    needs_handles = False

    def whole(self, one_by_one: Callable[[], object]) -> None:
        """By one call."""
        self.everything()

    def one_of(self, one: Callable[[], object]) -> None:
        """Nothing: the next :meth:`whole` syncs it."""

    def make_folder(self, path: str) -> None:
        """Without a sync."""
        self.calls.mkdir(path)

    def keep_spare(self, path: str) -> None:
        """None is needed."""


def make_syncs(
    calls: Calls, root_fd: int, held: Mapping[str, int] = MappingProxyType({}), *, syncfs: bool, folders: bool = True
) -> Syncs:
    """Return the syncs of a root, by syncfs(2) if that may be used. All else is for :class:`Syncs`."""
    return (WholeSyncs if syncfs else Syncs)(calls, root_fd, held, folders=folders)


class Barrier:
    """What has to be synced together. Tell it of changes in the order in which they are made.

    Args:
        files: how many files will be written at the most. Where several are synced with everything else, none is kept
            open.
    """

    def __init__(self, syncs: Syncs, files: int = 0) -> None:
        self._syncs = syncs
        self._calls = syncs.calls
        self._keeps_files = files <= syncs.most_files
        self._files: list[int] = []
        self._moved: list[int] = []
        self._not_synced: SyncFailed | None = None
        self._folders: set[str] = set()
        self._everything = False

    def add_file(self, fd: int) -> None:
        """Add an open file that was written, and has its name. The barrier closes it. An error is for :meth:`flush`: it
        may concern any of the files."""
        if self._keeps_files:
            self._files.append(fd)
        else:
            self._everything = True
            self._calls.close(fd)

    @property
    def has_failed(self) -> bool:
        """Whether :meth:`flush` will fail, so that it has to be called."""
        return self._not_synced is not None

    def add_moved(self, path: str) -> None:
        """Add a moved file, where only its own sync makes the move durable. Passed over when a peer has moved it on."""
        with contextlib.suppress(FileNotFoundError):
            try:
                self._moved.append(self._calls.open(path, OPEN_READ))
            except OSError as error:
                if error.errno not in NO_HANDLES or self._syncs.spare is None:
                    raise
                self._sync_moved()
                with self._syncs.spare.lent():
                    self._moved.append(self._calls.open(path, OPEN_READ))
                    self._sync_moved()
        if len(self._moved) >= MOST_MOVED:
            self._sync_moved()

    def add_folders(self, *paths: str) -> None:
        """Add folders in which names were changed together."""
        self._folders.update(paths)

    def flush(self) -> frozenset[str] | None:
        """Wait until everything added is on the medium. Returns the folders that were synced; None for all there are.

        Raises:
            OSError: the medium failed; nothing of the batch is known to be durable.
        """
        try:
            if self._not_synced is not None:
                raise self._not_synced
            if self._everything or len(self._folders) > self._syncs.most_folders:
                self._syncs.everything()
                return None
            if self._sync_files():
                return frozenset(self._folders)
            self._sync_moved()
            if self._not_synced is not None:
                raise self._not_synced
        finally:
            self.close()
        try:
            return self._sync_folders()
        except OSError as error:
            if error.errno not in NO_HANDLES or isinstance(error, SyncFailed):
                raise
            if not self._syncs.needs_handles:
                self._syncs.everything()
                return None
            if self._syncs.spare is None:
                raise
        with self._syncs.spare.lent():
            return self._sync_folders()

    def close(self) -> None:
        """Close the files that wait for their sync."""
        files, self._files, self._moved = self._files + self._moved, [], []
        if files:
            close_all(self._calls, files)

    def _sync_files(self) -> bool:
        """Sync the files. Returns whether that has synced the folders as well."""
        for fd in self._files:
            sync(self._calls, fd)
        return False

    def _sync_moved(self) -> None:
        """Sync what was moved so far. An error is raised for the whole batch: it may concern any of them."""
        if not self._moved:
            return
        moved, self._moved = self._moved, []
        for fd in moved:
            try:
                sync(self._calls, fd)
            except SyncFailed as error:
                if error.errno not in STALE:  # else a peer has moved it on and taken it away, and made that durable
                    self._not_synced = error
        close_all(self._calls, moved)

    def _sync_folders(self) -> frozenset[str]:
        for folder in sorted(self._folders) if self._syncs.folders else ():  # one order, so that a simulation repeats
            with contextlib.suppress(FileNotFoundError):  # deleted by hand meanwhile: nothing of it can be kept
                self._syncs.folder(folder)
        return frozenset(self._folders)


class OrderedBarrier(Barrier):
    """A barrier where names reach the disk in the order in which they were changed: one sync brings all of it."""

    def add_file(self, fd: int) -> None:
        """As for any barrier; the bytes begin to be written out."""
        self._files.append(fd)
        try:
            if len(self._files) > 1:
                write_out(self._calls, fd, waits=False)
            if len(self._files) > MOST_OPEN:
                self._write_out_all()
        except SyncFailed as error:
            self._not_synced = error

    def add_folders(self, *paths: str) -> None:
        """As for any barrier. The sync of one folder is enough: one that is kept open, since it cannot vanish."""
        held = [path for path in paths if path in self._syncs.held]
        if held:
            self._folders = {held[0]}
        else:
            self._folders.update(paths)

    def _sync_files(self) -> bool:
        if self._files:
            bring_in_order(self._calls, self._files)
        return bool(self._files)

    def _write_out_all(self) -> None:
        """Close all files but the last, whose sync will bring them: their bytes are written out before."""
        files, self._files = self._files[:-1], self._files[-1:]
        try:
            for fd in files:
                write_out(self._calls, fd, waits=True)
        finally:
            close_all(self._calls, files)


def close_all(calls: Calls, fds: Iterable[int]) -> None:
    """Close files and folders. Errors are ignored: the sync before has reported them."""
    for fd in fds:
        with contextlib.suppress(OSError):
            calls.close(fd)


def sync(calls: Calls, fd: int) -> None:
    """Make an open file or folder durable."""
    _sync_by(calls.fsync, fd)


def link_synced(calls: Calls, fd: int, path: str, target: str) -> None:
    """Sync an open file, then move its name by a link: `target` never leads to an incomplete file.

    Raises:
        OSError: it was refused, and has its old name only.
    """
    sync(calls, fd)
    calls.link(path, target)
    try:
        calls.unlink(path)
    except OSError:
        with contextlib.suppress(OSError):
            calls.unlink(target)
        raise


def bring_in_order(calls: Calls, files: Sequence[int], *others: int) -> None:
    """Bring the bytes of open files, and every change that was made before, to the medium by one flush: where names are
    ordered.

    Args:
        files: at least one; the last of them is changed and synced.
        others: files whose times stay as they are.
    """
    if others or len(files) > 1:
        for fd in (*files, *others):
            write_out(calls, fd, waits=True)
    # The change has to come after all of that: a sync brings what was changed before its own file was.
    calls.touch(files[-1])
    sync(calls, files[-1])


def write_out(calls: Calls, fd: int, *, waits: bool) -> None:
    """As :meth:`Calls.write_out`.

    Raises:
        SyncFailed: the bytes may never be on the medium.
    """
    _sync_by(partial(calls.write_out, fd, waits=waits))


def sync_all(calls: Calls, root_fd: int) -> None:
    """Make the whole file system durable."""
    _sync_by(calls.syncfs, root_fd)


def _sync_by(call: Callable[..., object], *fds: int) -> None:
    try:
        call(*fds)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, error.filename) from error


def sync_folder(calls: Calls, path: str) -> None:
    """Make the names in a folder durable. Where calls do not sync, this opens nothing."""
    # What a log has made durable must not fail for want of a handle when its files are changed already.
    if isinstance(calls, UnsyncedCalls):
        return
    fd = calls.open(path, OPEN_FOLDER)
    try:
        sync(calls, fd)
    finally:
        close_all(calls, [fd])


def make_folder(calls: Calls, path: str) -> None:
    """Make a folder that is durable once its name is."""
    calls.mkdir(path)
    # Without a journal, the sync that brings the name does not bring the folder: after a power cut the name leads
    # nowhere, and a repair takes it away.
    try:
        sync_folder(calls, path)
    except OSError:
        with contextlib.suppress(OSError):
            calls.rmdir(path)
        raise


@contextlib.contextmanager
def synced_after(calls: Calls, *paths: str) -> Iterator[None]:
    """Make the names in these folders durable after the block, also where it was refused for now and has undone what it
    did: a power cut must not bring that back. Opens their handles before it, so that none is missing then; where calls
    do not sync, none is needed."""
    if isinstance(calls, UnsyncedCalls):
        yield
        return
    fds: list[int] = []
    try:
        for path in paths:
            fds.append(calls.open(path, OPEN_FOLDER))  # noqa: PERF401 - what is open is closed
        try:
            yield
        except OSError as error:
            if is_transient(error) and not is_unsure(error):
                _sync_all(calls, fds)
            raise
        _sync_all(calls, fds)
    finally:
        close_all(calls, fds)


def _sync_all(calls: Calls, fds: Sequence[int]) -> None:
    for fd in fds:
        sync(calls, fd)
