"""The reserve: a file that is given up for moves when the disk is full.

A move needs no room for the message, but its target's folder may have to grow. When there is no room for that, the
reserve is released, and the move made again. A publish must restore the reserve first: the last room of a full disk
goes to fetches and removals, which make room, and not to the next publish.

On the disk it is called *ballast*.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, ParamSpec

from mq.storage.files.calls import NO_ROOM, Calls, FileKind, opened, write_all
from mq.storage.files.layout import Layout

logger = logging.getLogger("mq.storage")

_P = ParamSpec("_P")

LARGEST: Final = 2 << 20
"""Bytes: room for the names of some ten thousand leases at a time, besides what their folders hold already. Btrfs wants
more than 1 MiB to be free before it moves a name, where names and bytes share their room."""
SHARE: Final = 64
"""On a small file system the reserve is this part of it."""
_CHUNK: Final = 1 << 16
_OPEN: Final = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Reserve:
    """The reserve of one root.

    Args:
        room: how many bytes the file system holds; 0 where that is unknown, and no reserve is kept.
        shared: other processes may release it.

    Attributes:
        is_ready: whether :meth:`ensure` has nothing to do.
    """

    def __init__(self, calls: Calls, layout: Layout, room: int, *, shared: bool) -> None:
        self.size = min(LARGEST, room // SHARE)
        self._calls = calls
        self._path = layout.reserve
        self._shared = shared
        self.is_ready = not self.size
        self._in_place = False
        self._missed = False
        self._lock = threading.Lock()  # a body is staged in a thread of its own

    def ensure(self) -> None:
        """Make sure that it is in place. Costs no call while :attr:`is_ready`.

        Raises:
            OSError: there is no room for it, and so for nothing new.
        """
        if self.is_ready:
            return
        with self._lock:
            if self._in_place and self._calls.kind(self._path) is FileKind.FILE:
                return
            self._in_place = False
            try:
                self._fill()
            except OSError as error:
                self._miss(error)
                raise
            self._in_place = True
            self.is_ready = not self._shared
            if self._missed:
                self._missed = False
                logger.warning("the disk has free space again; mq now accepts new messages")

    def missing(self) -> OSError | None:
        """Make sure that it is in place, or return why it is not."""
        try:
            self.ensure()
        except OSError as error:
            return error
        return None

    def give_way(self, verb: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Make a call, at the cost of the reserve if there is no other room."""
        try:
            verb(*args, **kwargs)
        except OSError as error:
            if error.errno not in NO_ROOM or not self.size:
                raise
            self.release()
            verb(*args, **kwargs)

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Keep it for the length of the block: :meth:`release` waits. Gives whether it is in place, so that what the
        block takes up is not its room."""
        with self._lock:
            yield self._in_place or not self.size

    def release(self) -> None:
        """Make room, unless another process has done so.

        Raises:
            OSError: it cannot be done.
        """
        # No sync: when ext4, xfs and btrfs find no room, they commit by themselves what would give them some.
        with self._lock:
            self._in_place = False
            self.is_ready = not self.size
            try:
                self._calls.unlink(self._path)
            except FileNotFoundError:
                return
        logger.debug("the disk is nearly full, so mq has released its reserved disk space")

    def _miss(self, error: OSError) -> None:
        if error.errno in NO_ROOM and not self._missed:
            self._missed = True
            logger.warning(
                "the disk is full: new messages are refused until there is free space; fetches and removals still work"
            )

    def _fill(self) -> None:
        """Append the missing bytes, which no file system can compress. A part of them is better than none."""
        # Never synced: the bytes mean nothing.
        with opened(self._calls, self._path, _OPEN) as fd:
            missing = self.size - (self._calls.file_size(fd) or 0)
            while missing > 0:
                write_all(self._calls, fd, os.urandom(min(missing, _CHUNK)))
                missing -= _CHUNK
