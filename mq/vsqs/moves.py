"""Changes the names in one VSQS folder so that a crash loses no message, and says why when it cannot.

Where a rename survives a crash whole, a move is a rename. Elsewhere (no journal, or nothing known) it is link, sync,
unlink: at no instant is the message without a durable name, and of many who move it, whoever takes the old name away
has won.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from mq.errors import StorageFailed
from mq.storage.calls import OPEN_FOLDER
from mq.vsqs.errors import failed, told
from mq.vsqs.names import READY, name_of
from mq.vsqs.system import FolderCalls
from mq.vsqs.watch import FolderLeft


def make_folder(calls: FolderCalls, path: str) -> None:
    """Make the folder of a queue, durably; not those above it. Nothing happens when it is there."""
    with told(path):
        with contextlib.suppress(FileExistsError):
            calls.mkdir(path, 0o777)
        above = calls.open(os.path.dirname(path), OPEN_FOLDER)
        try:
            calls.fsync(above)
        finally:
            calls.close(above)


class Moves:
    """The changes to one folder.

    Args:
        calls: the system calls.
        path: of the folder.
        by_rename: whether a rename survives a crash whole.

    Raises:
        NoSuchQueue: it is not there.
        StorageUnusable: it may not be read.
    """

    def __init__(self, calls: FolderCalls, path: str, *, by_rename: bool) -> None:
        self._calls = calls
        self._path = path
        self._by_rename = by_rename
        self._failure = ""
        with told(path):
            self._folder = calls.open(path, OPEN_FOLDER)

    def path(self, number: int, state: int) -> str:
        """Of a message's file."""
        return f"{self._path}/{name_of(number, state)}"

    def move(self, number: int, source: int, target: int) -> None:
        """Give a message another state. Durable with the next :meth:`sync`.

        A name with an expiry is that of one receiver, who takes it back when the race is lost. The name of a ready
        message is everybody's: several may make it ready at once, and each takes away the name that it had before.

        Raises:
            FileNotFoundError: somebody else was faster; nothing was changed.
            FileExistsError: the target is taken; nothing was changed.
        """
        old, new = self.path(number, source), self.path(number, target)
        if self._by_rename:
            self._calls.rename(old, new)
            return
        self._calls.link(old, new)
        self.sync()
        try:
            self._calls.unlink(old)
        except FileNotFoundError:
            if target == READY:
                return  # who took it away found the new name as well: it stays, or they take that, too
            self.drop(number, target)
            raise

    def drop(self, number: int, state: int) -> bool:
        """Take a name away. Whether it was there."""
        try:
            self._calls.unlink(self.path(number, state))
        except FileNotFoundError:
            return False
        return True

    def sync(self, fd: int | None = None) -> None:
        """Bring an open file to the disk, or all changes of names.

        Raises:
            StorageFailed: it failed; nothing more is changed. No sync is tried twice: the second would say that all is
                well.
        """
        try:
            self._calls.fsync(self._folder if fd is None else fd)
        except OSError as error:
            failure = failed(self._path, error)
            self._failure = str(failure)
            raise failure from error

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """For a block that changes the folder: errors as from :func:`~mq.vsqs.errors.told`.

        Raises:
            StorageFailed: the disk failed, now or in a block before.
        """
        if self._failure:
            raise StorageFailed(self._failure)
        try:
            with told(self._path):
                if not self._calls.is_at(self._folder, self._path):
                    raise FolderLeft
                yield
        except StorageFailed as error:
            self._failure = str(error)
            raise

    def close(self) -> None:
        """Close the folder."""
        self._calls.close(self._folder)
