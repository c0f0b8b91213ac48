"""Publishing to a VSQS folder: a free number, a whole file on the disk, and only then its name.

A publisher holds a lock on its file from its creation to its end. Locks go with their process, so a file with a free
lock has lost its publisher: :class:`Orphans` removes it. Some programs take no locks, so a file that was written to
just now is left alone.
"""

from __future__ import annotations

import os
import time
from typing import Final

from mq.errors import CallerError, StorageUnusable
from mq.vsqs.file_names import HIGHEST, NEW, READY, FolderNames
from mq.vsqs.system import NO_FILE, System
from mq.vsqs.view import FolderView

_OPEN: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE: Final = 0o666
"""Less the umask, as with any file that programs share."""
ALONE_SECONDS: Final = 5.0
"""How long a file must have been left alone before it can be an orphan, and how often orphans are searched."""
_OPEN_ORPHAN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class QueueFull(CallerError):
    """The queue holds as many messages as its capacity allows."""


class FolderPublisher:
    """Publishes to one folder.

    Args:
        capacity: how many messages it may hold; None for no bound.
    """

    def __init__(
        self, system: System, names: FolderNames, view: FolderView, orphans: Orphans, capacity: int | None
    ) -> None:
        self._system = system
        self._calls = system.calls
        self._names = names
        self._view = view
        self._orphans = orphans
        self._capacity = capacity
        self._last = -1

    def publish(self, body: bytes) -> int:
        """Add a message, durably. Returns its number.

        Raises:
            QueueFull: the capacity is reached.
            StorageFailed: a sync failed.
        """
        self._view.refresh()
        while True:
            number = self._next_number()
            fd = self._create(number)
            if fd is None:
                continue
            try:
                published = self._is_free(number) and self._write(number, fd, body)
            finally:
                self._calls.close(fd)
            if published:
                self._names.sync()
                return number

    def _next_number(self) -> int:
        """The time, but a number after every message that was ever seen here: the order is that of publishing.

        Within one millisecond it waits for the next. When the last message lies in the future (a clock was set back,
        or another machine's is ahead), it is the number after that one.
        """
        last = max(self._last, self._view.index.highest, self._view.index.spent)
        now = self._system.now_ns() // 1_000_000
        while now == last:
            self._system.sleep(max(0, (last + 1) * 1_000_000 - self._system.now_ns()) / 1e9)
            now = self._system.now_ns() // 1_000_000
        number = max(now, last + 1)
        if number > HIGHEST:
            path = self._names.path(last, READY)
            raise StorageUnusable(
                f"the file {path} has the highest possible message number, so no more messages can be published. "
                "To continue, remove this file (the message in it will be lost)"
            )
        self._last = number
        return number

    def _create(self, number: int) -> int | None:
        """The new file, open and locked; None when another publisher has the number."""
        path = self._names.path(number, NEW)
        try:
            fd = self._calls.open(path, _OPEN, mode=_MODE)
        except FileExistsError:
            return None
        try:
            self._calls.lock(fd, exclusive=True)
            if self._calls.is_at(fd, path):
                return fd
        except BlockingIOError:  # taken for an orphan in just that moment, and swept
            pass
        except BaseException:
            self._names.drop(number, NEW)
            self._calls.close(fd)
            raise
        self._calls.close(fd)
        return None

    def _is_free(self, number: int) -> bool:
        """Whether the number is free and there is room. Else the file is removed again."""
        try:
            self._view.refresh()
            # Nor may a deleted message have had the number: a holder of its id would delete ours.
            if self._view.index.spent < number:
                self._check_room()
                return True
        except BaseException:
            self._names.drop(number, NEW)
            raise
        self._names.drop(number, NEW)
        return False

    def _check_room(self) -> None:
        if self._capacity is None or self._taken() <= self._capacity:
            return
        self._orphans.sweep()
        self._view.refresh()
        if self._taken() > self._capacity:
            raise QueueFull(f"the queue is full ({self._capacity} messages). Delete some messages, then publish again")

    def _taken(self) -> int:
        return len(self._view.index) + len(self._view.index.new)

    def _write(self, number: int, fd: int, body: bytes) -> bool:
        """Write, sync, and drop the extension. False when another program put a file of that name there."""
        try:
            rest = memoryview(body)
            while rest:
                rest = rest[self._calls.write(fd, rest) :]
            self._names.sync(fd)
            self._reveal(number, fd)
        except FileExistsError:
            self._names.drop(number, NEW)
            return False
        except BaseException:
            self._names.drop(number, NEW)
            raise
        return True

    def _reveal(self, number: int, fd: int) -> None:
        try:
            self._names.move(number, NEW, READY)
        except FileNotFoundError:
            if not self._calls.is_at(fd, self._names.path(number, READY)):  # a network may ask for a rename twice
                path = self._names.path(number, NEW)
                raise StorageUnusable(
                    f"{path} was removed while mq was writing it. Do not change the queue's files"
                ) from None


class Orphans:
    """The orphans of one folder."""

    def __init__(self, system: System, names: FolderNames, view: FolderView) -> None:
        self._system = system
        self._calls = system.calls
        self._names = names
        self._view = view
        self._next = 0.0

    def sweep(self) -> None:
        """Remove the files of dead publishers, unless it was done just now.

        Raises:
            OSError: the folder may not be changed.
        """
        if self._view.index.new and time.monotonic() >= self._next:
            self._next = time.monotonic() + ALONE_SECONDS
            for number in sorted(self._view.index.new):
                self._sweep_one(self._names.path(number, NEW))

    def _sweep_one(self, path: str) -> None:
        try:
            age_ns = self._system.now_ns() - self._calls.changed_ns(path)
            if abs(age_ns) < ALONE_SECONDS * 1e9:  # abs: a clock that was set back keeps no file for ever
                return
            fd = self._calls.open(path, _OPEN_ORPHAN)
        except (FileNotFoundError, PermissionError):  # published meanwhile; or another user's, whose sweep removes it
            return
        except OSError as error:
            if error.errno not in NO_FILE:
                raise
            return
        try:
            if self._calls.file_size(fd) is not None:
                self._calls.lock(fd, exclusive=True)
                if self._calls.is_at(fd, path):  # and not published meanwhile, with another file in its place
                    self._calls.unlink(path)
        except (BlockingIOError, FileNotFoundError):  # it has a publisher; or another process swept
            return
        finally:
            self._calls.close(fd)
