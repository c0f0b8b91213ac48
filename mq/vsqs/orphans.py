"""Files of publishers that died: found by their locks, and taken away.

A publisher holds a lock on its file from its creation to its end. Locks go with their process, so a file whose lock is
free has no publisher any more; but some programs take no locks, so a file that was written to just now is left alone.
"""

from __future__ import annotations

import os
import time
from typing import Final

from mq.vsqs.look import Look
from mq.vsqs.moves import Moves
from mq.vsqs.names import NEW
from mq.vsqs.system import NO_FILE, System

ALONE_SECONDS: Final = 5.0
"""How long such a file was left alone by whoever wrote it, and how often they are looked at."""

_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Orphans:
    """The orphans of one folder."""

    def __init__(self, system: System, moves: Moves, look: Look) -> None:
        self._system = system
        self._calls = system.calls
        self._moves = moves
        self._look = look
        self._next = 0.0

    def sweep(self) -> None:
        """Take away what is left of dead publishers, if it was not done just now.

        Raises:
            OSError: the folder may not be changed.
        """
        if self._look.index.new and time.monotonic() >= self._next:
            self._next = time.monotonic() + ALONE_SECONDS
            for number in sorted(self._look.index.new):
                self._sweep_one(self._moves.path(number, NEW))

    def _sweep_one(self, path: str) -> None:
        try:
            age_ns = self._system.now_ns() - self._calls.changed_ns(path)
            if abs(age_ns) < ALONE_SECONDS * 1e9:  # abs: a clock that was set back keeps no file for ever
                return
            fd = self._calls.open(path, _OPEN)
        except (FileNotFoundError, PermissionError):  # published meanwhile; or somebody else's, who may take it away
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
        except (BlockingIOError, FileNotFoundError):  # it has a publisher; or somebody else swept
            return
        finally:
            self._calls.close(fd)
