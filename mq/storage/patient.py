"""System calls on a file system whose servers may be out of reach for a moment: asked again, for so long and no longer.

Only what may be asked twice is. Nobody knows whether a call that got no answer was carried out; so a rename, when it is
asked for again, may find its own work. A write or a sync is never repeated: what it was for is given up instead.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from mq.storage.calls import Calls, FileKind, Native
from mq.storage.passing import AWAY

_P = ParamSpec("_P")
_T = TypeVar("_T")

PATIENCE_SECONDS: Final = 5.0
"""How long after the first call without an answer others are still repeated. From then on each is asked once, until one
is answered: whoever waits for it is better told."""
_PAUSE_SECONDS: Final = 0.1


class PatientCalls:
    """Calls to such a file system.

    Args:
        inner: makes them.
        clock: seconds, for how long it lasts.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        inner: Calls,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._inner = inner
        self.native: Native | None = None  # it would not ask again
        self.close = inner.close
        self.write = inner.write
        self.fsync = inner.fsync
        self.syncfs = inner.syncfs
        self._clock = clock
        self._pause = pause
        self._away_since: float | None = None

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """The system call of that name. A new file that is there when it is asked for again is perhaps our own, and
        perhaps not: that is no answer either."""
        try:
            return self._ask(self._inner.open, path, flags, mode)
        except _Again as again:
            if isinstance(again.error, FileExistsError):
                raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), path) from again.error
            raise again.error from None

    def read(self, fd: int, size: int) -> bytes:
        """The system call of that name."""
        return self._answer(self._inner.read, fd, size)

    def file_size(self, fd: int) -> int | None:
        """Size in bytes of an open plain file; None when it is anything else."""
        return self._answer(self._inner.file_size, fd)

    def changed_ns(self, path: str) -> int:
        """When the name was last moved or changed (ctime), nanoseconds since 1970."""
        return self._answer(self._inner.changed_ns, path)

    def rename(self, source: str, target: str) -> None:
        """Move a name; EEXIST where the target is taken. Target names are unique to their writer, so when it is asked
        for again, a target that is there is our own."""
        try:
            self._ask(self._inner.rename, source, target)
        except _Again as again:
            if not isinstance(again.error, FileNotFoundError | FileExistsError):
                raise again.error from None
            if self.kind(source) is not None or self.kind(target) is not FileKind.FILE:
                raise again.error from None

    def link(self, source: str, target: str) -> None:
        """The system call of that name, without following a symbolic link."""
        self._answer(self._inner.link, source, target)

    def unlink(self, path: str) -> None:
        """The system call of that name."""
        try:
            self._ask(self._inner.unlink, path)
        except _Again as again:
            if not isinstance(again.error, FileNotFoundError):
                raise again.error from None

    def mkdir(self, path: str, mode: int = 0o700) -> None:
        """The system call of that name."""
        self._answer(self._inner.mkdir, path, mode)

    def rmdir(self, path: str) -> None:
        """The system call of that name."""
        self._answer(self._inner.rmdir, path)

    def names(self, path: str) -> list[tuple[str, FileKind]]:
        """What is in a folder, in no order."""
        return self._answer(self._inner.names, path)

    def kind(self, path: str) -> FileKind | None:
        """What a name stands for; None when it is not there."""
        return self._answer(self._inner.kind, path)

    def lock(self, fd: int, *, exclusive: bool) -> None:
        """The system call of that name without waiting: BlockingIOError when somebody else holds it."""
        self._answer(self._inner.lock, fd, exclusive=exclusive)

    def set_attribute(self, fd: int, name: str, value: bytes) -> None:
        """The system call of that name."""
        self._answer(self._inner.set_attribute, fd, name, value)

    def get_attribute(self, fd: int, name: str) -> bytes | None:
        """The system call of that name; None when there is none, or the file system has no such thing."""
        return self._answer(self._inner.get_attribute, fd, name)

    def _answer(self, verb: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """What asking again may find counts like a first answer."""
        try:
            return self._ask(verb, *args, **kwargs)
        except _Again as again:
            raise again.error from None

    def _ask(self, verb: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Ask until there is an answer, or patience is at its end.

        Raises:
            _Again: the answer to a call that was not the first is an error.
            OSError: that of the first, or none came.
        """
        asked_again = False
        while True:
            try:
                result = verb(*args, **kwargs)
            except OSError as error:
                if error.errno in AWAY and self._is_patient():
                    asked_again = True
                    self._pause(_PAUSE_SECONDS)
                    continue
                if error.errno not in AWAY:
                    self._away_since = None
                    if asked_again:
                        raise _Again(error) from error
                raise
            self._away_since = None
            return result

    def _is_patient(self) -> bool:
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        return now - self._away_since < PATIENCE_SECONDS


class _Again(Exception):
    """An error in answer to a call that had been made before, and may have been carried out then."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error
