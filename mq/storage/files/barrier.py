"""One durability barrier: which syncs make a batch of changes durable.

Where names are ordered, one sync brings all that was changed before, and the bytes that were written out before: so the
bytes of all files are written out, and what was changed last is synced. Elsewhere a few files and folders are synced
one by one; many by one syncfs(2) of the whole file system, where that may be used (its errors are reported since 5.8).

Every result is checked; an error is never tried again (the second fsync after an error says OK and the bytes are not
there).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

FEW_FOLDERS: Final = 4
MOST_MOVED: Final = 32
"""Files that were moved are kept open for their sync, up to so many."""
MOST_OPEN: Final = 64
"""Files that were written are kept open, up to so many."""


class Syncs:
    """Syncs changes below a root: a file, a folder, or everything.

    Args:
        calls: the system.
        root_fd: any folder of the file system, opened before what is written.
        syncfs: whether syncfs may be used.
        ordered: whether name changes reach the medium in the order in which they were made, across folders, and the
            sync of a file that was just changed brings all of them.
        held: folders that are kept open, by their paths.
        folders: whether the sync of a folder does anything; where not, none is made.

    Attributes:
        spare: a handle for when no other is free, where syncfs may not be used.
    """

    def __init__(
        self,
        calls: Calls,
        root_fd: int,
        *,
        syncfs: bool,
        ordered: bool,
        held: Mapping[str, int],
        folders: bool = True,
    ) -> None:
        self.calls = calls
        self.root_fd = root_fd
        self.syncfs = syncfs
        self.ordered = ordered
        self.held = held
        self.folders = folders
        self.spare: Spare | None = None

    def everything(self) -> None:
        """Make the whole file system durable.

        Raises:
            SyncFailed: it is not known to be.
        """
        sync_all(self.calls, self.root_fd)

    def folder(self, path: str) -> None:
        """Make the names in a folder durable.

        Raises:
            SyncFailed: they are not known to be.
        """
        if path in self.held:
            sync(self.calls, self.held[path])
        else:
            sync_folder(self.calls, path)


class Barrier:
    """What has to be synced together. Tell it of changes in the order in which they are made.

    Args:
        syncs: how that is done.
        files: how many files will be written at the most. Where several are synced with everything else, none is kept
            open.
    """

    def __init__(self, syncs: Syncs, files: int = 0) -> None:
        self._syncs = syncs
        self._calls = syncs.calls
        self._keeps_files = syncs.ordered or files <= 1 or not syncs.syncfs
        self._files: list[int] = []
        self._moved: list[int] = []
        self._not_synced: SyncFailed | None = None
        self._folders: set[str] = set()
        self._everything = False

    @property
    def wants_files(self) -> bool:
        """Whether a caller has to add written files open."""
        return self._keeps_files

    def add_closed_file(self) -> None:
        """Add a file that was written, has its name, and is closed. Only where :attr:`wants_files` is false."""
        self._everything = True

    def add_file(self, fd: int) -> None:
        """Add an open file that was written, and has its name. The barrier closes it. An error is for :meth:`flush`: it
        may concern any of the files."""
        if not self._keeps_files:
            self.add_closed_file()
            self._calls.close(fd)
            return
        self._files.append(fd)
        try:
            if self._syncs.ordered and len(self._files) > 1:
                write_out(self._calls, fd, waits=False)
            if self._syncs.ordered and len(self._files) > MOST_OPEN:
                self._write_out_all()
        except SyncFailed as error:
            self._not_synced = error

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
        # on an ordered file system syncing one folder is enough: one that is kept open, since it cannot vanish
        held = [path for path in paths if path in self._syncs.held] if self._syncs.ordered else []
        if held:
            self._folders = {held[0]}
        else:
            self._folders.update(paths)

    def flush(self) -> frozenset[str] | None:
        """Wait until everything added is on the medium. Returns the folders that were synced; None for all there are.

        Raises:
            OSError: the medium failed; nothing of the batch is known to be durable.
        """
        try:
            if self._not_synced is not None:
                raise self._not_synced
            if self._everything or (self._syncs.syncfs and len(self._folders) > FEW_FOLDERS):
                self._syncs.everything()
                return None
            if self._files and self._syncs.ordered:
                bring_in_order(self._calls, self._files)
                return frozenset(self._folders)
            for fd in self._files:
                sync(self._calls, fd)
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
            if self._syncs.syncfs:
                self._syncs.everything()  # needs no handle of its own
                return None
            if self._syncs.spare is None:
                raise
        with self._syncs.spare.lent():
            return self._sync_folders()

    def close(self) -> None:
        """Close the files that wait for their sync."""
        files, self._files, self._moved = self._files + self._moved, [], []
        close_all(self._calls, files)

    def _write_out_all(self) -> None:
        """Close all files but the last, whose sync will bring them: their bytes are written out before."""
        files, self._files = self._files[:-1], self._files[-1:]
        try:
            for fd in files:
                write_out(self._calls, fd, waits=True)
        finally:
            close_all(self._calls, files)

    def _sync_moved(self) -> None:
        """Sync what was moved so far. An error is raised for the whole batch: it may concern any of them."""
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


class Spare:
    """A file handle that is kept for when no other is free: to sync changes, or to read a leased message.

    Args:
        calls: the system.
        path: any folder.
    """

    def __init__(self, calls: Calls, path: str) -> None:
        self._calls = calls
        self._path = path
        self._fd: int | None = None
        self._lock = threading.Lock()
        self.keep()

    def keep(self) -> None:
        """Take it, if it is not held and there is one."""
        if self._fd is None:
            with contextlib.suppress(OSError):
                self._fd = self._calls.open(self._path, OPEN_FOLDER)

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Free the handle for the length of the block, for one caller at a time."""
        with self._lock:
            self.close()
            try:
                yield
            finally:
                self.keep()

    def close(self) -> None:
        """Let go of it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            close_all(self._calls, [fd])


def close_all(calls: Calls, fds: Iterable[int]) -> None:
    """Close files and folders. Errors are ignored: the sync before has reported them."""
    for fd in fds:
        with contextlib.suppress(OSError):
            calls.close(fd)


def sync(calls: Calls, fd: int) -> None:
    """Make an open file or folder durable.

    Raises:
        SyncFailed: it is not known to be.
    """
    try:
        calls.fsync(fd)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, error.filename) from error


def bring_in_order(calls: Calls, files: Sequence[int], *others: int) -> None:
    """Bring the bytes of open files, and every change that was made before, to the medium by one flush: where names are
    ordered.

    Args:
        calls: the system.
        files: at least one; the last of them is changed and synced.
        others: files whose times stay as they are.

    Raises:
        OSError: the medium has failed.
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
    try:
        calls.write_out(fd, waits=waits)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, error.filename) from error


def sync_all(calls: Calls, root_fd: int) -> None:
    """Make the whole file system durable.

    Raises:
        SyncFailed: it is not known to be.
    """
    try:
        calls.syncfs(root_fd)
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
