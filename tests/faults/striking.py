"""Calls of which the n-th, of all there are, goes wrong in a chosen way."""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from mq.storage.files.calls import Calls
from simulation.calls import RecordedCall, RecordingCalls
from simulation.faults import PowerCut

_NEEDS_ROOM: Final = frozenset({"open new", "write", "mkdir", "rename", "link", "set_attribute"})
_NEEDS_HANDLE: Final = frozenset({"open", "open new", "names"})
_MOVES_NAMES: Final = frozenset({"rename", "link", "unlink", "mkdir", "rmdir"})
_CHANGES: Final = _NEEDS_ROOM | _MOVES_NAMES | {"write_at", "fdatasync"}


class Kind(enum.Enum):
    """What goes wrong."""

    EIO = "EIO"
    LATE_EIO = "EIO, but done"
    ENOSPC = "ENOSPC"
    EMFILE = "EMFILE"
    FULL = "full for a while"
    NO_HANDLES = "no handles for a while"
    SHORT = "short"
    CUT = "cut"


_PASSING: Final = (Kind.ENOSPC, Kind.EMFILE, Kind.FULL, Kind.NO_HANDLES)

STRIKES: Final[Mapping[Kind, frozenset[str] | None]] = {
    Kind.EIO: None,
    Kind.LATE_EIO: _MOVES_NAMES,
    Kind.ENOSPC: _NEEDS_ROOM | {"fsync", "syncfs"},
    Kind.EMFILE: _NEEDS_HANDLE,
    Kind.FULL: _NEEDS_ROOM,
    Kind.NO_HANDLES: _NEEDS_HANDLE,
    Kind.SHORT: frozenset({"read", "write", "write_at"}),
    Kind.CUT: _CHANGES,
}
"""At which calls a fault is possible and makes a difference; None for all. A cut before a call that changes nothing
is one before the next that does."""


def faults(log: Sequence[RecordedCall]) -> Iterator[Fault]:
    """Every fault that can befall these calls."""
    for nth, call in enumerate(log):
        for kind, verbs in STRIKES.items():
            if verbs is None or _verb(call) in verbs:
                yield Fault(kind, nth)


class Fault:
    """One fault of a run.

    Args:
        kind: what goes wrong.
        nth: at which call, from 0.
    """

    def __init__(self, kind: Kind, nth: int) -> None:
        self.kind = kind
        self.nth = nth
        self.call = ""
        """The call that was struck; empty until then."""

    @property
    def passes(self) -> bool:
        """Whether the same broker has to go on afterwards as if nothing had been. A sync that fails never passes."""
        return self.kind in _PASSING and "sync" not in self.call

    def __str__(self) -> str:
        return f"{self.kind.value} at call {self.nth}, {self.call or 'not met'}"


class StrikingCalls(RecordingCalls):
    """Passes calls on until the fault's turn has come.

    Args:
        inner: does the work.
        root: is left out of the paths.
        fault: what goes wrong, if anything.
        attributes: whether files can have extended attributes.
    """

    def __init__(self, inner: Calls, root: str, fault: Fault | None, *, attributes: bool) -> None:
        super().__init__(inner, root)
        self._fault = fault
        self._attributes = attributes
        self._is_lifted = False
        self._most_open = 0

    def lift(self) -> None:
        """If the fault has struck, all is well from now on."""
        self._is_lifted = self._fault is None or bool(self._fault.call)

    def close(self, fd: int) -> None:
        try:
            super().close(fd)
        except OSError:
            self._inner.close(fd)  # the handle is gone, whatever close(2) says
            raise

    def write(self, fd: int, data: bytes | memoryview) -> int:
        return super().write(fd, data[: self._shortened(len(data))])

    def read(self, fd: int, size: int) -> bytes:
        return super().read(fd, self._shortened(size))

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return super().write_at(fd, data[: self._shortened(len(data))], offset)

    def rename(self, source: str, target: str) -> None:
        self._change(super().rename, source, target)

    def link(self, source: str, target: str) -> None:
        self._change(super().link, source, target)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        self._change(partial(super().unlink, dir_fd=dir_fd), path)

    def mkdir(self, path: str, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
        self._change(partial(super().mkdir, dir_fd=dir_fd), path, mode)

    def rmdir(self, path: str) -> None:
        self._change(super().rmdir, path)

    def set_attribute(self, fd: int, name: str, value: bytes) -> None:
        super().set_attribute(fd, name, value)
        if not self._attributes:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), name)

    def _shortened(self, size: int) -> int:
        return max(1, size // 2) if self._comes(Kind.SHORT) else size

    def _change(self, verb: Callable[..., Any], *args: Any) -> None:
        is_late = self._comes(Kind.LATE_EIO)
        verb(*args)
        if is_late:
            raise OSError(errno.EIO, os.strerror(errno.EIO), args[0])

    def _comes(self, kind: Kind) -> bool:
        """Whether the next call is struck by a fault of this kind."""
        return self._fault is not None and self._fault.kind is kind and self._fault.nth == len(self.log)

    def _meet(self, verb: str, path: str, detail: str = "") -> None:
        position = len(self.log)
        super()._meet(verb, path, detail)
        fault = self._fault
        if fault is None or self._is_lifted or position < fault.nth:
            return
        if not fault.call:
            fault.call = str(self.log[-1])
            self._most_open = len(self.opened)
        if fault.kind is Kind.CUT:
            raise PowerCut
        number = self._number(fault.kind, _verb(self.log[-1]), is_first=position == fault.nth)
        if number is not None:
            raise OSError(number, os.strerror(number), path)

    def _number(self, kind: Kind, verb: str, *, is_first: bool) -> int | None:
        """The errno with which a call fails while a fault lasts."""
        if kind is Kind.FULL and verb in _NEEDS_ROOM:
            return errno.ENOSPC
        if kind is Kind.NO_HANDLES and verb in _NEEDS_HANDLE and len(self.opened) >= self._most_open:
            return errno.EMFILE
        once = {Kind.EIO: errno.EIO, Kind.ENOSPC: errno.ENOSPC, Kind.EMFILE: errno.EMFILE}
        return once.get(kind) if is_first else None


def _verb(call: RecordedCall) -> str:
    return "open new" if call.verb == "open" and call.detail else call.verb
