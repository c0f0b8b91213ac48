"""System calls for tests: recorded ones, and ones that fail when a test says so.

Both stand between a folder store and any other :class:`~mq.storage.files.calls.Calls`, real or fake::

    calls = FaultyCalls(LinuxCalls(), root)
    calls.fail("fsync", errno.EIO, nth=2)
    storage = FolderStorage("test:", root, calls, StorageOptions(), mount=lambda root: Mount("test"))

They forget nothing over a power cut: that is the simulation's part. :class:`StepByStep` stands in for mq-native and
makes any calls one by one, so that its batches meet their faults.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import NamedTuple

from mq.message import MessageId, checksum
from mq.storage.files.calls import (
    OPEN_NEW,
    OPEN_READ,
    Calls,
    FileKind,
    Native,
    NativeColumns,
    Ownership,
    Step,
    write_all,
)
from mq.storage.files.hop import EarlyResults
from mq.storage.files.layout import ATTRIBUTES, SUM


class RecordedCall(NamedTuple):
    """One call.

    Attributes:
        verb: its name in :class:`~mq.storage.files.calls.Calls`.
        path: of the file or folder, below the root; a file that is open has the path it was opened by.
        detail: the target of a rename or link, the name of an attribute, how many bytes were written.
    """

    verb: str
    path: str
    detail: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


class RecordingCalls:
    """Passes every call on, and records it."""

    native: Native | None = None

    def __init__(self, inner: Calls, root: str = "") -> None:
        self.log: list[RecordedCall] = []
        self._inner = inner
        self._root = root.rstrip("/") + "/"
        self.opened: dict[int, str] = {}

    def said(self, *verbs: str) -> list[str]:
        """The calls so far, as text; only those verbs, if any are given."""
        return [str(call) for call in self.log if not verbs or call.verb in verbs]

    def open(self, path: str, flags: int, *, mode: int = 0o600, dir_fd: int | None = None) -> int:
        """As in Calls."""
        whole = self._whole(path, dir_fd)
        self._meet("open", whole, "new" if flags & os.O_CREAT else "")
        fd = self._inner.open(path, flags, mode=mode, dir_fd=dir_fd)
        self.opened[fd] = whole
        return fd

    def close(self, fd: int) -> None:
        """As in Calls."""
        self._meet("close", self.opened.pop(fd, ""))
        self._inner.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """As in Calls."""
        self._meet("write", self._path(fd), str(len(data)))
        return self._inner.write(fd, data)

    def read(self, fd: int, size: int) -> bytes:
        """As in Calls."""
        self._meet("read", self._path(fd))
        return self._inner.read(fd, size)

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """As in Calls."""
        self._meet("write_at", self._path(fd), f"{len(data)} at {offset}")
        return self._inner.write_at(fd, data, offset)

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """As in Calls."""
        self._meet("read_at", self._path(fd))
        return self._inner.read_at(fd, size, offset)

    def drop_cached(self, fd: int) -> None:
        """As in Calls."""
        self._inner.drop_cached(fd)

    def write_in_place(self, fd: int) -> None:
        """As in Calls."""
        self._meet("write_in_place", self._path(fd))
        self._inner.write_in_place(fd)

    def write_out(self, fd: int, *, waits: bool) -> None:
        """As in Calls."""
        self._meet("write_out", self._path(fd), "wait" if waits else "begin")
        self._inner.write_out(fd, waits=waits)

    def touch(self, fd: int) -> None:
        """As in Calls."""
        self._meet("touch", self._path(fd))
        self._inner.touch(fd)

    def fdatasync(self, fd: int) -> None:
        """As in Calls."""
        self._meet("fdatasync", self._path(fd))
        self._inner.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """As in Calls."""
        self._meet("fsync", self._path(fd))
        self._inner.fsync(fd)

    def syncfs(self, fd: int) -> None:
        """As in Calls."""
        self._meet("syncfs", self._path(fd))
        self._inner.syncfs(fd)

    def file_size(self, fd: int) -> int | None:
        """As in Calls."""
        self._meet("file_size", self._path(fd))
        return self._inner.file_size(fd)

    def changed_ns(self, path: str) -> int:
        """As in Calls."""
        self._meet("changed_ns", path)
        return self._inner.changed_ns(path)

    def rename(self, source: str, target: str) -> None:
        """As in Calls."""
        self._meet("rename", source, self._short(target))
        self._inner.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """As in Calls."""
        self._meet("link", source, self._short(target))
        self._inner.link(source, target)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        """As in Calls."""
        self._meet("unlink", self._whole(path, dir_fd))
        self._inner.unlink(path, dir_fd=dir_fd)

    def mkdir(self, path: str, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
        """As in Calls."""
        self._meet("mkdir", self._whole(path, dir_fd))
        self._inner.mkdir(path, mode, dir_fd=dir_fd)

    def rmdir(self, path: str) -> None:
        """As in Calls."""
        self._meet("rmdir", path)
        self._inner.rmdir(path)

    def names(self, path: str | int) -> list[tuple[str, FileKind]]:
        """As in Calls."""
        self._meet("names", self._whole(path))
        return self._inner.names(path)

    def kind(self, path: str) -> FileKind | None:
        """As in Calls."""
        self._meet("kind", path)
        return self._inner.kind(path)

    def ownership(self, path: str | int, *, dir_fd: int | None = None) -> Ownership:
        """As in Calls."""
        self._meet("ownership", self._whole(path, dir_fd))
        return self._inner.ownership(path, dir_fd=dir_fd)

    def lock(self, fd: int, *, exclusive: bool) -> None:
        """As in Calls."""
        self._meet("lock", self._path(fd), "exclusive" if exclusive else "shared")
        self._inner.lock(fd, exclusive=exclusive)

    def set_attribute(self, fd: int, name: str, value: bytes) -> None:
        """As in Calls."""
        self._meet("set_attribute", self._path(fd), name)
        self._inner.set_attribute(fd, name, value)

    def get_attribute(self, fd: int, name: str) -> bytes | None:
        """As in Calls."""
        self._meet("get_attribute", self._path(fd), name)
        return self._inner.get_attribute(fd, name)

    def _meet(self, verb: str, path: str, detail: str = "") -> None:
        """Called with every call before it is passed on; an error raised here takes its place."""
        self.log.append(RecordedCall(verb, self._short(path), detail))

    def _whole(self, path: str | int, dir_fd: int | None = None) -> str:
        if isinstance(path, int):
            return self._path(path)
        return path if dir_fd is None else f"{self._path(dir_fd)}/{path}"

    def _path(self, fd: int) -> str:
        return self.opened.get(fd, f"fd {fd}")

    def _short(self, path: str) -> str:
        return path.removeprefix(self._root) if path != self._root[:-1] else "."


@dataclass
class Fault:
    """A call that is going to fail.

    Attributes:
        verb: its name, or "*" for any but close, which always closes.
        path: only on paths, below the root, that match this pattern.
        nth: the first that fails, of those that match, from 1.
        times: how many fail from there on; None for all.
    """

    verb: str
    number: int
    path: str = "*"
    nth: int = 1
    times: int | None = 1
    met: int = 0

    def strikes(self, call: RecordedCall) -> bool:
        """Whether this call fails."""
        wanted = call.verb != "close" if self.verb == "*" else call.verb == self.verb
        if not wanted or not fnmatchcase(call.path, self.path):
            return False
        self.met += 1
        return self.nth <= self.met and (self.times is None or self.met < self.nth + self.times)


class FaultyCalls(RecordingCalls):
    """Calls of which chosen ones fail: with an errno, and without having done anything.

    Attributes:
        faults: what is going to fail; clear it to heal the medium.
        most_written: how many bytes one write takes; None for all.
    """

    def __init__(self, inner: Calls, root: str = "") -> None:
        super().__init__(inner, root)
        self.faults: list[Fault] = []
        self.most_written: int | None = None
        self._intruders: list[tuple[str, str, Callable[[], object], list[str]]] = []

    def fail(self, verb: str, number: int, *, path: str = "*", nth: int = 1, times: int | None = 1) -> Fault:
        """Let a call fail; see :class:`Fault`."""
        fault = Fault(verb, number, path, nth, times)
        self.faults.append(fault)
        return fault

    def just_before(self, verb: str, path: str, act: Callable[[], object]) -> list[str]:
        """Let another process act just before the next call of that verb on a matching path below the root.

        Returns:
            A list that is empty until it has happened.
        """
        came: list[str] = []
        self._intruders.append((verb, path, act, came))
        return came

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """As in Calls: takes at most `most_written` bytes."""
        return super().write(fd, data if self.most_written is None else data[: self.most_written])

    def _meet(self, verb: str, path: str, detail: str = "") -> None:
        super()._meet(verb, path, detail)
        call = self.log[-1]
        for intruder in [found for found in self._intruders if found[0] == verb and fnmatchcase(call.path, found[1])]:
            self._intruders.remove(intruder)
            intruder[3].append(call.path)
            intruder[2]()
        struck = [fault for fault in self.faults if fault.strikes(call)]
        if struck:
            raise OSError(struck[0].number, os.strerror(struck[0].number), path)


class StepByStep:
    """A :class:`~mq.storage.files.calls.Native` that makes its calls one by one."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def do_steps(self, steps: list[Step], keep: bool, /) -> list[int]:
        """As mq-native does."""
        return [self._result(step, keep) for step in steps]

    def do_steps_telling(self, steps: list[Step], fd: int, every: int, before: int, /) -> list[int]:
        """As mq-native does."""
        results: list[int] = []
        early = EarlyResults(fd)
        for number, step in enumerate(steps, 1):
            results.append(self._result(step, keep=False))
            if min(results) >= 0 and number % every == 0 and number < len(steps):
                early.tell(before + number)
        return results

    def read_files(self, paths: list[str], largest: int, /) -> list[tuple[bytes, bytes, bytes] | int]:
        """As mq-native does."""
        return [self._read(path, largest) for path in paths]

    def read_columns(
        self, folder: str, names: list[bytes | str], base: int, most: int, largest: int, /
    ) -> NativeColumns:
        """As mq-native does."""
        ids: list[str] = []
        bodies: list[bytes] = []
        attributes: dict[int, bytes] = {}
        for name in names:
            leaf = str(MessageId.from_key(int.from_bytes(name))) if isinstance(name, bytes) else name
            found = self._read(f"{folder}/{leaf}", largest)
            if isinstance(found, int):
                break
            body, noted, said = found
            most -= len(body) + len(said)
            if most < 0 or noted != b"%d:%08x" % (len(body), checksum(body)) + (b":a" if said else b""):
                break
            if said:
                attributes[len(ids)] = said
            ids.append(leaf[:36])
            bodies.append(body)
        times = b"".join(MessageId(id).time.to_bytes(8, "little") for id in ids)
        ends = b"".join(end.to_bytes(4, "little") for end in list(accumulate(map(len, bodies), initial=base))[1:])
        return len(ids), times, ends, "".join(ids).encode(), b"".join(bodies), attributes

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
