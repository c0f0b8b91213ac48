"""Syncs of a root: what makes a file, the names in a folder, or the whole file system durable.

Every result is checked: what is not known to be durable raises :class:`~mq.storage.files.calls.SyncFailed`. A sync is
never tried again (the second fsync after an error says OK and the bytes are not there).
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from mq.storage.files.calls import OPEN_FOLDER, Calls, SyncFailed, UnsyncedCalls, is_transient, is_unsure


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


class Spare:
    """A file handle that is kept for when no other is free: to sync changes, or to read a leased message.

    Args:
        path: any folder.

    Attributes:
        fd: the handle; None while it is lent, or if there was none.
    """

    def __init__(self, calls: Calls, path: str) -> None:
        self._calls = calls
        self._path = path
        self.fd: int | None = None
        self._lock = threading.Lock()
        self.keep()

    def keep(self) -> None:
        """Take it, if it is not held and there is one."""
        if self.fd is None:
            with contextlib.suppress(OSError):
                self.fd = self._calls.open(self._path, OPEN_FOLDER)

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
        fd, self.fd = self.fd, None
        if fd is not None:
            close_all(self._calls, [fd])


def close_all(calls: Calls, fds: Iterable[int]) -> None:
    """Close files and folders. Errors are ignored: the sync before has reported them."""
    for fd in fds:
        with contextlib.suppress(OSError):
            calls.close(fd)


def sync(calls: Calls, fd: int) -> None:
    """Make an open file or folder durable."""
    _sync_by(calls.fsync, fd)


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
