"""Taking the first message out of a VSQS folder: requeue all that has expired, then hide the oldest."""

from __future__ import annotations

import logging
import math
from typing import Final, NamedTuple

from mq.storage.files.calls import OPEN_READ
from mq.vsqs.file_names import READY, FolderNames
from mq.vsqs.system import NO_FILE, System
from mq.vsqs.view import FolderView

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1 << 20


class HiddenMessage(NamedTuple):
    """A message that is hidden from others.

    Attributes:
        expiry_ms: until then, milliseconds since 1970.
        body: its bytes.
    """

    number: int
    expiry_ms: int
    body: bytes


class FolderReceiver:
    """Takes messages out of one folder."""

    def __init__(self, system: System, names: FolderNames, view: FolderView) -> None:
        self._system = system
        self._calls = system.calls
        self._names = names
        self._view = view

    def take(self, visibility_seconds: float) -> HiddenMessage | None:
        """The first message, hidden durably; None when none is ready.

        Raises:
            OSError: the folder or the message cannot be used.
            StorageFailed: a sync failed.
        """
        while True:
            self._view.refresh()
            if self._requeue_expired():
                continue
            number = self._view.index.head()
            if number is None:
                return None
            fd = self._open(number)
            if fd is None:
                continue
            try:
                expiry_ms = math.ceil(self._system.now_ns() / 1e6 + visibility_seconds * 1e3)
                if self._hide(number, expiry_ms):
                    return HiddenMessage(number, expiry_ms, self._read(fd))
            finally:
                self._calls.close(fd)

    def release(self, number: int, expiry_ms: int) -> bool:
        """Make a hidden message ready again. Returns whether it was still hidden with that expiry."""
        try:
            self._names.move(number, expiry_ms, READY)
        except FileNotFoundError:
            return False
        except FileExistsError:  # its other name is left from a move that a crash cut short
            return self._names.drop(number, expiry_ms)
        return True

    def remove(self, number: int) -> bool:
        """Remove a message durably, in whatever state it is. Returns whether it was there."""
        # The file stays open until its names are durably gone, so that its inode is not used again. Without a journal a
        # name could come back after a crash, and would lead to whatever the inode holds by then.
        while states := self._states(number):
            fd = self._open_any(number, states)
            if fd is not None:
                try:
                    found = self._drop_names(number, fd)
                    if found:
                        self._names.sync()
                    return found
                finally:
                    self._calls.close(fd)
        return False

    def _drop_names(self, number: int, fd: int) -> bool:
        """Remove every name of the open file: it may be moved meanwhile, and an interrupted move leaves it two."""
        found, states, before = False, self._states(number), list[int]()
        while states != before:
            for state in states:
                if self._calls.is_at(fd, self._names.path(number, state)):
                    found = self._names.drop(number, state) or found
            before, states = states, self._states(number)
        return found

    def _states(self, number: int) -> list[int]:
        self._view.refresh()
        return self._view.index.states(number)

    def _open_any(self, number: int, states: list[int]) -> int | None:
        opened = (self._open(number, state) for state in states)
        return next((fd for fd in opened if fd is not None), None)

    def _requeue_expired(self) -> bool:
        """Requeue what has expired. Returns whether anything had: then refresh before taking a message."""
        expired = self._view.index.expired(self._system.now_ns() // 1_000_000)
        for number, expiry_ms in expired:
            if not self.release(number, expiry_ms):
                self._view.doubt(number, expiry_ms)
        return bool(expired)

    def _open(self, number: int, state: int = READY) -> int | None:
        """The message's file; None when it is not there any more, or is no message."""
        path = self._names.path(number, state)
        try:
            fd = self._calls.open(path, OPEN_READ)
        except FileNotFoundError:
            self._view.doubt(number, state)
            return None
        except OSError as error:
            if error.errno not in NO_FILE:
                raise
            self._leave_alone(number, state)
            return None
        if self._calls.file_size(fd) is None:
            self._calls.close(fd)
            self._leave_alone(number, state)
            return None
        return fd

    def _leave_alone(self, number: int, state: int) -> None:
        logger.warning("ignored %s, because it is not a regular file", self._names.path(number, state))
        self._view.index.discard(number, state)

    def _hide(self, number: int, expiry_ms: int) -> bool:
        """Hide a message durably until then. Returns False when another process was faster."""
        try:
            self._names.move(number, READY, expiry_ms)
        except FileNotFoundError:  # another receiver was faster
            self._view.doubt(number, READY)
            return False
        except FileExistsError:
            self._view.refresh()
            return False
        self._names.sync()
        return True

    def _read(self, fd: int) -> bytes:
        parts = []
        while part := self._calls.read(fd, _CHUNK_BYTES):
            parts.append(part)
        return b"".join(parts)
