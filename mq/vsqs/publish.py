"""Publishing to a VSQS folder: a number that nobody has, a whole file on the disk, and only then its name."""

from __future__ import annotations

import os
from typing import Final

from mq.errors import CallerError, StorageUnusable
from mq.vsqs.look import Look
from mq.vsqs.moves import Moves
from mq.vsqs.names import HIGHEST, NEW, READY
from mq.vsqs.orphans import Orphans
from mq.vsqs.system import System

_OPEN: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE: Final = 0o666
"""Less the umask, as with any file that programs share."""


class QueueFull(CallerError):
    """The queue holds as many messages as its capacity allows."""


class Publisher:
    """Publishes to one folder.

    Args:
        system: what it runs on.
        moves, look, orphans: of that folder.
        capacity: how many messages it may hold; None for no bound.
    """

    def __init__(self, system: System, moves: Moves, look: Look, orphans: Orphans, capacity: int | None) -> None:
        self._system = system
        self._calls = system.calls
        self._moves = moves
        self._look = look
        self._orphans = orphans
        self._capacity = capacity
        self._last = -1

    def publish(self, body: bytes) -> int:
        """Add a message, durably. Returns its number.

        Raises:
            QueueFull: the capacity is reached.
            OSError: it is not published.
            StorageFailed: a sync failed.
        """
        self._look.refresh()
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
                self._moves.sync()
                return number

    def _next_number(self) -> int:
        """The time, but after every message that was ever seen here: the order is that of publishing.

        Within one millisecond that means to wait for the next. When the last message lies in the future (a clock was
        set back, or another machine's is ahead) it means the number after that one.
        """
        last = max(self._last, self._look.index.highest, self._look.index.spent)
        now = self._system.now_ns() // 1_000_000
        while now == last:
            self._system.sleep(max(0, (last + 1) * 1_000_000 - self._system.now_ns()) / 1e9)
            now = self._system.now_ns() // 1_000_000
        number = max(now, last + 1)
        if number > HIGHEST:
            raise StorageUnusable(f"{self._moves.path(last, READY)} leaves no number for a message after it: remove it")
        self._last = number
        return number

    def _create(self, number: int) -> int | None:
        """The new file, open and locked; None when the number is somebody else's."""
        path = self._moves.path(number, NEW)
        try:
            fd = self._calls.open(path, _OPEN, _MODE)
        except FileExistsError:
            return None
        try:
            self._calls.lock(fd, exclusive=True)
            if self._calls.is_at(fd, path):
                return fd
        except BlockingIOError:  # taken for an orphan in just that moment, and swept
            pass
        except BaseException:
            self._moves.drop(number, NEW)
            self._calls.close(fd)
            raise
        self._calls.close(fd)
        return None

    def _is_free(self, number: int) -> bool:
        """Whether no message has that number in another state, and there is room. Else the file is gone.

        Nor may a message have had it and be deleted already: whoever still holds its id would delete ours.
        """
        try:
            self._look.refresh()
            if self._look.index.spent < number:
                self._check_room()
                return True
        except BaseException:
            self._moves.drop(number, NEW)
            raise
        self._moves.drop(number, NEW)
        return False

    def _check_room(self) -> None:
        if self._capacity is None or self._taken() <= self._capacity:
            return
        self._orphans.sweep()
        self._look.refresh()
        if self._taken() > self._capacity:
            raise QueueFull(f"the queue holds its {self._capacity} messages: delete some, then publish again")

    def _taken(self) -> int:
        return len(self._look.index) + len(self._look.index.new)

    def _write(self, number: int, fd: int, body: bytes) -> bool:
        """Write, sync, and drop the extension. False when somebody put a file of that name there by hand."""
        try:
            rest = memoryview(body)
            while rest:
                rest = rest[self._calls.write(fd, rest) :]
            self._moves.sync(fd)
            self._reveal(number, fd)
        except FileExistsError:
            self._moves.drop(number, NEW)
            return False
        except BaseException:
            self._moves.drop(number, NEW)
            raise
        return True

    def _reveal(self, number: int, fd: int) -> None:
        try:
            self._moves.move(number, NEW, READY)
        except FileNotFoundError:
            if not self._calls.is_at(fd, self._moves.path(number, READY)):  # a network may ask for a rename twice
                path = self._moves.path(number, NEW)
                raise StorageUnusable(f"{path} was taken away while it was written: leave it to mq") from None
