"""Taking the first message out of a VSQS folder: requeue what expired until nothing is, then hide the oldest."""

from __future__ import annotations

import logging
import math
from typing import Final, NamedTuple

from mq.storage.calls import OPEN_READ
from mq.vsqs.look import Look
from mq.vsqs.moves import Moves
from mq.vsqs.names import READY
from mq.vsqs.system import NO_FILE, System

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1 << 20


class Taken(NamedTuple):
    """A message that is hidden from others.

    Attributes:
        number: its id.
        expiry_ms: until then, milliseconds since 1970.
        body: its bytes.
    """

    number: int
    expiry_ms: int
    body: bytes


class Consumer:
    """Takes messages out of one folder.

    Args:
        system: what it runs on.
        moves, look: of that folder.
    """

    def __init__(self, system: System, moves: Moves, look: Look) -> None:
        self._system = system
        self._calls = system.calls
        self._moves = moves
        self._look = look

    def take(self, visibility_seconds: float) -> Taken | None:
        """The first message, hidden durably; None when none is ready.

        Raises:
            OSError: the folder or the message cannot be used.
            StorageFailed: a sync failed.
        """
        while True:
            self._look.refresh()
            if self._requeue_expired():
                continue
            number = self._look.index.head()
            if number is None:
                return None
            fd = self._open(number)
            if fd is None:
                continue
            try:
                expiry_ms = math.ceil(self._system.now_ns() / 1e6 + visibility_seconds * 1e3)
                if self._hide(number, expiry_ms):
                    return Taken(number, expiry_ms, self._read(fd))
            finally:
                self._calls.close(fd)

    def release(self, number: int, expiry_ms: int) -> bool:
        """Make a message that was taken ready again. Whether it was still hidden by that taking."""
        try:
            self._moves.move(number, expiry_ms, READY)
        except FileNotFoundError:
            return False
        except FileExistsError:  # its other name is left from a move that a crash cut short
            return self._moves.drop(number, expiry_ms)
        return True

    def remove(self, number: int) -> bool:
        """Take a message away, durably, in whatever state it is. Whether it was there.

        The file is open until its names are durably gone: so long its inode is nobody else's. Without a journal a name
        could come back after a crash, and lead to what the inode holds by then.
        """
        while states := self._states(number):
            fd = self._open_any(number, states)
            if fd is not None:
                try:
                    found = self._drop_names(number, fd)
                    if found:
                        self._moves.sync()
                    return found
                finally:
                    self._calls.close(fd)
        return False

    def _drop_names(self, number: int, fd: int) -> bool:
        """Take away every name of the open file: it may be moved meanwhile, and a cut move leaves it two."""
        found, states, before = False, self._states(number), list[int]()
        while states != before:
            for state in states:
                if self._calls.is_at(fd, self._moves.path(number, state)):
                    found = self._moves.drop(number, state) or found
            before, states = states, self._states(number)
        return found

    def _states(self, number: int) -> list[int]:
        self._look.refresh()
        return self._look.index.states(number)

    def _open_any(self, number: int, states: list[int]) -> int | None:
        opened = (self._open(number, state) for state in states)
        return next((fd for fd in opened if fd is not None), None)

    def _requeue_expired(self) -> bool:
        """Whether anything had expired: then nothing may be taken before another look."""
        expired = self._look.index.expired(self._system.now_ns() // 1_000_000)
        for number, expiry_ms in expired:
            if not self.release(number, expiry_ms):
                self._look.doubt(number, expiry_ms)
        return bool(expired)

    def _open(self, number: int, state: int = READY) -> int | None:
        """The message's file; None when it is not there any more, or is no message."""
        path = self._moves.path(number, state)
        try:
            fd = self._calls.open(path, OPEN_READ)
        except FileNotFoundError:
            self._look.doubt(number, state)
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
        logger.warning("%s is not a file: left alone", self._moves.path(number, state))
        self._look.index.discard(number, state)

    def _hide(self, number: int, expiry_ms: int) -> bool:
        """Whether it is ours until then. Durable."""
        try:
            self._moves.move(number, READY, expiry_ms)
        except FileNotFoundError:  # somebody else was faster
            self._look.doubt(number, READY)
            return False
        except FileExistsError:
            self._look.refresh()
            return False
        self._moves.sync()
        return True

    def _read(self, fd: int) -> bytes:
        parts = []
        while part := self._calls.read(fd, _CHUNK_BYTES):
            parts.append(part)
        return b"".join(parts)
