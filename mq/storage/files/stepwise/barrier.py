"""One durability barrier: which syncs make a batch of changes durable.

A few files and folders are synced one by one; many by one syncfs(2) of the whole file system, where that may be used
(its errors are reported since 5.8). Where names are ordered, one sync brings all that was changed before, and the bytes
that were written out before: so the bytes of all files are written out, and what was changed last is synced
(:class:`OrderedBarrier`).
"""

from __future__ import annotations

import contextlib
from typing import Final

from mq.storage.files.calls import NO_HANDLES, OPEN_READ, STALE, SyncFailed
from mq.storage.files.sync import Syncs, bring_in_order, close_all, sync, write_out

MOST_MOVED: Final = 32
"""Files that were moved are kept open for their sync, up to so many."""
MOST_OPEN: Final = 64
"""Files that were written are kept open, up to so many."""


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
