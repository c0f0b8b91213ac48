"""A file handle that is kept for when this process has no other free."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from mq.storage.files.calls import OPEN_FOLDER, Calls


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
            with contextlib.suppress(OSError):
                self._calls.close(fd)
