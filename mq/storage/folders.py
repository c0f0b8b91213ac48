"""The four folders of a root: what is in them, and how it is read. Synchronous; no threads, no waiting.

Changing them is :mod:`mq.storage.batch`'s, repairing them :mod:`mq.storage.recovery`'s. The protocol, and every
state that a crash can leave, is in docs/on-disk.md.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from mq.errors import StorageFull
from mq.lifecycle import State
from mq.message import MessageId, Properties, checksum
from mq.storage import names
from mq.storage.alarm import Alarm
from mq.storage.ballast import Ballast
from mq.storage.barrier import Spare, Syncs, close_all
from mq.storage.calls import OPEN_READ, Calls, FileKind, Native
from mq.storage.costs import Costs
from mq.storage.interface import Entry
from mq.storage.layout import Layout
from mq.storage.mount import Mount
from mq.storage.passing import AWAY, NO_HANDLES
from mq.storage.properties import ATTRIBUTES, SUM, Sum, announced_size, decode_attributes, decode_side

logger = logging.getLogger("mq.storage")

READ_AT_ONCE: Final = 256 * 1024
"""Bodies up to this size, in bytes, are read and checked whole; larger ones are streamed."""
_REMEMBERED_SKIPS: Final = 1000
_REMEMBERED_WRITES: Final = 10_000


class Opened(NamedTuple):
    """A message's file as it was read.

    Attributes:
        properties: what was fixed when it was written.
        data: the bytes, when they are few.
        fd: the open file, when they are many; the caller closes it.
        damage: why the bytes are not those that were published; empty when they are.
    """

    properties: Properties
    data: bytes = b""
    fd: int | None = None
    damage: str = ""


class Folders:
    """The folders of one root.

    Args:
        calls: the system.
        layout: where the folders are.
        mount: the traits of the file system below.
        root_fd: a folder of that file system, opened before anything is written, and kept.
        held: folders among them that are kept open, by their paths.
        clock: measures what syncing costs, in seconds.
        syncfs: whether syncfs(2) exists, reports errors, and brings everything here.
        xattrs: whether the file system has user extended attributes.
        whole: let a name appear in new/ only when its file is complete, because others watch that folder.
        reading: a handle for reading a message, when there is no other.
        stage: where this process's bodies arrive; where not given, where everybody's do.
    """

    def __init__(
        self,
        calls: Calls,
        layout: Layout,
        mount: Mount,
        root_fd: int,
        held: Mapping[str, int] = MappingProxyType({}),
        clock: Callable[[], float] = time.perf_counter,
        *,
        syncfs: bool,
        xattrs: bool,
        whole: bool,
        reading: Spare | None = None,
        stage: str = "",
    ) -> None:
        self.calls = calls
        self.layout = layout
        self.mount = mount
        self.syncs = Syncs(
            calls,
            root_fd,
            Costs(clock),
            syncfs=syncfs,
            ordered=mount.ordered and mount.atomic_rename,
            held=held,
        )
        self.xattrs = xattrs
        self.whole = whole
        self.native = self._native()
        self.reading = reading
        self.stage = stage or layout.stage
        self.ballast = Ballast(calls, layout, mount.size, shared=whole)
        self.alarm = Alarm(calls, layout.alarm)
        self.careful = whole and not mount.ordered
        """Whether every move must be durable: others unlink, and cannot know which names could come back."""
        self.sides = whole or not xattrs
        """Whether a message may have a side file."""
        self.loose: set[str] = set()
        """Folders that names were taken out of since they were last synced."""
        self.written: set[MessageId] = set()
        """Messages in NEW that this process wrote, where others may write, too."""
        self.failure = ""
        """Why nothing more is changed; empty while the medium is well."""
        self._skipped: set[str] = set()

    def _native(self) -> Native | None:
        """What does many calls in one, where a file's name may be there before the file is whole."""
        is_plain = self.xattrs and self.mount.atomic_rename and not self.whole
        is_utf8 = os.fsencode(self.layout.new) == self.layout.new.encode(errors="replace")
        return self.calls.native if is_plain and is_utf8 else None

    @property
    def skipped(self) -> int:
        """How many foreign names have been met, and left alone."""
        return len(self._skipped)

    def note_written(self, id: MessageId) -> None:
        """This process has written a message, and will have synced it before it moves it."""
        if len(self.written) >= _REMEMBERED_WRITES:
            self.written.clear()  # a mover in another process moves them: here they are forgotten, and synced again
        self.written.add(id)

    def fail(self, error: OSError) -> None:
        """The medium failed: what is on it is unknown, so nothing more is changed until it is opened anew."""
        if not self.failure:
            self.failure = f"{error.strerror or error} ({error.filename or 'sync'})"
            logger.error("the medium failed: %s; only reading goes on until a restart", self.failure)
            if self.careful:
                self.alarm.ring()

    def believe(self) -> None:
        """What was synced just now is on the medium.

        Raises:
            PeerFailed: or not: another process has seen the medium fail.
        """
        if self.careful:
            self.alarm.listen()

    def queues(self) -> list[str]:
        """The queues there are: the folders in queues/ whose name is a queue's."""
        found = []
        for name, kind in self.calls.names(self.layout.queues):
            if kind is FileKind.FOLDER and names.is_queue(name):
                found.append(name)
            else:
                self._skip(self.layout.queues, name, "not a queue's folder")
        return found

    def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """Entries in a state, at most `limit`, in no order."""
        found: list[Entry] = []
        for entry in self._entries(state, queue):
            found.append(entry)
            if limit is not None and len(found) >= limit:
                break
        return found

    def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where that message is: NEW, READY, DELAYED in this order."""
        for state in (State.NEW, State.READY, State.DELAYED):
            bare = Entry(queue, id, state)
            if self.calls.kind(self.layout.path(bare)) is FileKind.FILE:
                return bare
            for entry in self._entries(state, queue):
                if entry.id == id:
                    return entry
        return None

    def read(self, entry: Entry) -> Opened | None:
        """Open a message; None when it is not there.

        Raises:
            StorageFull: no file handle is free.
        """
        if self.reading is None:
            return self._read(entry)
        self.reading.keep()
        try:
            return self._read(entry)
        except StorageFull:
            with self.reading.lent():
                return self._read(entry)

    def read_many(self, entries: Sequence[Entry]) -> list[Opened | None]:
        """Open messages; None for each that is not there.

        Raises:
            StorageFull: no file handle is free.
        """
        if self.reading is not None:
            self.reading.keep()
        if self.native is None:
            at_once: Iterable[tuple[bytes, bytes, bytes] | int] = map(self._read_file, entries)
        else:
            at_once = self.native.read_files([self.layout.path(entry) for entry in entries], READ_AT_ONCE)
        opened: list[Opened | None] = []
        try:
            for entry, read in zip(entries, at_once, strict=True):
                opened.append((None if isinstance(read, int) else _whole(*read)) or self.read(entry))
        except StorageFull:
            close_all(self.calls, (each.fd for each in opened if each is not None and each.fd is not None))
            raise
        return opened

    def read_plain(self, entries: Sequence[Entry], largest: int) -> list[Opened | None]:
        """Read messages of at most `largest` bytes in one go; None for each that takes more than that."""
        if self.native is None:
            return [None] * len(entries)
        read = self.native.read_files([self.layout.path(entry) for entry in entries], largest)
        return [None if isinstance(each, int) else _whole(*each) for each in read]

    def flaw(self, entry: Entry) -> str | None:
        """Why a message's file is not whole: "" when it is, None when nothing tells (no checksum, or not to be read).

        Our files carry their checksum before their first byte, so one without a checksum and without bytes is
        a torn one of ours; one with bytes was put there by somebody else.
        """
        opened = self.read(entry)
        if opened is None:
            return "not there"
        if opened.fd is not None:
            try:
                return self._flaw_of_large(opened, opened.fd)
            except OSError:
                return None
            finally:
                self.calls.close(opened.fd)
        if opened.properties.checksum is None:
            return None if opened.properties.size or opened.damage else "without bytes and without a checksum"
        return opened.damage

    def read_chunk(self, fd: int) -> bytes:
        """The next bytes of a large body."""
        return self.calls.read(fd, READ_AT_ONCE)

    def _read_file(self, entry: Entry) -> tuple[bytes, bytes, bytes] | int:
        """As :meth:`Native.read_files` does it; 0 where that is not enough to tell what it is."""
        calls = self.calls
        if not self.xattrs:
            return 0
        try:
            fd = calls.open(self.layout.path(entry), OPEN_READ)
        except OSError:
            return 0
        try:
            noted = calls.get_attribute(fd, SUM)
            size = announced_size(noted)
            if noted is None or size is None or size > READ_AT_ONCE:
                return 0
            attributes = calls.get_attribute(fd, ATTRIBUTES) if noted.endswith(b":a") else None
            return calls.read(fd, size + 1), noted, attributes or b""
        except OSError:
            return 0
        finally:
            calls.close(fd)

    def _read(self, entry: Entry) -> Opened | None:
        try:
            fd = self.calls.open(self.layout.path(entry), OPEN_READ)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                return None
            return _unreadable(error)
        try:
            opened = self._read_open(entry, fd)
        except OSError as error:
            self.calls.close(fd)
            return _unreadable(error)
        if opened is None or opened.fd is None:
            self.calls.close(fd)
        return opened

    def _read_open(self, entry: Entry, fd: int) -> Opened | None:
        size = self.calls.file_size(fd)
        if size is None:
            return None
        expected = self._properties(entry, fd)
        if expected is None:
            expected = Properties(size, None)
        if size != expected.size:
            return Opened(expected, damage=f"{size} bytes instead of {expected.size}")
        if size > READ_AT_ONCE:
            return Opened(expected, fd=fd)
        data = self._read_all(fd, size)
        if len(data) != size or (expected.checksum is not None and checksum(data) != expected.checksum):
            return Opened(expected, damage="its checksum does not match")
        return Opened(expected, data)

    def _properties(self, entry: Entry, fd: int) -> Properties | None:
        noted = Sum.decode(self.calls.get_attribute(fd, SUM)) if self.xattrs else None
        if noted is None:
            return self._side(entry) if self.sides else None
        if not noted.attributes:
            return Properties(noted.size, noted.checksum)
        if noted.attributes == "a":
            attributes = decode_attributes(self.calls.get_attribute(fd, ATTRIBUTES))
            return Properties(noted.size, noted.checksum, attributes)
        return self._side(entry) or Properties(noted.size, noted.checksum)

    def _side(self, entry: Entry) -> Properties | None:
        try:
            fd = self.calls.open(f"{self.layout.properties}/{entry.id}", OPEN_READ)
        except FileNotFoundError:
            return None
        try:
            return decode_side(self._read_all(fd, self.calls.file_size(fd) or 0))
        finally:
            self.calls.close(fd)

    def _read_all(self, fd: int, size: int) -> bytes:
        data = self.calls.read(fd, size)
        while len(data) < size and (more := self.calls.read(fd, size - len(data))):
            data += more
        return data

    def _flaw_of_large(self, opened: Opened, fd: int) -> str | None:
        if opened.properties.checksum is None:
            return None
        found = 0
        while chunk := self.read_chunk(fd):
            found = checksum(chunk, found)
        return "" if found == opened.properties.checksum else "its checksum does not match"

    def _entries(self, state: State, queue: str | None) -> Iterator[Entry]:
        if state is State.READY:
            assert queue is not None, "a scan of READY needs a queue"
        folder = self.layout.folder(state, queue or "")
        try:
            listed = self.calls.names(folder)
        except FileNotFoundError:
            return
        for name, kind in listed:
            if state is State.READY:
                entry = names.parse_leaf(name, queue or "", state)
            else:
                entry = names.parse_flat(name, state)
            if entry is None or not (kind is FileKind.FILE or (kind is FileKind.FOLDER and state is State.REMOVED)):
                self._skip(folder, name, "not a message")
            elif queue is None or entry.queue == queue:
                yield entry

    def _skip(self, folder: str, name: str, why: str) -> None:
        path = f"{folder}/{name}"
        if path not in self._skipped and len(self._skipped) < _REMEMBERED_SKIPS:
            self._skipped.add(path)
            logger.warning("left alone, %s: %s", why, ascii(path))


def _whole(data: bytes, noted: bytes, attributes: bytes) -> Opened | None:
    """A file with its properties beside it; None where it takes more than that to tell what it is."""
    found = checksum(data)
    whole = b"%d:%08x" % (len(data), found)
    if noted == whole:
        return Opened(Properties(len(data), found), data)
    if attributes and noted == whole + b":a":
        return Opened(Properties(len(data), found, decode_attributes(attributes)), data)
    return None


def _unreadable(error: OSError) -> Opened:
    if error.errno in NO_HANDLES | AWAY:
        raise StorageFull(f"cannot open a message now: {error.strerror}. Try again later") from error
    return Opened(Properties(0, None), damage=f"{error.strerror}")
