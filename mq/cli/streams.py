"""Standard streams of a program. An output that is full or closed ends it with a line, and never with a traceback."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

_INPUT: Final = 0
_OUTPUT: Final = 1
_ERRORS: Final = 2


class CannotWrite(Exception):
    """Standard output is full or closed. It is no OSError: those are of files and connections, and handled as such.

    Attributes:
        is_broken_pipe: whether a reader has gone, such as ``head``, which has all that it wanted.
    """

    def __init__(self, error: OSError) -> None:
        self.is_broken_pipe = error.errno == errno.EPIPE
        super().__init__(f"cannot write to standard output: {error.strerror or error}")


class _Writer(io.RawIOBase):
    """A file descriptor that programs write to."""

    def __init__(self, fd: int, *, is_open: bool) -> None:
        super().__init__()
        self._fd = fd
        self._is_open = is_open
        self._has_failed = False

    def writable(self) -> bool:
        """As io.RawIOBase."""
        return True

    def fileno(self) -> int:
        """As io.RawIOBase."""
        return self._fd

    def isatty(self) -> bool:
        """As io.RawIOBase."""
        return self._is_open and os.isatty(self._fd)

    def write(self, data: Any, /) -> int:
        """As io.RawIOBase. After an error it writes nothing more: the buffers above try once more as a program ends."""
        if not self._has_failed:
            try:
                if not self._is_open:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
                return self._write(data)
            except OSError as error:
                self._has_failed = True
                self._failed(error)
        return len(data)

    def _write(self, data: Any) -> int:
        while True:
            try:
                return os.write(self._fd, data)
            except BlockingIOError:  # another program, which shares it, has made it so
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()

    def _failed(self, error: OSError) -> None:
        raise CannotWrite(error) from error


class _ErrorWriter(_Writer):
    """Standard error: a program goes on without it, for there is no place to say so."""

    def _failed(self, error: OSError) -> None:
        self._has_failed = False  # there may be room again for the next line of a log


class _NoInput(io.RawIOBase):
    """Standard input that is closed. To read nothing would be to publish an empty message."""

    def readable(self) -> bool:
        """As io.RawIOBase."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Refuse."""
        raise click.UsageError("standard input is closed")


@contextmanager
def checked_streams() -> Iterator[None]:
    """Check the standard streams of the process to the end of the block, and flush its output there.

    Streams that a test has put in their place are left alone.

    Raises:
        CannotWrite: standard output is full or closed, and something was to be written there.
    """
    for fd, stream in ((_INPUT, sys.stdin), (_OUTPUT, sys.stdout), (_ERRORS, sys.stderr)):
        if stream is None:
            _reserve(fd)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_NoInput()))
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(_Writer(_OUTPUT, is_open=sys.stdout is not None), sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(_ErrorWriter(_ERRORS, is_open=sys.stderr is not None), sys.stderr, by_line=True)
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _reserve(fd: int) -> None:
    """Open nothing under the number of a closed stream: a program that is started later would use it as such."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != fd:
        os.dup2(null, fd)
        os.close(null)


def _text(raw: _Writer, like: Any, *, by_line: bool = False) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(like, "encoding", "utf-8"),
        errors=getattr(like, "errors", "backslashreplace"),
        newline="\n",
        line_buffering=by_line or raw.isatty(),
        write_through=getattr(like, "write_through", False),
    )
