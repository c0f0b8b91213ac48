"""The audit log: logins, failed logins, and what was done to queues, a line each for the logger ``mq.audit``.

A line is ``key=value`` pairs. Values are as JSON has them, in ASCII, so that no name can begin a line of its own.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections import OrderedDict
from typing import Final

import trio

from mq.errors import InvalidSetting
from mq.log_lines import TEXT, formatter, write
from mq.message import shorten

logger = logging.getLogger("mq.audit")

QUIET_SECONDS: Final = 600.0
"""How often the logins of a user that sends a secret with each request are noted, from one address over one
protocol."""
MOST_FAILURES: Final = 30
"""Failures that are written down in a minute, each with a line. The others are counted, in a line for all."""
MINUTE_SECONDS: Final = 60.0
MOST_REMEMBERED: Final = 4096
LONGEST_VALUE: Final = 300


def note(event: str, **values: str | int | None) -> None:
    """Write a line. Values of None are left out."""
    write(logger, event, **{key: _cut(value) for key, value in values.items()})


def _cut(value: str | int | None) -> str | int | None:
    return value[:LONGEST_VALUE] if isinstance(value, str) else value


class _SeldomNotes:
    """Writes equal lines once in :data:`QUIET_SECONDS`."""

    def __init__(self) -> None:
        self._seen: OrderedDict[object, float] = OrderedDict()

    def is_new(self, *key: object) -> bool:
        """Whether there was no such line of late. From now on there was."""
        now = trio.current_time()
        if self._seen.get(key, float("-inf")) + QUIET_SECONDS > now:
            return False
        self._seen.pop(key, None)
        self._seen[key] = now
        if len(self._seen) > MOST_REMEMBERED:
            self._seen.popitem(last=False)
        return True


class _FewNotes:
    """Writes :data:`MOST_FAILURES` lines a minute, and counts the others."""

    def __init__(self, event: str, many: str) -> None:
        self._event = event
        self._many = many
        self._minute_ends = float("-inf")
        self._count = 0

    def note(self, **values: str | int | None) -> None:
        """Write a line, or count it."""
        now = trio.current_time()
        if now >= self._minute_ends:
            if self._count > MOST_FAILURES:
                note(self._many, count=self._count - MOST_FAILURES)
            self._count, self._minute_ends = 0, now + MINUTE_SECONDS
        self._count += 1
        if self._count <= MOST_FAILURES:
            note(self._event, **values)


class LoginNotes:
    """Notes logins, few enough that the log cannot fill a disk."""

    def __init__(self) -> None:
        self._logins = _SeldomNotes()
        self._failures = _FewNotes("login-failed", "logins-failed")

    def succeeded(self, protocol: str, address: str, user: str) -> None:
        """Note that a user has logged in."""
        if self._logins.is_new(protocol, address, user):
            note("login", protocol=protocol, address=address, user=user)

    def failed(self, protocol: str, address: str, user: str | None, why: str) -> None:
        """Note that a login failed, under a user's name or, with None, under none."""
        self._failures.note(protocol=protocol, address=address, user=user, why=why)


class RefusalNotes:
    """Notes requests that their users, or the pages that they came from, may not make. A program that goes on asking
    gets one line in :data:`QUIET_SECONDS`."""

    def __init__(self) -> None:
        self._refusals = _SeldomNotes()
        self._few = _FewNotes("forbidden", "many-forbidden")

    def refused(self, **values: str | None) -> None:
        """Note a refusal, as :func:`note` does."""
        if self._refusals.is_new(*values.items()):
            self._few.note(**values)


_OPEN: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Without blocking, for a pipe without a reader would keep mq from starting."""
_REASONS: Final = {
    errno.ELOOP: "the path is a symbolic link. Use the path of the file itself",
    errno.ENXIO: "the path is a pipe or a socket, not a file",
}


class AuditFile(logging.Handler):
    """Takes the lines of the audit log into a file that no other user may read, and out of the program's log.

    Raises:
        InvalidSetting: it cannot be written.
    """

    def __init__(self, path: str, format: str = TEXT) -> None:
        self._path = path
        self._file = self._open()
        super().__init__()  # which logging closes at exit: not before there is a file
        self.setFormatter(formatter(format, "%(asctime)s %(message)s"))
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def reopen(self) -> None:
        """Go on in a new file of that name, after the old one was moved away.

        Raises:
            InvalidSetting: there is none to be had; the old one is gone on with.
        """
        opened = self._open()
        os.close(self._file)
        self._file = opened

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, whole."""
        try:
            os.write(self._file, (self.format(record) + "\n").encode())
        except OSError:
            self.handleError(record)  # says so where the program's errors go

    def close(self) -> None:
        """Let the lines go to the program's log again."""
        logger.removeHandler(self)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        super().close()

    def _open(self) -> int:
        try:
            opened = os.open(self._path, _OPEN, 0o600)
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, error.strerror)
            raise InvalidSetting(f"cannot write the audit log {shorten(self._path, 200)}: {reason}") from error
        kind = os.fstat(opened).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISCHR(kind):
            os.close(opened)
            raise InvalidSetting(
                f"cannot write the audit log {shorten(self._path, 200)}: the path is not a regular file"
            )
        os.set_blocking(opened, True)
        return opened
