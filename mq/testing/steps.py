"""What mq-native does, by any calls: so that a batch done in one go meets the faults of those calls."""

from __future__ import annotations

import contextlib
import errno

from mq.storage.calls import OPEN_NEW, OPEN_READ, Calls, Step
from mq.storage.properties import ATTRIBUTES, SUM
from mq.storage.staging import write_all


class StepByStep:
    """A :class:`~mq.storage.native.Native` that is not.

    Args:
        calls: what it is made of.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def do_steps(self, steps: list[Step], keep: bool, /) -> list[int]:
        """As mq-native does."""
        return [self._result(step, keep) for step in steps]

    def read_files(self, paths: list[str], largest: int, /) -> list[tuple[bytes, bytes, bytes] | int]:
        """As mq-native does."""
        return [self._read(path, largest) for path in paths]

    def _result(self, step: Step, keep: bool) -> int:
        try:
            if len(step) == 4:
                return self._write(step, keep)
            if len(step) == 2:
                self._calls.rename(*step)
            else:
                self._calls.unlink(step[0])
        except OSError as error:
            return -(error.errno or errno.EIO)
        return 0

    def _write(self, step: tuple[str, bytes, bytes, bytes], keep: bool) -> int:
        path, data, noted, attributes = step
        fd = self._calls.open(path, OPEN_NEW)
        try:
            if attributes:
                self._calls.set_attribute(fd, ATTRIBUTES, attributes)
            self._calls.set_attribute(fd, SUM, noted)
            write_all(self._calls, fd, data)
        except OSError:
            with contextlib.suppress(OSError):
                self._calls.close(fd)
            with contextlib.suppress(OSError):
                self._calls.unlink(path)
            raise
        if keep:
            return fd
        with contextlib.suppress(OSError):
            self._calls.close(fd)
        return 0

    def _read(self, path: str, largest: int) -> tuple[bytes, bytes, bytes] | int:
        try:
            fd = self._calls.open(path, OPEN_READ)
        except OSError as error:
            return error.errno or errno.EIO
        try:
            return self._read_open(fd, largest)
        except OSError as error:
            return error.errno or errno.EIO
        finally:
            with contextlib.suppress(OSError):
                self._calls.close(fd)

    def _read_open(self, fd: int, largest: int) -> tuple[bytes, bytes, bytes] | int:
        size = self._calls.file_size(fd)
        if size is None or size > largest:
            return errno.EFBIG
        noted = self._calls.get_attribute(fd, SUM)
        if not noted:
            return errno.ENODATA
        attributes = self._calls.get_attribute(fd, ATTRIBUTES) if noted.endswith(b":a") else b""
        if attributes is None:
            return errno.ENODATA
        data = b""
        while len(data) < size:
            more = self._calls.read(fd, size - len(data))
            if not more:
                return errno.ENODATA
            data += more
        return data, noted, attributes
